"""The stage: takes what a batch writes, gives it back to its reads, keeps it in memory until it is published.

Nothing reaches the backend before the batch is over, unless the stage grows beyond its limit and spills.

Keys that are scanned again within a batch (elements of a list, entries of a map, timers) are
written with `put_sub` under a prefix of the caller's choice, and read with `scan_sub` of that same prefix:
the stage then knows the staged keys of the prefix without looking at the others. `scan` sees everything as
well, but puts all staged keys in order first.

The overlay: takes stored entries and what a batch has staged, gives both as one, keeps nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

from tidegate.checkpoint.backend import Backend, Changes
from tidegate.checkpoint.keys.layout import after
from tidegate.errors import InvariantBroken

MIB = 1024 * 1024

# A batch that changes more than this is rare, and the worker has other uses for its memory.
STAGE_BYTES_MAX = 256 * MIB

# What is read ahead for a chunk of 131,072 rows fits; beyond it, reading again is cheaper.
CACHE_BYTES_MAX = 64 * MIB

# Python's own cost of an entry: two bytes objects and a place in a dict.
ENTRY_OVERHEAD_BYTES = 160

_MISSING: Final[Any] = object()

_Pair = tuple[bytes, bytes]
_Step = tuple[bytes | None, Any]


class Stage:
    """What one batch has written so far, over a backend; used by one thread.

    `spill` is given the changes so far when they exceed `stage_bytes_max`, before the backend takes them;
    without it the stage grows as it must.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        stage_bytes_max: int = STAGE_BYTES_MAX,
        spill: Callable[[Changes], None] | None = None,
    ) -> None:
        self.backend = backend
        self._spill = spill
        self._bytes_max: float = stage_bytes_max if spill is not None else float("inf")
        self._cache: dict[bytes, bytes | None] = {}
        self._cache_bytes = 0
        self._writes: dict[bytes, bytes | None] = {}
        self._subs: dict[bytes, list[bytes]] = {}  # under each scanned prefix, the keys staged there
        self._subs_ordered: dict[bytes, int] = {}  # how many keys a prefix had when they were put in order
        self._cleared: dict[bytes, bytes] = {}
        self._cleared_lengths: set[int] = set()
        self._ranges: list[tuple[bytes, bytes]] = []
        self._gone = False  # whether anything was cleared or deleted by range
        self._row: list[_Step] | None = None
        self._bytes = 0
        # The staged keys in order, as of so many removals: they are the first ones of `_writes`, so that the
        # others are those which came since.
        self._ordered: list[bytes] = []
        self._removals = self._removals_ordered = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key as the batch sees it."""
        value: bytes | None = self._writes.get(key, _MISSING)
        if value is not _MISSING:
            return value
        if self._gone and self._is_gone(key):
            return None
        value = self._cache.get(key, _MISSING)
        if value is not _MISSING:
            return value
        value = self.backend.get(key)
        self._remember(key, value)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order; one call to the backend."""
        if not self._writes and not self._gone and not self._cache:
            return self._read(keys)
        values = list(map(self._writes.get, keys, repeat(_MISSING)))
        places = [place for place, value in enumerate(values) if value is _MISSING]
        if not places:
            return values
        wanted = keys if len(places) == len(values) else [keys[place] for place in places]
        found = self._below(wanted)
        if len(places) == len(values):
            return found
        for place, value in zip(places, found, strict=True):
            values[place] = value
        return values

    def put(self, key: bytes, value: bytes) -> None:
        """Stage a value."""
        row = self._row
        if row is not None:
            row.append((key, self._writes.get(key, _MISSING)))
            self._writes[key] = value
            self._bytes += len(key) + len(value) + ENTRY_OVERHEAD_BYTES
            return
        self._writes[key] = value
        self._bytes += len(key) + len(value) + ENTRY_OVERHEAD_BYTES
        if self._bytes > self._bytes_max:
            self._shed()

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Stage values; None deletes."""
        row = self._row
        if row is not None:
            row.extend(zip(keys, map(self._writes.get, keys, repeat(_MISSING)), strict=True))
        self._writes.update(zip(keys, values, strict=True))
        # Not counted one by one: filter drops the deletes, which have no length.
        sizes = sum(map(len, keys)) + sum(map(len, filter(None, values)))
        self._bytes += sizes + len(keys) * ENTRY_OVERHEAD_BYTES
        if self._bytes > self._bytes_max and row is None:
            self._shed()

    def delete(self, key: bytes) -> None:
        """Stage that a key goes."""
        row = self._row
        if row is not None:
            row.append((key, self._writes.get(key, _MISSING)))
        self._writes[key] = None
        self._bytes += len(key) + ENTRY_OVERHEAD_BYTES
        if row is None and self._bytes > self._bytes_max:
            self._shed()

    def put_sub(self, prefix: bytes, key: bytes, value: bytes) -> None:
        """Stage a value under a prefix that is scanned; the key begins with the prefix."""
        if key not in self._writes:
            keys = self._subs.get(prefix)
            if keys is None:
                self._subs[prefix] = [key]
            else:
                keys.append(key)
        self.put(key, value)

    def delete_sub(self, prefix: bytes, key: bytes) -> None:
        """Stage that a key under a prefix that is scanned goes."""
        if key not in self._writes:
            self._subs.setdefault(prefix, []).append(key)
        self.delete(key)

    def clear_sub(self, prefix: bytes) -> None:
        """Stage that everything under a prefix that is scanned goes."""
        writes = self._writes
        keys = self._subs.pop(prefix, None)
        self._subs_ordered.pop(prefix, None)
        dropped = {key: writes.pop(key) for key in dict.fromkeys(keys) if key in writes} if keys else {}
        if dropped:
            self._removals += 1
        is_new = prefix not in self._cleared
        if is_new:
            self._cleared[prefix] = after(prefix)
            self._cleared_lengths.add(len(prefix))
            self._gone = True
            self._bytes += 2 * len(prefix) + ENTRY_OVERHEAD_BYTES
        if self._row is not None:
            self._row.append((None, partial(self._unclear, prefix, is_new, keys, dropped)))

    def scan_sub(
        self, prefix: bytes, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[_Pair]:
        """Return the entries under a prefix in key order, all or those of a half-open range of whole keys.

        Right only where every key under the prefix is written with `put_sub` and `delete_sub` of that prefix
        (or cleared by `clear_sub` or `delete_range`). The staged part of the answer is as of the call.
        """
        first = prefix if start is None else start
        last = after(prefix) if stop is None else stop
        stored = iter(()) if prefix in self._cleared else self._stored(first, last)
        return merged(stored, self._staged_sub(prefix, first, last)) if prefix in self._subs else stored

    def pages_sub(self, places: Sequence[tuple[bytes, bytes]], count_max: int) -> list[SubPage]:
        """Return some entries under each of many prefixes, from a key on; one call to the backend.

        Up to so many stored entries of each are looked at: a page may have more, or none and yet go on. Right
        where `scan_sub` is.
        """
        ranges = [(first, after(prefix)) for prefix, first in places if prefix not in self._cleared]
        found = iter(self.backend.pages(ranges, count_max) if ranges else ())
        pages = []
        for prefix, first in places:
            stored = [] if prefix in self._cleared else next(found)
            go_on = stored[-1][0] + b"\x00" if len(stored) == count_max else None
            if self._gone:
                stored = [pair for pair in stored if not self._is_gone(pair[0])]
            if prefix in self._subs:
                stored = list(merged(stored, self._staged_sub(prefix, first, go_on or after(prefix))))
            pages.append(SubPage(stored, go_on))
        return pages

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Stage that every key of a half-open range goes; puts all staged keys in order first."""
        if stop < start:
            raise InvariantBroken(reason=f"range delete ends before it starts: {start!r} to {stop!r}")
        if start == stop:
            return
        ordered = self._in_order()
        first, last = bisect_left(ordered, start), bisect_left(ordered, stop)
        dropped = {key: self._writes.pop(key) for key in ordered[first:last]}
        del ordered[first:last]
        self._ranges.append((start, stop))
        self._gone = True
        self._bytes += len(start) + len(stop) + ENTRY_OVERHEAD_BYTES
        if self._row is not None:
            self._row.append((None, partial(self._unrange, dropped)))

    def scan(self, start: bytes, stop: bytes) -> Iterator[_Pair]:
        """Return the entries of a half-open range in key order; puts all staged keys in order first."""
        if not self._writes:
            return self._stored(start, stop)
        ordered = self._in_order()
        writes = self._writes
        inside = ordered[bisect_left(ordered, start) : bisect_left(ordered, stop)]
        return merged(self._stored(start, stop), [(key, writes[key]) for key in inside])

    def prefetch(self, keys: Sequence[bytes]) -> None:
        """Read keys into memory with one call to the backend; later `get`s of them cost no read.

        What is staged or known already is not read again. Beyond the cache's limit it begins anew.
        """
        writes, cache = self._writes, self._cache
        wanted = sorted({key for key in keys if key not in cache and key not in writes})
        if not wanted:
            return
        values = self.backend.get_many(wanted)
        size_bytes = len(wanted) * ENTRY_OVERHEAD_BYTES
        size_bytes += sum(map(len, wanted)) + sum(map(len, filter(None, values)))
        if self._cache_bytes + size_bytes > CACHE_BYTES_MAX:
            self.forget_cache()
        self._cache.update(zip(wanted, values, strict=True))
        self._cache_bytes += size_bytes

    def forget_cache(self) -> None:
        """Drop what was prefetched; what is staged stays."""
        self._cache.clear()
        self._cache_bytes = 0

    def begin_row(self) -> None:
        """Keep what was written before, and remember from here on how to undo."""
        if self._bytes > self._bytes_max:
            self._shed()
        self._row = []

    def undo_row(self) -> None:
        """Take back exactly what was written since `begin_row`."""
        row = self._row
        if row is None:
            raise InvariantBroken(reason="a row was undone that had not begun")
        writes = self._writes
        for key, before in reversed(row):
            if key is None:
                before()
            elif before is _MISSING:
                del writes[key]
            else:
                writes[key] = before
        self._removals += 1
        self._row = None

    def keep_row(self) -> None:
        """Keep what was written since `begin_row`; spills when the stage is too large."""
        self._row = None
        if self._bytes > self._bytes_max:
            self._shed()

    def take(self) -> Changes:
        """Return what is staged and not yet spilled, and start anew."""
        changes = Changes(ranges=[*self._cleared.items(), *self._ranges], entries=self._writes)
        self._start_anew()
        return changes

    @property
    def staged_bytes(self) -> int:
        """Return about how many bytes are staged in memory, at most; a key written twice counts twice."""
        return self._bytes

    def _start_anew(self) -> None:
        self._writes = {}
        self._subs = {}
        self._subs_ordered = {}
        self._cleared = {}
        self._cleared_lengths = set()
        self._ranges = []
        self._gone = False
        self._row = None
        self._bytes = 0
        self._ordered = []
        self._removals = self._removals_ordered = 0
        self.forget_cache()

    def _read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Read from the backend in key order, which is quicker even with the sorting."""
        ordered = sorted(keys)
        values = self.backend.get_many(ordered)
        if ordered == keys:
            return values
        found = dict(zip(ordered, values, strict=True))
        return [found[key] for key in keys]

    def _below(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values that keys have beneath what is written: none where deleted, cached, or stored."""
        known: dict[bytes, bytes | None] = {}
        if self._gone:
            known = {key: None for key in keys if self._is_gone(key)}
        if self._cache:
            cache = self._cache
            known = {key: cache[key] for key in keys if key in cache} | known
        if not known:
            return self._read(keys)
        wanted = sorted({key for key in keys if key not in known})
        if wanted:
            known.update(zip(wanted, self.backend.get_many(wanted), strict=True))
        return [known[key] for key in keys]

    def _remember(self, key: bytes, value: bytes | None) -> None:
        size_bytes = len(key) + len(value or b"") + ENTRY_OVERHEAD_BYTES
        if self._cache_bytes + size_bytes > CACHE_BYTES_MAX:
            self.forget_cache()
        self._cache[key] = value
        self._cache_bytes += size_bytes

    def _is_gone(self, key: bytes) -> bool:
        """Return whether the stored value of a key was cleared or deleted by range."""
        cleared = self._cleared
        for length in self._cleared_lengths:
            if key[:length] in cleared:
                return True
        return any(start <= key < stop for start, stop in self._ranges)

    def _stored(self, start: bytes, stop: bytes) -> Iterator[_Pair]:
        """Scan the backend, without what was cleared or deleted by range."""
        stored = self.backend.scan(start, stop)
        if not self._gone:
            return stored
        return (pair for pair in stored if not self._is_gone(pair[0]))

    def _staged_sub(self, prefix: bytes, first: bytes, last: bytes) -> list[tuple[bytes, bytes | None]]:
        """Return what is staged under a prefix in a half-open range, in order."""
        keys, writes = self._subs[prefix], self._writes
        if self._subs_ordered.get(prefix) != len(keys):
            # Kept in order, so that the next scan sorts only what came since, if anything did.
            keys[:] = dict.fromkeys(keys)
            keys.sort()
            self._subs_ordered[prefix] = len(keys)
        inside = keys[bisect_left(keys, first) : bisect_left(keys, last)]
        return [(key, writes[key]) for key in inside if key in writes]

    def _in_order(self) -> list[bytes]:
        """Return all staged keys in order; costs little when few came since the last time."""
        ordered = self._ordered
        if self._removals != self._removals_ordered:
            ordered.clear()
            self._removals_ordered = self._removals
        if len(ordered) != len(self._writes):
            ordered += islice(self._writes, len(ordered), None)
            ordered.sort()
        return ordered

    def _unclear(
        self, prefix: bytes, is_new: bool, keys: list[bytes] | None, dropped: dict[bytes, bytes | None]
    ) -> None:
        if keys is not None:
            self._subs[prefix] = keys + self._subs.get(prefix, [])
            self._subs_ordered.pop(prefix, None)
        if is_new:
            del self._cleared[prefix]
        self._writes.update(dropped)

    def _unrange(self, dropped: dict[bytes, bytes | None]) -> None:
        self._ranges.pop()
        self._writes.update(dropped)

    def _shed(self) -> None:
        """Hand over what is staged when it is too large; never within a row, which could not be undone."""
        self._row = None
        # What was written over was counted each time, so the true size is found before anything is done.
        entries = self._writes
        count_bytes = (len(entries) + len(self._cleared) + len(self._ranges)) * ENTRY_OVERHEAD_BYTES
        self._bytes = count_bytes + sum(map(len, entries)) + sum(map(len, filter(None, entries.values())))
        # From half of the limit on, so that the true size is not looked for again and again just below it.
        if self._spill is None or self._bytes * 2 <= self._bytes_max:
            return
        changes = self.take()
        self._spill(changes)
        self.backend.write_partly(changes)


class SubPage(NamedTuple):
    """Some entries under a prefix, in order, and the key from which to read on; None: these were the last."""

    entries: list[tuple[bytes, bytes]]
    go_on: bytes | None


def merged(
    stored: Iterable[tuple[bytes, bytes]], staged: Sequence[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield stored entries with the staged ones over them, in key order; None is an entry that goes."""
    place, count = 0, len(staged)
    for pair in stored:
        key = pair[0]
        while place < count and staged[place][0] < key:
            value = staged[place][1]
            if value is not None:
                yield staged[place][0], value
            place += 1
        if place < count and staged[place][0] == key:
            continue
        yield pair
    for key, value in staged[place:]:
        if value is not None:
            yield key, value
