"""The change buffer of one table: the newest changes, numbered, within a count and a size.

Append from any thread, in the order of the commits; read from the event loop. A change stays from its
publication until newer ones push it out. The newest statement always stays, whatever its size: otherwise one
large statement would send every subscriber back to a snapshot.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tidegate.model.changes import Change, Changes
from tidegate.model.tables import Row, Table

# Memory of a change beside its values of variable size: its tuples and numbers.
CHANGE_BYTES = 120
VALUE_BYTES = 32
_VARIABLE = frozenset({"TEXT", "BYTES", "JSON", "UUID", "DECIMAL"})


class NumberedChange(NamedTuple):
    """A change with its number, and whose row it is."""

    seq: int
    user: str
    change: Change


class ChangeSlice(NamedTuple):
    """Some changes in order; all up to `end_seq` are among them."""

    changes: list[NumberedChange]
    end_seq: int


class _Chunk(NamedTuple):
    """The changes of one statement; the first one has the number `first_seq`, the others follow densely."""

    first_seq: int
    user: str
    rows: Sequence[Change]
    size_bytes: int

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.rows) - 1


_GONE = _Chunk(0, "", (), 0)


def _last_seq(chunk: _Chunk) -> int:
    return chunk.last_seq


class ChangeBuffer:
    """The newest changes of one table; thread-safe."""

    def __init__(self, first_seq: int, changes_max: int, bytes_max: int) -> None:
        """Begin empty: it will have every change behind `first_seq`."""
        self._lock = threading.Lock()
        self._changes_max = changes_max
        self._bytes_max = bytes_max
        # A list with a start index, not a deque: a reader that is behind finds its position by bisection.
        self._chunks: list[_Chunk] = []
        self._start = 0
        self._count = 0
        self._size_bytes = 0
        # Every change behind this one is here.
        self.floor_seq = first_seq
        # The newest change, or the number at which this began.
        self.last_seq = first_seq

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """About how much memory the changes take."""
        return self._size_bytes

    def append(self, changes: Changes, first_seq: int) -> None:
        """Append the changes of one statement, from `first_seq` on; drop the oldest beyond the limits."""
        chunk = _Chunk(first_seq, changes.user, changes.rows, estimate_bytes(changes.table, changes.rows))
        with self._lock:
            self._chunks.append(chunk)
            self._count += len(chunk.rows)
            self._size_bytes += chunk.size_bytes
            self.last_seq = chunk.last_seq
            while self._is_over() and self._start < len(self._chunks) - 1:
                gone = self._chunks[self._start]
                self._chunks[self._start] = _GONE
                self._start += 1
                self._count -= len(gone.rows)
                self._size_bytes -= gone.size_bytes
                self.floor_seq = gone.last_seq
            if self._start * 2 > len(self._chunks):
                del self._chunks[: self._start]
                self._start = 0

    def _is_over(self) -> bool:
        return self._count > self._changes_max or self._size_bytes > self._bytes_max

    def after(self, seq: int, stop_seq: int, changes_max: int, bytes_max: int) -> ChangeSlice | None:
        """Return the next changes behind one, up to and with `stop_seq`; None when some of them are gone.

        At least one change is returned where there is one, whatever the limits.
        """
        with self._lock:
            if seq < self.floor_seq:
                return None
            first = bisect_right(self._chunks, seq, lo=self._start, key=_last_seq)
            chunks = self._chunks[first : first + changes_max]
        found: list[NumberedChange] = []
        size_bytes = 0
        for chunk in chunks:
            if chunk.first_seq > stop_seq or size_bytes >= bytes_max:
                break
            skipped = max(0, seq + 1 - chunk.first_seq)
            end = min(len(chunk.rows), stop_seq - chunk.first_seq + 1)
            room = min(changes_max - len(found), end - skipped)
            # A statement with large rows may be returned in parts.
            each_bytes = max(1, chunk.size_bytes // len(chunk.rows))
            room = min(room, max(1, (bytes_max - size_bytes) // each_bytes))
            rows = chunk.rows[skipped : skipped + room]
            found += [
                NumberedChange(at, chunk.user, change)
                for at, change in enumerate(rows, chunk.first_seq + skipped)
            ]
            size_bytes += room * each_bytes
            if skipped + room < len(chunk.rows):
                break
        # Where nothing is left, the numbers that other tables took count as seen.
        return ChangeSlice(found, found[-1].seq if found else max(seq, stop_seq))


def estimate_bytes(table: Table, rows: Sequence[Change]) -> int:
    """Return about how much memory changes take; costs little for rows of fixed size."""
    columns = table.shown_columns
    sized = [at for at, (_, kind) in enumerate(columns) if kind.name in _VARIABLE]
    fixed_bytes = CHANGE_BYTES + VALUE_BYTES * len(columns)
    total = fixed_bytes * len(rows)
    for change in rows:
        if change.old is not None:
            total += fixed_bytes + _variable_bytes(change.old, sized)
        if change.new is not None:
            total += _variable_bytes(change.new, sized)
    return total


def _variable_bytes(row: Row, sized: list[int]) -> int:
    return sum(sys.getsizeof(row[at]) for at in sized if at < len(row))
