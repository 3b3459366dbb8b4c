"""The logs of STREAM tables, frame by frame. Reads only; a server may run meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from tidegate.cli.checks.finding import Finding, fail, ok
from tidegate.cli.show import bytes_text, plural
from tidegate.streams.damage import scan_damage
from tidegate.streams.disk import RealDisk
from tidegate.streams.trash import TRASH

# A second or two of reading. What lies beyond is checked when it is read, and is told as not looked at.
LOGS_BYTES_MAX = 1 << 30
DAMAGES_NAMED_MAX = 5
DAMAGE_FIX = (
    "Answers leave these rows out and have the others. To get them back, restore the newest backup into an "
    "empty home: tidegate restore FILE --home DIR. Else leave the file: it goes when its time is over."
)


def check_streams(roots: Iterable[Path], bytes_max: int = LOGS_BYTES_MAX) -> Finding:
    """Check every frame of every log against its checksums, and name what does not fit by file and byte."""
    disk = _BoundedDisk(bytes_max)
    places = list(roots)
    damages = (damage for root in places for damage in scan_damage(root, disk))
    # One more than is named tells that there is more; a disk that is full of damage is not read to its end.
    found = list(islice(damages, DAMAGES_NAMED_MAX + 1))
    if found:
        told = "; ".join(
            f"{damage.file}: {damage.reason}, at byte {damage.position}"
            for damage in found[:DAMAGES_NAMED_MAX]
        )
        more = "; and more" if len(found) > DAMAGES_NAMED_MAX else ""
        return fail("streams", told + more, DAMAGE_FIX)
    if not disk.read_count and not disk.skipped_count:
        return ok("streams", "no rows are stored")
    told = f"{plural(disk.read_count, 'log')}, {bytes_text(disk.read_bytes)}, whole"
    if disk.skipped_count:
        told += f"; {plural(disk.skipped_count, 'log')} beyond {bytes_text(bytes_max)} not looked at"
    waiting = sum(len(disk.entries(str(root / TRASH))) for root in places)
    if waiting:
        told += f"; {plural(waiting, 'expired folder')} still to be removed"
    return ok("streams", told)


class _BoundedDisk(RealDisk):
    """Opens logs until so many bytes were opened; those behind are as if they had expired."""

    def __init__(self, bytes_max: int) -> None:
        self.read_bytes = 0
        self.read_count = 0
        self.skipped_count = 0
        self._bytes_max = bytes_max

    def open_read(self, path: str) -> int:
        """Open a log, or say that it is not there."""
        fd = super().open_read(path)
        size_bytes = self.size(fd)
        if self.read_bytes + size_bytes > self._bytes_max:
            self.close(fd)
            self.skipped_count += 1
            raise FileNotFoundError(path)
        self.read_bytes += size_bytes
        self.read_count += 1
        return fd
