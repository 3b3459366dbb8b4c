"""System tables: what is there, in SQL."""

from __future__ import annotations

import json

import pytest

from tests.query.bench import TTL_SECONDS, Bench, reader
from tidegate.catalog.audit import AuditEvent
from tidegate.catalog.jobs import Job
from tidegate.errors import SqlUnsupported
from tidegate.model.tables import Default, DefaultKind, Table, TableColumn, TableKind
from tidegate.query.scans.system import audit_arrow, columns_arrow, jobs_arrow
from tidegate.testing.clock import START_US


@pytest.fixture
def tables(bench: Bench) -> tuple[Table, Table]:
    rooms = bench.create("app.rooms", TableKind.SHARED, {"id": "INT", "name": "TEXT"}, ["id"])
    rooms = bench.index(rooms, "by_name", ["name"])
    bench.insert(rooms, [(1, "a"), (2, "b")])
    typing = bench.create("chat.typing", TableKind.STREAM, {"room": "TEXT"})
    bench.insert(typing, [("a",)])
    bench.streams.flush_all()
    bench.create("app.secret", TableKind.SHARED, {"id": "INT"}, ["id"], tenant="other")
    return rooms, typing


def test_tables_are_those_of_the_tenant(bench: Bench, tables: tuple[Table, Table]) -> None:
    sql = "SELECT * EXCLUDE (size_bytes) FROM system.tables ORDER BY namespace"
    start = "2026-01-01T00:00:00Z"
    assert bench.rows(sql) == [
        ["app", "rooms", "SHARED", 2, "id", None, None, 2, "by_name (name)", start],
        ["chat", "typing", "STREAM", 1, None, TTL_SECONDS, "buffered", None, None, start],
    ]
    assert bench.rows("SELECT min(size_bytes) > 0 FROM system.tables") == [[True]]
    assert bench.rows("SELECT name FROM system.tables", caller=reader(tenant="other")) == [["secret"]]


def test_columns_namespaces_and_windows(bench: Bench, tables: tuple[Table, Table]) -> None:
    assert bench.rows('SELECT "table", name, type, required, primary_key FROM system.columns') == [
        ["rooms", "id", "INT", True, True],
        ["rooms", "name", "TEXT", False, False],
        ["typing", "room", "TEXT", False, False],
    ]
    assert bench.rows("SELECT * FROM system.namespaces") == [["app", 1], ["chat", 1]]
    (row,) = bench.rows('SELECT "table", "window", start, stop, files, size_bytes > 0 FROM system.streams')
    assert row[0] == "typing"
    assert row[1].startswith("w")
    assert row[2] <= "2026-01-01T00:00:00Z" < row[3]
    assert row[4:] == [1, True]


def test_an_empty_home_has_system_tables_without_rows(bench: Bench) -> None:
    for name in ("tables", "columns", "streams", "namespaces"):
        assert bench.rows(f"SELECT * FROM system.{name}") == []


def test_the_name_system_is_taken_however_it_is_written(bench: Bench, tables: tuple[Table, Table]) -> None:
    for written in ("system.tables", "SYSTEM.Tables", '"system"."tables"', "/* é */ System . tables"):
        assert bench.rows(f"SELECT count(*) FROM {written}") == [[2]]
    text = "SELECT 'system.tables', SYSTEM.tables.name FROM system.tables WHERE tables.kind = 'STREAM'"
    assert bench.rows(text) == [["system.tables", "typing"]]
    with pytest.raises(SqlUnsupported):
        bench.rows("SELECT * FROM (DESCRIBE system.tables)")


def test_defaults_are_written_as_they_were_meant() -> None:
    columns = (
        TableColumn("a", "BIGINT", required=True, default=Default(DefaultKind.SNOWFLAKE_ID)),
        TableColumn("b", "TEXT", default=Default(DefaultKind.VALUE, 'it\'s "x"')),
        TableColumn("c", "TEXT"),
    )
    table = Table(1, "default", "n", "t", TableKind.SHARED, columns, ("a",), START_US)
    assert columns_arrow([table])["default"].to_pylist() == ["SNOWFLAKE_ID()", '"it\'s \\"x\\""', None]


def test_audit_events_and_jobs_are_read_as_tables(bench: Bench) -> None:
    event = AuditEvent(7, START_US, "default", "alice", "drop", "chat.x", "done", "r1", {"rows": 3})
    job = Job(
        "a" * 24,
        "default",
        "pack",
        "lake",
        "done",
        1.0,
        1,
        None,
        "alice",
        START_US,
        None,
        START_US,
        {},
        {},
        {},
    )
    source = bench.source(audit=lambda: audit_arrow([event]), jobs=lambda: jobs_arrow([job]))
    sql = "SELECT \"user\", action, details->>'rows', details FROM system.audit"
    answer = bench.query.run(sql, source=source)
    assert answer.json_rows() == [["alice", "drop", "3", json.dumps({"rows": 3}, separators=(",", ":"))]]
    assert answer.columns[-1]["type"] == "JSON"
    found = bench.query.run("SELECT kind, owner, created, started FROM system.jobs", source=source)
    assert found.json_rows() == [["pack", None, "2026-01-01T00:00:00Z", None]]
    source.close()
