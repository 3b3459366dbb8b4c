"""The trash: expired folders, renamed at once and unlinked file by file."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.model.ids import SnowflakeSource
from tidegate.streams.disk import StreamDisk

TRASH = ".trash"  # begins no namespace


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The number of files that a sweep unlinked, and whether the trash is empty."""

    files: int
    is_done: bool


class Trash:
    """Folders below `<root>/.trash` that wait to be unlinked. Threads: any; takes no lock."""

    def __init__(self, disk: StreamDisk, ids: SnowflakeSource) -> None:
        self._disk = disk
        self._ids = ids

    def take(self, root: str, folder: str) -> bool:
        """Move a folder into the trash by one rename; False if it does not exist. Raises OSError."""
        # A unique name: the same window of the same table can be moved twice, by two tables.
        target = f"{root}/{TRASH}/{self._ids.take()}-{posixpath.basename(folder)}"
        try:
            self._disk.rename(folder, target)
        except (FileNotFoundError, NotADirectoryError):
            if not self._disk.exists(folder):
                return False
            self._disk.make_folder(f"{root}/{TRASH}", sync=False)
            self._disk.rename(folder, target)
        return True

    def sweep(self, root: str) -> Iterator[None]:
        """Unlink the files in the trash of a root, and yield after each.

        Tries all of them, then raises OSError for the first that could not be removed.
        """
        trash = f"{root}/{TRASH}"
        first: OSError | None = None
        for name, size in self._disk.entries(trash):
            try:
                yield from self._remove(f"{trash}/{name}", is_folder=size is None)
            except OSError as problem:
                first = first or problem
        if first is not None:
            raise first

    def _remove(self, path: str, *, is_folder: bool) -> Iterator[None]:
        if not is_folder:
            # Another sweep may unlink the same file.
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(path)
            yield
            return
        for name, size in self._disk.entries(path):
            yield from self._remove(f"{path}/{name}", is_folder=size is None)
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove_folder(path)
