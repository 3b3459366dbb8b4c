"""Trash: takes folders that are over, gives their room back in small steps, keeps them out of sight."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.model.ids import SnowflakeSource
from tidegate.streams.disk import Disk

TRASH = ".trash"  # begins no namespace


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep unlinked, and whether the trash is empty now."""

    files: int
    is_done: bool


class Trash:
    """Folders below `<root>/.trash` that wait to be unlinked. Threads: any; takes no lock."""

    def __init__(self, disk: Disk, ids: SnowflakeSource) -> None:
        self._disk = disk
        self._ids = ids

    def take(self, root: str, folder: str) -> bool:
        """Move a folder out of sight, in one step; False where it was not there. Raises OSError."""
        # A name of its own: the same window of the same table can be thrown away twice, by two tables.
        target = f"{root}/{TRASH}/{self._ids.take()}-{posixpath.basename(folder)}"
        try:
            self._disk.rename(folder, target)
        except FileNotFoundError:
            if not self._disk.exists(folder):
                return False
            self._disk.make_folder(f"{root}/{TRASH}", sync=False)
            self._disk.rename(folder, target)
        return True

    def sweep(self, root: str) -> Iterator[None]:
        """Unlink what lies in the trash of a root, and stop behind each file."""
        trash = f"{root}/{TRASH}"
        for name, _ in self._disk.entries(trash):
            yield from self._remove(f"{trash}/{name}")

    def _remove(self, path: str) -> Iterator[None]:
        for name, size in self._disk.entries(path):
            below = f"{path}/{name}"
            if size is None:
                yield from self._remove(below)
                continue
            # Another sweep may be at the same file.
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(below)
            yield
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove_folder(path)
