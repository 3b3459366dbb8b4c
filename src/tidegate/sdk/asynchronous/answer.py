"""Rows of a statement, in the form that the caller works with."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.sdk.arrow import table_of
from tidegate.sdk.asynchronous.transport import Transport
from tidegate.sdk.requests import API, ARROW_STREAM, Request

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True)
class Answer:
    """Rows of a statement."""

    columns: list[dict[str, str]]
    rows: list[list[Any]]
    took_ms: float
    _transport: Transport = field(repr=False)
    _content: bytes = field(repr=False)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Give each row as a dictionary."""
        names = [column["name"] for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]

    async def to_arrow(self) -> pa.Table:
        """Give the rows as an Arrow table with exact types; asks the server again."""
        return await arrow_rows(self._transport, self._content)

    async def to_pandas(self) -> pd.DataFrame:
        """Give the rows as a pandas frame; asks the server again."""
        table = await self.to_arrow()
        return table.to_pandas()

    async def to_polars(self) -> Any:
        """Give the rows as a Polars frame, where Polars is installed; asks the server again."""
        polars = importlib.import_module("polars")
        table = await self.to_arrow()
        return polars.from_arrow(table)


async def arrow_rows(transport: Transport, content: bytes) -> pa.Table:
    """Run a statement and give its rows as an Arrow table."""
    reply = await transport.send(Request("POST", f"{API}/sql", content, accept=ARROW_STREAM))
    return table_of(reply.content)
