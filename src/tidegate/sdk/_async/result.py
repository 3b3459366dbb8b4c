"""The answers of SQL statements: rows as lists, dictionaries, Arrow, pandas or Polars."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.errors import RequestInvalid
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.arrow import table_of
from tidegate.sdk.requests import ARROW_STREAM, Request, with_hint
from tidegate.sdk.statements import PATH, SCRIPT_HINT

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Result:
    """The answer of one statement of several; `row_count` is how many rows it returned, or wrote."""

    columns: list[dict[str, str]]
    rows: list[list[Any]]
    row_count: int
    warnings: list[str]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dictionary."""
        names = [column["name"] for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class SqlAnswer(Result):
    """The answer of a call: of several statements the last one's rows, and all in `results`."""

    took_ms: float
    results: list[Result]
    _transport: Transport = field(repr=False)
    _request: Request = field(repr=False)

    async def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table with exact types; asks the server again."""
        if len(self.results) > 1:
            reason = "The answers of several statements do not go into one Arrow table."
            raise with_hint(RequestInvalid(reason=reason, hint=SCRIPT_HINT))
        if not self._request.repeatable:
            reason = "Asking for Arrow would run the statement a second time, and it may write."
            hint = "Use rows or to_dicts(), or sql_arrow() from the start."
            if not self.columns:
                hint = "It gave no rows; row_count says how many it wrote."
            raise with_hint(RequestInvalid(reason=reason, hint=hint))
        return await arrow_rows(self._transport, self._request)

    async def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas frame; asks the server again."""
        table = await self.to_arrow()
        return table.to_pandas()

    async def to_polars(self) -> Any:
        """Return the rows as a Polars frame, where Polars is installed; asks the server again."""
        polars = importlib.import_module("polars")
        table = await self.to_arrow()
        return polars.from_arrow(table)


def answer_of(body: Mapping[str, Any], transport: Transport, request: Request) -> SqlAnswer:
    """Return the answer with this body."""
    last = _result(body)
    results = [_result(result) for result in body.get("results") or ()] or [last]
    return SqlAnswer(
        last.columns, last.rows, last.row_count, last.warnings, body["tookMs"], results, transport, request
    )


def _result(body: Mapping[str, Any]) -> Result:
    return Result(body["columns"], body["rows"], body["rowCount"], body.get("warnings") or [])


async def arrow_rows(transport: Transport, request: Request) -> pa.Table:
    """Run a statement and return its rows as an Arrow table."""
    arrow = Request("POST", PATH, request.content, accept=ARROW_STREAM, repeatable=request.repeatable)
    reply = await transport.send(arrow)
    return table_of(reply.content)
