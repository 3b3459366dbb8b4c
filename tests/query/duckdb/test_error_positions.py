"""Errors of DuckDB point at what the caller wrote, or at nothing: never at another place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.query.bench import Bench
from tidegate.errors import SqlInvalid, TidegateError
from tidegate.ingest.row_writer import RowWriter, StreamWriter
from tidegate.model.access import Principal, Role
from tidegate.model.ids import SnowflakeSource, UuidSource
from tidegate.model.tables import Table, TableKind
from tidegate.query.duckdb.error_positions import COMPARED_CHARS_MAX
from tidegate.query.runner import StatementRunner, statement_errors
from tidegate.query.scans.system import table_functions
from tidegate.query.statements.ddl import DdlPlanner
from tidegate.query.statements.dml import WritePlanner
from tidegate.query.statements.row_builder import DefaultSources
from tidegate.query.statements.select import SelectPlanner
from tidegate.query.statements.show import ShowPlanner
from tidegate.query.step import Caller

ADMIN = Caller(Principal("default", "root", frozenset({Role.ADMIN, Role.PANEL}), "t", "default"))
MARK = "▸"


class _NoWatchers:
    def dropped(self, table: Table) -> None: ...

    def altered(self, table: Table) -> None: ...


class Office:
    """Runs texts as the endpoint does, in this thread."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        sources = DefaultSources(bench.clock, SnowflakeSource(bench.clock), UuidSource(bench.clock, bytes))
        tables, store, streams = bench.tables, bench.store, bench.streams
        selecting = SelectPlanner(
            bench.access,
            lambda _tenant: bench.query,
            lambda caller: table_functions(tables, store, streams, caller.tenant),
            sources,
        )
        rows, appends = RowWriter(store), StreamWriter(streams)
        writing = WritePlanner(tables, rows, appends, selecting, bench.committer, sources)
        defining = DdlPlanner(tables, streams, bench.committer, sources, _NoWatchers())
        showing = ShowPlanner(tables, lambda _tenant: [])
        self._runner = StatementRunner(defining, showing, writing, selecting)

    def run(self, text: str, *params: Any) -> None:
        statements = self._runner.parsed(text)
        shares = self._runner.params_of(statements, params)
        for number, (statement, share) in enumerate(zip(statements, shares, strict=True)):
            with statement_errors(text, statements, number):
                step = self._runner.step(statement, share, ADMIN)
                try:
                    if step.change is not None:
                        self._bench.commit(step.change)
                        continue
                except SqlInvalid:
                    if step.work is None:
                        raise
                if step.work is not None:
                    step.work()

    def refusal(self, text: str, *params: Any) -> TidegateError:
        with pytest.raises(TidegateError) as caught:
            self.run(text, *params)
        return caught.value


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    bench = Bench(Path(tmp_path_factory.mktemp("places")))
    columns = {"id": "INT", "text": "TEXT", "at": "TIMESTAMP"}
    table = bench.create("chat.messages", TableKind.SHARED, columns, ["id"])
    bench.create("chat.events", TableKind.STREAM, {"id": "INT"})
    bench.insert(table, [(1, "a", None)])
    yield Office(bench)
    bench.close()


@pytest.mark.parametrize(
    "marked",
    [
        "UPDATE chat.messages SET text = ▸nope WHERE id = 1",
        "UPDATE chat.messages SET text = 'nope', id = upper(text) || ▸nope WHERE id > 0",
        "UPDATE chat.messages SET text = text || '漢', id = id + 1 WHERE ▸nope = 1 AND at IS NULL",
        "DELETE FROM chat.messages WHERE id = 1 ▸ADN text='x'",
        "DELETE FROM chat.messages WHERE at IS NULL AND ▸nope = 'nope'",
        "INSERT INTO chat.messages SELECT ▸nope, 'a', NULL FROM chat.messages",
        "INSERT INTO chat.messages (id, text) VALUES (1 + 1, ▸uper('a'))",
        "INSERT INTO chat.messages (id, text) VALUES (1 + 1, 'uper'), (2 + 2, ▸uper('b'))",
        "EXECUTE AS 'x' (SELECT ▸nope FROM chat.messages)",
        "EXECUTE AS 'nope' (UPDATE chat.messages SET text = ▸nope || 'x' WHERE id > 1)",
        "EXPLAIN SELECT ▸nope FROM chat.messages",
        "EXPLAIN DELETE FROM chat.messages WHERE ▸nope = 1",
        "SELECT at, ▸nope FROM chat.messages",
        "SELECT id, at FROM chat.messages WHERE at IS NULL AND\n  at IS NULL AND ▸nope = 1",
        "SELECT '漢字漢字漢字' AS a, ▸nope",
        "SELECT '漢字 e\u0301 👩\u200d👩' AS a, at, ▸nope FROM chat.messages",
        "SELECT name, ▸nope FROM SYSTEM.tables WHERE system.tables.name = 'system.x'",
        "SELECT at, ▸nope FROM system.tables t, chat.messages",
        "SELECT x._seq FROM (SELECT * FROM chat.events LAST 3) x WHERE ▸nope = 1",
        "SELECT last, at FROM (SELECT id AS last, at FROM chat.messages) WHERE ▸nope = 1",
        "SELECT 1;\n/* nope */ SELECT\r\n\t1 AS a, ▸nope; SELECT 2",
        "SELECT 1; DELETE FROM chat.messages WHERE\n ▸nope > 1",
        "SELECT id FROM chat.messages WHERE id = ▸CAST(text || 'x' AS INT)",
    ],
)
def test_an_error_points_at_the_word_in_the_callers_text(office: Office, marked: str) -> None:
    text = marked.replace(MARK, "")
    place = marked.index(MARK)
    problem = office.refusal(text)
    line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
    assert (problem.values.get("line"), problem.values.get("column")) == (line, column), problem.message
    drawn = problem.message.split("\n")
    assert drawn[-2].startswith(f"LINE {line}: ")
    assert set(drawn[-1]) == {" ", "^"}
    assert "syst$m" not in problem.message


def test_parameters_do_not_move_a_place(office: Office) -> None:
    for text in ("SELECT ?, ?, at, nope FROM chat.messages", "SELECT $2, $1, at, nope FROM chat.messages"):
        assert office.refusal(text, 1, 2).values["column"] == text.index("nope") + 1
    text = "UPDATE chat.messages SET text = ?, id = id + ? WHERE nope > ?"
    assert office.refusal(text, "a", 1, 2).values["column"] == text.index("nope") + 1
    text = "INSERT INTO chat.messages (text, id) VALUES (?, 1 + ?), ('a', nope + ?)"
    assert office.refusal(text, "a", 1, 2).values["column"] == text.index("nope") + 1


@pytest.mark.parametrize(
    "text",
    [
        # The value is converted by a CAST that the caller has not written.
        "UPDATE chat.messages SET id = text || CAST('b' AS TEXT) WHERE id = 1 + 0",
        # Which of the two is meant cannot be told.
        "INSERT INTO chat.messages (id, text) VALUES (1, (nope)), (2, (nope))",
        "SELECT at, '" + "x" * COMPARED_CHARS_MAX + "', nope FROM chat.messages",
    ],
)
def test_no_place_is_named_where_it_is_not_certain(office: Office, text: str) -> None:
    problem = office.refusal(text)
    assert problem.code == "SQL_INVALID"
    assert "line" not in problem.values
    assert "LINE" not in problem.message


def test_a_long_text_that_is_run_as_it_is_has_its_place(office: Office) -> None:
    text = "SELECT '" + "漢" * COMPARED_CHARS_MAX + "', nope FROM chat.messages"
    problem = office.refusal(text)
    assert problem.values["column"] == text.index("nope") + 1
    assert len(problem.message) < 1000


def test_a_mistake_of_the_second_statement_is_told_as_such(office: Office) -> None:
    problem = office.refusal("SELECT 1; UPDATE chat.messages SET text = nope || 'x'")
    assert problem.values["statement"] == 2
    assert "Statement 1 was run" in problem.hint
    assert "DESCRIBE" in problem.hint
