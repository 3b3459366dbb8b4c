"""Files that something else removes or cuts while they are open: no row is acknowledged into nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.streams.factories import FailingDisk, log_files, make_ground, make_store, make_table, texts
from tidegate.errors import StorageFailed
from tidegate.model.tables import Durability
from tidegate.settings.sections import StreamSettings
from tidegate.streams.corruption import scan_damage
from tidegate.streams.frame_reader import Damage
from tidegate.streams.frames import FrameContent, FrameKind
from tidegate.streams.log_file import LOST, LogFile
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

TABLE = make_table()
SYNCED = make_table(durability=Durability.FSYNC)


@pytest.fixture
def told(store: StreamStore) -> list[Damage]:
    heard: list[Damage] = []
    store.on_damage = heard.append
    return heard


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("above", range(5), ids=["file", "shard", "window", "table", "namespace"])
def test_rows_after_a_removal_are_there_and_the_loss_is_told(
    tmp_path: Path, clock: ManualClock, store: StreamStore, told: list[Damage], durability: str, above: int
) -> None:
    table = make_table(durability=durability)
    store.append(table, "alice", [(1, "lost")])
    store.flush()
    (file,) = log_files(tmp_path)
    removed = [file, *file.parents][above]
    if above:
        shutil.rmtree(removed)
    else:
        removed.unlink()
    store.append(table, "alice", [(2, "kept")])
    if durability == Durability.FSYNC:
        assert file.stat().st_size > 0
    assert texts(store, table) == ["kept"]
    assert told == [Damage(str(file), 0, LOST)]
    (warning,) = store.read(table, "alice").warnings
    assert warning.startswith("chat/typing/w")
    assert warning.endswith("alice.log, byte 0: " + LOST + "; rows that it had there are lost.")
    store.append(table, "alice", [(3, "later")])
    store.close()
    assert texts(make_store(tmp_path, clock), table) == ["kept", "later"]
    assert len(told) == 1


def test_appends_go_on_when_all_streams_were_removed(tmp_path: Path, clock: ManualClock) -> None:
    store = make_store(tmp_path, clock, free_bytes_min=1)
    store.append(SYNCED, "alice", [(1, "lost")])
    shutil.rmtree(tmp_path / "streams")
    store.append(SYNCED, "alice", [(2, "kept")])
    store.close()
    assert texts(make_store(tmp_path, clock), SYNCED) == ["kept"]


def test_rows_in_memory_are_written_to_the_new_file(
    tmp_path: Path, store: StreamStore, told: list[Damage]
) -> None:
    for removals in (1, 2):
        store.append(TABLE, "alice", [(1, "lost")])
        store.flush()
        store.append(TABLE, "alice", [(2, "waits")])
        (file,) = log_files(tmp_path)
        file.unlink()
        store.append(TABLE, "alice", [(3, "comes")])
        store.flush()
        assert texts(store, TABLE) == ["waits", "comes"]
        assert list(scan_damage(tmp_path / "streams")) == []
        assert len(told) == removals, "a second loss is news"


def test_a_file_that_was_cut_gets_no_hole(tmp_path: Path, clock: ManualClock) -> None:
    for frames_cut in range(4):
        for bytes_more in (0, 1, 40):
            folder = tmp_path / f"{frames_cut}-{bytes_more}"
            store = make_store(folder, clock)
            told: list[Damage] = []
            store.on_damage = told.append
            for number in range(4):
                store.append(TABLE, "alice", [(number, str(number))])
            store.flush()
            store.append(TABLE, "alice", [(4, "waits")])
            (file,) = log_files(folder)
            frame_bytes = file.stat().st_size // 4
            with file.open("r+b") as opened:
                opened.truncate(frames_cut * frame_bytes + bytes_more)
            store.append(TABLE, "alice", [(5, "x" * 70_000)])
            left = [str(number) for number in range(frames_cut)]
            assert texts(store, TABLE)[:-1] == [*left, "waits"]
            assert [(damage.position, damage.reason) for damage in told] == [(frames_cut * frame_bytes, LOST)]
            assert list(scan_damage(folder / "streams")) == []
            store.close()


def test_a_file_that_was_replaced_by_its_copy_lost_nothing(
    tmp_path: Path, store: StreamStore, told: list[Damage]
) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    store.flush()
    (file,) = log_files(tmp_path)
    copy = file.with_suffix(".copy")
    shutil.copy(file, copy)
    copy.rename(file)
    store.append(TABLE, "alice", [(2, "b")])
    assert texts(store, TABLE) == ["a", "b"]
    assert told == []
    assert store.read(TABLE, "alice").warnings == []


def test_a_removal_is_told_to_who_reads_without_a_write(
    tmp_path: Path, store: StreamStore, told: list[Damage]
) -> None:
    store.append(TABLE, "alice", [(1, "lost")])
    store.flush()
    log_files(tmp_path)[0].unlink()
    assert texts(store, TABLE) == []
    assert len(store.read(TABLE, "alice").warnings) == 1
    assert len(told) == 1


def test_the_file_of_a_closed_log_is_looked_at_too(tmp_path: Path, clock: ManualClock) -> None:
    for reads_first in (True, False):
        folder = tmp_path / str(reads_first)
        store = make_store(folder, clock, settings=StreamSettings(writers_max=1))
        told: list[Damage] = []
        store.on_damage = told.append
        store.append(TABLE, "alice", [(1, "lost")])
        store.append(TABLE, "bob", [(2, "b")])
        (file,) = [path for path in log_files(folder) if path.name == "alice.log"]
        file.unlink()
        if reads_first:
            assert len(store.read(TABLE, "alice").warnings) == 1
        store.append(TABLE, "alice", [(3, "kept")])
        assert texts(store, TABLE) == ["kept"]
        assert told == [Damage(str(file), 0, LOST)]
        store.close()


def test_a_removal_between_a_durable_write_and_its_sync_refuses_the_append(
    tmp_path: Path, store: StreamStore
) -> None:
    with pytest.raises(StorageFailed, match=LOST):
        store.append(SYNCED, "alice", [(1, "lost")], lambda _: log_files(tmp_path)[0].unlink())
    store.append(SYNCED, "alice", [(2, "kept")])
    assert texts(store, SYNCED) == ["kept"]


def test_a_sync_of_the_new_file_does_not_count_for_the_old_one(tmp_path: Path, disk: FailingDisk) -> None:
    log = LogFile(str(tmp_path / "a.log"), make_ground(disk, tmp_path))
    log.open()
    batch = FrameContent(FrameKind.ROWS, 1, 1, b"payload")
    log.append(batch, 1, [1], limit_bytes=0, now_seconds=0, syncs=True)
    old = (log.stop, log.generation)
    Path(log.path).unlink()
    for number in (2, 3):
        log.append(batch, number, [number], limit_bytes=0, now_seconds=0, syncs=True)
    log.sync(log.stop, log.generation)
    with pytest.raises(OSError, match=LOST):
        log.sync(*old)
    log.close()


def test_rows_wait_in_memory_while_the_file_cannot_be_made_again(
    tmp_path: Path, store: StreamStore, told: list[Damage]
) -> None:
    store.append(TABLE, "alice", [(1, "lost")])
    store.flush()
    store.append(TABLE, "alice", [(2, "waits")])
    (file,) = log_files(tmp_path)
    shutil.rmtree(file.parent)
    file.parent.touch()
    with pytest.raises(StorageFailed):
        store.flush()
    with pytest.raises(StorageFailed):
        store.append(TABLE, "alice", [(3, "refused")])
    assert told == []
    file.parent.unlink()
    store.append(TABLE, "alice", [(4, "comes")])
    assert texts(store, TABLE) == ["waits", "comes"]
    assert len(told) == 1


def test_the_file_is_looked_at_once_for_a_write(tmp_path: Path, clock: ManualClock) -> None:
    looked: list[str] = []

    class CountingDisk(FailingDisk):
        def size_at(self, path: str, fd: int | None) -> int | None:
            looked.append(path)
            return super().size_at(path, fd)

    store = make_store(tmp_path, clock, disk=CountingDisk())
    for number in range(100):
        store.append(TABLE, "alice", [(number, "a")])
    store.flush()
    assert len(looked) == 1
    store.close()
