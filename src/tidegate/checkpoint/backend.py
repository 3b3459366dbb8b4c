"""The backend: what keeps one partition's entries on this machine, and what it promises.

A backend is a local copy: it may be lost or thrown away at any moment, and is made again from the checkpoint.
It is used by one thread at a time. Keys and values are bytes; keys sort as bytes do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

# Entries that one call for many ranges is asked for: where a copy is lent they are one message, which both
# ends hold in memory. Of more ranges than this, one entry of each is asked for.
PAGES_ENTRIES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Version:
    """Which committed batch a copy stands at: the epoch, the batch and the id of the head that did it."""

    epoch: int
    batch: int
    head_id: str


@dataclass(frozen=True, slots=True)
class PackedEntries:
    """Entries of one segment as columns, all keys and all values of one width, the keys sorted.

    `keys` is a uint8 array of shape (n, width): key group u16, then the key, as they lie in the segment.
    """

    segment: int
    keys: np.ndarray[Any, np.dtype[np.uint8]]
    values: np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(slots=True)
class Changes:
    """What one batch does to the entries: first the ranges go, then each entry is put, or deleted by None.

    `packed` are entries of a segmented store, put after the others; no other backend takes them.
    """

    ranges: list[tuple[bytes, bytes]] = field(default_factory=list)
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    packed: list[PackedEntries] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.entries or self.packed)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a copy is: bytes it takes here, and about how many entries it holds."""

    size_bytes: int
    entry_count: int


class Backend(Protocol):
    """One partition's entries on this machine."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        ...

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order; keys that come sorted are found faster."""
        ...

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries of a half-open range in key order; nothing may be written meanwhile."""
        ...

    def pages(self, ranges: Sequence[tuple[bytes, bytes]], count_max: int) -> list[list[tuple[bytes, bytes]]]:
        """Return the first entries of each of many half-open ranges, so many at most; fewer: that is all.

        One call, however many ranges there are. Ranges that come sorted are read faster.
        """
        return [list(islice(self.scan(start, stop), count_max)) for start, stop in ranges]

    def version(self) -> Version | None:
        """Return the version that the entries stand at; None for a copy that never took one."""
        ...

    def apply(self, changes: Changes, version: Version) -> None:
        """Take the changes of a batch and its version, all or nothing."""
        ...

    def write_partly(self, changes: Changes) -> None:
        """Take changes of a batch that is not over: no version until `apply`.

        After a kill there is none either, or an older one whose entries are whole.
        """
        ...

    def snapshot(self, folder: Path) -> list[Path]:
        """Write files into a new folder from which the entries and their version can be opened again.

        A file that an earlier snapshot had, under the same name, has the same bytes.
        """
        ...

    def sizes(self) -> Sizes:
        """Return how large the copy is; an estimate that costs next to nothing."""
        ...

    def close(self) -> None:
        """Let go of memory and locks; what was applied stays, or is noticed as missing at the next open."""
        ...


@runtime_checkable
class Parted(Protocol):
    """A copy that is made of parts, each of which can be brought back alone.

    A part is a folder of the copy; the names of its files in a snapshot begin with `<part>/`.
    """

    def missing_parts(self) -> list[str]:
        """Return the parts that the copy should have at its version and has not, or has damaged."""
        ...

    def lay_part(self, part: str, files: Path) -> None:
        """Take the files of one part of a snapshot, moved out of a folder; none: the part begins empty.

        Until `end_part` the part stays missing, also for the next one who opens the copy after a kill.
        """
        ...

    def apply_to_part(self, part: str, changes: Changes, version: Version) -> None:
        """Take what a batch did to one part; changes of other parts are left out, the version stays.

        A change file that has several sections is given section by section, each with the batch's version.
        """
        ...

    def end_part(self, part: str) -> None:
        """Say that the part was brought to the copy's version; StorageCorrupt when it was not."""
        ...

    def apply_early(self, changes: Changes, version: Version) -> None:
        """Take a part of the changes of a published batch; its version stands once `apply` took the rest.

        Killed in between, the copy has the version from before, and takes the whole batch once more.
        """
        ...


class BackendFactory(Protocol):
    """Which backend an operator's state is in, and with which options; inert, and sent to tasks.

    Two that are equal open one folder in the same way, so a store that one of them opened serves the other.
    """

    @property
    def kind(self) -> str:
        """Return the name of the kind; a folder is never opened by another kind."""
        ...

    @property
    def is_served(self) -> bool:
        """True if other processes of the machine may use an open store over a local socket."""
        ...

    def with_slots(self, slots: int) -> Self:
        """Return the same for a process that has one of so many equal shares of the memory."""
        ...

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> Backend:
        """Open the backend in a folder, which is created if it is missing.

        The folder is empty, or holds what a backend of this kind left when it was closed, or the files of one
        of its snapshots under the names that `snapshot` gave them. Damaged files: StorageCorrupt. `ticks_ns`
        counts nanoseconds, for backends that measure how long lookups take.
        """
        ...


def page_size(ranges_count: int, count_max: int) -> int:
    """Return how many entries of each of so many ranges are asked for at once, one at least."""
    return max(1, min(count_max, PAGES_ENTRIES_MAX // max(1, ranges_count)))
