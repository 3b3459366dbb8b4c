"""A disk that is full or broken: acknowledged rows stay, new ones are refused, reads go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streams.factories import BROKEN, FULL, FailingDisk, log_files, make_store, make_table, texts
from tidegate.errors import StorageFailed, StorageFull
from tidegate.model.tables import Durability
from tidegate.settings.sections import StreamSettings
from tidegate.streams.corruption import scan_damage
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

TABLE = make_table()
SYNCED = make_table(durability=Durability.FSYNC)


@pytest.mark.parametrize("part", [0, 1, 50, 100, 130])
@pytest.mark.parametrize("cut_works", [True, False])
def test_a_write_that_fails_half_way_loses_nothing_that_was_acknowledged(
    store: StreamStore, disk: FailingDisk, tmp_path: Path, part: int, cut_works: bool
) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    store.flush()
    store.append(TABLE, "alice", [(2, "b")])
    store.append(TABLE, "alice", [(3, "c")])
    disk.write_fault, disk.written_before_fault = FULL, part
    disk.truncate_fault = None if cut_works else FULL
    with pytest.raises(StorageFull):
        store.flush()
    if cut_works:
        assert list(scan_damage(tmp_path / "streams")) == []
    for user in ("alice", "bob"):
        with pytest.raises(StorageFull):
            store.append(TABLE, user, [(9, "refused")])
    # Reads go on, and see what waits in memory.
    assert texts(store, TABLE) == ["a", "b", "c"]
    assert texts(store, TABLE, last=2) == ["c", "b"]
    disk.write_fault = disk.truncate_fault = None
    store.append(TABLE, "bob", [(4, "d")])
    store.append(TABLE, "alice", [(5, "e")])
    assert texts(store, TABLE) == ["a", "b", "c", "e"]
    store.flush()
    assert list(scan_damage(tmp_path / "streams")) == []
    assert texts(store, TABLE, "bob") == ["d"]


def test_an_append_that_fills_the_buffer_of_a_full_disk_is_refused_alone(
    store: StreamStore, disk: FailingDisk
) -> None:
    store.append(TABLE, "alice", [(1, "kept")])
    disk.write_fault = FULL
    with pytest.raises(StorageFull):
        store.append(TABLE, "alice", [(2, "x" * 70_000)])
    assert texts(store, TABLE) == ["kept"]
    disk.write_fault = None
    store.append(TABLE, "alice", [(3, "later")])
    assert texts(store, TABLE) == ["kept", "later"]


def test_a_broken_file_refuses_its_own_appends_and_others_go_on(
    store: StreamStore, disk: FailingDisk
) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    disk.write_fault = BROKEN
    with pytest.raises(StorageFailed, match="alice"):
        store.flush()
    with pytest.raises(StorageFailed):
        store.append(TABLE, "alice", [(2, "b")])
    assert store.append(TABLE, "bob", [(3, "c")]).count == 1
    disk.write_fault = None
    store.append(TABLE, "alice", [(4, "d")])
    assert texts(store, TABLE) == ["a", "d"]


def test_a_durable_append_on_a_full_disk_is_refused_and_not_there(
    store: StreamStore, disk: FailingDisk
) -> None:
    told: list[object] = []
    store.append(SYNCED, "alice", [(1, "a")], told.extend)
    disk.write_fault, disk.written_before_fault = FULL, 30
    with pytest.raises(StorageFull):
        store.append(SYNCED, "alice", [(2, "b")], told.extend)
    assert len(told) == 1
    assert texts(store, SYNCED) == ["a"]
    disk.write_fault = None
    store.append(SYNCED, "alice", [(3, "c")])
    assert texts(store, SYNCED) == ["a", "c"]


def test_a_failed_sync_is_told(store: StreamStore, disk: FailingDisk) -> None:
    store.append(SYNCED, "alice", [(1, "a")])
    disk.sync_fault = BROKEN
    with pytest.raises(StorageFailed):
        store.append(SYNCED, "alice", [(2, "b")])
    disk.sync_fault = None
    store.append(SYNCED, "alice", [(3, "c")])
    assert texts(store, SYNCED)[-1] == "c"


def test_appends_stop_before_the_disk_is_full_and_go_on_when_there_is_room(
    tmp_path: Path, clock: ManualClock, disk: FailingDisk
) -> None:
    store = make_store(tmp_path, clock, disk=disk, free_bytes_min=1000)
    store.append(TABLE, "alice", [(1, "a")])
    disk.free = 999
    with pytest.raises(StorageFull, match="999 bytes are free"):
        store.append(TABLE, "alice", [(2, "b")])
    assert texts(store, TABLE) == ["a"]
    disk.free = 1000
    store.append(TABLE, "alice", [(3, "c")])
    assert texts(store, TABLE) == ["a", "c"]
    store.close()


def test_logs_that_cannot_be_written_keep_their_slots(
    tmp_path: Path, clock: ManualClock, disk: FailingDisk
) -> None:
    """A log is never closed with acknowledged rows in memory: whoever needs its slot is refused."""
    store = make_store(tmp_path, clock, disk=disk, settings=StreamSettings(writers_max=2))
    store.append(TABLE, "a", [(1, "a")])
    store.append(TABLE, "b", [(2, "b")])
    disk.write_fault = BROKEN
    with pytest.raises(StorageFailed):
        store.append(TABLE, "c", [(3, "c")])
    disk.write_fault = None
    store.append(TABLE, "c", [(4, "d")])
    assert [texts(store, TABLE, user) for user in "abc"] == [["a"], ["b"], ["d"]]
    assert store.describe(TABLE)[0].writers == 2
    store.close()


def test_a_store_that_cannot_write_says_so_when_it_is_closed(
    tmp_path: Path, clock: ManualClock, disk: FailingDisk
) -> None:
    store = make_store(tmp_path, clock, disk=disk)
    store.append(TABLE, "alice", [(1, "a")])
    disk.write_fault = FULL
    with pytest.raises(StorageFull):
        store.close()
    disk.write_fault = None
    store.close()
    assert texts(make_store(tmp_path, clock), TABLE) == ["a"]


def test_a_file_that_is_broken_after_it_was_full_refuses_no_others(
    store: StreamStore, disk: FailingDisk
) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    disk.write_fault = FULL
    with pytest.raises(StorageFull):
        store.flush()
    disk.write_fault = BROKEN
    assert store.append(TABLE, "bob", [(2, "b")]).count == 1
    with pytest.raises(StorageFailed):
        store.append(TABLE, "alice", [(3, "refused")])
    disk.write_fault = None
    store.append(TABLE, "alice", [(4, "c")])
    assert texts(store, TABLE) == ["a", "c"]


def test_rows_in_memory_are_read_though_their_file_is_gone(
    tmp_path: Path, store: StreamStore, disk: FailingDisk
) -> None:
    store.append(TABLE, "alice", [(1, "lost")])
    store.flush()
    store.append(TABLE, "alice", [(2, "waits")])
    disk.write_fault = FULL

    def remove() -> None:
        for path in log_files(tmp_path):
            path.unlink()

    assert texts(store, TABLE, barrier=remove) == ["waits"]
