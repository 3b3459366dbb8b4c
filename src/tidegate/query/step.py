"""The plan of one statement, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from tidegate.errors import Forbidden, RequestInvalid, SqlInvalid, TidegateError
from tidegate.model.access import Operation, Principal, check_allowed
from tidegate.model.json_limits import DEPTH_MAX, is_deeper
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Table, TableKind, Value
from tidegate.model.values import json_column, to_arrow
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.topics.definitions import Topic
from tidegate.topics.log.reader import Start

if TYPE_CHECKING:
    import pyarrow as pa

StatementKind = Literal[
    "select", "insert", "upsert", "update", "delete", "ddl", "show", "publish", "consume", "ack"
]
Errors: TypeAlias = type[TidegateError] | tuple[type[TidegateError], ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Caller:
    """The principal of a statement; an administrator may act as another user."""

    principal: Principal
    acting_as: str | None = None

    @property
    def tenant(self) -> str:
        """The tenant whose tables are meant."""
        return self.principal.tenant

    def check(self, operation: Operation) -> None:
        """Raise Forbidden where the caller's roles do not allow an operation."""
        check_allowed(self.principal, operation)

    def may(self, operation: Operation) -> bool:
        """Return whether the caller's roles allow an operation."""
        try:
            self.check(operation)
        except Forbidden:
            return False
        return True

    def owner_of(self, table: Table) -> str:
        """Return the user whose rows of a table are meant; '' for a SHARED table."""
        if table.kind == TableKind.SHARED:
            return ""
        if self.acting_as is not None:
            return self.acting_as
        if self.principal.own_tenant != self.principal.tenant:
            # A user of this tenant may have the same name, and is someone else.
            raise RequestInvalid(
                reason=f"'{self.principal.full_name}' has no rows in the tenant '{self.tenant}'.",
                hint="Say whose rows are meant: EXECUTE AS 'user' (…).",
            )
        return self.principal.user


@dataclass(frozen=True, slots=True)
class StatementResult:
    """The rows of a statement, or how many rows it wrote; `arrow` is None where it has no rows."""

    columns: Sequence[Mapping[str, str]] = ()
    row_count: int = 0
    warnings: Sequence[str] = ()
    json_rows: Callable[[], Sequence[Sequence[Any]]] = tuple
    arrow: Callable[[], pa.Table] | None = None


def result_of_answer(answer: QueryAnswer) -> StatementResult:
    """Return the result of a statement that DuckDB ran."""
    return StatementResult(answer.columns, answer.row_count, answer.warnings, answer.json_rows, answer.arrow)


def result_of_rows(
    columns: Sequence[tuple[str, ColumnType]], rows: Sequence[Row], warnings: Sequence[str] = ()
) -> StatementResult:
    """Return the result of rows that were read without DuckDB."""
    by_column: list[tuple[Value, ...]] = list(zip(*rows, strict=True)) if rows else [()] * len(columns)

    def json_rows() -> Sequence[Sequence[Any]]:
        shown = [json_column(values, kind) for values, (_, kind) in zip(by_column, columns, strict=True)]
        return list(zip(*shown, strict=True))

    def arrow() -> pa.Table:
        import pyarrow as pa

        arrays = [to_arrow(values, kind) for values, (_, kind) in zip(by_column, columns, strict=True)]
        return pa.table(arrays, names=[name for name, _ in columns])

    named = [{"name": name, "type": str(kind)} for name, kind in columns]
    return StatementResult(named, len(rows), warnings, json_rows, arrow)


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """The messages that a CONSUME asks for, and how long it waits for the first; the door waits."""

    topic: Topic
    group: str | None = None
    member: str | None = None
    start: Start = field(default_factory=lambda: Start("earliest"))
    partition: int | None = None
    limit: int | None = None
    wait_ms: int = 0
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A `change` for the committer, which returns how many rows it wrote, or blocking `work`.

    Where there are both, the work is for a change that raises SqlInvalid: an expression that could not be
    computed without DuckDB. `is_short` work reads a few rows or a file; other work may take long. `audit`
    is written into the audit trail. `consume` is used alone: messages that the door reads, waits for and
    returns as rows. `published_bytes` is the size of the messages of a PUBLISH.
    """

    kind: StatementKind
    change: Callable[[Staging], int] | None = None
    work: Callable[[], StatementResult] | None = None
    is_short: bool = False
    audit: tuple[Operation, str] | None = None
    table: Table | None = None
    consume: ConsumeRequest | None = None
    published_bytes: int = 0


def definition_step(
    committer: GroupCommitter,
    change: Callable[[Staging], T],
    audit: tuple[Operation, str],
    then: Callable[[T], StatementResult] | None = None,
    *,
    allowed: Errors = (),
    is_short: bool = False,
) -> Step:
    """Return the step that commits a change of definitions, and then does what follows from it.

    IF [NOT] EXISTS makes an error an allowed one: nothing is changed, and nothing follows.
    """

    def work() -> StatementResult:
        try:
            changed = committer.submit(change).result()
        except allowed:
            return StatementResult()
        return StatementResult() if then is None else then(changed)

    return Step("ddl", work=work, is_short=is_short, audit=audit)


def result_of_count(count: int) -> StatementResult:
    """Return the result of a statement that wrote rows."""
    return StatementResult(row_count=count)


def check_params(count: int, params: Sequence[Any]) -> None:
    """Raise SqlInvalid for more or fewer values than the statement has parameters."""
    if count != len(params):
        raise SqlInvalid(
            reason=f"values for its parameters: {count} wanted, {len(params)} given.",
            hint="Give one value for each ? or $n.",
        )


def check_nesting(params: Sequence[Any]) -> None:
    """Raise SqlInvalid for a parameter that is nested deeper than the JSON of every client."""
    if is_deeper(params, DEPTH_MAX + 1):
        number = next(at for at, value in enumerate(params, start=1) if is_deeper([value], DEPTH_MAX + 1))
        raise SqlInvalid(
            reason=f"parameter ${number} is nested more than {DEPTH_MAX} levels deep.",
            hint="Nest less, or bind it as a text with JSON.",
        )
