"""Rows as Arrow, a chunk at a time: only the wanted columns are taken out of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

import pyarrow as pa

from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Value
from tidegate.model.values import to_arrow
from tidegate.query.wanted import Pace

CHUNK_ROWS = 4096  # between two looks at the limits; 2 ms of work


def gather(
    chunks: Iterable[Sequence[Row]],
    columns: Sequence[tuple[str, ColumnType]],
    chosen: Sequence[str],
    pace: Pace,
) -> pa.Table:
    """Give the chosen columns of all rows; `columns` are those of the rows, in order."""
    names = [name for name, _ in columns]
    places = [names.index(name) for name in chosen]
    kinds = [columns[place][1] for place in places]
    schema = pa.schema([(name, kind.to_arrow()) for name, kind in zip(chosen, kinds, strict=True)])
    batches = []
    for rows in chunks:
        taken = _columns_of(rows, places, len(names))
        arrays = [to_arrow(values, kind) for values, kind in zip(taken, kinds, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        pace.step(batch.nbytes)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=schema)


def cut(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Cut many rows into chunks."""
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]


def _columns_of(rows: Sequence[Row], places: Sequence[int], width: int) -> list[Sequence[Value]]:
    # Turning all rows costs less than picking, unless few of many columns are wanted.
    if rows and len(places) * 2 > width:
        turned = list(zip(*rows, strict=True))
        return [turned[place] for place in places]
    return [list(map(itemgetter(place), rows)) for place in places]
