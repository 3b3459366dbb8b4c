"""The build of a new index from the existing rows, a chunk at a time, while writers continue.

Writers maintain the entries of every row that they write from the moment the index is defined, so a chunk
only adds the entries of rows as they are now; to write an existing entry again changes nothing.
"""

from __future__ import annotations

from tidegate.storage.engine import KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import prefix_range
from tidegate.tables.layout import TableLayout

CHUNK_ROWS = 2_000  # other writers wait about ten milliseconds
CHUNK_BYTES = 4 * 1024 * 1024  # rows may be large


def fill_chunk(
    staging: Staging, reader: Reader, layout: TableLayout, index_id: int, after: bytes
) -> bytes | None:
    """Add the entries of the next rows after a key; return the last key, None after the last row."""
    index = next(index for index in layout.indexes if index.id == index_id)
    whole = prefix_range(layout.prefix)
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
            scope_end = _scope_end(layout, key)
            entry = layout.entry(
                index, key[len(layout.prefix) : scope_end], key[scope_end:], layout.row(now, key)
            )
            staging.put(entry, b"")
    return None if is_last else found[-1]


def _scope_end(layout: TableLayout, key: bytes) -> int:
    """Return the byte at which the user ends and the primary key begins."""
    at = len(layout.prefix)
    return key.index(b"\x00", at) + 1 if layout.table.is_scoped else at
