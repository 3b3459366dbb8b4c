"""Tables that feed topics, by statements over real HTTP."""

from __future__ import annotations

import json

from tests.server.sql_client import Client
from tests.server.topic_client import admin, orders, told, topic

__all__ = ["admin", "orders", "topic"]  # fixtures


def test_rows_of_a_table_become_messages(admin: Client, topic: str, orders: str) -> None:
    """Case 16: key, full and diff; WHERE is evaluated on the row."""
    add = f"ALTER TOPIC {topic} ADD SOURCE {orders} ON"
    admin.run(f"{add} INSERT WHERE total >= 10 PARTITION BY (customer) WITH (payload = 'full')")
    admin.run(f"{add} UPDATE WITH (payload = 'diff')")
    admin.run(f"{add} DELETE")
    admin.run(f"INSERT INTO {orders} VALUES (1, 'ann', 10), (2, 'bob', 5)")
    admin.run(f"UPDATE {orders} SET total = 7 WHERE id = 2")
    admin.run(f"DELETE FROM {orders} WHERE id = 1")
    found = told(admin, f"CONSUME FROM {topic}")
    assert [(row["op"], row["payload_mode"], row["key"]) for row in found] == [
        ("INSERT", "full", "ann"),
        ("UPDATE", "diff", "2"),
        ("DELETE", "key", "1"),
    ]
    assert {row["source"] for row in found} == {orders}
    assert [json.loads(row["payload"]) for row in found] == [
        {"id": 1, "customer": "ann", "total": 10.0},
        {"key": {"id": 2}, "changed": {"total": {"old": 5.0, "new": 7.0}}},
        {"id": 1},
    ]
    facts = {row["property"]: row["value"] for row in told(admin, f"DESCRIBE TOPIC {topic}")}
    assert facts["partition 0"].startswith("earliest 0, next 3, ")
    assert facts["schema 1"] == f"{orders} (id INT, customer TEXT, total DOUBLE)"
    sources = [row for row in told(admin, f"DESCRIBE TOPIC {topic}") if row["property"] == f"source {orders}"]
    written = [row["value"] for row in sources]
    assert written[0] == "ON INSERT WHERE total >= 10 PARTITION BY (customer) WITH (payload = 'full')"
    admin.run(f"ALTER TOPIC {topic} DROP SOURCE {orders}")
    for value in written:  # what DESCRIBE shows can be sent again
        admin.run(f"ALTER TOPIC {topic} ADD SOURCE {orders} {value}")
    again = [
        row["value"] for row in told(admin, f"DESCRIBE TOPIC {topic}") if row["property"].startswith("so")
    ]
    assert again == written


def test_sources_that_cannot_be_are_refused(admin: Client, topic: str, orders: str) -> None:
    """Case 14: a source that does not exist, a duplicate source; and cycles of topics."""
    add = f"ALTER TOPIC {topic} ADD SOURCE"
    admin.run(f"{add} {orders} ON INSERT")
    assert admin.refused(f"{add} {orders} ON UPDATE, INSERT")["code"] == "ROUTE_EXISTS"
    # the statement is one write: UPDATE was not added either
    assert admin.refused(f"ALTER TOPIC {topic} DROP SOURCE {orders} ON UPDATE")["code"] == "ROUTE_NOT_FOUND"
    assert admin.refused(f"{add} shop.nowhere ON INSERT")["code"] == "TABLE_NOT_FOUND"
    assert admin.refused(f"{add} nowhere.x ON INSERT")["code"] in ("TABLE_NOT_FOUND", "NAMESPACE_NOT_FOUND")
    assert admin.refused(f"{add} {topic} ON INSERT")["code"] == "ROUTE_CYCLE"
    assert admin.refused(f"{add} lake.readings ON INSERT")["code"] == "SQL_UNSUPPORTED"
    assert admin.refused(f"{add} {orders} ON DELETE WHERE nothing = 1")["code"] in (
        "SQL_INVALID",
        "COLUMN_NOT_FOUND",
    )
    error = admin.refused(f"{add} {orders} ON DELETE PARTITION BY (nothing)")
    assert error["code"] == "COLUMN_NOT_FOUND"
    admin.run("CREATE STREAM TABLE shop.fleeting (n INT) WITH (ttl_seconds = 60)")
    assert admin.refused(f"{add} shop.fleeting ON INSERT")["code"] == "SQL_UNSUPPORTED"
    assert admin.refused(f"ALTER TOPIC nowhere ADD SOURCE {orders} ON INSERT")["code"] == "TOPIC_NOT_FOUND"


def test_a_dropped_table_takes_its_routes_along_and_says_so(admin: Client, topic: str, orders: str) -> None:
    admin.run(f"ALTER TOPIC {topic} ADD SOURCE {orders} ON INSERT, DELETE")
    (warning,) = admin.run(f"DROP TABLE {orders}")["warnings"]
    assert topic in warning
    assert "INSERT, DELETE" in warning
    assert admin.rows(f"SELECT count(*) FROM system.topic_sources WHERE topic = '{topic}'") == [[0]]
    admin.run(f"CREATE SHARED TABLE {orders} (id INT PRIMARY KEY)")
    admin.run(f"INSERT INTO {orders} VALUES (1)")
    assert told(admin, f"CONSUME FROM {topic}") == []
    assert "warnings" not in admin.run(f"DROP TABLE {orders}")


def test_rows_that_a_table_has_already_are_said_not_to_be_sent(admin: Client, topic: str) -> None:
    told(admin, "CREATE NAMESPACE IF NOT EXISTS older")
    told(admin, f"CREATE SHARED TABLE older.{topic.replace('.', '_')} (id BIGINT PRIMARY KEY, v TEXT)")
    table = f"older.{topic.replace('.', '_')}"
    told(admin, f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')")
    route = f"ALTER TOPIC {topic} ADD SOURCE {table} ON UPDATE WITH (payload = 'full')"
    (warning,) = admin.run(route)["warnings"]
    assert "The 2 rows" in warning
    told(admin, f"UPSERT INTO {table} SELECT * FROM {table}")
    payloads = [row["payload"] for row in told(admin, f"CONSUME FROM {topic}")]
    assert payloads == ['{"id":1,"v":"a"}', '{"id":2,"v":"b"}']


def test_a_nack_may_make_a_dead_letter(admin: Client, topic: str) -> None:
    told(admin, f"PUBLISH INTO {topic} VALUES ('1')")
    (message,) = told(admin, f"CONSUME FROM {topic} GROUP 'g'")
    (nacked,) = told(admin, f"NACK {topic} GROUP 'g' LEASES (?) DEAD REASON 'no'", [message["lease"]])
    assert nacked == {"nacked": 1, "dead": 1}
