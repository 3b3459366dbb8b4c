"""The planner of INSERT, UPSERT, UPDATE and DELETE.

A write by primary key with plain values is one change of the committer, which reads the row when the change
is staged. Everything else finds its rows with a SELECT first, and then writes only if they are still what
they were; where they are not, it selects again. Expressions that can be compiled are computed on the row as
it is when it is written, so that many writers of one row all succeed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidegate.errors import SqlInvalid, SqlUnsupported, WriteConflict
from tidegate.ingest.row_writer import RowWriter, StreamWriter
from tidegate.model.access import Operation
from tidegate.model.tables import Row, Table, TableKind
from tidegate.query.statements.row_builder import (
    STATEMENT_ROWS_MAX,
    DefaultSources,
    RowBuilder,
    check_column,
    check_required,
)
from tidegate.query.statements.row_edits import Edits
from tidegate.query.statements.select import SelectPlanner, key_of
from tidegate.query.step import Caller, StatementKind, StatementResult, Step, check_params, result_of_count
from tidegate.sql.parser.fragments import renumbered
from tidegate.sql.statements import (
    Cell,
    Delete,
    Fragment,
    Insert,
    Literal,
    Update,
    UseDefault,
    Where,
)
from tidegate.storage.group_commit import GroupCommitter
from tidegate.tables.definitions import TableDirectory

# A statement whose rows keep changing gives up after these; compiled ones succeed before.
ATTEMPTS_MAX = 30
# Row builders that are cached; a service runs a few dozen different statements.
FILLERS_MAX = 1024
TURNS = 64  # tables share them by their ids
TURN_SECONDS_MAX = 0.5


class WritePlanner:
    """Plans statements that write; any thread may ask."""

    def __init__(
        self,
        tables: TableDirectory,
        rows: RowWriter,
        streams: StreamWriter,
        selecting: SelectPlanner,
        committer: GroupCommitter,
        sources: DefaultSources,
    ) -> None:
        self._tables = tables
        self._rows = rows
        self._streams = streams
        self._selecting = selecting
        self._committer = committer
        self._sources = sources
        self._fillers: dict[tuple[int, int, tuple[str, ...] | None], RowBuilder] = {}
        # Statements that select before they write take turns in a table: else they make each other retry.
        self._turns = [threading.Lock() for _ in range(TURNS)]

    def insert(self, statement: Insert, params: Sequence[Any], caller: Caller) -> Step:
        """Plan an INSERT or UPSERT whose rows are in the text or in the parameters."""
        table = self._target(statement.table.namespace, statement.table.name, caller)
        if statement.upsert and not table.primary_key:
            raise SqlUnsupported(
                reason=f"UPSERT needs a primary key, and '{table.full_name}' has none.",
                hint="INSERT adds a row.",
            )
        filler = self._filler(table, statement.columns)
        if statement.rows is not None:
            rows = self._plain_rows(statement, filler, params)
            return self._insert_step(table, rows, caller, upsert=statement.upsert)
        if statement.query is None and statement.fragments is None:
            raise SqlInvalid(
                reason="there are no rows: VALUES or SELECT is missing.",
                hint="Write VALUES (…), or send the rows as an Arrow stream.",
            )
        check_params(statement.parameter_count, params)
        if statement.query is not None:
            self._selecting.check_early(statement.sources, caller)

        def work() -> StatementResult:
            sources = self._sources.of_a_statement()
            if statement.query is not None:
                answer = self._selecting.run(statement.query.sql, params, caller, rows_max=STATEMENT_ROWS_MAX)
                found = filler.from_table(answer.arrow(), sources)
            else:
                found = filler.from_cells(self._evaluated_rows(statement, params, caller), params, sources)
            return self._run(self._insert_step(table, found, caller, upsert=statement.upsert))

        return Step("upsert" if statement.upsert else "insert", work=work, table=table)

    def insert_arrow(self, statement: Insert, rows: Any, caller: Caller) -> Step:
        """Plan an INSERT or UPSERT whose rows are an Arrow table with columns of the table's names."""
        table = self._target(statement.table.namespace, statement.table.name, caller)
        if statement.rows is not None or statement.query is not None or statement.fragments is not None:
            raise SqlInvalid(
                reason="with an Arrow body the statement has no VALUES.", hint="Write INSERT INTO ns.table."
            )
        names = tuple(rows.column_names)
        if statement.columns is not None and set(statement.columns) != set(names):
            reason = f"the statement names {', '.join(statement.columns)}; the stream has {', '.join(names)}."
            raise SqlInvalid(reason=reason[:1000], hint="Leave the names out: columns go by their names.")
        found = self._filler(table, names).from_table(rows, self._sources.of_a_statement())
        return self._insert_step(table, found, caller, upsert=statement.upsert)

    def update(self, statement: Update, params: Sequence[Any], caller: Caller) -> Step:
        """Plan an UPDATE."""
        table = self._target(statement.table.namespace, statement.table.name, caller)
        check_params(statement.parameter_count, params)
        if table.kind == TableKind.STREAM:
            raise SqlUnsupported(
                reason=f"'{table.full_name}' is a STREAM table: its rows are never updated.",
                hint="INSERT a newer row: with a primary key, the newest row of a key is what is read.",
            )
        assigned = _assigned(table, statement.assignments)
        edits = Edits(table, assigned, statement.where, params, self._sources.of_a_statement())
        user, key = caller.owner_of(table), self._key_of(table, statement.where, params)
        is_blind = edits.is_plain and (key is not None or statement.where is None)
        self._check_reads(table, caller, is_blind=is_blind)

        def work() -> StatementResult:
            return result_of_count(self._edit(edits, caller))

        if key is not None and not edits.moves_keys:
            # The WHERE compares only the key; an expression is compiled together with it.
            edit = edits.on_a_row(checks_where=not edits.is_plain)
            if edit is not None:
                change = self._rows.edit_keys(table, user, [key], edit)
                otherwise = None if edits.is_plain else work
                return Step("update", change=change, work=otherwise, table=table)
        return Step("update", work=work, table=table)

    def delete(self, statement: Delete, params: Sequence[Any], caller: Caller) -> Step:
        """Plan a DELETE."""
        table = self._target(statement.table.namespace, statement.table.name, caller)
        check_params(statement.parameter_count, params)
        user = caller.owner_of(table)
        if table.kind == TableKind.STREAM:
            if not table.primary_key:
                raise SqlUnsupported(
                    reason=f"DELETE needs a primary key, and '{table.full_name}' has none.",
                    hint="Its rows go by themselves after their time to live.",
                )
            edits = Edits(table, None, statement.where, params, self._sources.of_a_statement())
            return Step("delete", work=lambda: self._delete_stream(edits, caller), table=table)
        key = self._key_of(table, statement.where, params)
        self._check_reads(table, caller, is_blind=key is not None or statement.where is None)
        if key is not None:
            change = self._rows.delete_keys(table, user, [key], lambda _row: True)
            return Step("delete", change=change, table=table)
        edits = Edits(table, None, statement.where, params, self._sources.of_a_statement())
        return Step("delete", work=lambda: result_of_count(self._edit(edits, caller)), table=table)

    def _target(self, namespace: str, name: str, caller: Caller) -> Table:
        caller.check(Operation.SQL_WRITE)
        if namespace in ("lake", "system"):
            raise SqlUnsupported(
                reason=f"Tables of {namespace} cannot be written by statements.",
                hint="Pipelines write the lake." if namespace == "lake" else "They are read-only.",
            )
        return self._tables.get(caller.tenant, namespace, name)

    def _check_reads(self, table: Table, caller: Caller, *, is_blind: bool) -> None:
        """Require the right to read where a statement depends on rows that are not the caller's own.

        What it changes, how many rows, and its errors would show a writer what it may not read.
        """
        if not is_blind and not table.is_scoped:
            caller.check(Operation.SQL_QUERY)

    def _filler(self, table: Table, names: tuple[str, ...] | None) -> RowBuilder:
        at = (table.id, table.schema_id, names)
        filler = self._fillers.get(at)
        if filler is None or filler.table != table:
            if len(self._fillers) >= FILLERS_MAX:
                self._fillers.clear()
            filler = self._fillers[at] = RowBuilder(table, names)
        return filler

    def _plain_rows(self, statement: Insert, filler: RowBuilder, params: Sequence[Any]) -> list[Row]:
        rows = statement.rows or ()
        many = many_of(params, statement.parameter_count, len(rows))
        if many is None:
            check_params(statement.parameter_count, params)
            return filler.from_cells(rows, params, self._sources.of_a_statement())
        if len(many) > STATEMENT_ROWS_MAX:
            reason = f"{len(many)} rows are more than {STATEMENT_ROWS_MAX}."
            raise SqlInvalid(reason=reason, hint="Send them in several statements.")
        sources = self._sources.of_a_statement()
        return filler.from_many(rows[0], many, statement.parameter_count, sources)

    def _insert_step(self, table: Table, rows: Sequence[Row], caller: Caller, *, upsert: bool) -> Step:
        kind: StatementKind = "upsert" if upsert else "insert"
        user = caller.owner_of(table)
        if table.kind == TableKind.STREAM:
            check_required(table, rows)
            return Step(
                kind,
                work=lambda: result_of_count(self._streams.append(table, user, rows) if rows else 0),
                is_short=True,
                table=table,
            )
        return Step(kind, change=self._rows.insert(table, user, rows, upsert=upsert), table=table)

    def _run(self, step: Step) -> StatementResult:
        if step.change is not None:
            return result_of_count(self._committer.submit(step.change).result())
        return step.work() if step.work is not None else result_of_count(0)

    def _evaluated_rows(
        self, statement: Insert, params: Sequence[Any], caller: Caller
    ) -> list[tuple[Cell, ...]]:
        """Return the rows of a VALUES list, with its expressions computed by DuckDB."""
        fragments = statement.fragments or ()
        cells = [cell for row in fragments for cell in row]
        unknown = [cell for cell in cells if isinstance(cell, Fragment) and cell.simple is None]
        texts, numbers = renumbered(unknown)
        used = [params[number - 1] for number in numbers]
        known = iter(self._selecting.values(texts, used, caller))

        def cell_of(cell: Fragment | UseDefault) -> Cell:
            if isinstance(cell, UseDefault):
                return cell
            return cell.simple if cell.simple is not None else Literal(next(known))

        return [tuple(cell_of(cell) for cell in row) for row in fragments]

    def _key_of(self, table: Table, where: Where | None, params: Sequence[Any]) -> Row | None:
        return key_of(table, where.equals if where is not None else None, params, self._sources)

    def _edit(self, edits: Edits, caller: Caller) -> int:
        """Change or remove the rows that a SELECT finds, as long as they are what it found."""
        table = edits.table
        user, sql = caller.owner_of(table), edits.find_sql()
        with self._turn(table):
            for attempt in range(ATTEMPTS_MAX):
                answer = self._selecting.run(
                    sql, edits.params, caller, rows_max=STATEMENT_ROWS_MAX, written=table
                )
                rows = edits.edited(answer.arrow())
                if not rows:
                    return 0
                count = self._committer.submit(self._rows.replace(table, user, rows)).result()
                if count is None and attempt and not edits.moves_keys:
                    count = self._edit_current_rows(edits, user, rows)
                if count is not None:
                    return count
        raise WriteConflict(table=table.full_name)

    @contextmanager
    def _turn(self, table: Table) -> Iterator[None]:
        """Wait for a turn, but not long: the waiting thread is one that others need."""
        lock = self._turns[table.id % TURNS]
        is_ours = lock.acquire(timeout=TURN_SECONDS_MAX)
        try:
            yield
        finally:
            if is_ours:
                lock.release()

    def _edit_current_rows(self, edits: Edits, user: str, rows: list[tuple[Row, Row | None]]) -> int | None:
        """Compute the statement on each row as it is when it is written; None where that is not possible."""
        table = edits.table
        keys = [tuple(old[position] for position in table.key_positions) for old, _ in rows]
        if edits.removes:
            matches = edits.matches()
            if matches is None:
                return None
            return self._committer.submit(self._rows.delete_keys(table, user, keys, matches)).result()
        edit = edits.on_a_row()
        if edit is None:
            return None
        return self._committer.submit(self._rows.edit_keys(table, user, keys, edit)).result()

    def _delete_stream(self, edits: Edits, caller: Caller) -> StatementResult:
        table = edits.table
        answer = self._selecting.run(
            edits.find_sql(), edits.params, caller, rows_max=STATEMENT_ROWS_MAX, written=table
        )
        rows = [old for old, _ in edits.edited(answer.arrow())]
        return result_of_count(self._streams.delete(table, caller.owner_of(table), rows) if rows else 0)


def many_of(params: Sequence[Any], width: int, rows: int) -> Sequence[Sequence[Any]] | None:
    """Return the rows of parameters where they are arrays; None where they are the values of one run.

    A list of lists is a list of rows. Where that does not fit and there is one list for each parameter, all
    of one length, they are columns.
    """
    if not width or rows != 1 or not params or not all(isinstance(row, (list, tuple)) for row in params):
        return None
    lengths = {len(row) for row in params}
    if lengths == {width} or len(lengths) > 1 or len(params) != width:
        return params
    return list(zip(*params, strict=True))


def _assigned(table: Table, assignments: Sequence[tuple[str, Fragment]]) -> dict[str, Fragment]:
    assigned: dict[str, Fragment] = {}
    for named, fragment in assignments:
        name = check_column(table, named).name
        if name in assigned:
            raise SqlInvalid(reason=f"column '{name}' is set twice.", hint="Set each column once.")
        assigned[name] = fragment
    return assigned
