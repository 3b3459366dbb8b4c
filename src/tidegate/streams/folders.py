"""Folders: takes those that logs lie in, gives them their places, keeps which have their names on the disk.

A name counts as being there only when this store synced it: a folder may be from a time when its table was
not durable, or its sync may have failed after it was made.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Iterator
from itertools import takewhile

from tidegate.streams.disk import StreamDisk

FOLDERS_KNOWN_MAX = 10_000  # the oldest are forgotten, and synced once more when they are used; some 2 MB


class Folders:
    """The folders of all streams. Threads: any; the lock is not held on file work."""

    def __init__(self, disk: StreamDisk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._synced: dict[str, None] = {}  # oldest first
        self._forgotten = 0  # how often any was forgotten because it is made anew

    def forget(self, folder: str, top: str) -> None:
        """Say that a folder that is missing is about to be made, with those above it up to `top`."""
        missing = list(takewhile(lambda level: not self._disk.exists(level), _levels(folder, top)))
        with self._lock:
            self._forgotten += 1
            for level in missing:
                self._synced.pop(level, None)

    def make(self, folder: str, top: str) -> None:
        """Make a folder that is missing, with those above it; their names are not synced. Raises OSError."""
        self.forget(folder, top)
        self._disk.make_folder(folder, sync=False)

    def sync(self, folder: str, top: str) -> None:
        """Put the names of a folder and of all above it up to `top` on the disk; raises OSError."""
        if folder in self._synced:  # those above it were synced before it, and none goes while it is there
            return
        with self._lock:
            forgotten = self._forgotten
            wanted = [level for level in _levels(folder, top) if level not in self._synced]
        for level in reversed(wanted):
            self._disk.sync_folder(posixpath.dirname(level))
        with self._lock:
            if self._forgotten != forgotten:
                return  # perhaps another folder has its name by now
            self._synced.update(dict.fromkeys(reversed(wanted)))
            while len(self._synced) > FOLDERS_KNOWN_MAX:
                del self._synced[next(iter(self._synced))]


def _levels(folder: str, top: str) -> Iterator[str]:
    while len(folder) > len(top):
        yield folder
        folder = posixpath.dirname(folder)
    yield top
