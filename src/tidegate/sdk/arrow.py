"""Arrow in requests and replies: tables to streams, rows to tables, streams to pages of messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidegate.errors import RequestInvalid, TidegateError
from tidegate.sdk.requests import encoded

if TYPE_CHECKING:
    import pyarrow as pa

# Columns of a consumed table that the server assigns again when it is published again.
SERVER_COLUMNS = frozenset({"offset", "message_id", "ts", "op", "source", "payload_mode", "user"})
SERVER_COLUMNS |= {"lease", "deliveries"}
NEXT_OFFSETS = b"tidegate.nextOffsets"
MISSED = b"tidegate.missed"


@dataclass(frozen=True)
class ArrowPage:
    """Messages as a table, and the next offsets: `consume_arrow({"offsets": page.next_offsets})`.

    `missed` is how many messages of each partition were removed before the group fetched them.
    """

    table: pa.Table
    next_offsets: dict[str, int]
    missed: dict[str, int] = field(default_factory=dict)


def stream_of(table: pa.Table | pa.RecordBatch) -> bytes:
    """Return messages as the bytes of an Arrow stream."""
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        reason = f"{type(table).__name__} is not an Arrow table."
        raise RequestInvalid(reason=reason, hint="Give a pyarrow.Table or RecordBatch.")
    return stream_bytes(table.drop_columns([name for name in table.column_names if name in SERVER_COLUMNS]))


def stream_bytes(table: pa.Table) -> bytes:
    """Return a table as the bytes of an Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def rows_of(rows: object) -> pa.Table:
    """Return rows as an Arrow table: dictionaries, Arrow itself, frames of pandas and of Polars."""
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if type(rows).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        reason = f"{type(rows).__name__} is not a list of rows."
        raise RequestInvalid(reason=reason, hint="Give dictionaries, Arrow, or a frame of pandas or Polars.")
    return _table_of_dicts(list(rows))


def _table_of_dicts(rows: list[Any]) -> pa.Table:
    import pyarrow as pa

    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            reason = f"Row {number} is no dictionary but {type(row).__name__}."
            raise RequestInvalid(reason=reason, hint="Give each row as {column: value}.")
        if row.keys() != rows[0].keys():
            other = ", ".join(sorted(map(str, row.keys() ^ rows[0].keys())))
            reason = f"Row {number} has other columns than row 1: {other}."
            hint = "Give None where there is no value; insert rows whose defaults differ by themselves."
            raise RequestInvalid(reason=reason, hint=hint)
    names = [str(name) for name in rows[0]] if rows else []
    return pa.table({name: _column(name, [row[name] for row in rows]) for name in names})


def _column(name: str, values: list[Any]) -> pa.Array:
    import pyarrow as pa

    kinds = set(map(type, values))
    if kinds & {dict, list, tuple, UUID}:
        values = [_text_of(value) for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as problem:
        reason = f"Column '{name}' has values that do not go together: {problem}."
        raise RequestInvalid(reason=reason, hint="Give values of one type in a column.") from problem


def _text_of(value: Any) -> Any:
    """Return a dictionary or list as JSON, a UUID as its text, and all else as it is."""
    if isinstance(value, dict | list | tuple):
        return encoded(value).decode()
    return str(value) if isinstance(value, UUID) else value


def table_of(content: bytes) -> pa.Table:
    """Return the table of an Arrow stream; TidegateError where the bytes are none."""
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    except (pa.ArrowException, OSError, EOFError) as problem:
        raise TidegateError(reason=f"The server answered what is not Arrow: {content[:80]!r}") from problem


def page_of(content: bytes) -> ArrowPage:
    """Return a page of messages; its offsets are in the metadata of the schema."""
    table = table_of(content)
    metadata = table.schema.metadata or {}
    next_offsets = metadata.get(NEXT_OFFSETS)
    if next_offsets is None:
        raise TidegateError(reason="The server's Arrow answer does not say where to continue.")
    missed = json.loads(metadata.get(MISSED, b"{}"))
    return ArrowPage(table.replace_schema_metadata(None), json.loads(next_offsets), missed)
