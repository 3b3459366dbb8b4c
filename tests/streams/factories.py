"""Tables and stores for the tests of streams, and a disk that fails when it is told to."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.model.tables import Table, TableColumn, TableKind
from tidegate.settings.sections import StreamSettings
from tidegate.streams.disk import StreamDisk
from tidegate.streams.folders import Folders
from tidegate.streams.log_file import LogContext
from tidegate.streams.store import StreamStore

COLUMNS = (TableColumn("id", "BIGINT", required=True), TableColumn("text", "TEXT"))


def make_table(**more: Any) -> Table:
    """Return a stream of two columns, `id` and `text`, that lives ten minutes in minute windows."""
    values: dict[str, Any] = {
        "id": 1,
        "tenant": "default",
        "namespace": "chat",
        "name": "typing",
        "kind": TableKind.STREAM,
        "columns": COLUMNS,
        "primary_key": (),
        "created_us": 0,
        "ttl_seconds": 600,
    }
    return Table(**(values | more))


def make_store(
    folder: Path,
    clock: Clock,
    *,
    disk: StreamDisk | None = None,
    free_bytes_min: int = 0,
    settings: StreamSettings | None = None,
) -> StreamStore:
    """Return a store below a folder; the default tenant's streams are in `streams`."""

    def root_of(tenant: str) -> Path:
        return folder / "streams" if tenant == "default" else folder / "tenants" / tenant / "streams"

    return StreamStore(
        root_of,
        clock,
        SnowflakeSource(clock),
        settings or StreamSettings(),
        free_bytes_min=free_bytes_min,
        disk=disk,
    )


def make_ground(disk: StreamDisk, folder: Path) -> LogContext:
    """Return what a log stands on that belongs to no table; nobody hears of its damage."""
    return LogContext(
        disk,
        Folders(disk),
        str(folder),
        claim=lambda: None,
        report=lambda _: None,
        report_loss=lambda _: None,
    )


def texts(store: StreamStore, table: Table, user: str = "alice", **how: Any) -> list[Any]:
    """Read a user's rows and give the second column of each."""
    return [row[1] for row in store.read(table, user, **how).rows]


def log_files(folder: Path) -> list[Path]:
    """Return every log below a folder that is in sight."""
    return sorted(path for path in (folder / "streams").rglob("*.log") if ".trash" not in path.parts)


class FailingDisk(StreamDisk):
    """A real disk that refuses what it is told to refuse, and notes what it was asked."""

    def __init__(self) -> None:
        self.write_fault: int | None = None
        self.written_before_fault = 0
        self.sync_fault: int | None = None
        self.truncate_fault: int | None = None
        self.rename_fault: int | None = None
        self.free = 1 << 40
        self.opened: list[str] = []
        self.synced: list[str] = []

    def open_read(self, path: str) -> int:
        self.opened.append(path)
        return super().open_read(path)

    def open_append(self, path: str) -> int:
        self.opened.append(path)
        return super().open_append(path)

    def write_at(self, fd: int, content: bytes | bytearray, position: int) -> None:
        if self.write_fault is not None:
            os.pwrite(fd, bytes(content[: self.written_before_fault]), position)
            raise OSError(self.write_fault, os.strerror(self.write_fault))
        super().write_at(fd, content, position)

    def truncate(self, fd: int, size: int) -> None:
        if self.truncate_fault is not None:
            raise OSError(self.truncate_fault, os.strerror(self.truncate_fault))
        super().truncate(fd, size)

    def fsync(self, fd: int) -> None:
        if self.sync_fault is not None:
            raise OSError(self.sync_fault, os.strerror(self.sync_fault))
        self.synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        super().fsync(fd)

    def sync_folder(self, path: str) -> None:
        self.synced.append(path)
        super().sync_folder(path)

    def rename(self, old: str, new: str) -> None:
        if self.rename_fault is not None:
            raise OSError(self.rename_fault, os.strerror(self.rename_fault))
        super().rename(old, new)

    def free_bytes(self, path: str) -> int:
        return min(self.free, super().free_bytes(path))


FULL = errno.ENOSPC
BROKEN = errno.EIO
