"""Vectorised access: one entry for each of many keys, as numpy or Arrow where the type allows.

The keys of a call are the batch's distinct keys themselves (no lookup is needed), or any array of keys that
occur in the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import StateOutsideKey, StorageCorrupt, ValueInvalid
from tidegate.model.names import shorten
from tidegate.state.cursor import KeyBatch
from tidegate.state.kinds.entry import Cells
from tidegate.state.kinds.entry_format import (
    FLAG_TIME,
    NO_TIME,
    PLAIN_BYTES,
    TIMED_BYTES,
    TimesMs,
    heads_of,
    number_rows,
    packed_numbers,
    retimed,
    split_value,
    timed_values,
)
from tidegate.state.ttl import TtlRule

Numbers: TypeAlias = npt.NDArray[Any]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys of a call: their positions among the batch's keys (None: all of them), their entries."""

    many: KeyBatch
    positions: npt.NDArray[np.int64] | None
    entries: list[bytes]
    # The prefixes under which the entries are scanned; None for one entry a key.
    prefixes: list[bytes] | None = None

    def at(self, indices: npt.NDArray[np.int64]) -> Selection:
        """Return some of the entries, by their indices; itself for all of them."""
        if len(indices) == len(self.entries):
            return self
        prefixes = None if self.prefixes is None else _pick(self.prefixes, indices)
        positions = indices if self.positions is None else self.positions[indices]
        return Selection(self.many, positions, _pick(self.entries, indices), prefixes)

    def key_at(self, index: int) -> Any:
        """Return the key of an entry as users see it."""
        position = index if self.positions is None else int(self.positions[index])
        return self.many.keys[position].as_py()


def select_keys(cells: Cells[Any], keys: Any) -> Selection:
    """Return the entries of the keys of a call; ValueInvalid for keys that do not occur in the batch."""
    many = cells.cursor.many
    if many is None:
        raise StateOutsideKey(state=cells.name)
    if cells.many is not many:
        cells.many, cells.many_entries = many, cells.entry_keys(many.groups, many.stored)
        cells.last_selection = None
    if keys is many.keys:
        return Selection(many, None, cells.many_entries)
    last = cells.last_selection
    if last is not None and last[0] is keys:
        found: Selection = last[1]
        return found
    positions = key_positions(cells, many, keys)
    selection = Selection(many, positions, _pick(cells.many_entries, positions))
    if isinstance(keys, pa.Array | pa.ChunkedArray):  # others may be changed in place
        cells.last_selection = keys, selection
    return selection


def key_positions(cells: Cells[Any], many: KeyBatch, keys: Any) -> npt.NDArray[np.int64]:
    """Return the position of each key among the batch's keys."""
    try:
        column = keys if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(keys)
        column = column.cast(many.keys.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = f"they are not of the key's type {many.keys.type} ({error})"
        raise ValueInvalid(place=f"keys given to state '{cells.name}'", reason=reason) from error
    if pa.types.is_nested(many.keys.type):
        known = {_hashable(key): position for position, key in enumerate(many.keys.to_pylist())}
        found = pa.array([known.get(_hashable(key)) for key in column.to_pylist()], pa.int64())
    else:
        found = pc.index_in(column, value_set=many.keys)
    if found.null_count:
        foreign = column.filter(found.is_null())[0].as_py()
        reason = f"{shorten(repr(foreign))} is not among the keys of this batch"
        raise ValueInvalid(place=f"keys given to state '{cells.name}'", reason=reason)
    return np.asarray(found).astype(np.int64, copy=False)


def read_values(cells: Cells[Any], selection: Selection, default: Any) -> Any:
    """Return the visible value of each entry, as numpy, Arrow or a list; the default where there is none."""
    dtype = cells.serializer.dtype
    if dtype is None:
        return _as_arrow(cells, decode_values(cells, selection, read_visible(cells, selection), default))
    stored = cells.write_batch.get_many(selection.entries)
    fill = default if default is not None else 0
    rows = number_rows(stored, cells.version, np.dtype(dtype), cells.encode(fill))
    if rows is None:
        _hide(cells, selection, stored)
        numbers = np.array(decode_values(cells, selection, stored, fill), dtype=dtype)
        is_absent = np.fromiter((one is None for one in stored), np.bool_, len(stored))
    else:
        numbers, is_absent = rows["number"].copy(), rows["version"] == 0
        is_timed = "time" in (rows.dtype.names or ())
        times_ms = rows["time"].astype(np.int64) if is_timed else np.full(len(rows), NO_TIME)
        hidden = _hidden(cells, selection, stored, times_ms)
        if len(hidden):
            numbers[hidden], is_absent[hidden] = fill, True
    return numbers if default is not None else pa.array(numbers, mask=is_absent)


def read_visible(cells: Cells[Any], selection: Selection) -> list[bytes | None]:
    """Return the stored values of entries, None where none is visible; a read may refresh their TTL."""
    stored = cells.write_batch.get_many(selection.entries)
    _hide(cells, selection, stored)
    return stored


def _hide(cells: Cells[Any], selection: Selection, stored: list[bytes | None]) -> None:
    if cells.rule is not None:
        for at in _hidden(cells, selection, stored, _times(cells, selection, stored)).tolist():
            stored[at] = None


def _hidden(
    cells: Cells[Any], selection: Selection, stored: list[bytes | None], times_ms: TimesMs
) -> npt.NDArray[np.int64]:
    """Return the indices of the entries that a read does not see; refresh the TTL of the others."""
    rule = cells.rule
    if rule is None:
        return _NO_POSITIONS
    cells.accesses += len(stored)
    # A write that follows needs the old times again.
    cells.known_times = selection.entries, times_ms
    has_time = times_ms != NO_TIME
    if not has_time.any():
        return _NO_POSITIONS
    now_ms = _now_ms(cells, rule, selection)
    is_expired = (now_ms - times_ms > rule.ttl_ms) & has_time
    if rule.refreshes:
        older = np.flatnonzero(~is_expired & (now_ms > times_ms) & has_time)
        if len(older):
            fresh = retimed([one for one in _pick(stored, older) if one is not None], now_ms[older])
            known_ms = times_ms.copy()
            known_ms[older] = now_ms[older]
            _put_timed(cells, rule, selection.at(older), fresh, (times_ms[older], now_ms[older]))
            cells.known_times = selection.entries, known_ms
    return _NO_POSITIONS if rule.shows_expired else np.flatnonzero(is_expired)


def write_values(cells: Cells[Any], selection: Selection, values: Any) -> None:
    """Store a value for each entry; a null removes it."""
    encoded = _encode_values(cells, values)
    if len(encoded) != len(selection.entries):
        reason = f"{len(encoded)} values for {len(selection.entries)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    rule = cells.rule
    if rule is None:
        cells.put_many(selection.entries, _stored(cells, encoded, None), selection.prefixes)
        return
    cells.accesses += len(encoded)
    now_ms = _now_ms(cells, rule, selection)
    old_ms = _old_times(cells, rule, selection)
    if rule.is_event:
        now_ms = np.maximum(now_ms, old_ms)
    stored = _stored(cells, encoded, now_ms)
    _put_timed(cells, rule, selection, stored, (old_ms, now_ms))
    # The times are not those of keys that occur twice, nor of nulls.
    is_known = selection.positions is None and selection.prefixes is None and None not in stored
    cells.known_times = (selection.entries, now_ms) if is_known else None


def append_values(
    cells: Cells[Any], selection: Selection, values: Any, take_ends: Callable[[int], list[bytes]]
) -> None:
    """Add a value under each key, after those that are there; `take_ends` returns the ends of new entries."""
    rule = cells.rule
    encoded = _encode_values(cells, values)
    prefixes = selection.entries
    has_nulls = isinstance(encoded, list) and None in encoded
    if len(encoded) != len(prefixes) or has_nulls:
        nulls = sum(payload is None for payload in encoded)
        reason = f"{len(encoded)} values, {nulls} of them null, for {len(prefixes)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    entries = list(map(operator.add, prefixes, take_ends(len(prefixes))))
    added = Selection(selection.many, selection.positions, entries, prefixes)
    if rule is None:
        cells.put_many(entries, _stored(cells, encoded, None), prefixes)
        return
    cells.accesses += len(encoded)
    now_ms = _now_ms(cells, rule, added)
    _put_timed(cells, rule, added, _stored(cells, encoded, now_ms), (np.full(len(encoded), NO_TIME), now_ms))


def _encode_values(cells: Cells[Any], values: Any) -> Numbers | list[bytes | None]:
    """Return numbers in the state's own type, or the payloads of values; None where null."""
    dtype = cells.serializer.dtype
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if dtype is not None:
        if isinstance(values, pa.Array) and not values.null_count:
            values = values.to_numpy(zero_copy_only=False)
        if isinstance(values, np.ndarray):
            return as_dtype(cells, values, np.dtype(dtype))
    listed = values.to_pylist() if isinstance(values, pa.Array) else list(values)
    if isinstance(values, np.ndarray):
        listed = values.tolist()
    if None not in listed:
        return [*cells.serializer.encode_many(listed)]
    return [None if value is None else cells.encode(value) for value in listed]


def _stored(
    cells: Cells[Any], encoded: Numbers | list[bytes | None], times_ms: TimesMs | None
) -> Sequence[bytes | None]:
    """Return the stored values of numbers or payloads, with times where there are any."""
    if isinstance(encoded, np.ndarray):
        return packed_numbers(encoded, cells.version, times_ms)
    if times_ms is not None:
        return timed_values(cells.version, times_ms, encoded)
    head = cells.head
    return [None if payload is None else head + payload for payload in encoded]


def _old_times(cells: Cells[Any], rule: TtlRule, selection: Selection) -> TimesMs:
    """Return the times of entries before a write, NO_TIME where there are none or they are not needed."""
    known = cells.known_times
    if known is not None and known[0] is selection.entries:
        return known[1]
    if not rule.is_event and not rule.is_indexed:
        return np.full(len(selection.entries), NO_TIME)
    return _times(cells, selection, cells.write_batch.get_many(selection.entries))


def as_dtype(cells: Cells[Any], values: Numbers, dtype: np.dtype[Any]) -> Numbers:
    """Return contiguous numbers in the state's own type; ValueInvalid where the cast would lose digits."""
    fits = {"i": "iu", "f": "fiu"}.get(dtype.kind, dtype.kind)
    if values.ndim != 1 or values.dtype.kind not in fits:
        reason = f"{values.dtype} of {values.ndim} dimensions is not a column of {dtype}"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    if dtype.kind == "i" and values.dtype.kind == "u" and values.size and int(values.max()) >= 2**63:
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason="a number is beyond 64 bits")
    return np.ascontiguousarray(values, dtype=dtype)


def decode_values(
    cells: Cells[Any], selection: Selection, stored: Sequence[bytes | None], default: Any
) -> list[Any]:
    """Decode visible stored values; a copy of the default where there is none."""
    found = _decode_uniform(cells, stored)
    if found is None:
        found = [_decode_one(cells, selection, index, one) for index, one in enumerate(stored)]
    if default is None:
        return found
    decode, spare = cells.decode, cells.encode(default)
    return [decode(spare) if one is None else value for one, value in zip(stored, found, strict=True)]


def _decode_uniform(cells: Cells[Any], stored: Sequence[bytes | None]) -> list[Any] | None:
    """Decode stored values of one version, all with a time or all without; None where they are not."""
    there = [one for one in stored if one is not None]
    skip = TIMED_BYTES if there and there[0][1:2] == _FLAGGED else PLAIN_BYTES
    if skip == TIMED_BYTES:
        heads = heads_of(there)
        is_one = heads is not None and bool((heads[0] == cells.version).all())
    else:
        is_one = {one[:PLAIN_BYTES] for one in there} <= {cells.head}
    if not is_one:
        return None
    try:
        decoded: Any = cells.serializer.decode_many([one[skip:] for one in there])
    except StorageCorrupt:
        return None  # decoded one by one, the damaged one is named
    listed: list[Any] = decoded.tolist() if isinstance(decoded, np.ndarray) else list(decoded)
    if len(there) == len(stored):
        return listed
    values = iter(listed)
    return [None if one is None else next(values) for one in stored]


def _decode_one(cells: Cells[Any], selection: Selection, index: int, one: bytes | None) -> Any:
    if one is None:
        return None
    try:
        version, _, payload = split_value(one)
        return cells.decoded(version, payload)
    except StorageCorrupt as error:
        raise cells.corrupt(error, selection.key_at(index)) from error


_NO_POSITIONS = np.empty(0, np.int64)
_FLAGGED = bytes([FLAG_TIME])


def _pick(many: Sequence[_T], indices: npt.NDArray[np.int64]) -> list[_T]:
    return list(map(many.__getitem__, indices.tolist()))


def _as_arrow(cells: Cells[Any], values: list[Any]) -> Any:
    arrow_type = cells.arrow_type
    return values if arrow_type is None else pa.array(values, arrow_type)


def _times(cells: Cells[Any], selection: Selection, stored: Sequence[bytes | None]) -> TimesMs:
    """Return the times of stored values; NO_TIME where there is no value, or one without a time."""
    there = [one for one in stored if one is not None]
    times = np.full(len(stored), NO_TIME)
    heads = heads_of(there)
    if heads is not None:
        is_there: Any = slice(None)
        if len(there) < len(stored):
            is_there = np.fromiter((one is not None for one in stored), np.bool_, len(stored))
        times[is_there] = heads[1]
        return times
    for at, one in enumerate(stored):
        if one is None:
            continue
        try:
            time_ms = split_value(one)[1]
        except StorageCorrupt as error:
            raise cells.corrupt(error, selection.key_at(at)) from error
        if time_ms is not None:
            times[at] = time_ms
    return times


def _now_ms(cells: Cells[Any], rule: TtlRule, selection: Selection) -> TimesMs:
    """Return the current time of each key: by event time that of the key's newest row."""
    count = len(selection.entries)
    if not rule.is_event:
        return np.full(count, cells.cursor.batch_ms, np.int64)
    if selection.many.newest_event_ms is None:
        return np.full(count, cells.now_ms(rule), np.int64)
    newest = selection.many.newest_event_ms()
    return newest if selection.positions is None else newest[selection.positions]


def _put_timed(
    cells: Cells[Any],
    rule: TtlRule,
    selection: Selection,
    stored: Sequence[bytes | None],
    times: tuple[TimesMs, TimesMs],
) -> None:
    """Stage stored values, and index them under the buckets of their new times where these changed."""
    cells.put_many(selection.entries, stored, selection.prefixes)
    if not rule.is_indexed:
        return
    old_ms, now_ms = times
    expires = now_ms + rule.ttl_ms
    buckets = expires - expires % rule.bucket_ms
    is_known = old_ms != NO_TIME
    old_expires = np.where(is_known, old_ms, 0) + rule.ttl_ms
    is_moved = ~is_known | (old_expires - old_expires % rule.bucket_ms != buckets)
    if None in stored:
        is_moved &= np.fromiter((one is not None for one in stored), np.bool_, len(stored))
    moved = np.flatnonzero(is_moved)
    if not len(moved):
        return
    ordered = moved[np.argsort(buckets[moved], kind="stable")]
    starts = np.flatnonzero(np.diff(buckets[ordered], prepend=buckets[ordered[0]] - 1))
    for indices in np.split(ordered, starts[1:]):
        cells.index_many(selection.at(indices).entries, int(buckets[indices[0]]))


def _hashable(key: Any) -> Any:
    return tuple(key.values()) if isinstance(key, dict) else key
