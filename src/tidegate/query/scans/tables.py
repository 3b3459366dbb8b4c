"""Scans of USER and SHARED tables: the access path to the keys that are needed, and their rows as Arrow.

By order of preference: whole primary keys (point reads), leading columns of the primary key, an index whose
leading columns are compared with '=', a range of the first key column, the whole table. Rows become Arrow a
chunk at a time, and only the requested columns are taken out of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import itemgetter
from typing import NamedTuple

import pyarrow as pa

from tidegate.model.names import shorten
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Table, Value
from tidegate.model.values import to_arrow, to_json
from tidegate.query.scans.source import (
    Comparison,
    ScanBudget,
    ScanPlan,
    ScanRequest,
    ScanResult,
    chosen_columns,
)
from tidegate.storage.engine import Reader
from tidegate.tables.access_paths import Access, FullScan, IndexSpan, KeyLookup, KeySpan
from tidegate.tables.store import TableStore

NOTHING = "nothing (the comparisons exclude each other)"
SMALL_ROWS_MAX = 5_000  # a table of so many rows is read in the time that binding the statement takes
POINT_READS_MAX = 4096  # more keys than this are read by range: it costs less than as many lookups


class KeyBounds(NamedTuple):
    """Values of leading columns, and bounds of the next one; None is no bound."""

    prefix: Row
    low: Value = None
    low_in: bool = True
    high: Value = None
    high_in: bool = True

    @property
    def is_bounded(self) -> bool:
        """Whether the column after the prefix has a bound."""
        return self.low is not None or self.high is not None

    @property
    def is_empty(self) -> bool:
        """Whether no value can be between the bounds."""
        if self.low is None or self.high is None:
            return False
        if self.low == self.high:
            return not (self.low_in and self.high_in)
        return self.low > self.high  # type: ignore[operator]


class EngineTable:
    """A table whose rows are in the engine, as one caller sees it; `user` is '' for a SHARED one."""

    def __init__(self, table: Table, user: str, store: TableStore, reader: Reader) -> None:
        self.full_name = table.full_name
        self.kind = str(table.kind)
        self.columns = table.shown_columns
        self._table = table
        self._user = user
        self._store = store
        self._reader = reader
        self._ready = [index for index in table.indexes if index.ready]
        named = {
            name for columns in (table.primary_key, *(i.columns for i in self._ready)) for name in columns
        }
        self.compared = frozenset(named)

    def access(self, request: ScanRequest) -> ScanPlan:
        path, description = self._access_path(request.comparisons)
        columns = chosen_columns(self._table.names, request.columns)
        is_small = isinstance(path, KeyLookup) or self._store.counts(self._table).rows <= SMALL_ROWS_MAX
        return ScanPlan(description, columns, path, is_small)

    def scan(self, plan: ScanPlan, budget: ScanBudget) -> ScanResult:
        chunks = self._store.scan(self._reader, self._table, self._user, plan.access_path, CHUNK_ROWS)
        return ScanResult(gather(chunks, self.columns, plan.columns, budget))

    def _access_path(self, comparisons: Sequence[Comparison]) -> tuple[Access, str]:
        key = self._table.primary_key
        equal = _equal_values(comparisons)
        keys = _whole_keys(key, equal)
        if keys is not None:
            count = "" if len(keys) == 1 else f", {len(keys)} keys"
            return KeyLookup(keys), f"point read ({', '.join(key)}){count}"
        by_key = key_bounds(key, equal, comparisons)
        if by_key.is_empty:
            return KeyLookup(()), NOTHING
        if by_key.prefix:
            return KeySpan(*by_key), f"key range ({self._describe(key, by_key)})"
        indexed = [(index, key_bounds(index.columns, equal, comparisons)) for index in self._ready]
        best = max(indexed, key=lambda pair: (len(pair[1].prefix), pair[1].is_bounded), default=None)
        if best is not None and best[1].prefix:
            index, span = best
            if span.is_empty:
                return KeyLookup(()), NOTHING
            return IndexSpan(index.name, *span), f"index {index.name} ({self._describe(index.columns, span)})"
        if by_key.is_bounded:
            return KeySpan(*by_key), f"key range ({self._describe(key, by_key)})"
        return FullScan(), "whole table"

    def _describe(self, columns: Sequence[str], span: KeyBounds) -> str:
        return format_bounds(dict(self.columns), columns, span)


def format_bounds(kinds: Mapping[str, ColumnType], columns: Sequence[str], span: KeyBounds) -> str:
    """Return the comparisons of a span in words."""
    parts = [
        f"{name} = {format_value(value, kinds[name])}"
        for name, value in zip(columns, span.prefix, strict=False)
    ]
    if span.is_bounded:
        name = columns[len(span.prefix)]
        if span.low is not None:
            parts.append(f"{name} {'≥' if span.low_in else '>'} {format_value(span.low, kinds[name])}")
        if span.high is not None:
            parts.append(f"{name} {'≤' if span.high_in else '<'} {format_value(span.high, kinds[name])}")
    return ", ".join(parts)


def format_value(value: Value, kind: ColumnType) -> str:
    """Return a value as a statement would write it, cut when it is long."""
    shown = to_json(value, kind)
    if isinstance(shown, str) and kind.name != "DECIMAL":
        return f"'{shorten(shown)}'"
    return str(shown).lower() if isinstance(shown, bool) else str(shown)


def key_bounds(
    columns: Sequence[str], equal: Mapping[str, tuple[Value, ...]], comparisons: Sequence[Comparison]
) -> KeyBounds:
    """Return the leading columns that must equal one value each, and the bounds of the column after them."""
    prefix: list[Value] = []
    for name in columns:
        if len(equal.get(name, ())) != 1:
            break
        prefix.append(equal[name][0])
    if len(prefix) == len(columns):
        return KeyBounds(tuple(prefix))
    span = KeyBounds(tuple(prefix))
    for comparison in comparisons:
        if comparison.column == columns[len(prefix)]:
            span = _tighter(span, comparison)
    return span


def _tighter(span: KeyBounds, comparison: Comparison) -> KeyBounds:
    low, high = min(comparison.values), max(comparison.values)  # type: ignore[type-var]
    is_in = comparison.operator in {"=", "<=", ">="}
    if comparison.operator in {"=", ">", ">="} and _is_above(low, is_in, span):
        span = span._replace(low=low, low_in=is_in)
    if comparison.operator in {"=", "<", "<="} and _is_below(high, is_in, span):
        span = span._replace(high=high, high_in=is_in)
    return span


def _is_above(low: Value, is_in: bool, span: KeyBounds) -> bool:
    """Return whether a lower bound leaves less than the one that is there."""
    if span.low is None:
        return True
    return low > span.low or (low == span.low and not is_in)  # type: ignore[operator]


def _is_below(high: Value, is_in: bool, span: KeyBounds) -> bool:
    if span.high is None:
        return True
    return high < span.high or (high == span.high and not is_in)  # type: ignore[operator]


def _equal_values(comparisons: Sequence[Comparison]) -> dict[str, tuple[Value, ...]]:
    """Return the values that a column must be one of, for each column that has such a list: the shortest."""
    found: dict[str, tuple[Value, ...]] = {}
    for comparison in comparisons:
        if comparison.operator != "=":
            continue
        known = found.get(comparison.column)
        if known is None or len(comparison.values) < len(known):
            found[comparison.column] = comparison.values
    return found


def _whole_keys(key: Sequence[str], equal: Mapping[str, tuple[Value, ...]]) -> tuple[Row, ...] | None:
    """Return every whole key that the comparisons allow; None when a column is free, or they are too many."""
    count = 1
    for name in key:
        count *= len(equal.get(name, ()))
    if not 1 <= count <= POINT_READS_MAX:
        return None
    return tuple(product(*(equal[name] for name in key)))


CHUNK_ROWS = 4096  # between two checks of the limits; 2 ms of work


def gather(
    chunks: Iterable[Sequence[Row]],
    columns: Sequence[tuple[str, ColumnType]],
    chosen: Sequence[str],
    budget: ScanBudget,
) -> pa.Table:
    """Return the chosen columns of all rows; `columns` are those of the rows, in order."""
    names = [name for name, _ in columns]
    places = [names.index(name) for name in chosen]
    kinds = [columns[place][1] for place in places]
    schema = pa.schema([(name, kind.to_arrow()) for name, kind in zip(chosen, kinds, strict=True)])
    batches = []
    for rows in chunks:
        taken = _columns_of(rows, places, len(names))
        arrays = [to_arrow(values, kind) for values, kind in zip(taken, kinds, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        budget.charge(batch.nbytes)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=schema)


def cut(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Yield many rows in chunks."""
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


def _columns_of(rows: Sequence[Row], places: Sequence[int], width: int) -> list[Sequence[Value]]:
    # Transposing all rows costs less than picking, unless few of many columns are needed.
    if rows and len(places) * 2 > width:
        turned = list(zip(*rows, strict=True))
        return [turned[place] for place in places]
    return [list(map(itemgetter(place), rows)) for place in places]
