"""Live queries: a compiled SELECT on one table, and its snapshot as of one change number.

The number is decided where changes are numbered: for a table of the engine on the committer's thread, at the
end of a group commit; for a stream under its lock. Every change before it is in the snapshot, every change
after it has a greater number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from tidegate.errors import SqlInvalid, SqlUnsupported, TableChanged, TableNotFound, TidegateError
from tidegate.model.access import Operation, Principal
from tidegate.model.names import check_row_owner
from tidegate.model.tables import Row, Table, TableKind
from tidegate.query.runner import StatementRunner
from tidegate.query.step import Caller, check_nesting
from tidegate.query.table_access import TableAccess
from tidegate.sql import statements as sql
from tidegate.storage.engine import Snapshot
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.tables.access_paths import FullScan

if TYPE_CHECKING:
    from tidegate.sql.expressions.compile import LiveSelect

# The key of a filter that every row matches.
EVERYTHING = "TRUE"


class SnapshotReader:
    """The rows of a live query as of the change number `seq`, page by page; close it soon.

    A warning names a damaged part of the table whose rows are left out.
    """

    def __init__(
        self, seq: int, pages: Iterator[list[Row]], close: Callable[[], None], warnings: Sequence[str] = ()
    ) -> None:
        self.seq = seq
        self.warnings = warnings
        self._pages = pages
        self._close = close

    def __iter__(self) -> Iterator[list[Row]]:
        """Yield pages of projected rows; blocking."""
        return self._pages

    def close(self) -> None:
        """Release the snapshot; a second call does nothing."""
        self._close()


class LiveQuery:
    """A SELECT that is checked and compiled."""

    def __init__(
        self,
        source: LiveSource,
        table: Table,
        user: str,
        select: LiveSelect,
        acting_as: str | None,
    ) -> None:
        self._source = source
        self.table = table
        self.user = user
        self.select = select
        self.acting_as = acting_as

    def snapshot(self, page_rows: int) -> SnapshotReader:
        """Begin a snapshot: from its moment on the changes of the table are kept. Blocking."""
        return self._source.snapshot(self, page_rows)


class LiveSource:
    """Opens live queries; any thread may ask."""

    def __init__(
        self,
        runner: StatementRunner,
        tables: TableAccess,
        committer: GroupCommitter,
        begin: Callable[[int, int], int],
    ) -> None:
        self._runner = runner
        self._tables = tables
        self._committer = committer
        self._begin = begin

    def open(self, principal: Principal, text: str, params: Sequence[Any] = ()) -> LiveQuery:
        """Check and compile a live query; blocking. SqlUnsupported names what cannot be live."""
        caller = Caller(principal)
        caller.check(Operation.SQL_READ_OWN)
        check_nesting(params)
        statements = self._runner.parsed(text)
        if len(statements) > 1:
            raise SqlInvalid(reason="a subscription is one SELECT.", hint="Subscribe to each by itself.")
        statement = statements[0]
        if isinstance(statement, sql.ExecuteAs):
            caller.check(Operation.SQL_EXECUTE_AS)
            caller = Caller(caller.principal, check_row_owner(statement.user))
            statement = statement.statement
        if not isinstance(statement, sql.Select):
            raise SqlUnsupported(
                reason="A subscription is a SELECT.", hint="SELECT … FROM namespace.table [WHERE …]."
            )
        table = self._table(statement, caller, len(params))
        caller.check(Operation.SQL_READ_OWN if table.is_scoped else Operation.SQL_QUERY)
        from tidegate.sql.expressions.compile import RowColumns, compile_select

        select = compile_select(statement.text, RowColumns(table.shown_columns), params)
        if select.last is not None and table.kind != TableKind.STREAM:
            raise SqlUnsupported(
                reason=f"LAST reads STREAM tables, and '{table.full_name}' is a {table.kind} table.",
                hint="Leave LAST out: a subscription begins with all rows that match.",
            )
        return LiveQuery(self, table, caller.owner_of(table), select, caller.acting_as)

    def snapshot(self, query: LiveQuery, page_rows: int) -> SnapshotReader:
        """Begin the snapshot of a query."""
        if query.table.kind == TableKind.STREAM:
            return self._stream_snapshot(query, page_rows)
        seq, frozen = self._freeze(query.table)
        chunks = self._tables.store.scan(frozen, query.table, query.user, FullScan())
        return SnapshotReader(seq, _pages(query.select, chunks, page_rows), frozen.close)

    def _table(self, statement: sql.Select, caller: Caller, parameter_count: int) -> Table:
        if len(statement.tables) != 1:
            from tidegate.sql.expressions.compile import check_select

            # It names the mistake and its position; the error below is for what it does not see.
            check_select(statement.text, parameter_count)
            raise SqlUnsupported(
                reason="A subscription reads one table.", hint="SELECT … FROM namespace.table [WHERE …]."
            )
        name = statement.tables[0]
        if name.namespace in ("lake", "system"):
            raise SqlUnsupported(
                reason=f"Tables of {name.namespace} cannot be subscribed to.",
                hint="USER, SHARED and STREAM tables can.",
            )
        return self._tables.directory.get(caller.tenant, name.namespace, name.name)

    def _freeze(self, table: Table) -> tuple[int, Snapshot]:
        """Return an engine snapshot and its change number, taken at the end of a group commit."""
        taken: list[tuple[int, Snapshot]] = []
        problems: list[TidegateError] = []

        def take() -> None:
            try:
                now = self._tables.directory.by_id(table.id)
                if now is None:
                    problems.append(TableNotFound(table=table.full_name, hint="It was dropped."))
                    return
                if now.schema_id != table.schema_id:
                    # The query was compiled for the old columns: the subscriber opens it again.
                    problems.append(TableChanged(table=table.full_name))
                    return
                taken.append((self._begin(table.id, table.schema_id), self._tables.engine.snapshot()))
            except TidegateError as problem:
                # The writes of others in this group are durable: they must not be reported as failed.
                problems.append(problem)

        def stage(staging: Staging) -> None:
            staging.close_group()
            staging.when_durable(take)

        self._committer.submit(stage).result()
        if problems:
            raise problems[0]
        return taken[0]

    def _stream_snapshot(self, query: LiveQuery, page_rows: int) -> SnapshotReader:
        seqs: list[int] = []
        select, last = query.select, query.select.last
        alone = last if select.filter_key == EVERYTHING else None
        table = query.table

        def barrier() -> None:
            seqs.append(self._begin(table.id, table.schema_id))

        read = self._tables.streams.read(table, query.user, last=alone, barrier=barrier)
        now = self._tables.directory.by_id(table.id)
        if now is None:
            # Dropped before its changes were kept: no later event would end this subscription.
            raise TableNotFound(table=table.full_name, known="", hint="It was dropped.")
        if now.schema_id != table.schema_id:
            raise TableChanged(table=table.full_name)
        rows = [row for row in read.rows if select.matches(row)]
        if last is not None and alone is None:
            rows = rows[::-1][:last]
        pages = _pages(select, iter([rows]), page_rows, filtered=True)
        return SnapshotReader(seqs[0], pages, lambda: None, read.warnings)


def _pages(
    select: LiveSelect, chunks: Iterator[list[Row]], page_rows: int, *, filtered: bool = False
) -> Iterator[list[Row]]:
    """Yield the projected rows that match in pages of one size; the last one may be short."""
    rows = chain.from_iterable(chunks)
    page: list[Row] = []
    for row in rows:
        if filtered or select.matches(row):
            page.append(select.project(row))
            if len(page) >= page_rows:
                yield page
                page = []
    if page:
        yield page
