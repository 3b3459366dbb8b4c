"""Durable streams on a disk whose syncs fail: nothing is acknowledged that may not be on the disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.streams.factories import BROKEN, FailingDisk, log_files, make_ground, make_store, make_table, texts
from tidegate.errors import StorageFailed
from tidegate.model.tables import Durability
from tidegate.settings.sections import StreamSettings
from tidegate.streams.corruption import scan_damage
from tidegate.streams.folders import Folders
from tidegate.streams.frame_reader import Damage
from tidegate.streams.frames import FrameContent, FrameKind
from tidegate.streams.log_file import UNSYNCED, LogFile
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

BUFFERED = make_table()
SYNCED = msgspec.structs.replace(BUFFERED, durability=Durability.FSYNC)
BATCH = FrameContent(FrameKind.ROWS, 1, 1, b"payload")


class FailsOnce(FailingDisk):
    """A disk that tells of a failed sync once, as Linux does; of a folder where its name is given."""

    def __init__(self, folder: str | None = None) -> None:
        super().__init__()
        self.left = 1
        self.folder = folder

    def fsync(self, fd: int) -> None:
        if self.folder is None:
            self._fail()
        super().fsync(fd)

    def sync_folder(self, path: str) -> None:
        if self.folder == Path(path).name:
            self._fail()
        super().sync_folder(path)

    def _fail(self) -> None:
        if self.left:
            self.left -= 1
            raise OSError(BROKEN, "it failed")


def _log(folder: Path, disk: FailingDisk) -> LogFile:
    log = LogFile(str(folder / "shard" / "a.log"), make_ground(disk, folder))
    log.open()
    return log


def _append(log: LogFile, number: int) -> tuple[int, int]:
    log.append(BATCH, number, [number], limit_bytes=1000, now_seconds=0, syncs=True)
    return log.stop, log.generation


def test_a_failed_sync_refuses_all_that_it_was_to_cover(tmp_path: Path) -> None:
    disk = FailsOnce()
    log = _log(tmp_path, disk)
    first, second = _append(log, 1), _append(log, 2)
    with pytest.raises(OSError, match="it failed"):
        log.sync(*first)
    for written in (second, first):
        with pytest.raises(OSError, match=UNSYNCED):
            log.sync(*written)
    disk.opened.clear()
    third = _append(log, 3)
    assert disk.opened == [log.path], "it goes to a file that was opened anew"
    log.sync(*third)
    for written in (second, first):
        with pytest.raises(OSError, match=UNSYNCED):
            log.sync(*written)
    log.close()
    assert list(scan_damage(tmp_path)) == []


def test_a_close_that_meets_the_failure_does_not_take_it_from_who_waits(tmp_path: Path) -> None:
    log = _log(tmp_path, FailsOnce())
    first = _append(log, 1)
    with pytest.raises(OSError, match="it failed"):
        log.close()
    for _ in range(2):
        with pytest.raises(OSError, match=UNSYNCED):
            log.sync(*first)
        log.close()


def test_frames_that_a_failed_sync_dropped_are_told_as_lost(tmp_path: Path, clock: ManualClock) -> None:
    disk = FailsOnce()
    disk.left = 0
    store = make_store(tmp_path, clock, disk=disk)
    told: list[Damage] = []
    store.on_damage = told.append
    store.append(SYNCED, "alice", [(1, "a")])
    disk.left = 1
    with pytest.raises(StorageFailed):
        store.append(SYNCED, "alice", [(2, "b")])
    (file,) = log_files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) // 2))
    store.append(SYNCED, "alice", [(3, "c")])
    assert texts(store, SYNCED) == ["a", "c"]
    assert len(told) == 1
    store.close()
    assert list(scan_damage(tmp_path / "streams")) == []


def test_a_table_that_was_made_durable_syncs_what_it_made_before(
    tmp_path: Path, store: StreamStore, disk: FailingDisk
) -> None:
    store.append(BUFFERED, "alice", [(1, "a")])
    store.flush()
    disk.synced.clear()
    store.append(SYNCED, "alice", [(2, "b")])
    (file,) = log_files(tmp_path)
    levels = [str(level) for level in [file, *file.parents][:6]]
    assert levels[-1] == str(tmp_path / "streams")
    assert set(levels) <= set(disk.synced)
    disk.synced.clear()
    store.append(SYNCED, "alice", [(3, "c")])
    assert disk.synced == [str(file)], "folders are synced once"


def test_a_log_that_was_not_durable_is_synced_before_it_gives_its_slot(
    tmp_path: Path, clock: ManualClock, disk: FailingDisk
) -> None:
    store = make_store(tmp_path, clock, disk=disk, settings=StreamSettings(writers_max=1))
    store.append(BUFFERED, "alice", [(1, "a")])
    disk.synced.clear()

    def take_slot(_: object) -> None:
        store.append(BUFFERED, "bob", [(9, "z")])

    store.append(SYNCED, "alice", [(2, "b")], take_slot)
    (file,) = [path for path in log_files(tmp_path) if path.name == "alice.log"]
    assert {str(file), str(file.parent), str(file.parents[1])} <= set(disk.synced)
    store.close()


@pytest.mark.parametrize("above", range(1, 6), ids=["shard", "window", "table", "namespace", "streams"])
def test_a_folder_whose_sync_failed_is_synced_by_the_next_append(
    tmp_path: Path, clock: ManualClock, above: int
) -> None:
    probe = make_store(tmp_path / "probe", clock)
    probe.append(SYNCED, "alice", [(1, "a")])
    probe.close()
    folder = log_files(tmp_path / "probe")[0].parents[above - 1]
    home = tmp_path / "home"
    disk = FailsOnce(folder.name)
    disk.left = 0
    store = make_store(home, clock, disk=disk)
    store.open_table(SYNCED)
    disk.left = 1
    disk.synced.clear()
    with pytest.raises(StorageFailed):
        store.append(SYNCED, "alice", [(1, "a")])
    wanted = str(home / folder.relative_to(tmp_path / "probe"))
    assert wanted not in disk.synced
    store.append(SYNCED, "alice", [(2, "b")])
    assert wanted in disk.synced
    store.close()


def test_a_new_folder_of_an_old_name_is_synced_again(tmp_path: Path, disk: FailingDisk) -> None:
    folders, folder = Folders(disk), tmp_path / "a" / "b"
    for _ in range(2):
        folders.make(str(folder), str(tmp_path / "a"))
        disk.synced.clear()
        for _ in range(2):
            folders.sync(str(folder), str(tmp_path / "a"))
        assert disk.synced == [str(tmp_path), str(tmp_path / "a")]
        folder.rmdir()
        folder.parent.rmdir()


def test_a_folder_that_cannot_be_synced_is_made_again(tmp_path: Path) -> None:
    disk = FailsOnce(tmp_path.name)
    with pytest.raises(OSError, match="it failed"):
        disk.make_folder(str(tmp_path / "a"), sync=True)
    disk.make_folder(str(tmp_path / "a"), sync=True)
    assert disk.synced == [str(tmp_path)]
