"""The backend of a local store: one partition's entries on this machine, and what every kind promises.

A backend may be lost or removed at any moment, and is restored from the checkpoint. It is used by one thread
at a time. Keys and values are bytes; keys sort as bytes do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

# Entries that one call for many ranges returns at most: of a remote store they are one message, which both
# ends hold in memory. Of more ranges than this, one entry of each is returned.
PAGES_ENTRIES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Version:
    """The committed batch that a backend is at: its epoch, its number and the id of its commit record."""

    epoch: int
    batch: int
    commit_id: str


@dataclass(frozen=True, slots=True)
class PackedEntries:
    """Entries of one segment as columns, all keys and all values of one width, the keys sorted.

    `keys` is a uint8 array of shape (n, width): key group u16, then the key, as in the segment.
    """

    segment: int
    keys: np.ndarray[Any, np.dtype[np.uint8]]
    values: np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(slots=True)
class StateChanges:
    """The changes of one batch: first the ranges are deleted, then each entry is put, or deleted by None.

    `packed` are entries of a segmented store, put after the others; no other backend accepts them.
    """

    ranges: list[tuple[bytes, bytes]] = field(default_factory=list)
    entries: dict[bytes, bytes | None] = field(default_factory=dict)
    packed: list[PackedEntries] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.entries or self.packed)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a backend is: its bytes on this machine, and about how many entries it has."""

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
        """Return up to `count_max` first entries of each of many half-open ranges; fewer: that is all.

        One call, however many ranges there are. Ranges that come sorted are read faster.
        """
        return [list(islice(self.scan(start, stop), count_max)) for start, stop in ranges]

    def version(self) -> Version | None:
        """Return the version that the entries are at; None for a backend that was never at one."""
        ...

    def apply(self, changes: StateChanges, version: Version) -> None:
        """Write the changes of a batch and its version, all or nothing."""
        ...

    def write_partly(self, changes: StateChanges) -> None:
        """Write a part of a batch that is not published yet: there is no version until `apply`.

        After a kill there is none either, or an older one with all of its entries.
        """
        ...

    def snapshot(self, folder: Path) -> list[Path]:
        """Write files into a new folder from which the entries and their version can be opened again.

        A file that an earlier snapshot had, under the same name, has the same bytes.
        """
        ...

    def sizes(self) -> Sizes:
        """Return how large the backend is; an estimate that costs next to nothing."""
        ...

    def close(self) -> None:
        """Release memory and locks; what was applied stays, or is found missing at the next open."""
        ...


@runtime_checkable
class SupportsParts(Protocol):
    """A backend of parts, each of which can be restored alone.

    A part is a folder of the backend; the names of its files in a snapshot begin with `<part>/`.
    """

    def missing_parts(self) -> list[str]:
        """Return the parts that the backend lacks at its version, and those that are damaged."""
        ...

    def replace_part(self, part: str, files: Path) -> None:
        """Replace a part by its files of a snapshot, moved out of a folder; none: the part begins empty.

        Until `finish_part` the part counts as missing, also when the backend is opened after a kill.
        """
        ...

    def apply_to_part(self, part: str, changes: StateChanges, version: Version) -> None:
        """Apply a batch's changes of one part; those of other parts are left out, the version stays.

        A changelog file of several sections is applied section by section, each with the batch's version.
        """
        ...

    def finish_part(self, part: str) -> None:
        """Mark the part as whole at the backend's version; StorageCorrupt when it is not at it."""
        ...

    def apply_early(self, changes: StateChanges, version: Version) -> None:
        """Write a part of the changes of a published batch; its version is there once `apply` wrote the rest.

        Killed in between, the backend has the version from before, and applies the whole batch once more.
        """
        ...


class BackendFactory(Protocol):
    """The kind and the options of an operator's backend; inert, and sent to tasks.

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
        """Return the same for a process that has one of `slots` equal shares of the memory."""
        ...

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> Backend:
        """Open the backend in a folder, which is created if it is missing.

        The folder is empty, or has what a backend of this kind left when it was closed, or the files of one
        of its snapshots under the names that `snapshot` returned. Damaged files: StorageCorrupt. `ticks_ns`
        counts nanoseconds, for backends that measure how long lookups take.
        """
        ...


def page_size(ranges_count: int, count_max: int) -> int:
    """Return how many entries of each range to ask for in one call, one at least."""
    return max(1, min(count_max, PAGES_ENTRIES_MAX // max(1, ranges_count)))
