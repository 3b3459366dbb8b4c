"""Keys of routed messages: which partition they go to, and what a route may ask for."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.contract.test_engine import open_engine
from tests.ingest.bench import Bench, build
from tests.tables.bench import column
from tidegate.errors import (
    ColumnNotFound,
    SqlInvalid,
    SqlUnsupported,
    TidegateError,
)
from tidegate.ingest.change_feed import WHERE_CHARS_MAX, check_route
from tidegate.model.tables import Row, Table, TableKind

COLUMNS = (column("id"), column("text", "TEXT"), column("n", "INT"))


def replaced(bench: Bench, table: Table, *edits: tuple[Row, Row | None], user: str = "") -> None:
    assert bench.run(bench.writer.replace(table, user, edits)) == len(edits)


def test_keys_that_change_places_leave_before_they_come(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.insert(table, [(1, "a", 0), (2, "b", 0), (3, "c", 0)])
    bench.route(topic, table, "full")
    replaced(
        bench,
        table,
        ((1, "a", 0), (2, "a", 0)),
        ((2, "b", 0), (1, "b", 0)),
        ((3, "c", 0), (4, "c", 0)),
    )
    assert [(m["op"], m["payload"]["id"], m["payload"]["text"]) for m in bench.messages(topic)] == [
        ("DELETE", 1, "a"),
        ("DELETE", 2, "b"),
        ("DELETE", 3, "c"),
        ("INSERT", 2, "a"),
        ("INSERT", 1, "b"),
        ("INSERT", 4, "c"),
    ]


def test_rows_with_one_partition_key_share_a_partition(bench: Bench) -> None:
    """Case 17."""
    table, topic = bench.table(COLUMNS), bench.topic(partitions=8)
    bench.route(topic, table, by=["TEXT"])
    bench.insert(table, [(number, f"group {number % 5}", number) for number in range(40)])
    homes: dict[str, set[int]] = {}
    for message in bench.messages(topic):
        assert message["key"] == message["payload"]["text"]
        homes.setdefault(message["key"], set()).add(message["partition"])
    assert homes == {key: {zlib.crc32(key.encode()) % 8} for key in homes}
    assert len(homes) == 5
    for partition in range(8):
        found = [message["payload"]["id"] for message in bench.messages(topic, partition)]
        assert found == sorted(found)


def test_several_partition_columns_are_an_array(bench: Bench) -> None:
    columns = [column("id"), column("t", "TEXT"), column("at", "TIMESTAMP"), column("ok", "BOOLEAN")]
    table, topic = bench.table(columns), bench.topic()
    bench.route(topic, table, by=["ok", "t", "at", "id"])
    bench.insert(table, [(7, 'a"b', 1_800_000_000_000_000, True), (8, None, None, None)])
    assert [message["key"] for message in bench.messages(topic)] == [
        '[true,"a\\"b","2027-01-15T08:00:00Z",7]',
        "[null,null,null,8]",
    ]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("BIGINT", -5, "-5"),
        ("TEXT", "null", "null"),
        ("DOUBLE", 1.0, "1.0"),
        ("BOOLEAN", False, "false"),
        ("DATE", 0, "1970-01-01"),
        ("BYTES", b"\0\xff", "AP8="),
        ("UUID", "019d2c3e-7f00-7abc-8def-0123456789ab", "019d2c3e-7f00-7abc-8def-0123456789ab"),
    ],
)
def test_one_partition_column_is_its_json_without_quotes(kind: str, value: object, text: str) -> None:
    bench = build(open_engine("memory", Path()))
    table, topic = bench.table([column("k", kind)], ("k",)), bench.topic()
    bench.route(topic, table, "key")
    bench.insert(table, [(value,)])  # type: ignore[list-item]
    assert [message["key"] for message in bench.messages(topic)] == [text]
    bench.close()


def test_rows_of_users_are_told_apart(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS, kind=TableKind.USER), bench.topic(partitions=4)
    bench.route(topic, table, "key", ops=["insert"])
    bench.route(topic, table, "key", ops=["update"], by=["_USER"])
    for user in ("ada", 'b"b'):
        bench.insert(table, [(1, "a", 0)], user)
        bench.insert(table, [(1, "b", 0)], user, upsert=True)
    found = {(m["op"], m["user"]): (m["key"], m["partition"]) for m in bench.messages(topic)}
    keys_found = {place: key for place, (key, _) in found.items()}
    assert keys_found == {
        ("INSERT", "ada"): '["ada",1]',
        ("UPDATE", "ada"): "ada",
        ("INSERT", 'b"b'): '["b\\"b",1]',
        ("UPDATE", 'b"b'): 'b"b',
    }
    assert all(partition == topic.partition_of(key) for key, partition in found.values())


def test_added_partitions_take_their_share(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table)
    bench.insert(table, [(1, "a", 1)])
    wider = bench.run(lambda staging: bench.topics.stage_change(staging, topic, partitions=4))
    bench.insert(table, [(number, "a", 1) for number in range(2, 40)])
    homes = {message["partition"] for message in bench.messages(wider)}
    assert homes == {0, 1, 2, 3}
    assert all(
        m["partition"] == wider.partition_of(m["key"]) for m in bench.messages(wider)[1:] if m["offset"]
    )


@pytest.mark.parametrize(
    ("where", "by", "payload", "error"),
    [
        ("nothere = 1", [], "key", TidegateError),
        ("n >", [], "key", TidegateError),
        ("", [], "key", SqlInvalid),
        ("n = (SELECT 1)", [], "key", SqlUnsupported),
        ("n = ?", [], "key", TidegateError),
        ("n = 1 ORDER BY n", [], "key", SqlUnsupported),
        (None, ["nothere"], "key", ColumnNotFound),
        (None, ["_user"], "key", ColumnNotFound),
        (None, ["n", "N"], "key", SqlInvalid),
        (None, [], "some", SqlInvalid),
    ],
)
def test_route_that_could_not_work_is_refused(
    where: str | None, by: list[str], payload: str, error: type[TidegateError]
) -> None:
    table = Table(1, "default", "app", "things", TableKind.SHARED, COLUMNS, ("id",), 0)
    with pytest.raises(error):
        check_route(table, where, by, payload)


@pytest.mark.parametrize(
    "where",
    [
        "id IN (SELECT 1)",
        "unheard(id) = 1",
        "id + true > 3",
        "CAST(id AS BLOB) = 'a'",
        "other.id = 3",
        "id = $1",
        "x'00' = 'a'",
        "id = ",
    ],
)
def test_a_where_that_cannot_be_compiled_is_refused_in_the_words_of_a_source(where: str) -> None:
    table = Table(1, "default", "app", "things", TableKind.SHARED, COLUMNS, ("id",), 0)
    with pytest.raises((SqlInvalid, SqlUnsupported)) as caught:
        check_route(table, where, [], "key")
    said = f"{caught.value.message} {caught.value.hint}".lower()
    assert "live quer" not in said
    assert "line 1" not in said, "of a text that nobody wrote"


def test_a_where_with_a_subquery_says_that_a_source_has_none() -> None:
    table = Table(1, "default", "app", "things", TableKind.SHARED, COLUMNS, ("id",), 0)
    with pytest.raises(SqlUnsupported, match=r"^The WHERE of a source has no subqueries"):
        check_route(table, "id IN (SELECT 1)", [], "key")


def test_a_where_is_not_longer_than_its_limit() -> None:
    table = Table(1, "default", "app", "things", TableKind.SHARED, COLUMNS, ("id",), 0)
    longest = "id = 1".ljust(WHERE_CHARS_MAX)
    check_route(table, longest, [], "key")
    with pytest.raises(SqlInvalid, match="has 4,001 characters, and 4,000 is the most"):
        check_route(table, longest + " ", [], "key")


def test_columns_of_partition_by_are_spelled_as_the_table_does() -> None:
    table = Table(1, "default", "app", "things", TableKind.USER, (column("Id"), column("n")), ("Id",), 0)
    assert check_route(table, "ID > 3", ["N", "_User", "iD"], "diff") == ("n", "_user", "Id")


def test_stream_is_refused_as_a_source() -> None:
    table = Table(1, "default", "app", "s", TableKind.STREAM, COLUMNS, (), 0, ttl_seconds=60)
    with pytest.raises(SqlUnsupported, match="its rows are in files"):
        check_route(table, None, [], "full")
