"""Slots and logs by themselves: what a race between two tables can do to one log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streams.factories import FailingDisk, make_ground
from tidegate.streams.frames import FrameContent, FrameKind
from tidegate.streams.log_file import LogFile
from tidegate.streams.writer_pool import WriterPool

BATCH = FrameContent(FrameKind.ROWS, 1, 1, b"payload")


def _log(folder: Path, disk: FailingDisk, name: str = "a") -> LogFile:
    return LogFile(str(folder / "shard" / f"{name}.log"), make_ground(disk, folder))


def test_a_log_that_is_about_to_be_closed_is_not_opened_twice(tmp_path: Path, disk: FailingDisk) -> None:
    """Another thread has taken it out of the slots, and has not closed it yet."""
    slots, log = WriterPool(1), _log(tmp_path, disk)
    log.open()
    disk.opened.clear()
    assert slots.open(log) == []
    assert disk.opened == []
    other = _log(tmp_path, disk, "b")
    slots.open(other)
    assert slots.open_logs() == [other]
    log.close()
    other.close()


def test_the_least_recently_used_log_gives_its_slot(tmp_path: Path, disk: FailingDisk) -> None:
    slots = WriterPool(2)
    first, second, third = (_log(tmp_path, disk, name) for name in "abc")
    for log in (first, second, first, third):
        slots.open(log)
    assert (first.is_open, second.is_open, third.is_open) == (True, False, True)
    slots.forget(first)
    slots.open(second)
    assert third.is_open, "the slot of a forgotten log is free"


def test_a_slot_comes_back_when_a_log_cannot_be_opened(tmp_path: Path, disk: FailingDisk) -> None:
    slots = WriterPool(1)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        slots.open(LogFile(str(tmp_path / "file" / "a.log"), make_ground(disk, tmp_path)))
    slots.open(_log(tmp_path, disk))


def test_a_durable_log_is_synced_before_it_is_closed(tmp_path: Path, disk: FailingDisk) -> None:
    """Whoever waits for its sync finds it done."""
    log = _log(tmp_path, disk)
    log.open()
    log.append(BATCH, 1, [1], limit_bytes=1000, now_seconds=0, syncs=True)
    log.close()
    done = [log.path, str(tmp_path / "shard"), str(tmp_path.parent), str(tmp_path)]
    assert disk.synced == done
    log.sync(log.stop, log.generation)
    assert disk.synced == done


def test_one_sync_serves_all_who_wrote_before_it(tmp_path: Path, disk: FailingDisk) -> None:
    log = _log(tmp_path, disk)
    log.open()
    stops = []
    for number in range(3):
        log.append(BATCH, number, [number], limit_bytes=1000, now_seconds=0, syncs=True)
        stops.append(log.stop)
    for stop in reversed(stops):
        log.sync(stop, log.generation)
    assert disk.synced.count(log.path) == 1
    log.close()


def test_a_closed_log_is_opened_again_without_a_look_at_its_bytes(tmp_path: Path) -> None:
    read: list[int] = []

    class CountingDisk(FailingDisk):
        def read_at(self, fd: int, count: int, position: int) -> bytes:
            read.append(position)
            return super().read_at(fd, count, position)

    log = _log(tmp_path, CountingDisk())
    (tmp_path / "shard").mkdir()
    Path(log.path).touch()
    for number in range(3):
        log.open()
        log.append(BATCH, number, [number], limit_bytes=1000, now_seconds=0)
        log.close()
    assert Path(log.path).stat().st_size == log.stop
    assert read == []
