"""SELECT over USER, SHARED and STREAM tables: whose rows, of which moment, of which types, how many."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.query.bench import Bench, reader
from tidegate.errors import NotReady, RequestInvalid, SqlInvalid, TableNotFound
from tidegate.model.tables import Row, Table, TableColumn, TableKind
from tidegate.query.duckdb.session import QueryLimits
from tidegate.query.scans import tables
from tidegate.testing.clock import START_US

MESSAGES = {"id": "BIGINT", "room": "TEXT", "doc": "JSON", "tag": "UUID", "cost": "DECIMAL(10,2)"}
TAG = "7f0e6f0c-0000-4000-8000-00000000000"


def message(number: int) -> Row:
    from decimal import Decimal

    return number, f"r{number % 2}", f'{{"a": {number}}}', f"{TAG}{number % 10}", Decimal(number).scaleb(-2)


@pytest.fixture
def messages(bench: Bench) -> Table:
    table = bench.create("chat.messages", TableKind.USER, MESSAGES, ["id"])
    bench.insert(table, [message(number) for number in range(1, 6)])
    bench.insert(table, [message(number) for number in range(4, 9)], user="bob")
    return table


def test_rows_of_a_user_table_are_seen_by_their_user_alone(bench: Bench, messages: Table) -> None:
    """Case 9: whatever the way to the rows, they are those of the one who asks."""
    sql = "SELECT id FROM chat.messages {} ORDER BY id"
    for where in ("", "WHERE id > 0", "WHERE id IN (1, 4, 8)", "WHERE room = 'r0'", "WHERE id = 8"):
        numbers = [row[0] for row in bench.rows(sql.format(where))]
        assert set(numbers) <= {1, 2, 3, 4, 5}
        of_bob = [row[0] for row in bench.rows(sql.format(where), caller=reader("bob"))]
        assert set(of_bob) <= {4, 5, 6, 7, 8}
    bench.index(messages, "by_room", ["room"])
    assert bench.rows(sql.format("WHERE room = 'r0'")) == [[2], [4]]
    assert bench.rows(sql.format("WHERE room = 'r0'"), caller=reader("bob")) == [[4], [6], [8]]
    assert bench.rows(sql.format(""), caller=reader("carol")) == []


def test_rows_of_a_shared_table_are_seen_by_all_of_its_tenant(bench: Bench) -> None:
    table = bench.create("app.rooms", TableKind.SHARED, {"name": "TEXT"}, ["name"])
    bench.insert(table, [("kitchen",)])
    assert bench.rows("SELECT * FROM app.rooms", caller=reader("anyone")) == [["kitchen"]]
    with pytest.raises(TableNotFound) as caught:
        bench.rows("SELECT * FROM app.rooms", caller=reader("alice", tenant="other"))
    assert "app.rooms" not in caught.value.hint


def test_a_stream_shows_its_users_rows_with_number_and_time(bench: Bench) -> None:
    """Case 5: one user's rows, by row time."""
    table = bench.create("chat.typing", TableKind.STREAM, {"room": "TEXT"})
    for number in range(4):
        bench.insert(table, [(f"r{number}",)])
        bench.insert(table, [("other",)], user="bob")
        bench.clock.advance(1)
    answer = bench.ask("SELECT * FROM chat.typing ORDER BY _seq")
    assert [column["name"] for column in answer.columns] == ["room", "_seq", "_time"]
    assert [row[0] for row in answer.json_rows()] == ["r0", "r1", "r2", "r3"]
    ranged = "SELECT room FROM chat.typing WHERE _time >= '2026-01-01T00:00:01Z' AND _time < ? ORDER BY _time"
    assert bench.rows(ranged, "2026-01-01T00:00:03Z") == [["r1"], ["r2"]]
    newest = 'SELECT room FROM chat.typing ORDER BY "_time" DESC, "_seq" DESC LIMIT 2'
    assert bench.ask(newest, last=2).json_rows() == [["r3"], ["r2"]]


def test_damage_in_a_stream_is_told_with_the_answer(bench: Bench, tmp_path: Path) -> None:
    """Case 2: the frames after a flipped byte are still read."""
    table = bench.create("chat.typing", TableKind.STREAM, {"room": "TEXT"})
    for number in range(3):
        bench.insert(table, [(f"room {number}",)])
    bench.streams.flush_all()
    (log,) = tmp_path.rglob("alice.log")
    content = bytearray(log.read_bytes())
    content[content.index(b"room 1")] ^= 0xFF
    log.write_bytes(content)
    answer = bench.ask("SELECT room FROM chat.typing ORDER BY _seq")
    assert answer.json_rows() == [["room 0"], ["room 2"]]
    assert len(answer.warnings) == 1
    assert "alice.log" in answer.warnings[0]


def test_tables_streams_lake_and_system_tables_are_joined(bench: Bench, messages: Table) -> None:
    write_deltalake(bench.root / "rooms", pa.table({"room": ["r0", "r1"], "title": ["Zero", "One"]}))
    stream = bench.create("chat.typing", TableKind.STREAM, {"room": "TEXT"})
    bench.insert(stream, [("r1",)])
    sql = """
        SELECT m.id, l.title, s."rows" FROM chat.messages m
        JOIN lake.rooms l USING (room) JOIN chat.typing t USING (room)
        JOIN system.tables s ON s.name = 'messages' WHERE m.id < 4 ORDER BY m.id
    """
    assert bench.rows(sql) == [[1, "One", 10], [3, "One", 10]]


def test_answers_have_the_types_of_their_columns(bench: Bench, messages: Table) -> None:
    for sql in (
        "SELECT * FROM chat.messages",
        "SELECT id, room, doc, tag, cost FROM chat.messages WHERE id = 1",
    ):
        types = [column["type"] for column in bench.ask(sql).columns]
        assert types == ["BIGINT", "TEXT", "JSON", "UUID", "DECIMAL(10,2)"]
    assert bench.rows("SELECT doc, tag, cost FROM chat.messages WHERE id = 3") == [
        ['{"a": 3}', f"{TAG}3", "0.03"]
    ]
    assert bench.ask("SELECT doc || '' FROM chat.messages").columns[0]["type"] == "TEXT"


def test_json_and_uuid_columns_are_worked_with(bench: Bench, messages: Table) -> None:
    assert bench.rows("SELECT doc->>'a' FROM chat.messages WHERE (doc->'a')::INT = 2") == [["2"]]
    assert bench.rows("SELECT json_extract(doc, '$.a') FROM chat.messages WHERE id = 2") == [["2"]]
    for written in (f"{TAG}4", f"{TAG}4".upper()):
        assert bench.rows("SELECT id FROM chat.messages WHERE tag = ?", written) == [[4]]
        assert bench.rows(f"SELECT id FROM chat.messages WHERE tag IN ('{written}')") == [[4]]


def test_names_are_taken_in_any_case(bench: Bench, messages: Table) -> None:
    assert bench.rows('SELECT "ID" FROM Chat."Messages" WHERE Id = 2') == [[2]]


def test_all_tables_of_a_statement_are_of_one_moment(bench: Bench) -> None:
    """Rows that are written after a statement began to read are not in it, in whichever table they are."""
    first = bench.create("app.a", TableKind.SHARED, {"id": "BIGINT"}, ["id"])
    second = bench.create("app.b", TableKind.SHARED, {"id": "BIGINT"}, ["id"])
    bench.insert(first, [(1,)])
    source = bench.source()
    assert source.find("app", "a") is not None
    bench.insert(first, [(2,)])
    bench.insert(second, [(2,)])
    sql = "SELECT (SELECT count(*) FROM app.a), (SELECT count(*) FROM app.b)"
    assert bench.query.run(sql, source=source).json_rows() == [[1, 0]]
    source.close()
    assert bench.rows(sql) == [[2, 1]]


def test_a_column_that_came_later_is_there(bench: Bench, messages: Table) -> None:
    column = TableColumn("seen", "BOOLEAN", missing=False)
    bench.commit(lambda staging: bench.tables.stage_add_column(staging, messages, column))
    assert bench.rows("SELECT DISTINCT seen FROM chat.messages") == [[False]]


def test_an_unknown_table_names_the_nearest(bench: Bench, messages: Table) -> None:
    with pytest.raises(TableNotFound) as caught:
        bench.rows("SELECT * FROM chat.mesages")
    assert caught.value.hint == "Tables: chat.messages."
    for name in ("messages", "nope.messages", "system.nope", "main.messages", "lake.messages"):
        with pytest.raises(TableNotFound) as caught:
            bench.rows(f"SELECT * FROM {name}")
        assert name in caught.value.message


@pytest.mark.parametrize("small_rows_max", [-1, 100])
def test_an_error_knows_all_columns_where_few_are_read(
    bench: Bench, messages: Table, small_rows_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "SMALL_ROWS_MAX", small_rows_max)
    for where in ("", " WHERE id = 1"):
        with pytest.raises(SqlInvalid) as caught:
            bench.rows(f"SELECT id, rom FROM chat.messages{where}")
        assert '"room"' in caught.value.message
        assert (caught.value.values["line"], caught.value.values["column"]) == (1, 12)
    with pytest.raises(SqlInvalid) as caught:
        bench.rows("SELECT nope FROM system.tables")
    assert "FROM system.tables" in caught.value.message
    assert (caught.value.values["line"], caught.value.values["column"]) == (1, 8)


def test_what_cannot_run_is_not_read_for(small: Bench) -> None:
    """A table that would not fit the memory, and a word that is wrong: it is the word that is told."""
    fill_big(small)
    with pytest.raises(SqlInvalid, match="nope"):
        small.rows("SELECT nope, * FROM app.big")


def test_every_table_is_checked_before_anything_is_read(bench: Bench, messages: Table) -> None:
    seen: list[Any] = []

    def refuse(names: frozenset[tuple[str, str]]) -> None:
        seen.append(names)
        raise RequestInvalid(reason="no")

    write_deltalake(bench.root / "t", pa.table({"a": [1]}))
    sql = "SELECT 1 FROM Chat.messages, lake.T WHERE 1 IN (SELECT columns FROM system.tables) AND $1 = nope.x"
    with pytest.raises(RequestInvalid, match="no"):
        bench.ask(sql.replace("nope.x", "1"), 1, check=refuse)
    assert seen == [frozenset({("chat", "messages"), ("lake", "t"), ("system", "tables")})]


def fill_big(small: Bench) -> None:
    table = small.create("app.big", TableKind.SHARED, {"id": "BIGINT", "text": "TEXT"}, ["id"])
    for start in range(0, 20_000, 5_000):
        small.insert(table, [(number, "x" * 1000) for number in range(start, start + 5_000)])


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "small", QueryLimits(memory_mb=16, timeout_seconds=120, rows_max=100))
    yield made
    made.close()


def test_more_rows_than_fit_the_memory_are_refused_with_a_hint(small: Bench) -> None:
    fill_big(small)
    with pytest.raises(SqlInvalid) as caught:
        small.rows("SELECT max(text) FROM app.big")
    assert "query.memory_mb" in caught.value.hint
    assert small.rows("SELECT count(*) FROM app.big") == [[20_000]], "columns that are not used take no room"
    assert small.rows("SELECT length(text) FROM app.big WHERE id = 7") == [[1000]]
    with pytest.raises(RequestInvalid, match="100 rows"):
        small.rows("SELECT id FROM app.big")


def test_a_statement_is_stopped_while_it_gathers_rows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    table = bench.create("app.t", TableKind.SHARED, {"id": "BIGINT"}, ["id"])
    bench.insert(table, [(number,) for number in range(20_000)])
    source = bench.source()
    found = source.find("app", "t")
    assert found is not None
    scan, begun = found.scan, threading.Event()

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(found, name)

        def scan(self, plan: Any, pace: Any) -> Any:
            begun.set()
            while True:
                scan(plan, pace)

    monkeypatch.setattr(source, "find", lambda *_: Slow())

    def stop() -> None:
        begun.wait(60)
        bench.query.interrupt()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(NotReady):
        bench.query.run("SELECT count(*) FROM app.t", source=source)
    stopper.join()
    source.close()


def test_statements_of_many_users_do_not_meet(bench: Bench, messages: Table) -> None:
    wrong: list[Any] = []

    def ask(user: str, expected: list[list[int]]) -> None:
        for _ in range(10):
            found = bench.rows("SELECT min(id), max(id) FROM chat.messages", caller=reader(user))
            if found != expected:
                wrong.append((user, found))

    users = {"alice": [[1, 5]], "bob": [[4, 8]], "carol": [[None, None]]}
    threads = [threading.Thread(target=ask, args=pair) for pair in users.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_rows_in_time_order_of_the_clock_of_the_test(bench: Bench) -> None:
    table = bench.create("chat.typing", TableKind.STREAM, {"room": "TEXT"})
    bench.insert(table, [("r",)])
    assert bench.rows("SELECT epoch_us(_time) FROM chat.typing") == [[START_US]]
