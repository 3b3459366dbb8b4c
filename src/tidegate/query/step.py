"""Steps: what running one statement takes, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tidegate.errors import RequestInvalid, SqlInvalid
from tidegate.model.access import Operation, Principal, check_allowed
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Table, TableKind, Value
from tidegate.model.values import json_column, to_arrow
from tidegate.query.duckdb.result import QueryAnswer
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic
from tidegate.topics.log.reader import Start

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["select", "insert", "upsert", "update", "delete", "ddl", "show", "publish", "consume", "ack"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who runs a statement, and as whom: an administrator may act as another user."""

    principal: Principal
    acting_as: str | None = None

    @property
    def tenant(self) -> str:
        """The tenant whose tables are meant."""
        return self.principal.tenant

    def check(self, operation: Operation) -> None:
        """Refuse what the caller's roles do not allow."""
        check_allowed(self.principal, operation)

    def owner_of(self, table: Table) -> str:
        """Return whose rows of a table are meant: '' where rows belong to nobody."""
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
class Outcome:
    """What a statement gave: rows, or how many rows it wrote. `arrow` is there where it gave rows."""

    columns: Sequence[Mapping[str, str]] = ()
    row_count: int = 0
    warnings: Sequence[str] = ()
    json_rows: Callable[[], Sequence[Sequence[Any]]] = tuple
    arrow: Callable[[], pa.Table] | None = None


def answered(answer: QueryAnswer) -> Outcome:
    """Return the outcome of what DuckDB answered."""
    return Outcome(answer.columns, answer.row_count, answer.warnings, answer.json_rows, answer.arrow)


def found(
    columns: Sequence[tuple[str, ColumnType]], rows: Sequence[Row], warnings: Sequence[str] = ()
) -> Outcome:
    """Return the outcome of rows that were read without DuckDB."""
    by_column: list[tuple[Value, ...]] = list(zip(*rows, strict=True)) if rows else [()] * len(columns)

    def json_rows() -> Sequence[Sequence[Any]]:
        shown = [json_column(values, kind) for values, (_, kind) in zip(by_column, columns, strict=True)]
        return list(zip(*shown, strict=True))

    def arrow() -> pa.Table:
        import pyarrow as pa

        arrays = [to_arrow(values, kind) for values, (_, kind) in zip(by_column, columns, strict=True)]
        return pa.table(arrays, names=[name for name, _ in columns])

    named = [{"name": name, "type": str(kind)} for name, kind in columns]
    return Outcome(named, len(rows), warnings, json_rows, arrow)


@dataclass(frozen=True, slots=True)
class ConsumeAsk:
    """Messages that a statement wants, and how long it waits for the first; the door does the waiting."""

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
    """A `change` for the committer, which gives how many rows it wrote, or blocking `work`.

    Where both are there, the work is for a change that is refused with SqlInvalid: an expression that could
    not be worked out without DuckDB. `is_short` work reads a few rows or a file; other work may take long.
    What `audit` names is written into the audit trail around it. `consume` stands alone: messages that the
    door gets, waits for and gives as rows.
    """

    kind: Kind
    change: Callable[[Staging], int] | None = None
    work: Callable[[], Outcome] | None = None
    is_short: bool = False
    audit: tuple[Operation, str] | None = None
    table: Table | None = None
    consume: ConsumeAsk | None = None


def wrote(count: int) -> Outcome:
    """Return the outcome of a statement that wrote rows."""
    return Outcome(row_count=count)


def check_params(wanted: int, params: Sequence[Any]) -> None:
    """Refuse more or fewer values than the statement has parameters."""
    if wanted != len(params):
        raise SqlInvalid(
            reason=f"values for its parameters: {wanted} wanted, {len(params)} given.",
            hint="Give one value for each ? or $n.",
        )
