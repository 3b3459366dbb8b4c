"""The interface of the engine: an ordered map of bytes on disk, with atomic write batches.

Two implementations pass one contract suite: `rocksdb.engine.RocksEngine` and its in-memory twin
`memory.MemoryEngine`.

Durability: `write` makes a batch visible and atomic; it outlives a killed process but not a power cut until
`sync` returns (or `write(…, sync=True)`). Threads: every method may be called from any thread; batches
belong to one thread. `sync` does not hold Python's lock while the disk works, which is why group commit
lives on top of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from tidegate.errors import InvariantBroken


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys from `start` (in) to `stop` (out), in byte order."""

    start: bytes
    stop: bytes

    def __post_init__(self) -> None:
        if self.stop < self.start:
            raise InvariantBroken(reason=f"key range ends before it starts: {self.start!r} to {self.stop!r}")


class EngineBatch(Protocol):
    """Changes that become visible together, in the order in which they were added."""

    def put(self, key: bytes, value: bytes, /) -> None: ...

    def delete(self, key: bytes, /) -> None: ...

    def delete_range(self, start: bytes, stop: bytes, /) -> None: ...

    def __len__(self) -> int: ...


class Reader(Protocol):
    """The reads that the engine and its snapshots share."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of many keys, in the order of `keys`; cheaper than as many calls of `get`."""
        ...

    def scan(self, span: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Return the pairs in a range, in key order or backwards, as they were when the scan began."""
        ...


class Snapshot(Reader, Protocol):
    """The engine at one moment; close it soon, it keeps old files alive."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Engine(Reader, Protocol):
    """An open store. One process holds it at a time."""

    def batch(self) -> EngineBatch:
        """Return an empty batch of this engine's own kind."""
        ...

    def write(self, batch: EngineBatch, *, sync: bool = False, frees: bool = False) -> None:
        """Apply a batch: all of it or nothing; durable on return when `sync` is set.

        A batch that `frees` only removes keys: it may use the disk room that is held in reserve.
        """
        ...

    def sync(self) -> None:
        """Return when everything written before this call is on the disk."""
        ...

    def snapshot(self) -> Snapshot:
        """Return a view of what is visible now."""
        ...

    def checkpoint(self, target: Path) -> None:
        """Write a copy that opens as an engine, by hard links where the disk allows it."""
        ...

    def compact(self, span: KeyRange) -> None:
        """Free the disk room of what was removed in a range; may take long, other calls are not blocked.

        Reads are right without it: the engine compacts by itself, but at a time of its own.
        """
        ...

    @property
    def reopen_needed(self) -> bool:
        """True if a write or a sync failed half way: memory may be ahead of the disk until `reopen`."""
        ...

    def reopen(self) -> None:
        """Close and open again from what is on the disk, after a failed write or sync."""
        ...

    def close(self) -> None:
        """Release the store; a second call does nothing."""
        ...
