"""Looking keys up in one segment: the filter first, then RocksDB for those that it lets through."""

from __future__ import annotations

import numpy as np

from tidegate.errors import StorageCorrupt
from tidegate.state.segments.columns import Found, KeyColumn, Longs, decode_times
from tidegate.state.segments.facts import Tallies
from tidegate.state.segments.segment import Segment
from tidegate.state.segments.settings import SegmentSettings

Times = tuple[Longs, Longs, Longs | None]


def look(segment: Segment, keys: KeyColumn, settings: SegmentSettings, tallies: Tallies) -> Times | None:
    """Give all times that a segment has for keys, as (row, time, offset), rows rising; None: none at all."""
    maybe = segment.contains(keys.hashes)
    rows = np.flatnonzero(maybe)
    tallies.filter_probes += len(keys)
    tallies.filter_maybe += len(rows)
    if not len(rows):
        return None
    asked = keys.take(rows)
    order = _order(asked)
    named = asked.take(order).to_list()
    values = segment.get(named)
    tallies.reads += len(named)
    hits = [number for number, value in enumerate(values) if value is not None]
    segment.filter_false += len(named) - len(hits)
    tallies.filter_false += len(named) - len(hits)
    if not hits:
        return None
    found = [value for value in values if value is not None]
    return _times(rows[order[hits]], found, segment, settings)


def within(found: list[Times], from_us: Longs, to_us: Longs, *, with_offsets: bool) -> Found:
    """Join what the segments gave, by row, and leave out times that nobody asked for."""
    nothing = np.empty(0, np.int64)
    if not found:
        return Found(nothing, nothing, nothing if with_offsets else None)
    rows = np.concatenate([one[0] for one in found])
    times_us = np.concatenate([one[1] for one in found])
    kept = np.flatnonzero((times_us >= from_us[rows]) & (times_us <= to_us[rows]))
    kept = kept[np.argsort(rows[kept], kind="stable")]
    if not with_offsets:
        return Found(rows[kept], times_us[kept])
    offsets = np.concatenate([nothing if one[2] is None else one[2] for one in found])
    return Found(rows[kept], times_us[kept], offsets[kept])


def _order(keys: KeyColumn) -> Longs:
    """Give the order in which keys are asked for: about that in which they lie, which is quicker."""
    if isinstance(keys.bytes_, list):
        return np.array(sorted(range(len(keys)), key=keys.bytes_.__getitem__), np.int64)
    heads = np.ascontiguousarray(keys.bytes_[:, :8]).view(">u8").reshape(-1)
    return np.argsort(heads.astype(np.uint64)).astype(np.int64)


def _times(rows: Longs, values: list[bytes], segment: Segment, settings: SegmentSettings) -> Times:
    width = settings.time_bytes
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    if (lengths % width).any() or not lengths.all():
        raise StorageCorrupt(place=str(segment.folder), reason=f"a value is no times of {width} bytes")
    rows = np.repeat(rows, lengths // width)
    stored = np.frombuffer(b"".join(values), np.uint8).reshape(-1, width)
    times_us, offsets = decode_times(stored, with_offsets=settings.with_offsets)
    order = np.argsort(rows, kind="stable")
    return rows[order], times_us[order], None if offsets is None else offsets[order]
