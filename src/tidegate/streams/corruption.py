"""Reports of damage in stream logs: each once to a listener, and the scan of a whole root."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tidegate.errors import StorageCorrupt, StorageFailed
from tidegate.streams.disk import FileSource, StreamDisk
from tidegate.streams.frame_reader import Damage, Walk, take_payload
from tidegate.streams.shards import LOG_SUFFIX
from tidegate.streams.trash import TRASH
from tidegate.streams.windows import parse_window

REPORTED_MAX = 100_000  # remembered so that they are not reported again; beyond that, some are


class DamageReporter:
    """Reports each damage to `listener` once. Threads: any."""

    def __init__(self) -> None:
        self.listener: Callable[[Damage], None] = _ignore
        self._reported: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def report(self, damage: Damage) -> None:
        """Report a damage unless it was reported before."""
        place = (damage.file, damage.position)
        with self._lock:
            if place in self._reported:
                return
            if len(self._reported) >= REPORTED_MAX:
                self._reported.clear()
            self._reported.add(place)
        self.listener(damage)

    def report_loss(self, loss: Damage) -> None:
        """Report what a file lost while it was in use: each loss is found once."""
        self.listener(loss)


def _ignore(damage: Damage) -> None:
    """Ignore damage while there is no listener; reads still return it as warnings."""


def scan_damage(root: Path, disk: StreamDisk | None = None) -> Iterator[Damage]:
    """Yield the damage of every log below a root, in the order of names; changes nothing.

    May run beside a server: a frame that is being written looks like a torn end, which is no damage.
    """
    disk = disk or StreamDisk()
    for path in _logs_below(disk, str(root)):
        yield from _damage_in(disk, path)


def _logs_below(disk: StreamDisk, root: str) -> Iterator[str]:
    for namespace in _folders(disk, root):
        for table in _folders(disk, namespace):
            for window in _folders(disk, table):
                if parse_window(window.rpartition("/")[2]) is None:
                    continue
                for shard in _folders(disk, window):
                    names = sorted(name for name, size in disk.entries(shard) if size is not None)
                    yield from (f"{shard}/{name}" for name in names if name.endswith(LOG_SUFFIX))


def _folders(disk: StreamDisk, folder: str) -> list[str]:
    found = (name for name, size in disk.entries(folder) if size is None and name != TRASH)
    return [f"{folder}/{name}" for name in sorted(found)]


def _damage_in(disk: StreamDisk, path: str) -> Iterator[Damage]:
    try:
        fd = disk.open_read(path)
    except FileNotFoundError:
        return  # expired meanwhile
    except OSError as problem:
        raise StorageFailed(path=path, reason=problem.strerror or str(problem)) from problem
    try:
        source = FileSource(disk, fd, path, disk.size(fd))
        for found in Walk(source):
            payload = found if isinstance(found, Damage) else take_payload(source, found)
            if isinstance(payload, Damage):
                yield payload
    except StorageCorrupt as problem:
        yield Damage(path, 0, str(problem.values["reason"]))
    except OSError as problem:
        raise StorageFailed(path=path, reason=problem.strerror or str(problem)) from problem
    finally:
        disk.close(fd)


def warning_of(damage: Damage, root: str) -> str:
    """Return the warning for a reader about a frame that was left out."""
    file = damage.file.removeprefix(f"{root}/")
    return f"{file}, byte {damage.position}: {damage.reason}; the rows of this frame are left out."


def loss_warning_of(loss: Damage, root: str) -> str:
    """Return the warning for a reader about rows that a file lost."""
    file = loss.file.removeprefix(f"{root}/")
    return f"{file}, byte {loss.position}: {loss.reason}; rows that it had there are lost."
