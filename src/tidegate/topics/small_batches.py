"""Small Arrow IPC record batches: takes the columns of few messages, gives the encapsulated message.

What Arrow writes for a record batch of a fixed schema differs only in numbers at fixed places: the count, the
nulls of each column, where each buffer lies, and the length of all of them. Putting those into a message that
Arrow wrote once costs a fraction of ten Arrow arrays, and most groups of writes hold few messages. Where
Arrow's message does not look as expected there is no template, and Arrow has to write all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

_NUMBER = struct.Struct("<q")
_PREFIX_BYTES = 8  # a mark, and the length of the metadata
# As many rows as no other number in the metadata is.
_SAMPLE_ROWS = 251


class SmallColumn(NamedTuple):
    """A column as it lies: how many nulls, and its buffers, the bitmap of what is there first."""

    null_count: int
    buffers: tuple[bytes, ...]


def numbers(values: Sequence[int], code: str = "q") -> SmallColumn:
    """Give a column of numbers, none of them null: `q` 64 bits, `i` 32."""
    return SmallColumn(0, (b"", struct.pack(f"<{len(values)}{code}", *values)))


def texts(values: Sequence[bytes | None]) -> SmallColumn:
    """Give a column of texts or bytes."""
    null_count = values.count(None)
    present = b""
    if null_count:
        bits = sum(1 << place for place, value in enumerate(values) if value is not None)
        present = bits.to_bytes((len(values) + 7) // 8, "little")
    end = 0
    ends = [0]
    for value in values:
        end += len(value) if value is not None else 0
        ends.append(end)
    offsets = struct.pack(f"<{len(ends)}i", *ends)
    return SmallColumn(null_count, (present, offsets, b"".join(filter(None, values))))


@lru_cache(maxsize=4096)
def repeated_text(value: str | None, count: int) -> SmallColumn:
    """Give a column that says the same for all messages."""
    return texts([None if value is None else value.encode()] * count)


class Template:
    """A record-batch message of one schema, whose numbers are put in."""

    def __init__(self, head: bytes, places: tuple[int, int, int, int], columns: int, buffers: int) -> None:
        """`places` are those of the count, the body's length, the nodes and the buffers."""
        self._head = head
        self._count_at, self._length_at, self._nodes_at, self._buffers_at = places
        self._nodes = struct.Struct(f"<{2 * columns}q")
        self._buffers = struct.Struct(f"<{2 * buffers}q")

    def message(self, count: int, columns: Sequence[SmallColumn]) -> bytes:
        """Give the encapsulated message of these columns."""
        nodes: list[int] = []
        spans: list[int] = []
        body: list[bytes] = []
        end = 0
        for null_count, buffers in columns:
            nodes += (count, null_count)
            for buffer in buffers:
                size = len(buffer)
                spans += (end, size)
                if size:
                    padding = -size % 8
                    body.append(buffer)
                    if padding:
                        body.append(bytes(padding))
                    end += size + padding
        head = bytearray(self._head)
        _NUMBER.pack_into(head, self._count_at, count)
        _NUMBER.pack_into(head, self._length_at, end)
        self._nodes.pack_into(head, self._nodes_at, *nodes)
        self._buffers.pack_into(head, self._buffers_at, *spans)
        return b"".join((head, *body))


def template_of(schema: pa.Schema) -> Template | None:
    """Find the places of the numbers in what Arrow writes; None where one is not where it is expected."""
    columns = [_sample(field, _SAMPLE_ROWS) for field in schema]
    written = _by_arrow(schema, columns, _SAMPLE_ROWS)
    head_bytes = _PREFIX_BYTES + int.from_bytes(written[4:_PREFIX_BYTES], "little")
    head, body_bytes = written[:head_bytes], len(written) - head_bytes
    nodes = b"".join(struct.pack("<qq", _SAMPLE_ROWS, column.null_count) for column in columns)
    spans, end = b"", 0
    sizes = [len(buffer) for column in columns for buffer in column.buffers]
    for size in sizes:
        spans += struct.pack("<qq", end, size)
        end += size + -size % 8
    # The count stands before the buffers and the nodes, which have it too.
    before_nodes = head[: head.find(nodes)]
    needles = (_NUMBER.pack(_SAMPLE_ROWS), _NUMBER.pack(body_bytes), nodes, spans)
    if [before_nodes.count(needles[0]), *map(head.count, needles[1:])] != [1, 1, 1, 1]:
        return None
    places = (before_nodes.find(needles[0]), *map(head.find, needles[1:]))
    made = Template(head, places, len(columns), len(sizes))  # type: ignore[arg-type]
    few = [_sample(field, 2) for field in schema]
    return made if made.message(2, few) == _by_arrow(schema, few, 2) else None


def _sample(field: pa.Field, count: int) -> SmallColumn:
    if pa.types.is_string(field.type):
        first = [None] if field.nullable else [b"first"]
        return texts([*first, *(b"%d" % number for number in range(1, count))])
    return numbers(range(count), "i" if field.type.bit_width == 32 else "q")


def _by_arrow(schema: pa.Schema, columns: Sequence[SmallColumn], count: int) -> bytes:
    arrays = [
        pa.Array.from_buffers(
            field.type, count, [pa.py_buffer(buffer) if buffer else None for buffer in column.buffers]
        )
        for field, column in zip(schema, columns, strict=True)
    ]
    written: bytes = pa.RecordBatch.from_arrays(arrays, schema=schema).serialize().to_pybytes()
    return written
