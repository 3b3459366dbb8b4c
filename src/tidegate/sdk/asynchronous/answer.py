"""Rows of a statement, in the form that the caller works with."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.errors import RequestInvalid
from tidegate.sdk.arrow import table_of
from tidegate.sdk.asynchronous.transport import Transport
from tidegate.sdk.requests import API, ARROW_STREAM, Request

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Result:
    """What one statement of several answered; `row_count` is how many rows it gave, or wrote."""

    columns: list[dict[str, str]]
    rows: list[list[Any]]
    row_count: int

    def to_dicts(self) -> list[dict[str, Any]]:
        """Give each row as a dictionary."""
        names = [column["name"] for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Answer(Result):
    """What a call answered: of several statements the last one's rows, and all in `results`."""

    took_ms: float
    warnings: list[str]
    results: list[Result]
    _transport: Transport = field(repr=False)
    _request: Request = field(repr=False)

    async def to_arrow(self) -> pa.Table:
        """Give the rows as an Arrow table with exact types; asks the server again."""
        if not self._request.repeatable:
            reason = "Asking for Arrow would run the statement a second time, and it may write."
            raise RequestInvalid(reason=reason, hint="Use rows or to_dicts(), or sql_arrow() from the start.")
        return await arrow_rows(self._transport, self._request)

    async def to_pandas(self) -> pd.DataFrame:
        """Give the rows as a pandas frame; asks the server again."""
        table = await self.to_arrow()
        return table.to_pandas()

    async def to_polars(self) -> Any:
        """Give the rows as a Polars frame, where Polars is installed; asks the server again."""
        polars = importlib.import_module("polars")
        table = await self.to_arrow()
        return polars.from_arrow(table)


def answer_of(said: Mapping[str, Any], transport: Transport, request: Request) -> Answer:
    """Give what a server answered to a call."""
    results = [Result(one["columns"], one["rows"], one["rowCount"]) for one in said.get("results") or ()]
    return Answer(
        said["columns"],
        said["rows"],
        said["rowCount"],
        said["tookMs"],
        said.get("warnings") or [],
        results or [Result(said["columns"], said["rows"], said["rowCount"])],
        transport,
        request,
    )


async def arrow_rows(transport: Transport, request: Request) -> pa.Table:
    """Run a statement and give its rows as an Arrow table."""
    asked = Request("POST", f"{API}/sql", request.content, accept=ARROW_STREAM, repeatable=request.repeatable)
    reply = await transport.send(asked)
    return table_of(reply.content)
