"""Scans of a table's rows by an access path, in a consistent snapshot.

The definition is read from the same snapshot as the rows: columns that were added later are cut off, and an
index that was not ready is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice

from tidegate.errors import IndexNotFound, InvariantBroken, StorageCorrupt, TableChanged
from tidegate.model.names import shorten
from tidegate.model.tables import Row, Table
from tidegate.storage.engine import Engine, KeyRange, Reader
from tidegate.storage.keys import prefix_range
from tidegate.tables import keys
from tidegate.tables.access_paths import Access, FullScan, IndexSpan, KeyLookup, KeySpan
from tidegate.tables.definitions import decode_table
from tidegate.tables.key_codec import TableKeyCodec
from tidegate.tables.layout import IndexLayout, TableLayout

LOOKUP_ROWS = 512  # rows that are read at a time by their keys

_THERE = b"\x01"  # precedes every value in an index, and sorts after NULL


class Scanner:
    """Reads rows of all tables in one engine; for any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._layouts: dict[int, tuple[bytes, TableLayout]] = {}

    def rows(self, reader: Reader, table: Table, user: str, access: Access) -> Iterator[Row]:
        """Yield the rows of a table, cut to the columns of the definition that is passed."""
        if reader is self._engine:
            # Index entries and rows must be of one snapshot.
            with closing(self._engine.snapshot()) as snapshot:
                yield from self._rows(snapshot, table, user, access)
        else:
            yield from self._rows(reader, table, user, access)

    def _rows(self, reader: Reader, table: Table, user: str, access: Access) -> Iterator[Row]:
        then = self._layout_at(reader, table)
        # In rows that are older than the last columns these have their missing values; newer rows are cut.
        layout = then if then.table.schema_id >= table.schema_id else TableLayout(table)
        index = _ready_index(then, access) if isinstance(access, IndexSpan) else None
        pairs = _pairs(reader, layout, index, user, access)
        is_in = (
            _filter(TableLayout(table), access) if isinstance(access, IndexSpan) and index is None else None
        )
        width = len(table.columns)
        cut = len(layout.table.columns) > width
        while page := layout.rows(list(islice(pairs, LOOKUP_ROWS))):
            if is_in is not None:
                page = list(filter(is_in, page))
            yield from (row[:width] for row in page) if cut else page

    def _layout_at(self, reader: Reader, table: Table) -> TableLayout:
        """Return the layout of the table as of the reader's snapshot."""
        key = keys.definition_key(table.id)
        stored = reader.get(key)
        if stored is None:
            self._layouts.pop(table.id, None)
            raise TableChanged(table=table.full_name)
        known = self._layouts.get(table.id)
        if known is None or known[0] != stored:
            known = self._layouts[table.id] = stored, TableLayout(decode_table(key, stored))
        return known[1]


def _pairs(
    reader: Reader, layout: TableLayout, index: IndexLayout | None, user: str, access: Access
) -> Iterator[tuple[bytes, bytes]]:
    scope = layout.scope(user)
    if isinstance(access, KeyLookup):
        return _look_up(reader, layout, user, access)
    if isinstance(access, KeySpan):
        span = span_of(layout.prefix + scope, layout.codec, access, nullable=False)
        return reader.scan(span) if span else iter(())
    if isinstance(access, IndexSpan) and index is not None:
        span = span_of(index.prefix + scope, index.codec, access, nullable=True)
        return _follow_index(reader, layout, index, scope, span) if span else iter(())
    if isinstance(access, FullScan | IndexSpan):
        return reader.scan(prefix_range(layout.prefix + scope))
    raise InvariantBroken(reason=f"{access!r} is no way to rows")


def span_of(
    prefix: bytes, codec: TableKeyCodec, access: KeySpan | IndexSpan, *, nullable: bool
) -> KeyRange | None:
    """Return the range of keys of a span; None where it is empty."""
    if None in access.prefix:
        return None  # nothing equals NULL
    head = prefix + codec.encode(access.prefix)
    whole = prefix_range(head)
    start, stop = whole.start, whole.stop
    if nullable and (access.low is not None or access.high is not None):
        start = head + _THERE
    if access.low is not None:
        low = prefix_range(head + codec.encode_at(len(access.prefix), access.low))
        start = low.start if access.low_in else low.stop
    if access.high is not None:
        high = prefix_range(head + codec.encode_at(len(access.prefix), access.high))
        stop = high.stop if access.high_in else high.start
    return KeyRange(start, stop) if start < stop else None


def _look_up(
    reader: Reader, layout: TableLayout, user: str, access: KeyLookup
) -> Iterator[tuple[bytes, bytes]]:
    row_keys = sorted({layout.row_key(user, key) for key in access.keys if None not in key})
    for at in range(0, len(row_keys), LOOKUP_ROWS):
        page = row_keys[at : at + LOOKUP_ROWS]
        for key, stored in zip(page, reader.get_many(page), strict=True):
            if stored is not None:
                yield key, stored


def _follow_index(
    reader: Reader, layout: TableLayout, index: IndexLayout, scope: bytes, span: KeyRange
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of index entries, in the order of the index."""
    entries = (entry for entry, _ in reader.scan(span))
    start = len(index.prefix) + len(scope)
    head = layout.prefix + scope
    while page := list(islice(entries, LOOKUP_ROWS)):
        row_keys = [head + entry[index.codec.end_of(entry, start) :] for entry in page]
        for key, stored in zip(row_keys, reader.get_many(row_keys), strict=True):
            if stored is None:
                place = f"index '{index.name}' of {layout.table.full_name}, key {key.hex()}"
                raise StorageCorrupt(place=place, reason="it leads to a row that is not there")
            yield key, stored


def _ready_index(layout: TableLayout, access: IndexSpan) -> IndexLayout | None:
    """Return the index where it can be used: it exists, and has every row."""
    ready = {index.id for index in layout.table.indexes if index.name == access.index and index.ready}
    return next((index for index in layout.indexes if index.id in ready), None)


def _filter(layout: TableLayout, access: IndexSpan) -> Callable[[Row], bool]:
    """Return the predicate by which a full scan finds the rows of an index span."""
    index = next((index for index in layout.indexes if index.name == access.index), None)
    if index is None:
        raise IndexNotFound(table=layout.table.full_name, index=shorten(access.index))
    span = span_of(b"\x00", index.codec, access, nullable=True)
    positions, encode = index.positions, index.codec.encode

    def is_in(row: Row) -> bool:
        key = b"\x00" + encode([row[position] for position in positions])
        return span is not None and span.start <= key < span.stop

    return is_in
