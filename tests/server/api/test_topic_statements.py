"""Statements about topics over real HTTP: from CREATE TOPIC to ACK, by several members and tenants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.server.sql_client import Client, person
from tests.server.topic_client import admin, orders, told, topic
from tidegate.testing.server import RunningServer

ARROW = "application/vnd.apache.arrow.stream"
__all__ = ["admin", "orders", "topic"]  # fixtures


def test_a_message_goes_in_and_comes_out_with_everything_about_it(admin: Client, topic: str) -> None:
    placed = told(
        admin, f"PUBLISH INTO {topic} KEY 'k' VALUES ('{{\"a\": 1}}'), ('null'), (5), (?)", [[1, "x"]]
    )
    assert [(row["partition"], row["offset"]) for row in placed] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    found = told(admin, f"CONSUME FROM {topic}")
    assert [row["payload"] for row in found] == ['{"a": 1}', "null", "5", '[1,"x"]']
    assert [row["message_id"] for row in found] == [row["message_id"] for row in placed]
    first = found[0]
    assert list(first) == [
        *("topic", "partition", "offset", "message_id", "lease", "deliveries", "op", "ts", "source", "user"),
        *("payload_mode", "key", "payload"),
    ]
    assert (first["topic"], first["op"], first["payload_mode"], first["key"]) == (
        topic,
        "PUBLISH",
        "full",
        "k",
    )
    assert (first["lease"], first["deliveries"], first["source"], first["user"]) == (None, None, None, None)
    types = {column["name"]: column["type"] for column in admin.run(f"CONSUME FROM {topic}")["columns"]}
    assert (types["ts"], types["payload"], types["offset"]) == ("TIMESTAMP", "JSON", "BIGINT")


def test_a_read_without_a_group_changes_nothing_and_begins_where_it_says(admin: Client, topic: str) -> None:
    """Case 19: without a group a read changes nothing."""
    admin.run(f"PUBLISH INTO {topic} VALUES {', '.join(f'({n})' for n in range(5))}")

    def offsets(rest: str, params: list[Any] | None = None) -> list[int]:
        return [row["offset"] for row in told(admin, f"CONSUME FROM {topic} {rest}", params)]

    assert offsets("") == offsets("") == [0, 1, 2, 3, 4]
    assert offsets("LIMIT 2") == [0, 1]
    assert offsets("FROM OFFSET 3") == offsets("FROM AFTER 2") == offsets("FROM OFFSET ?", [3]) == [3, 4]
    assert offsets("FROM LATEST") == offsets("FROM TIMESTAMP '2999-01-01'") == []
    assert offsets("FROM TIMESTAMP '2020-01-01' LIMIT ?", [1]) == [0]
    assert offsets("PARTITION 0 FROM EARLIEST WAIT '1 s'") == [0, 1, 2, 3, 4]
    assert admin.refused(f"CONSUME FROM {topic} FROM OFFSET 6")["code"] == "OFFSET_OUT_OF_RANGE"
    assert admin.refused(f"CONSUME FROM {topic} PARTITION 1")["code"] == "PARTITION_NOT_FOUND"
    assert told(admin, f"SHOW CONSUMER GROUPS ON {topic}") == []


def test_members_of_a_group_get_different_messages_and_ack_their_own(admin: Client, topic: str) -> None:
    """Case 18: two consumers get different messages; B's ack never drops what A holds."""
    admin.run(f"PUBLISH INTO {topic} VALUES {', '.join(f'({n})' for n in range(6))}")
    take = f"CONSUME FROM {topic} GROUP 'g' MEMBER ? LIMIT 2 LEASE '10 min'"
    a, b = told(admin, take, ["a"]), told(admin, take, ["b"])
    assert [row["offset"] for row in a + b] == [0, 1, 2, 3]
    assert {row["deliveries"] for row in a + b} == {1}
    done = told(admin, f"ACK {topic} GROUP 'g' MEMBER 'b' UPTO OFFSET 3")
    assert done == [{"partition": 0, "acked": 2, "position": 0}]
    done = told(admin, f"ACK {topic} GROUP 'g' MEMBER 'a' LEASES (?)", [[row["lease"] for row in a]])
    assert done == [{"partition": 0, "acked": 2, "position": 4}]
    error = admin.refused(f"ACK {topic} GROUP 'g' MEMBER 'a' LEASES ('{a[0]['lease']}')")
    assert (error["code"], error["details"]["leases"]) == ("LEASE_LOST", [a[0]["lease"]])
    (group,) = told(admin, f"SHOW CONSUMER GROUPS ON {topic}")
    assert (group["group"], group["lag"], group["in_flight"]) == ("g", 2, 0)


def test_a_nack_brings_a_message_again_and_extend_keeps_it(admin: Client, topic: str) -> None:
    admin.run(f"PUBLISH INTO {topic} VALUES ('1'), ('2')")
    first, second = told(admin, f"CONSUME FROM {topic} GROUP 'g'")
    nacked = told(admin, f"NACK {topic} GROUP 'g' LEASES (?) REASON 'not now'", [first["lease"]])
    assert nacked == [{"nacked": 1, "dead": 0}]
    (again,) = told(admin, f"CONSUME FROM {topic} GROUP 'g'")
    assert (again["offset"], again["deliveries"]) == (0, 2)
    (extended,) = told(
        admin, f"EXTEND {topic} GROUP 'g' LEASES (?, ?) LEASE '1 h'", [again["lease"], second["lease"]]
    )
    assert extended["extended"] == 2
    assert extended["expires_at"].endswith("Z")
    assert admin.refused(f"NACK {topic} GROUP 'g' LEASES ('{first['lease']}')")["code"] == "LEASE_LOST"
    later = told(admin, f"NACK {topic} GROUP 'g' LEASES (?) DELAY '1 h'", [again["lease"]])
    assert later == [{"nacked": 1, "dead": 0}]
    assert told(admin, f"CONSUME FROM {topic} GROUP 'g'") == []


def test_acks_that_make_no_sense_are_refused(admin: Client) -> None:
    """Case 19: ack past the end, to a partition that is not there; backwards is a no-op."""
    admin.run("CREATE TOPIC shop.two PARTITIONS 2")
    admin.run(
        "PUBLISH INTO shop.two PARTITION 0 VALUES ('1'), ('2');PUBLISH INTO shop.two PARTITION 1 VALUES ('3')"
    )
    assert admin.refused("ACK shop.two GROUP 'g' PARTITION 0 UPTO OFFSET 0")["code"] == "GROUP_NOT_FOUND"
    assert len(told(admin, "CONSUME FROM shop.two GROUP 'g'")) == 3
    error = admin.refused("ACK shop.two GROUP 'g' UPTO OFFSET 1")
    assert (error["code"], "PARTITION n UPTO OFFSET n" in error["hint"]) == ("SQL_INVALID", True)
    assert admin.refused("ACK shop.two GROUP 'g' PARTITION 2 UPTO OFFSET 0")["code"] == "PARTITION_NOT_FOUND"
    assert admin.refused("ACK shop.two GROUP 'g' PARTITION 0 UPTO OFFSET 2")["code"] == "OFFSET_OUT_OF_RANGE"
    upto = "ACK shop.two GROUP 'g' UPTO (PARTITION 0 OFFSET 1, PARTITION 1 OFFSET 0)"
    assert told(admin, upto) == [
        {"partition": 0, "acked": 2, "position": 2},
        {"partition": 1, "acked": 1, "position": 1},
    ]
    assert [row["acked"] for row in told(admin, upto)] == [0, 0]
    error = admin.refused("CONSUME FROM shop.two FROM OFFSET 1")
    assert (error["code"], "PARTITION n" in error["hint"]) == ("SQL_INVALID", True)


def test_a_group_is_reset_and_dropped(admin: Client, topic: str) -> None:
    admin.run(f"PUBLISH INTO {topic} VALUES ('1'), ('2'), ('3')")
    consume = f"CONSUME FROM {topic} GROUP 'g' FROM LATEST"
    assert told(admin, consume) == []
    for place, position in (("EARLIEST", 0), ("OFFSET 2", 2), ("LATEST", 3), ("TIMESTAMP '2020-01-01'", 0)):
        (row,) = told(admin, f"RESET CONSUMER GROUP 'g' ON {topic} TO {place}")
        assert row == {"partition": 0, "position": position}
    assert len(told(admin, consume)) == 3
    assert admin.refused(f"RESET CONSUMER GROUP 'x' ON {topic} TO LATEST")["code"] == "GROUP_NOT_FOUND"
    admin.run(f"DROP CONSUMER GROUP 'g' ON {topic}")
    assert told(admin, consume) == []
    admin.run(f"DROP CONSUMER GROUP ? ON {topic}", ["g"])
    assert admin.refused(f"DROP CONSUMER GROUP 'g' ON {topic}")["code"] == "GROUP_NOT_FOUND"
    admin.run(f"DROP CONSUMER GROUP IF EXISTS 'g' ON {topic}")


def test_a_topic_is_changed_cleared_and_dropped(admin: Client) -> None:
    """Case 14: offsets are never reused; and what more partitions do to the order of keys is said."""
    admin.run("CREATE TOPIC shop.life PARTITIONS 2 WITH (retention_seconds = 3600)")
    assert admin.refused("CREATE TOPIC shop.life")["code"] == "TOPIC_EXISTS"
    assert "warnings" in admin.run("CREATE TOPIC IF NOT EXISTS shop.life PARTITIONS 9")
    assert "warnings" not in admin.run(
        "CREATE TOPIC IF NOT EXISTS shop.life PARTITIONS 2 WITH (retention_seconds = 3600)"
    )
    (warning,) = admin.run("ALTER TOPIC shop.life ADD PARTITIONS 1")["warnings"]
    assert "3 partitions now" in warning
    assert "already" in admin.run("ALTER TOPIC shop.life SET PARTITIONS 3")["warnings"][0]
    assert admin.refused("ALTER TOPIC shop.life SET PARTITIONS 2")["code"] == "REQUEST_INVALID"
    admin.run("ALTER TOPIC shop.life SET RETENTION (max_bytes = 1000000)")
    (row,) = [row for row in told(admin, "SHOW TOPICS") if row["topic"] == "shop.life"]
    assert (row["partitions"], row["retention_seconds"], row["retention_max_bytes"]) == (3, 3600, 1_000_000)
    admin.run("ALTER TOPIC shop.life SET RETENTION NONE; ALTER TOPIC shop.life SET RETENTION '7 days'")
    (row,) = [row for row in told(admin, "SHOW TOPICS") if row["topic"] == "shop.life"]
    assert (row["retention_seconds"], row["retention_max_bytes"]) == (604_800, None)
    admin.run("PUBLISH INTO shop.life PARTITION 2 VALUES ('1'), ('2')")
    assert told(admin, "CLEAR TOPIC shop.life") == [{"cleared": 2}]
    (placed,) = told(admin, "PUBLISH INTO shop.life PARTITION 2 VALUES ('3')")
    assert placed["offset"] == 2
    admin.run("DROP TOPIC shop.life")
    assert admin.refused("DROP TOPIC shop.life")["code"] == "TOPIC_NOT_FOUND"
    admin.run("DROP TOPIC IF EXISTS shop.life")


def test_what_a_group_missed_is_a_warning(admin: Client, topic: str) -> None:
    """Case 20: a group that was overtaken goes on at the earliest, and says how many it missed."""
    admin.run(f"PUBLISH INTO {topic} VALUES ('1'), ('2'), ('3')")
    assert len(told(admin, f"CONSUME FROM {topic} GROUP 'g' LIMIT 1")) == 1
    admin.run(f"CLEAR TOPIC {topic}; PUBLISH INTO {topic} VALUES ('4')")
    answer = admin.run(f"CONSUME FROM {topic} GROUP 'g'")
    assert [row[2] for row in answer["rows"]] == [3]
    # one of them is still held, and may still be acknowledged
    assert answer["warnings"] == [
        "Partition 0: 2 messages are missed: they were removed before the group read them."
    ]


def test_a_producer_that_sends_again_stores_once(admin: Client, topic: str) -> None:
    text = f"PUBLISH INTO {topic} PRODUCER 'p' SEQUENCE ? VALUES (?), (?)"
    first = told(admin, text, [0, {"n": 1}, {"n": 2}])
    assert told(admin, text, [0, {"n": 1}, {"n": 2}]) == first
    assert len(told(admin, f"CONSUME FROM {topic}")) == 2
    assert admin.refused(text, [5, 1, 2])["code"] == "SEQUENCE_GAP"


def test_messages_come_as_arrow(admin: Client, topic: str) -> None:
    admin.run(f"PUBLISH INTO {topic} VALUES ('1'), ('2')")
    answer = admin.send(f"CONSUME FROM {topic} GROUP 'g'", headers={"Accept": ARROW})
    assert answer.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(answer.content).read_all()
    assert table["payload"].to_pylist() == ["1", "2"]
    assert table["deliveries"].to_pylist() == [1, 1]
    assert None not in table["lease"].to_pylist()


def test_a_tenant_sees_its_own_topics_alone(admin: Client, topic: str, server: RunningServer) -> None:
    """Case 23: a name of another tenant is not found."""
    answer = admin.http.post("/tenants", json={"name": "hermits"})
    assert answer.status_code == 201, answer.text

    def there(sql: str) -> Any:
        return admin.send(sql, headers={"X-Tenant": "hermits"}).json()

    admin.run(f"CONSUME FROM {topic} GROUP 'g'")
    assert there("SHOW TOPICS")["rows"] == []
    for name in ("topics", "topic_groups", "topic_offsets", "topic_sources"):
        assert there(f"SELECT * FROM system.{name}")["rows"] == []
    for sql in (
        f"CONSUME FROM {topic}",
        f"DESCRIBE TOPIC {topic}",
        f"CLEAR TOPIC {topic}",
        f"DROP TOPIC {topic}",
    ):
        assert there(sql)["error"]["code"] == "TOPIC_NOT_FOUND"
    there(f"CREATE TOPIC {topic}")
    assert [row[0] for row in there("SHOW TOPICS")["rows"]] == [topic]


def test_the_member_is_the_user_of_the_token_unless_it_is_named(
    admin: Client, topic: str, server: RunningServer
) -> None:
    admin.run(f"PUBLISH INTO {topic} VALUES ('1'), ('2')")
    reader = person(server, admin, "rita", "reader")
    (held,) = told(reader, f"CONSUME FROM {topic} GROUP 'g' LIMIT 1")
    (group,) = told(admin, f"SHOW CONSUMER GROUPS ON {topic}")
    assert group["members"] == "rita (1)"
    assert told(admin, f"ACK {topic} GROUP 'g' UPTO OFFSET 0")[0]["acked"] == 0
    assert told(reader, f"ACK {topic} GROUP 'g' UPTO OFFSET 0")[0]["acked"] == 1
    assert held["offset"] == 0
    assert reader.refused(f"PUBLISH INTO {topic} VALUES ('3')")["code"] == "FORBIDDEN"
    assert reader.refused(f"RESET CONSUMER GROUP 'g' ON {topic} TO LATEST")["code"] == "FORBIDDEN"


def test_system_tables_show_topics_groups_and_sources(admin: Client, topic: str, orders: str) -> None:
    admin.run(f"ALTER TOPIC {topic} ADD SOURCE {orders} ON INSERT WHERE total > 1 WITH (payload = 'full')")
    admin.run(f"PUBLISH INTO {topic} VALUES ('1'), ('2'), ('3')")
    admin.run(
        f"CONSUME FROM {topic} GROUP 'g' MEMBER 'm' LIMIT 2; ACK {topic} GROUP 'g' MEMBER 'm' UPTO OFFSET 0"
    )
    select: Callable[[str, str], list[list[Any]]] = lambda columns, name: admin.rows(  # noqa: E731
        f"SELECT {columns} FROM system.{name} WHERE topic = ?", [topic]
    )
    assert select("partitions, messages, size_bytes > 0, sources, groups, dead_letters", "topics") == [
        [1, 3, True, 1, 1, 0]
    ]
    assert select('source, op, "where", partition_by, payload, preview', "topic_sources") == [
        [orders, "INSERT", "total > 1", None, "full", 0]
    ]
    assert select('"group", lag, in_flight, waiting, missed, members', "topic_groups") == [
        ["g", 2, 1, 0, 0, 1]
    ]
    assert select("delivered, redelivered, acked, nacked", "topic_groups") == [[2, 0, 1, 0]]
    columns = (
        'partition, start, "end", position, next, lag, in_flight, last_delivered_offset, last_acked_offset'
    )
    assert select(columns, "topic_offsets") == [[0, 0, 3, 1, 2, 2, 1, 1, 0]]
    assert (
        admin.rows("SELECT count(*) FROM system.topic_offsets WHERE last_acked > now() - INTERVAL 1 HOUR")[0][
            0
        ]
        >= 1
    )


@pytest.mark.parametrize(
    "text",
    ["SELECT * FROM {topic}", "INSERT INTO {topic} VALUES (1)", "DELETE FROM {topic}", "DESCRIBE {topic}"],
)
def test_a_topic_that_is_taken_for_a_table_is_told(
    http: httpx.Client, new_topic: Callable[..., str], text: str
) -> None:
    topic = new_topic()
    answer = http.post("/api/v1/sql", json={"sql": text.format(topic=topic)})
    assert answer.status_code == 404, answer.text
    assert f"'{topic}' is a topic: CONSUME FROM {topic} reads it" in answer.json()["error"]["hint"]
