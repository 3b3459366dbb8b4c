"""Vectors: read and write one entry for each of many keys at once, as numpy or Arrow where the type allows.

The keys of a call are the batch's distinct keys themselves (nothing has to be looked up), or any array of
keys that occur in the batch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import StateOutsideKey, StorageCorrupt, ValueInvalid
from tidegate.model.names import shorten
from tidegate.state.cells import Cells
from tidegate.state.cursor import KeyBatch
from tidegate.state.ttl import TtlRule
from tidegate.state.values import FLAG_TIME, PLAIN_BYTES, TIMED_BYTES, split_value, timed_header

Numbers: TypeAlias = npt.NDArray[Any]

_TIMED = np.dtype([("version", "u1"), ("flags", "u1"), ("time", ">i8")])


@dataclass(frozen=True, slots=True)
class Chosen:
    """The keys that a call means: their places among the batch's keys (None: all of them), their entries."""

    many: KeyBatch
    places: npt.NDArray[np.int64] | None
    entries: list[bytes]
    # What the entries lie under where they are scanned; None for one entry a key.
    prefixes: list[bytes] | None = None

    def prefix_at(self, index: int) -> bytes | None:
        return None if self.prefixes is None else self.prefixes[index]

    def key_at(self, index: int) -> Any:
        """Give the key of an entry as users see it."""
        place = index if self.places is None else int(self.places[index])
        return self.many.keys[place].as_py()


def chosen_of(cells: Cells[Any], keys: Any) -> Chosen:
    """Give the entries of the keys of a call; refuses keys that do not occur in the batch."""
    many = cells.cursor.many
    if many is None:
        raise StateOutsideKey(state=cells.name)
    if cells.many is not many:
        cells.many, cells.many_entries = many, cells.entry_keys(many.groups, many.stored)
    if keys is many.keys:
        return Chosen(many, None, cells.many_entries)
    places = places_of(cells, many, keys)
    return Chosen(many, places, list(map(cells.many_entries.__getitem__, places.tolist())))


def places_of(cells: Cells[Any], many: KeyBatch, keys: Any) -> npt.NDArray[np.int64]:
    """Give the place of each key among the batch's keys."""
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
    """Give what is seen of each entry, as numpy, Arrow or a list; the default where nothing is."""
    stored = seen_of(cells, chosen)
    dtype = cells.serializer.dtype
    if dtype is None:
        return _as_arrow(cells, open_all(cells, chosen, stored, default))
    fill = default if default is not None else 0
    numbers = _numbers(cells, stored, fill, np.dtype(dtype))
    if numbers is None:
        numbers = np.array(open_all(cells, chosen, stored, fill), dtype=dtype)
    if default is not None:
        return numbers
    return pa.array(numbers, mask=np.fromiter((one is None for one in stored), np.bool_, len(stored)))


def seen_of(cells: Cells[Any], chosen: Chosen) -> list[bytes | None]:
    """Give the stored values of entries, None where nothing is seen; a read may make them live longer."""
    rule = cells.rule
    if rule is None:
        return cells.stage.get_many(chosen.entries)
    # Kept in memory: what is written next needs the old times again.
    cells.stage.prefetch(chosen.entries)
    stored = cells.stage.get_many(chosen.entries)
    cells.accesses += len(stored)
    there, times = _times(cells, chosen, stored)
    if not len(there):
        return stored
    now_ms = _now_ms(cells, rule, chosen)[there]
    is_expired = (now_ms - times > rule.ttl_ms) & (times != _WITHOUT)
    if rule.refreshes:
        is_older = ~is_expired & (now_ms > times) & (times != _WITHOUT)
        for at, time_ms, old_ms in zip(there[is_older], now_ms[is_older], times[is_older], strict=True):
            old = stored[at]
            if old is not None:
                fresh = timed_header(old[0], int(time_ms)) + old[TIMED_BYTES:]
                cells.put(chosen.entries[at], fresh, chosen.prefix_at(at))
                cells.index(rule, chosen.entries[at], int(old_ms), int(time_ms))
    if not rule.shows_expired:
        for at in there[is_expired].tolist():
            stored[at] = None
    return stored


def write_values(cells: Cells[Any], chosen: Chosen, values: Any) -> None:
    """Keep a value for each entry; a null forgets."""
    rule = cells.rule
    payloads = payloads_of(cells, values, cells.head if rule is None else b"")
    if len(payloads) != len(chosen.entries):
        reason = f"{len(payloads)} values for {len(chosen.entries)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    if rule is None:
        _put_all(cells, chosen, payloads)
        return
    cells.accesses += len(payloads)
    now_ms = _now_ms(cells, rule, chosen)
    cells.stage.prefetch(chosen.entries)
    old = cells.stage.get_many(chosen.entries)
    there, times = _times(cells, chosen, old)
    old_ms = np.full(len(payloads), _WITHOUT)
    old_ms[there] = times
    if rule.is_event:
        now_ms = np.maximum(now_ms, old_ms)
    stored = _timed(cells, now_ms, payloads)
    _put_all(cells, chosen, stored)
    if rule.is_indexed:
        _index_many(cells, rule, chosen.entries, stored, (old_ms, now_ms))


def payloads_of(cells: Cells[Any], values: Any, head: bytes) -> list[bytes | None]:
    """Give the bytes of values, each behind a head: numbers at once, the rest by their serializer."""
    dtype = cells.serializer.dtype
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if dtype is not None:
        if isinstance(values, pa.Array) and not values.null_count:
            values = values.to_numpy(zero_copy_only=False)
        if isinstance(values, np.ndarray):
            return _packed(as_dtype(cells, values, np.dtype(dtype)), head)
    listed = values.to_pylist() if isinstance(values, pa.Array) else list(values)
    if isinstance(values, np.ndarray):
        listed = values.tolist()
    if None not in listed:
        return [head + payload for payload in cells.serializer.encode_many(listed)]
    return [None if value is None else head + cells.encode(value) for value in listed]


def append_values(
    cells: Cells[Any], chosen: Chosen, values: Any, take_ends: Callable[[int], list[bytes]]
) -> None:
    """Add a value under each key, behind what is there; `take_ends` gives the ends of new entries."""
    rule = cells.rule
    payloads = payloads_of(cells, values, cells.head if rule is None else b"")
    prefixes = chosen.entries
    entries = list(map(operator.add, prefixes, take_ends(len(prefixes))))
    added = Chosen(chosen.many, chosen.places, entries, prefixes)
    if len(payloads) != len(prefixes) or None in payloads:
        nulls = sum(payload is None for payload in payloads)
        reason = f"{len(payloads)} values, {nulls} of them null, for {len(prefixes)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    if rule is None:
        _put_all(cells, added, payloads)
        return
    cells.accesses += len(payloads)
    now_ms = _now_ms(cells, rule, added)
    stored = _timed(cells, now_ms, payloads)
    _put_all(cells, added, stored)
    if rule.is_indexed:
        _index_many(cells, rule, entries, stored, (np.full(len(entries), _WITHOUT), now_ms))


def as_dtype(cells: Cells[Any], values: Numbers, dtype: np.dtype[Any]) -> Numbers:
    """Give numbers in the state's own type, in one piece; refuses what would lose a part of them."""
    fits = {"i": "iu", "f": "fiu"}.get(dtype.kind, dtype.kind)
    if values.ndim != 1 or values.dtype.kind not in fits:
        reason = f"{values.dtype} of {values.ndim} dimensions is not a column of {dtype}"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
    if dtype.kind == "i" and values.dtype.kind == "u" and values.size and int(values.max()) >= 2**63:
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason="a number is beyond 64 bits")
    return np.ascontiguousarray(values, dtype=dtype)


def open_all(cells: Cells[Any], chosen: Chosen, stored: Sequence[bytes | None], default: Any) -> list[Any]:
    """Decode stored values that are seen; the default, never shared, where there is none."""
    spare = None if default is None else cells.encode(default)
    head, decode = cells.head, cells.decode
    opened: list[Any] = []
    for index, one in enumerate(stored):
        try:
            if one is None:
                opened.append(None if spare is None else decode(spare))
            elif one[:PLAIN_BYTES] == head:
                opened.append(decode(one[PLAIN_BYTES:]))
            else:
                version, _, payload = split_value(one)
                opened.append(cells.decoded(version, payload))
        except StorageCorrupt as error:
            raise cells.corrupt(error, chosen.key_at(index)) from error
    return opened


def _packed(numbers: Numbers, head: bytes) -> list[bytes | None]:
    """Give the bytes of numbers, each behind a head."""
    rows = np.empty((len(numbers), len(head) + numbers.dtype.itemsize), np.uint8)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    rows[:, len(head) :] = numbers.view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize)
    packed: list[bytes | None] = rows.view(f"V{rows.shape[1]}").ravel().tolist()
    return packed


# Stands for "carries no time" among times: such an entry does not expire.
_WITHOUT = np.int64(-(2**63))


def _numbers(
    cells: Cells[Any], stored: Sequence[bytes | None], default: Any, dtype: np.dtype[Any]
) -> Numbers | None:
    """Give numbers of equal layout with one numpy operation; None where layouts differ."""
    is_timed = next((one[1] == FLAG_TIME for one in stored if one is not None and len(one) > 1), False)
    head = timed_header(cells.version, 0) if is_timed else cells.head
    fill = head + cells.encode(default)
    raw = b"".join([fill if one is None else one for one in stored])
    if len(raw) != len(stored) * len(fill):
        return None
    header = f"V{len(head) - PLAIN_BYTES}"
    layout = np.dtype([("version", "u1"), ("flags", "u1"), ("rest", header), ("number", dtype)])
    rows = np.frombuffer(raw, layout)
    if not (rows["version"] == cells.version).all() or not (rows["flags"] == int(is_timed)).all():
        return None
    return np.ascontiguousarray(rows["number"])


def _timed(
    cells: Cells[Any], now_ms: npt.NDArray[np.int64], payloads: Sequence[bytes | None]
) -> list[bytes | None]:
    """Give stored values with a time."""
    heads = np.empty(len(payloads), _TIMED)
    heads["version"], heads["flags"], heads["time"] = cells.version, FLAG_TIME, now_ms
    return [
        None if payload is None else head + payload
        for head, payload in zip(heads.view(f"V{TIMED_BYTES}").tolist(), payloads, strict=True)
    ]


def _put_all(cells: Cells[Any], chosen: Chosen, stored: Sequence[bytes | None]) -> None:
    if chosen.prefixes is None:
        cells.stage.put_many(chosen.entries, stored)
        return
    put_sub, delete_sub = cells.stage.put_sub, cells.stage.delete_sub
    for prefix, entry, one in zip(chosen.prefixes, chosen.entries, stored, strict=True):
        if one is None:
            delete_sub(prefix, entry)
        else:
            put_sub(prefix, entry, one)


def _as_arrow(cells: Cells[Any], values: list[Any]) -> Any:
    arrow_type = cells.arrow_type
    return values if arrow_type is None else pa.array(values, arrow_type)


def _times(
    cells: Cells[Any], chosen: Chosen, stored: Sequence[bytes | None]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give where something is stored, and its time there."""
    there = np.arange(len(stored))
    if None in stored:
        there = np.flatnonzero(np.fromiter((one is not None for one in stored), np.bool_, len(stored)))
    raw = b"".join([one[:TIMED_BYTES] for one in stored if one is not None])
    if len(raw) == len(there) * TIMED_BYTES:
        rows = np.frombuffer(raw, _TIMED)
        if (rows["flags"] == FLAG_TIME).all():
            return there, rows["time"].astype(np.int64)
    times = np.empty(len(there), np.int64)
    for index, at in enumerate(there.tolist()):
        try:
            time_ms = split_value(stored[at] or b"")[1]
        except StorageCorrupt as error:
            raise cells.corrupt(error, chosen.key_at(at)) from error
        times[index] = _WITHOUT if time_ms is None else time_ms
    return there, times


def _now_ms(cells: Cells[Any], rule: TtlRule, chosen: Chosen) -> npt.NDArray[np.int64]:
    """Give what time it is for each key: by event time that of the key's newest row."""
    count = len(chosen.entries)
    if not rule.is_event:
        return np.full(count, cells.cursor.batch_ms, np.int64)
    if chosen.many.newest_event_ms is None:
        return np.full(count, cells.now_ms(rule), np.int64)
    newest = chosen.many.newest_event_ms()
    return newest if chosen.places is None else newest[chosen.places]


def _index_many(
    cells: Cells[Any],
    rule: TtlRule,
    entries: Sequence[bytes],
    stored: Sequence[bytes | None],
    times: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> None:
    old_ms, now_ms = times
    expires = now_ms + rule.ttl_ms
    buckets = expires - expires % rule.bucket_ms
    is_known = old_ms != _WITHOUT
    old_expires = np.where(is_known, old_ms, 0) + rule.ttl_ms
    is_moved = ~is_known | (old_expires - old_expires % rule.bucket_ms != buckets)
    for bucket in np.unique(buckets[is_moved]).tolist():
        places = np.flatnonzero(is_moved & (buckets == bucket)).tolist()
        cells.index_many([entries[at] for at in places if stored[at] is not None], bucket)


def _frozen(key: Any) -> Any:
    return tuple(key.values()) if isinstance(key, dict) else key
