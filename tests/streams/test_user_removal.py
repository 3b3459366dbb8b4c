"""Removal of one user's rows from a stream: every window, memory and files; others keep theirs."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.streams.factories import FailingDisk, log_files, make_store, make_table, texts
from tidegate.errors import NameInvalid, StorageFailed
from tidegate.model.tables import Durability
from tidegate.settings.sections import StreamSettings
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

TABLE = make_table()
KEYED = make_table(id=2, name="presence", primary_key=("id",))


class UnlinkDisk(FailingDisk):
    """A disk that refuses the unlink after some."""

    unlinks_left: int | None = None

    def unlink(self, path: str) -> None:
        if self.unlinks_left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().unlink(path)
        if self.unlinks_left is not None:
            self.unlinks_left -= 1


def _fill(store: StreamStore, clock: ManualClock, minutes: int = 3) -> None:
    for number in range(minutes):
        for user in ("alice", "bob"):
            store.append(TABLE, user, [(number, f"{user} {number}")])
        clock.advance(60)


def test_rows_in_every_window_are_gone_and_others_stay(
    store: StreamStore, clock: ManualClock, disk: FailingDisk, tmp_path: Path
) -> None:
    _fill(store, clock)
    store.flush()
    store.append(TABLE, "alice", [(9, "in memory")])
    disk.synced.clear()
    assert store.remove_user(TABLE, "alice") == 4
    assert texts(store, TABLE) == []
    assert texts(store, TABLE, "bob") == ["bob 0", "bob 1", "bob 2"]
    assert not [file for file in log_files(tmp_path) if file.name == "alice.log"]
    assert len(disk.synced) == 4
    assert store.remove_user(TABLE, "alice") == 0
    store.flush()
    store.close()
    assert texts(make_store(tmp_path, clock), TABLE) == []


def test_a_store_that_was_opened_again_finds_all_files(tmp_path: Path, clock: ManualClock) -> None:
    first = make_store(tmp_path, clock)
    _fill(first, clock)
    first.close()
    again = make_store(tmp_path, clock)
    assert again.remove_user(TABLE, "alice") == 3
    assert texts(again, TABLE) == []
    assert len(texts(again, TABLE, "bob")) == 3
    again.close()


@pytest.mark.parametrize("durability", list(Durability))
def test_rows_that_are_added_afterwards_are_kept(
    store: StreamStore, clock: ManualClock, tmp_path: Path, durability: Durability
) -> None:
    table = make_table(durability=durability)
    store.append(table, "alice", [(1, "old")])
    store.remove_user(table, "alice")
    store.append(table, "alice", [(2, "new")])
    assert texts(store, table) == ["new"]
    store.close()
    assert texts(make_store(tmp_path, clock), table) == ["new"]


def test_a_row_of_a_key_that_was_deleted_before_can_be_deleted_again(store: StreamStore) -> None:
    store.append(KEYED, "alice", [(1, "a")])
    store.delete(KEYED, "alice", store.read(KEYED, "alice").rows)
    store.remove_user(KEYED, "alice")
    store.append(KEYED, "alice", [(1, "b")])
    assert store.delete(KEYED, "alice", store.read(KEYED, "alice").rows) == 1
    assert texts(store, KEYED) == []


def test_windows_that_are_over_and_not_moved_yet_are_searched_too(
    store: StreamStore, clock: ManualClock, disk: FailingDisk, tmp_path: Path
) -> None:
    _fill(store, clock, 1)
    store.flush()
    clock.advance(3_600)
    disk.rename_fault = errno.EIO
    with pytest.raises(StorageFailed):
        store.evict(TABLE)
    disk.rename_fault = None
    assert store.remove_user(TABLE, "alice") == 1
    assert [file.name for file in log_files(tmp_path)] == ["bob.log"]


def test_a_disk_that_fails_half_way_leaves_the_newest_and_a_repeat_removes_them(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = UnlinkDisk()
    store = make_store(tmp_path, clock, disk=disk)
    _fill(store, clock)
    store.flush()
    disk.unlinks_left = 1
    with pytest.raises(StorageFailed):
        store.remove_user(TABLE, "alice")
    assert texts(store, TABLE) == ["alice 1", "alice 2"]
    disk.unlinks_left = None
    assert store.remove_user(TABLE, "alice") == 2
    assert texts(store, TABLE) == []
    store.close()


def test_slots_of_open_logs_are_given_back(tmp_path: Path, clock: ManualClock) -> None:
    store = make_store(tmp_path, clock, settings=StreamSettings(writers_max=16))
    for number in range(100):
        user = f"user-{number}"
        store.append(TABLE, user, [(1, "a")])
        assert store.remove_user(TABLE, user) == 1
    assert store.open_writers() == 0
    store.close()


def test_a_name_that_no_stream_takes_is_refused(store: StreamStore) -> None:
    with pytest.raises(NameInvalid):
        store.remove_user(TABLE, "../bob")
