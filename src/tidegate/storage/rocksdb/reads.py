"""Views of a RocksDB store at one moment: scans and snapshots.

The engine releases every view that is still open before it closes, since any of them keeps the database and
its lock alive; later reads from such a view raise an error and never return too few pairs.

What rocksdict 0.3.29 gets wrong, and what is done about it here:

- `Snapshot.items()` and `.iter()` read the newest state, not the snapshot's. An RdictIter does keep the
  state of its creation, so a snapshot here has one, and its scans share it.
- `RdictItems` ends without an error when a block fails its checksum. RdictIter has `status()`, so all scans
  use it.
- `ReadOptions.set_iterate_lower_bound` sets the upper bound. The lower end is compared here.
- The upper bound's bytes are not copied: whoever drops them frees memory that RocksDB reads. A view holds
  them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from rocksdict import Rdict, ReadOptions

from tidegate.errors import InvariantBroken, TidegateError
from tidegate.storage.engine import KeyRange
from tidegate.storage.rocksdb.errors import read_fault

PAGE_ROWS_MIN = 4  # a scan that stops early reads few rows in vain
PAGE_ROWS_MAX = 256  # long enough that the seek at the head of a page costs nothing per row
PAGE_BYTES = 256 * 1024  # pages of large values stop growing here, so that a scan holds little memory

_Pair = tuple[bytes, bytes]


class RocksView:
    """The database at the moment when the view was created; threads take turns."""

    __slots__ = ("__weakref__", "_gone", "_iterator", "_lock", "_path", "_snapshot", "_stop")

    def __init__(self, db: Rdict, path: Path, *, stop: bytes | None = None, snapshot: bool = False) -> None:
        options = ReadOptions()
        if stop is not None:
            options.set_iterate_upper_bound(stop)
        self._path = path
        self._stop = stop
        self._lock = threading.Lock()
        self._gone: TidegateError | None = None
        try:
            self._iterator: Any = db.iter(options)
            self._snapshot: Any = db.snapshot() if snapshot else None
        except Exception as fault:
            raise read_fault(fault, path) from fault

    def release(self, reason: TidegateError) -> None:
        """Release the database; later reads raise the reason."""
        with self._lock:
            self._gone = self._gone or reason
            self._iterator = self._snapshot = None

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; the view must have a snapshot."""
        with self._lock:
            if self._gone is not None:
                raise self._gone
            try:
                value: bytes = self._snapshot[key]
            except Exception as fault:
                if str(fault) == "key not found":
                    return None
                raise read_fault(fault, self._path) from fault
            return value

    def page(self, span: KeyRange, rows_max: int, *, reverse: bool) -> list[_Pair]:
        """Return up to so many pairs from the head of the range, or backwards from its tail."""
        with self._lock:
            if self._gone is not None:
                raise self._gone
            try:
                read = _page_backwards if reverse else _page_forwards
                return read(self._iterator, span, rows_max)
            except Exception as fault:
                raise read_fault(fault, self._path) from fault


def _page_forwards(iterator: Any, span: KeyRange, rows_max: int) -> list[_Pair]:
    key_here, value_here, step, stop = iterator.key, iterator.value, iterator.next, span.stop
    pairs: list[_Pair] = []
    iterator.seek(span.start)
    for _ in range(rows_max):
        key = key_here()
        if key is None:
            iterator.status()
            break
        if key >= stop:
            break
        pairs.append((key, value_here()))
        step()
    return pairs


def _page_backwards(iterator: Any, span: KeyRange, rows_max: int) -> list[_Pair]:
    key_here, value_here, step, start = iterator.key, iterator.value, iterator.prev, span.start
    pairs: list[_Pair] = []
    iterator.seek_for_prev(span.stop)
    if key_here() == span.stop:
        step()
    for _ in range(rows_max):
        key = key_here()
        if key is None:
            iterator.status()
            break
        if key < start:
            break
        pairs.append((key, value_here()))
        step()
    return pairs


def pairs_of(view: RocksView, span: KeyRange, *, reverse: bool) -> Iterator[_Pair]:
    """Yield the pairs of a range page by page, so that other threads can use the view between pages."""
    rows_max = PAGE_ROWS_MIN
    while span.start < span.stop:
        pairs = view.page(span, rows_max, reverse=reverse)
        yield from pairs
        if len(pairs) < rows_max:
            return
        last = pairs[-1][0]
        span = KeyRange(span.start, last) if reverse else KeyRange(last + b"\x00", span.stop)
        page_bytes = sum([len(value) for _, value in pairs])
        if page_bytes * 2 <= PAGE_BYTES:
            rows_max = min(rows_max * 2, PAGE_ROWS_MAX)
        elif page_bytes > PAGE_BYTES:
            rows_max = max(rows_max // 2, 1)


class RocksSnapshot:
    """The engine at one moment; close it soon, it keeps old files alive."""

    def __init__(self, view: RocksView) -> None:
        self._view = view

    def get(self, key: bytes) -> bytes | None:
        return self._view.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        get = self._view.get
        return [get(key) for key in keys]

    def scan(self, span: KeyRange, *, reverse: bool = False) -> Iterator[_Pair]:
        return pairs_of(self._view, span, reverse=reverse)

    def close(self) -> None:
        self._view.release(InvariantBroken(reason="the snapshot is closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
