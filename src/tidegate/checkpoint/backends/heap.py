"""The backend in memory: takes changes, gives entries, keeps them in a dict and, closed, in one file.

A kill loses what came since the copy was opened: the file then stands at its older version. Keys are put in
order only when they are scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree

from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFailed, StorageFull
from tidegate.state.backend import Changes, Sizes, Version
from tidegate.state.heap_file import FILE_SUFFIX, read_entries, write_entries
from tidegate.state.layout import META_GROUP
from tidegate.state.sorted_keys import SortedKeys
from tidegate.storage.files import is_full

LOCAL_NAME = "local" + FILE_SUFFIX

# Python's own cost of an entry: two bytes objects and a place in a dict.
ENTRY_OVERHEAD_BYTES = 160


class HeapBackend:
    """One partition's entries in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._version: Version | None = None
        self._entries: dict[bytes, bytes] = {}
        self._changed = False
        self._closed = False
        self._load()
        self._order = SortedKeys(self._entries)
        self._size_bytes = sum(map(len, self._entries)) + sum(map(len, self._entries.values()))

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._entries.get, keys))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._entries
        return ((key, entries[key]) for key in self._order.between(start, stop))

    def version(self) -> Version | None:
        return self._version

    def apply(self, changes: Changes, version: Version) -> None:
        self._take(changes)
        self._version = version

    def write_partly(self, changes: Changes) -> None:
        self._version = None
        self._take(changes)

    def snapshot(self, folder: Path) -> list[Path]:
        if folder.exists():
            raise InvariantBroken(reason=f"a snapshot needs a folder that is not there yet: {folder}")
        try:
            folder.mkdir(parents=True)
            spare = folder / LOCAL_NAME
            digest = write_entries(spare, self._version, self._in_order())
            return [spare.rename(folder / f"{digest}{FILE_SUFFIX}")]
        except OSError as problem:
            rmtree(folder, ignore_errors=True)
            raise _refusal(folder, problem) from problem

    def sizes(self) -> Sizes:
        count = len(self._entries)
        return Sizes(size_bytes=self._size_bytes + count * ENTRY_OVERHEAD_BYTES, entry_count=count)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._changed:
            return
        target = self.folder / LOCAL_NAME
        spare = target.with_name(f"{target.name}.new")
        try:
            write_entries(spare, self._version, self._in_order())
            spare.replace(target)
        except OSError as problem:
            spare.unlink(missing_ok=True)
            raise _refusal(self.folder, problem) from problem

    def _load(self) -> None:
        """Read what a copy left when it was closed, else the one snapshot in the folder."""
        local = self.folder / LOCAL_NAME
        found = [local] if local.exists() else sorted(self.folder.glob(f"*{FILE_SUFFIX}"))
        if len(found) > 1:
            reason = f"it holds {len(found)} snapshots, one was expected"
            raise StorageCorrupt(place=str(self.folder), reason=reason)
        for file in found:
            self._version, self._entries = read_entries(file)

    def _in_order(self) -> Iterator[tuple[bytes, bytes]]:
        return self.scan(b"", META_GROUP)

    def _take(self, changes: Changes) -> None:
        self._changed = True
        if changes.entries and max(changes.entries) >= META_GROUP:
            raise InvariantBroken(reason="no entry lies where the store keeps what it knows of itself")
        for start, stop in changes.ranges:
            for key in list(self._order.between(start, stop)):
                self._drop(key)
        entries, order = self._entries, self._order
        for key, value in changes.entries.items():
            if value is None:
                self._drop(key)
                continue
            before = entries.get(key)
            if before is None:
                order.add(key)
                self._size_bytes += len(key) + len(value)
            else:
                self._size_bytes += len(value) - len(before)
            entries[key] = value

    def _drop(self, key: bytes) -> None:
        before = self._entries.pop(key, None)
        if before is not None:
            self._order.remove(key)
            self._size_bytes -= len(key) + len(before)


def _refusal(path: Path, problem: OSError) -> StorageFull | StorageFailed:
    if is_full(problem):
        return StorageFull(path=str(path), free_bytes=0)
    return StorageFailed(path=str(path), reason=problem.strerror or str(problem))
