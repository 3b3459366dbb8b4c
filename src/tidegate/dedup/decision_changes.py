"""The changes of a decision: the entries of the accepted rows in each segment.

Usually an entry holds the one time that is stored. Where the interval is longer than the retention, a key may
have several times in one segment: its entry is rewritten with the times that still count, the new ones last.
The last old time is repeated before the new ones, so that the entry alone says what this batch added.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tidegate.checkpoint.backend import PackedEntries, StateChanges
from tidegate.checkpoint.keys.layout import segment_prefix
from tidegate.dedup.columns import GROUP_BYTES, Longs, SegmentKeys, StoredTimes, decode_times, encode_times
from tidegate.dedup.settings import SegmentRule
from tidegate.errors import StorageCorrupt

# Rows of up to so many segments are selected segment by segment; rows of more are sorted by segment.
PICKED_SEGMENTS_MAX = 4

_Stamp = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class AcceptedRows:
    """The rows to be stored, in the order of their keys; columns are those of the whole batch."""

    keys: SegmentKeys
    times_us: Longs
    offsets: Longs | None
    rows: Longs


def changes_of(
    accepted: AcceptedRows, found: StoredTimes, rule: SegmentRule, counts_from_us: int | None
) -> StateChanges:
    """Return the changes that store the accepted rows; `found` are the stored times of the batch's keys."""
    changes = StateChanges()
    rows = accepted.rows
    if not len(rows):
        return changes
    segments = rule.segments_of(accepted.times_us[rows])
    if rule.holds_several:
        is_plain = _put_several(changes, accepted, segments, _Stored(found, rule, counts_from_us))
        rows, segments = rows[is_plain], segments[is_plain]
    for segment, places in _by_segment(segments):
        _put_plain(changes, segment, accepted, rows[places])
    changes.packed.sort(key=lambda entries: entries.segment)
    return changes


def _by_segment(segments: Longs) -> list[tuple[int, Longs]]:
    """Return the positions of each segment's rows, in their order."""
    if not len(segments):
        return []
    numbers = [int(segments[0])] if bool((segments == segments[0]).all()) else np.unique(segments).tolist()
    if len(numbers) <= PICKED_SEGMENTS_MAX:
        return [(number, np.flatnonzero(segments == number)) for number in numbers]
    turn = np.argsort(segments, kind="stable")
    ends = np.searchsorted(segments[turn], numbers[1:])
    return list(zip(numbers, np.split(turn, ends), strict=True))


def _put_plain(changes: StateChanges, segment: int, accepted: AcceptedRows, rows: Longs) -> None:
    """Add entries of one time each."""
    offsets = None if accepted.offsets is None else accepted.offsets[rows]
    values = encode_times(accepted.times_us[rows], offsets)
    keys = accepted.keys.bytes_
    if not isinstance(keys, list):
        changes.packed.append(PackedEntries(segment, np.take(keys, rows, axis=0), values))
        return
    for row, value in zip(rows.tolist(), values, strict=True):
        changes.entries[entry_key(keys[row], segment)] = value.tobytes()


def entry_key(key: bytes, segment: int) -> bytes:
    """Return the state key of an entry in a segment; `key` begins with its key group."""
    return segment_prefix(int.from_bytes(key[:GROUP_BYTES], "big"), segment) + key[GROUP_BYTES:]


# ---- several times in one entry ---------------------------------------------------------------------------


class _Stored:
    """The stored times that count, by row."""

    def __init__(self, found: StoredTimes, rule: SegmentRule, counts_from_us: int | None) -> None:
        self._rule = rule
        self._by_row: dict[int, set[_Stamp]] = defaultdict(set)
        stamps = _stamps(found.times_us, found.offsets)
        for row, stamp in zip(found.rows.tolist(), stamps, strict=True):
            if counts_from_us is None or stamp[0] >= counts_from_us:
                self._by_row[row].add(stamp)

    def of(self, row: int, segment: int) -> list[_Stamp]:
        """Return the stored times of a row's key in a segment, oldest first."""
        return sorted(stamp for stamp in self._by_row[row] if self._rule.segment_of(stamp[0]) == segment)


def _put_several(changes: StateChanges, accepted: AcceptedRows, segments: Longs, stored: _Stored) -> Longs:
    """Add the entries that hold more than one time; return which rows are left."""
    is_plain = np.ones(len(segments), np.bool_)
    places_of: dict[tuple[bytes, int], list[int]] = defaultdict(list)
    keys = accepted.keys.take(accepted.rows).to_list()
    for place, (key, segment) in enumerate(zip(keys, segments.tolist(), strict=True)):
        places_of[key, segment].append(place)
    by_width: dict[tuple[int, int], list[tuple[bytes, bytes]]] = defaultdict(list)
    for (key, segment), places in places_of.items():
        rows = accepted.rows[places].tolist()
        old = stored.of(rows[0], segment)
        if not old and len(rows) == 1:
            continue
        is_plain[places] = False
        value = _value(old, sorted(_stamp(accepted, row) for row in rows))
        if isinstance(accepted.keys.bytes_, list):
            changes.entries[entry_key(key, segment)] = value
        else:
            by_width[segment, len(value)].append((key, value))
    for (segment, _), pairs in sorted(by_width.items()):
        pairs.sort()
        sides = (b"".join(side) for side in zip(*pairs, strict=True))
        columns = (np.frombuffer(side, np.uint8).reshape(len(pairs), -1) for side in sides)
        changes.packed.append(PackedEntries(segment, *columns))
    return is_plain  # type: ignore[return-value]


def _stamps(times_us: Longs, offsets: Longs | None) -> list[_Stamp]:
    found = [None] * len(times_us) if offsets is None else offsets.tolist()
    return list(zip(times_us.tolist(), found, strict=True))


def _stamp(accepted: AcceptedRows, row: int) -> _Stamp:
    offset = None if accepted.offsets is None else int(accepted.offsets[row])
    return int(accepted.times_us[row]), offset


def _value(old: list[_Stamp], new: list[_Stamp]) -> bytes:
    stamps = [*old, *old[-1:], *new]
    times_us = np.array([time_us for time_us, _ in stamps], np.int64)
    offsets = [offset for _, offset in stamps if offset is not None]
    return encode_times(times_us, np.array(offsets, np.int64) if offsets else None).tobytes()


def added_times(value: bytes, *, with_offsets: bool) -> list[_Stamp]:
    """Return the times, and offsets, that the batch which wrote an entry added to it."""
    width = 16 if with_offsets else 8
    if not value or len(value) % width:
        raise StorageCorrupt(
            place="a changelog file", reason=f"times of {width} bytes are not {len(value)} bytes"
        )
    stamps = _stamps(*decode_times(np.frombuffer(value, np.uint8), with_offsets=with_offsets))
    for place in range(len(stamps) - 1, 0, -1):
        if stamps[place] == stamps[place - 1]:
            return stamps[place + 1 :]
    return stamps
