"""Bringing the rows that are there into a new index, a chunk at a time, while writers go on.

Writers keep the entries of every row that they write from the moment the index is defined, so a chunk only
adds the entries of rows as they are now; to write one that is there again changes nothing.
"""

from __future__ import annotations

from tidegate.storage.engine import KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import prefix_range
from tidegate.tables.layout import Shape

CHUNK_ROWS = 2_000  # about ten milliseconds in which other writers wait
CHUNK_BYTES = 4 * 1024 * 1024  # rows may be large


def fill_chunk(staging: Staging, reader: Reader, shape: Shape, index_id: int, after: bytes) -> bytes | None:
    """Add the entries of the rows whose keys come after one; give the last key, or None at the end."""
    index = next(index for index in shape.indexes if index.id == index_id)
    whole = prefix_range(shape.prefix)
    span = KeyRange(max(whole.start, after + b"\x00"), whole.stop)
    found: list[bytes] = []
    size_bytes = 0
    is_last = True
    for key, stored in reader.scan(span):
        if len(found) >= CHUNK_ROWS or size_bytes >= CHUNK_BYTES:
            is_last = False
            break
        found.append(key)
        size_bytes += len(stored)
    # A change before this one in the group may have removed a row that the scan still shows.
    for key, now in zip(found, staging.get_many(found), strict=True):
        if now is not None:
            scope_end = _scope_end(shape, key)
            entry = shape.entry(
                index, key[len(shape.prefix) : scope_end], key[scope_end:], shape.row(now, key)
            )
            staging.put(entry, b"")
    return None if is_last else found[-1]


def _scope_end(shape: Shape, key: bytes) -> int:
    """Return where the user ends and the primary key begins."""
    at = len(shape.prefix)
    return key.index(b"\x00", at) + 1 if shape.table.is_scoped else at
