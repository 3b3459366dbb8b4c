"""Vectors: read and write one entry for each of many keys at once, as numpy or Arrow where the type allows.

The keys of a call are the batch's distinct keys themselves (nothing has to be looked up), or any array of
keys that occur in the batch.
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
from tidegate.state.runtime.cursor import KeyBatch
from tidegate.state.ttl import TtlRule

Numbers: TypeAlias = npt.NDArray[Any]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The keys that a call means: their places among the batch's keys (None: all of them), their entries."""

    many: KeyBatch
    places: npt.NDArray[np.int64] | None
    entries: list[bytes]
    # What the entries lie under where they are scanned; None for one entry a key.
    prefixes: list[bytes] | None = None

    def at(self, places: npt.NDArray[np.int64]) -> Chosen:
        """Return some of the entries, by their places; all of them cost nothing."""
        if len(places) == len(self.entries):
            return self
        prefixes = None if self.prefixes is None else _some(self.prefixes, places)
        chosen = places if self.places is None else self.places[places]
        return Chosen(self.many, chosen, _some(self.entries, places), prefixes)

    def key_at(self, index: int) -> Any:
        """Return the key of an entry as users see it."""
        place = index if self.places is None else int(self.places[index])
        return self.many.keys[place].as_py()


def chosen_of(cells: Cells[Any], keys: Any) -> Chosen:
    """Return the entries of the keys of a call; refuses keys that do not occur in the batch."""
    many = cells.cursor.many
    if many is None:
        raise StateOutsideKey(state=cells.name)
    if cells.many is not many:
        cells.many, cells.many_entries = many, cells.entry_keys(many.groups, many.stored)
        cells.many_chosen = None
    if keys is many.keys:
        return Chosen(many, None, cells.many_entries)
    last = cells.many_chosen
    if last is not None and last[0] is keys:
        found: Chosen = last[1]
        return found
    places = places_of(cells, many, keys)
    chosen = Chosen(many, places, _some(cells.many_entries, places))
    if isinstance(keys, pa.Array | pa.ChunkedArray):  # others may be changed in place
        cells.many_chosen = keys, chosen
    return chosen


def places_of(cells: Cells[Any], many: KeyBatch, keys: Any) -> npt.NDArray[np.int64]:
    """Return the place of each key among the batch's keys."""
    try:
        wanted = keys if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(keys)
        wanted = wanted.cast(many.keys.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        reason = f"they are not of the key's type {many.keys.type} ({error})"
        raise ValueInvalid(place=f"keys given to state '{cells.name}'", reason=reason) from error
    if pa.types.is_nested(many.keys.type):
        known = {_frozen(key): place for place, key in enumerate(many.keys.to_pylist())}
        found = pa.array([known.get(_frozen(key)) for key in wanted.to_pylist()], pa.int64())
    else:
        found = pc.index_in(wanted, value_set=many.keys)
    if found.null_count:
        foreign = wanted.filter(found.is_null())[0].as_py()
        reason = f"{shorten(repr(foreign))} is not among the keys of this batch"
        raise ValueInvalid(place=f"keys given to state '{cells.name}'", reason=reason)
    return np.asarray(found).astype(np.int64, copy=False)


def read_values(cells: Cells[Any], chosen: Chosen, default: Any) -> Any:
    """Return what is seen of each entry, as numpy, Arrow or a list; the default where nothing is."""
    dtype = cells.serializer.dtype
    if dtype is None:
        return _as_arrow(cells, open_all(cells, chosen, seen_of(cells, chosen), default))
    stored = cells.stage.get_many(chosen.entries)
    fill = default if default is not None else 0
    rows = number_rows(stored, cells.version, np.dtype(dtype), cells.encode(fill))
    if rows is None:
        _hide(cells, chosen, stored)
        numbers = np.array(open_all(cells, chosen, stored, fill), dtype=dtype)
        is_absent = np.fromiter((one is None for one in stored), np.bool_, len(stored))
    else:
        numbers, is_absent = rows["number"].copy(), rows["version"] == 0
        is_timed = "time" in (rows.dtype.names or ())
        times_ms = rows["time"].astype(np.int64) if is_timed else np.full(len(rows), NO_TIME)
        hidden = _hidden(cells, chosen, stored, times_ms)
        if len(hidden):
            numbers[hidden], is_absent[hidden] = fill, True
    return numbers if default is not None else pa.array(numbers, mask=is_absent)


def seen_of(cells: Cells[Any], chosen: Chosen) -> list[bytes | None]:
    """Return the stored values of entries, None where nothing is seen; a read may make them live longer."""
    stored = cells.stage.get_many(chosen.entries)
    _hide(cells, chosen, stored)
    return stored


def _hide(cells: Cells[Any], chosen: Chosen, stored: list[bytes | None]) -> None:
    if cells.rule is not None:
        for at in _hidden(cells, chosen, stored, _times(cells, chosen, stored)).tolist():
            stored[at] = None


def _hidden(
    cells: Cells[Any], chosen: Chosen, stored: list[bytes | None], times_ms: TimesMs
) -> npt.NDArray[np.int64]:
    """Return the places of what a read does not see, and let the read count as one."""
    rule = cells.rule
    if rule is None:
        return _NOWHERE
    cells.accesses += len(stored)
    # What is written next needs the old times again.
    cells.known_times = chosen.entries, times_ms
    has_time = times_ms != NO_TIME
    if not has_time.any():
        return _NOWHERE
    now_ms = _now_ms(cells, rule, chosen)
    is_expired = (now_ms - times_ms > rule.ttl_ms) & has_time
    if rule.refreshes:
        older = np.flatnonzero(~is_expired & (now_ms > times_ms) & has_time)
        if len(older):
            fresh = retimed([one for one in _some(stored, older) if one is not None], now_ms[older])
            known_ms = times_ms.copy()
            known_ms[older] = now_ms[older]
            _put_timed(cells, rule, chosen.at(older), fresh, (times_ms[older], now_ms[older]))
            cells.known_times = chosen.entries, known_ms
    return _NOWHERE if rule.shows_expired else np.flatnonzero(is_expired)


def write_values(cells: Cells[Any], chosen: Chosen, values: Any) -> None:
    """Keep a value for each entry; a null forgets."""
    given = _given(cells, values)
    if len(given) != len(chosen.entries):
        reason = f"{len(given)} values for {len(chosen.entries)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    rule = cells.rule
    if rule is None:
        cells.put_many(chosen.entries, _stored(cells, given, None), chosen.prefixes)
        return
    cells.accesses += len(given)
    now_ms = _now_ms(cells, rule, chosen)
    old_ms = _old_times(cells, rule, chosen)
    if rule.is_event:
        now_ms = np.maximum(now_ms, old_ms)
    stored = _stored(cells, given, now_ms)
    _put_timed(cells, rule, chosen, stored, (old_ms, now_ms))
    # A key that is there twice, or a null, has not the time that stands at its place.
    is_known = chosen.places is None and chosen.prefixes is None and None not in stored
    cells.known_times = (chosen.entries, now_ms) if is_known else None


def append_values(
    cells: Cells[Any], chosen: Chosen, values: Any, take_ends: Callable[[int], list[bytes]]
) -> None:
    """Add a value under each key, behind what is there; `take_ends` gives the ends of new entries."""
    rule = cells.rule
    given = _given(cells, values)
    prefixes = chosen.entries
    has_nulls = isinstance(given, list) and None in given
    if len(given) != len(prefixes) or has_nulls:
        nulls = sum(payload is None for payload in given)
        reason = f"{len(given)} values, {nulls} of them null, for {len(prefixes)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    entries = list(map(operator.add, prefixes, take_ends(len(prefixes))))
    added = Chosen(chosen.many, chosen.places, entries, prefixes)
    if rule is None:
        cells.put_many(entries, _stored(cells, given, None), prefixes)
        return
    cells.accesses += len(given)
    now_ms = _now_ms(cells, rule, added)
    _put_timed(cells, rule, added, _stored(cells, given, now_ms), (np.full(len(given), NO_TIME), now_ms))


def _given(cells: Cells[Any], values: Any) -> Numbers | list[bytes | None]:
    """Return numbers in the state's own type, or what the serializer makes of values; None where null."""
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
    cells: Cells[Any], given: Numbers | list[bytes | None], times_ms: TimesMs | None
) -> Sequence[bytes | None]:
    """Return stored values of numbers or payloads, with times where there are any."""
    if isinstance(given, np.ndarray):
        return packed_numbers(given, cells.version, times_ms)
    if times_ms is not None:
        return timed_values(cells.version, times_ms, given)
    head = cells.head
    return [None if payload is None else head + payload for payload in given]


def _old_times(cells: Cells[Any], rule: TtlRule, chosen: Chosen) -> TimesMs:
    """Return times of entries that are written next, NO_TIME where there are none or nobody needs them."""
    known = cells.known_times
    if known is not None and known[0] is chosen.entries:
        return known[1]
    if not rule.is_event and not rule.is_indexed:
        return np.full(len(chosen.entries), NO_TIME)
    return _times(cells, chosen, cells.stage.get_many(chosen.entries))


def as_dtype(cells: Cells[Any], values: Numbers, dtype: np.dtype[Any]) -> Numbers:
    """Return numbers in the state's own type, in one piece; refuses what would lose a part of them."""
    fits = {"i": "iu", "f": "fiu"}.get(dtype.kind, dtype.kind)
    if values.ndim != 1 or values.dtype.kind not in fits:
        reason = f"{values.dtype} of {values.ndim} dimensions is not a column of {dtype}"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    if dtype.kind == "i" and values.dtype.kind == "u" and values.size and int(values.max()) >= 2**63:
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason="a number is beyond 64 bits")
    return np.ascontiguousarray(values, dtype=dtype)


def open_all(cells: Cells[Any], chosen: Chosen, stored: Sequence[bytes | None], default: Any) -> list[Any]:
    """Decode stored values that are seen; the default, never shared, where there is none."""
    found = _opened(cells, stored)
    if found is None:
        found = [_open(cells, chosen, index, one) for index, one in enumerate(stored)]
    if default is None:
        return found
    decode, spare = cells.decode, cells.encode(default)
    return [decode(spare) if one is None else value for one, value in zip(stored, found, strict=True)]


def _opened(cells: Cells[Any], stored: Sequence[bytes | None]) -> list[Any] | None:
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
        return None  # the one that is damaged says so when they are decoded one by one
    opened: list[Any] = decoded.tolist() if isinstance(decoded, np.ndarray) else list(decoded)
    if len(there) == len(stored):
        return opened
    values = iter(opened)
    return [None if one is None else next(values) for one in stored]


def _open(cells: Cells[Any], chosen: Chosen, index: int, one: bytes | None) -> Any:
    if one is None:
        return None
    try:
        version, _, payload = split_value(one)
        return cells.decoded(version, payload)
    except StorageCorrupt as error:
        raise cells.corrupt(error, chosen.key_at(index)) from error


_NOWHERE = np.empty(0, np.int64)
_FLAGGED = bytes([FLAG_TIME])


def _some(many: Sequence[_T], places: npt.NDArray[np.int64]) -> list[_T]:
    return list(map(many.__getitem__, places.tolist()))


def _as_arrow(cells: Cells[Any], values: list[Any]) -> Any:
    arrow_type = cells.arrow_type
    return values if arrow_type is None else pa.array(values, arrow_type)


def _times(cells: Cells[Any], chosen: Chosen, stored: Sequence[bytes | None]) -> TimesMs:
    """Return the times of stored values; NO_TIME where nothing is stored, or something without a time."""
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
            raise cells.corrupt(error, chosen.key_at(at)) from error
        if time_ms is not None:
            times[at] = time_ms
    return times


def _now_ms(cells: Cells[Any], rule: TtlRule, chosen: Chosen) -> TimesMs:
    """Return what time it is for each key: by event time that of the key's newest row."""
    count = len(chosen.entries)
    if not rule.is_event:
        return np.full(count, cells.cursor.batch_ms, np.int64)
    if chosen.many.newest_event_ms is None:
        return np.full(count, cells.now_ms(rule), np.int64)
    newest = chosen.many.newest_event_ms()
    return newest if chosen.places is None else newest[chosen.places]


def _put_timed(
    cells: Cells[Any],
    rule: TtlRule,
    chosen: Chosen,
    stored: Sequence[bytes | None],
    times: tuple[TimesMs, TimesMs],
) -> None:
    """Stage stored values, and name them in the buckets of their new times unless the old ones have these."""
    cells.put_many(chosen.entries, stored, chosen.prefixes)
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
    for places in np.split(ordered, starts[1:]):
        cells.index_many(chosen.at(places).entries, int(buckets[places[0]]))


def _frozen(key: Any) -> Any:
    return tuple(key.values()) if isinstance(key, dict) else key
