"""The write batch of one batch of one partition: its changes in memory, through which it reads the backend.

Nothing reaches the backend before the batch is committed, unless the changes exceed the limit and spill.

Keys that are scanned again within a batch (elements of a list, entries of a map, timers) are written with
`put_sub` under a prefix of the caller's choice, and read with `scan_sub` of that same prefix: the staged keys
of the prefix are then found without sorting the others. `scan` sees everything as well, but sorts all staged
keys first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any, Final, NamedTuple

from tidegate.checkpoint.backend import Backend, StateChanges
from tidegate.checkpoint.keys.layout import after
from tidegate.errors import InvariantBroken

MIB = 1024 * 1024

# A batch that changes more than this is rare, and the worker has other uses for its memory.
WRITE_BATCH_BYTES_MAX = 256 * MIB

# The prefetch of a chunk of 131,072 rows fits; beyond it, reading again is cheaper.
CACHE_BYTES_MAX = 64 * MIB

# Python's own cost of an entry: two bytes objects and a slot of a dict.
ENTRY_OVERHEAD_BYTES = 160

_MISSING: Final[Any] = object()

_Pair = tuple[bytes, bytes]
_Step = tuple[bytes | None, Any]


class WriteBatch:
    """The staged changes of one batch over a backend; used by one thread.

    When the changes exceed `stage_bytes_max`, they go to `spill` and then to the backend; without `spill`
    there is no limit.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        stage_bytes_max: int = WRITE_BATCH_BYTES_MAX,
        spill: Callable[[StateChanges], None] | None = None,
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
        # The staged keys in order, as of that number of removals: they are the first of `_writes`, so the
        # others came after them.
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
        indices = [index for index, value in enumerate(values) if value is _MISSING]
        if not indices:
            return values
        missing = keys if len(indices) == len(values) else [keys[index] for index in indices]
        found = self._read_unstaged(missing)
        if len(indices) == len(values):
            return found
        for index, value in zip(indices, found, strict=True):
            values[index] = value
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
            self._spill_if_large()

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
            self._spill_if_large()

    def delete(self, key: bytes) -> None:
        """Stage the deletion of a key."""
        row = self._row
        if row is not None:
            row.append((key, self._writes.get(key, _MISSING)))
        self._writes[key] = None
        self._bytes += len(key) + ENTRY_OVERHEAD_BYTES
        if row is None and self._bytes > self._bytes_max:
            self._spill_if_large()

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
        """Stage the deletion of a key under a prefix that is scanned."""
        if key not in self._writes:
            self._subs.setdefault(prefix, []).append(key)
        self.delete(key)

    def clear_sub(self, prefix: bytes) -> None:
        """Stage the deletion of everything under a prefix that is scanned."""
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

        Correct only where every key under the prefix is written with `put_sub` and `delete_sub` of that
        prefix (or cleared by `clear_sub` or `delete_range`). The staged entries are those at the call.
        """
        first = prefix if start is None else start
        last = after(prefix) if stop is None else stop
        stored = iter(()) if prefix in self._cleared else self._stored(first, last)
        return merge_staged(stored, self._staged_sub(prefix, first, last)) if prefix in self._subs else stored

    def pages_sub(self, indices: Sequence[tuple[bytes, bytes]], count_max: int) -> list[SubPage]:
        """Return some entries under each of many prefixes, from a key on; one call to the backend.

        `count_max` limits the stored entries that are read of each: with staged ones a page may have more,
        and with deleted ones none and yet a next page. Correct where `scan_sub` is.
        """
        ranges = [(first, after(prefix)) for prefix, first in indices if prefix not in self._cleared]
        found = iter(self.backend.pages(ranges, count_max) if ranges else ())
        pages = []
        for prefix, first in indices:
            stored = [] if prefix in self._cleared else next(found)
            go_on = stored[-1][0] + b"\x00" if len(stored) == count_max else None
            if self._gone:
                stored = [pair for pair in stored if not self._is_gone(pair[0])]
            if prefix in self._subs:
                stored = list(merge_staged(stored, self._staged_sub(prefix, first, go_on or after(prefix))))
            pages.append(SubPage(stored, go_on))
        return pages

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Stage the deletion of a half-open range of keys; sorts all staged keys first."""
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
        """Return the entries of a half-open range in key order; sorts all staged keys first."""
        if not self._writes:
            return self._stored(start, stop)
        ordered = self._in_order()
        writes = self._writes
        inside = ordered[bisect_left(ordered, start) : bisect_left(ordered, stop)]
        return merge_staged(self._stored(start, stop), [(key, writes[key]) for key in inside])

    def prefetch(self, keys: Sequence[bytes]) -> None:
        """Read keys into the cache with one call to the backend; a later `get` of them costs no read.

        Keys that are staged or cached are not read again. Beyond the cache's limit its content is dropped.
        """
        writes, cache = self._writes, self._cache
        missing = sorted({key for key in keys if key not in cache and key not in writes})
        if not missing:
            return
        values = self.backend.get_many(missing)
        size_bytes = len(missing) * ENTRY_OVERHEAD_BYTES
        size_bytes += sum(map(len, missing)) + sum(map(len, filter(None, values)))
        if self._cache_bytes + size_bytes > CACHE_BYTES_MAX:
            self.forget_cache()
        self._cache.update(zip(missing, values, strict=True))
        self._cache_bytes += size_bytes

    def forget_cache(self) -> None:
        """Drop what was read; staged changes stay."""
        self._cache.clear()
        self._cache_bytes = 0

    def begin_row(self) -> None:
        """Begin a row: from here on changes can be rolled back, and those before no longer."""
        if self._bytes > self._bytes_max:
            self._spill_if_large()
        self._row = []

    def undo_row(self) -> None:
        """Roll back exactly what was written since `begin_row`."""
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
        """End the row without a rollback; spills when the changes exceed the limit."""
        self._row = None
        if self._bytes > self._bytes_max:
            self._spill_if_large()

    def take(self) -> StateChanges:
        """Return the changes that are staged and not spilled, and clear them."""
        changes = StateChanges(ranges=[*self._cleared.items(), *self._ranges], entries=self._writes)
        self._reset()
        return changes

    def _reset(self) -> None:
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
        """Read from the backend in key order, which is faster even with the cost of sorting."""
        ordered = sorted(keys)
        values = self.backend.get_many(ordered)
        if ordered == keys:
            return values
        found = dict(zip(ordered, values, strict=True))
        return [found[key] for key in keys]

    def _read_unstaged(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys that are not staged: None where deleted, else from cache or backend."""
        known: dict[bytes, bytes | None] = {}
        if self._gone:
            known = {key: None for key in keys if self._is_gone(key)}
        if self._cache:
            cache = self._cache
            known = {key: cache[key] for key in keys if key in cache} | known
        if not known:
            return self._read(keys)
        missing = sorted({key for key in keys if key not in known})
        if missing:
            known.update(zip(missing, self.backend.get_many(missing), strict=True))
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
        """Return a scan of the backend without what was cleared or deleted by range."""
        stored = self.backend.scan(start, stop)
        if not self._gone:
            return stored
        return (pair for pair in stored if not self._is_gone(pair[0]))

    def _staged_sub(self, prefix: bytes, first: bytes, last: bytes) -> list[tuple[bytes, bytes | None]]:
        """Return what is staged under a prefix in a half-open range, in order."""
        keys, writes = self._subs[prefix], self._writes
        if self._subs_ordered.get(prefix) != len(keys):
            # Sorted in place, so that the next scan sorts only if keys were added.
            keys[:] = dict.fromkeys(keys)
            keys.sort()
            self._subs_ordered[prefix] = len(keys)
        inside = keys[bisect_left(keys, first) : bisect_left(keys, last)]
        return [(key, writes[key]) for key in inside if key in writes]

    def _in_order(self) -> list[bytes]:
        """Return all staged keys in order; costs little when few were added since the last call."""
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

    def _spill_if_large(self) -> None:
        """Spill the changes when they exceed the limit; not within a row, which could not be rolled back."""
        self._row = None
        # Overwritten values were counted each time, so the true size is computed first.
        entries = self._writes
        count_bytes = (len(entries) + len(self._cleared) + len(self._ranges)) * ENTRY_OVERHEAD_BYTES
        self._bytes = count_bytes + sum(map(len, entries)) + sum(map(len, filter(None, entries.values())))
        # From half of the limit on, so that the true size is not computed again and again just below it.
        if self._spill is None or self._bytes * 2 <= self._bytes_max:
            return
        changes = self.take()
        self._spill(changes)
        self.backend.write_partly(changes)


class SubPage(NamedTuple):
    """Some entries under a prefix, in order, and the key at which the next page begins; None: the last."""

    entries: list[tuple[bytes, bytes]]
    go_on: bytes | None


def merge_staged(
    stored: Iterable[tuple[bytes, bytes]], staged: Sequence[tuple[bytes, bytes | None]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield stored entries merged with staged ones, which hide them, in key order; None is a deletion."""
    index, count = 0, len(staged)
    for pair in stored:
        key = pair[0]
        while index < count and staged[index][0] < key:
            value = staged[index][1]
            if value is not None:
                yield staged[index][0], value
            index += 1
        if index < count and staged[index][0] == key:
            continue
        yield pair
    for key, value in staged[index:]:
        if value is not None:
            yield key, value
