"""The folders of logs, and which of their names are synced.

A name counts as durable only if this store synced it: a folder may be from a time when its table was not
durable, or its sync may have failed after it was created.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Iterator
from itertools import takewhile

from tidegate.streams.disk import StreamDisk

FOLDERS_KNOWN_MAX = 10_000  # the oldest are forgotten, and synced again when they are used; some 2 MB


class Folders:
    """The folders of all streams. Threads: any; the lock is not held on file work."""

    def __init__(self, disk: StreamDisk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._synced: dict[str, None] = {}  # oldest first
        self._forgotten = 0  # how often any was forgotten because it was created again

    def forget(self, folder: str, top: str) -> None:
        """Forget that a missing folder and its parents up to `top` were synced, before they are created."""
        missing = list(takewhile(lambda level: not self._disk.exists(level), _levels(folder, top)))
        with self._lock:
            self._forgotten += 1
            for level in missing:
                self._synced.pop(level, None)

    def make(self, folder: str, top: str) -> None:
        """Create a missing folder and its parents without syncing their names; raises OSError."""
        self.forget(folder, top)
        self._disk.make_folder(folder, sync=False)

    def sync(self, folder: str, top: str) -> None:
        """Sync the names of a folder and of its parents up to `top`; raises OSError."""
        if folder in self._synced:  # its parents were synced before it, and none is removed while it exists
            return
        with self._lock:
            forgotten = self._forgotten
            unsynced = [level for level in _levels(folder, top) if level not in self._synced]
        for level in reversed(unsynced):
            self._disk.sync_folder(posixpath.dirname(level))
        with self._lock:
            if self._forgotten != forgotten:
                return  # another folder may have its name by now
            self._synced.update(dict.fromkeys(reversed(unsynced)))
            while len(self._synced) > FOLDERS_KNOWN_MAX:
                del self._synced[next(iter(self._synced))]


def _levels(folder: str, top: str) -> Iterator[str]:
    while len(folder) > len(top):
        yield folder
        folder = posixpath.dirname(folder)
    yield top
