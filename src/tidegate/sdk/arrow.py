"""Arrow in and out of the client: takes tables and bytes, gives bytes and tables, keeps nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import RequestInvalid, TidegateError

if TYPE_CHECKING:
    import pyarrow as pa

# Columns that a consumed table has and that the server gives out anew when it is published again.
COLUMNS_GIVEN_OUT = frozenset({"offset", "message_id", "ts", "op", "source", "payload_mode"})
NEXT_OFFSETS = b"tidegate.nextOffsets"


@dataclass(frozen=True)
class ArrowPage:
    """Messages as a table, and where to go on: `consume_arrow({"offsets": page.next_offsets})`."""

    table: pa.Table
    next_offsets: dict[str, int]


def stream_of(table: pa.Table | pa.RecordBatch) -> bytes:
    """Give messages as the bytes of an Arrow stream."""
    import pyarrow as pa

    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        reason = f"{type(table).__name__} is not an Arrow table."
        raise RequestInvalid(reason=reason, hint="Give a pyarrow.Table or RecordBatch.")
    known = table.drop_columns([name for name in table.column_names if name in COLUMNS_GIVEN_OUT])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, known.schema) as writer:
        writer.write_table(known)
    return bytes(sink.getvalue())


def table_of(content: bytes) -> pa.Table:
    """Read an Arrow stream; what is none is an error of ours."""
    import pyarrow as pa

    try:
        return pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    except (pa.ArrowException, OSError, EOFError) as problem:
        raise TidegateError(reason=f"The server answered what is not Arrow: {content[:80]!r}") from problem


def page_of(content: bytes) -> ArrowPage:
    """Read a page of messages and the offsets that travel in its schema."""
    table = table_of(content)
    following = (table.schema.metadata or {}).get(NEXT_OFFSETS)
    if following is None:
        raise TidegateError(reason="The server's Arrow answer does not say where to go on.")
    return ArrowPage(table.replace_schema_metadata(None), json.loads(following))
