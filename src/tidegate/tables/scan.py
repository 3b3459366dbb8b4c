"""Reading many rows: takes a way to them, gives them one after the other as they were at one moment.

The definition is read at the same moment as the rows: columns that came later are cut off, and an index that
was not ready then is not used.
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
from tidegate.tables.access_paths import Access, IndexSpan, Keys, KeySpan, Whole
from tidegate.tables.definitions import decode_table
from tidegate.tables.key_codec import KeyCodec
from tidegate.tables.layout import IndexShape, Shape

LOOKUP_ROWS = 512  # rows that an index leads to are read so many at a time

_THERE = b"\x01"  # what stands before a value in an index; NULL has less


class Scanner:
    """Reads rows of all tables in one engine; for any thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._shapes: dict[int, tuple[bytes, Shape]] = {}

    def rows(self, reader: Reader, table: Table, user: str, access: Access) -> Iterator[Row]:
        """Yield the rows of a table, cut to the columns that it has."""
        if reader is self._engine:
            # Entries and rows must be of one moment.
            with closing(self._engine.snapshot()) as snapshot:
                yield from self._rows(snapshot, table, user, access)
        else:
            yield from self._rows(reader, table, user, access)

    def _rows(self, reader: Reader, table: Table, user: str, access: Access) -> Iterator[Row]:
        then = self._shape_then(reader, table)
        # Rows older than the last columns read their missing values, rows that are newer are cut.
        shape = then if then.table.schema_id >= table.schema_id else Shape(table)
        index = _ready_index(then, access) if isinstance(access, IndexSpan) else None
        pairs = _pairs(reader, shape, index, user, access)
        is_in = _filter(Shape(table), access) if isinstance(access, IndexSpan) and index is None else None
        width = len(table.columns)
        cut = len(shape.table.columns) > width
        while some := shape.rows(list(islice(pairs, LOOKUP_ROWS))):
            if is_in is not None:
                some = list(filter(is_in, some))
            yield from (row[:width] for row in some) if cut else some

    def _shape_then(self, reader: Reader, table: Table) -> Shape:
        """Return the shape of the table at the reader's moment."""
        key = keys.definition_key(table.id)
        stored = reader.get(key)
        if stored is None:
            self._shapes.pop(table.id, None)
            raise TableChanged(table=table.full_name)
        known = self._shapes.get(table.id)
        if known is None or known[0] != stored:
            known = self._shapes[table.id] = stored, Shape(decode_table(key, stored))
        return known[1]


def _pairs(
    reader: Reader, shape: Shape, index: IndexShape | None, user: str, access: Access
) -> Iterator[tuple[bytes, bytes]]:
    scope = shape.scope(user)
    if isinstance(access, Keys):
        return _looked_up(reader, shape, user, access)
    if isinstance(access, KeySpan):
        span = span_of(shape.prefix + scope, shape.codec, access, nullable=False)
        return reader.scan(span) if span else iter(())
    if isinstance(access, IndexSpan) and index is not None:
        span = span_of(index.prefix + scope, index.codec, access, nullable=True)
        return _followed(reader, shape, index, scope, span) if span else iter(())
    if isinstance(access, Whole | IndexSpan):
        return reader.scan(prefix_range(shape.prefix + scope))
    raise InvariantBroken(reason=f"{access!r} is no way to rows")


def span_of(
    prefix: bytes, codec: KeyCodec, access: KeySpan | IndexSpan, *, nullable: bool
) -> KeyRange | None:
    """Return the keys that a span holds; None where it can hold none."""
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


def _looked_up(reader: Reader, shape: Shape, user: str, access: Keys) -> Iterator[tuple[bytes, bytes]]:
    wanted = sorted({shape.row_key(user, key) for key in access.keys if None not in key})
    for at in range(0, len(wanted), LOOKUP_ROWS):
        some = wanted[at : at + LOOKUP_ROWS]
        for key, stored in zip(some, reader.get_many(some), strict=True):
            if stored is not None:
                yield key, stored


def _followed(
    reader: Reader, shape: Shape, index: IndexShape, scope: bytes, span: KeyRange
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows that the entries of an index lead to, in the order of the index."""
    entries = (entry for entry, _ in reader.scan(span))
    start = len(index.prefix) + len(scope)
    head = shape.prefix + scope
    while some := list(islice(entries, LOOKUP_ROWS)):
        row_keys = [head + entry[index.codec.end_of(entry, start) :] for entry in some]
        for key, stored in zip(row_keys, reader.get_many(row_keys), strict=True):
            if stored is None:
                place = f"index '{index.name}' of {shape.table.full_name}, key {key.hex()}"
                raise StorageCorrupt(place=place, reason="it leads to a row that is not there")
            yield key, stored


def _ready_index(shape: Shape, access: IndexSpan) -> IndexShape | None:
    """Return the index where it can be used: it is there, and every row is in it."""
    ready = {index.id for index in shape.table.indexes if index.name == access.index and index.ready}
    return next((index for index in shape.indexes if index.id in ready), None)


def _filter(shape: Shape, access: IndexSpan) -> Callable[[Row], bool]:
    """Return what says whether an index would have given a row."""
    index = next((index for index in shape.indexes if index.name == access.index), None)
    if index is None:
        raise IndexNotFound(table=shape.table.full_name, index=shorten(access.index))
    span = span_of(b"\x00", index.codec, access, nullable=True)
    positions, encode = index.positions, index.codec.encode

    def is_in(row: Row) -> bool:
        key = b"\x00" + encode([row[place] for place in positions])
        return span is not None and span.start <= key < span.stop

    return is_in
