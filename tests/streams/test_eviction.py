"""Expiry, drop and re-creation: what is over goes out of sight at once, and nothing brings it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streams.factories import BROKEN, FailingDisk, log_files, make_store, make_table, texts
from tidegate.errors import StorageCorrupt, StorageFailed, TableChanged
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import START_US, ManualClock

TABLE = make_table()
MINUTE_US = 60_000_000


def _fill(store: StreamStore, clock: ManualClock, minutes: int) -> None:
    for number in range(minutes):
        store.append(TABLE, "alice", [(number, str(number))])
        clock.advance(60)


def _windows(folder: Path) -> list[int]:
    """Return the minutes of the windows that are in sight."""
    names = [path.name for path in (folder / "streams/chat/typing").iterdir() if path.is_dir()]
    return sorted((int(name[1:].split("-")[0]) - START_US // 1000) // 60_000 for name in names)


def test_windows_that_are_over_go_by_their_names_alone(
    store: StreamStore, clock: ManualClock, disk: FailingDisk, tmp_path: Path
) -> None:
    """Case 6: end + ttl ≤ now, no file opened; unlinked later."""
    _fill(store, clock, 14)
    store.flush()
    disk.opened.clear()
    evicted = store.evict(TABLE)
    assert (evicted.windows, evicted.writers) == (4, 4)
    assert disk.opened == []
    assert _windows(tmp_path) == list(range(4, 14))
    assert store.evict(TABLE).windows == 0
    assert len(list((tmp_path / "streams/.trash").iterdir())) == 4
    first = store.sweep(files_max=3)
    assert (first.files, first.is_done) == (3, False)
    assert store.sweep().is_done
    assert list((tmp_path / "streams/.trash").iterdir()) == []
    assert texts(store, TABLE) == [str(number) for number in range(5, 14)]


def test_a_window_that_ends_a_millisecond_later_stays(
    store: StreamStore, clock: ManualClock, tmp_path: Path
) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    clock.set_us(START_US + 660_000_000 - 1_000)
    assert store.evict(TABLE).windows == 0
    clock.advance(0.001)
    assert store.evict(TABLE).windows == 1


def test_rows_that_wait_for_a_window_go_with_it(
    store: StreamStore, clock: ManualClock, tmp_path: Path
) -> None:
    """Case 6: the writer is closed first, and its buffer dropped."""
    store.append(TABLE, "alice", [(1, "a")])
    clock.advance(3600)
    assert store.evict(TABLE).writers == 1
    store.flush()
    assert log_files(tmp_path) == []
    store.append(TABLE, "alice", [(2, "b")])
    assert texts(store, TABLE) == ["b"]


def test_an_append_never_brings_an_evicted_window_back(
    store: StreamStore, clock: ManualClock, tmp_path: Path
) -> None:
    """Case 6: not even with a clock that was set back into it."""
    store.append(TABLE, "alice", [(1, "old")])
    clock.advance(3600)
    store.evict(TABLE)
    clock.set_us(START_US)
    store.append(TABLE, "alice", [(2, "new")])
    (row,) = store.read(TABLE, "alice").rows
    assert row[1] == "new"
    assert row[-1] == START_US + 3_000_000_000, "the first moment that was not over"
    assert 0 not in _windows(tmp_path)


def test_a_reader_that_began_before_an_eviction_is_not_disturbed(
    store: StreamStore, clock: ManualClock
) -> None:
    _fill(store, clock, 3)

    def evict_now() -> None:
        clock.advance(3600)
        store.evict(TABLE)

    assert store.read(TABLE, "alice", barrier=evict_now).rows == []


def test_a_new_time_to_live_changes_new_windows_and_old_ones_expire_by_their_name(
    store: StreamStore, clock: ManualClock, tmp_path: Path
) -> None:
    """Case 1: windows of several sizes overlap, and reads stay in order."""
    longer = make_table(ttl_seconds=86_400)
    for number in range(6):
        store.append((TABLE, longer)[number % 2], "alice", [(number, str(number))])
        clock.advance(30)
    assert texts(store, longer) == ["0", "1", "2", "3", "4", "5"]
    assert texts(store, longer, last=4) == ["5", "4", "3", "2"]
    assert texts(store, longer, start_us=START_US + 1, stop_us=START_US + 100_000_000) == ["1", "2", "3"]
    for number in range(6, 10):  # at one moment
        store.append((TABLE, longer)[number % 2], "alice", [(number, str(number))])
    assert texts(store, longer, last=5) == ["9", "8", "7", "6", "5"]
    assert texts(store, longer)[-5:] == ["5", "6", "7", "8", "9"]
    clock.advance(700)
    assert store.evict(longer).windows == 0
    assert store.evict(TABLE).windows == 4, "the minutes; the hour is not over"
    clock.advance(3600)
    assert store.evict(TABLE).windows == 1


def test_a_failed_rename_is_told_and_tried_again(
    store: StreamStore, clock: ManualClock, disk: FailingDisk, tmp_path: Path
) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    clock.advance(3600)
    disk.rename_fault = BROKEN
    with pytest.raises(StorageFailed):
        store.evict(TABLE)
    assert texts(store, TABLE) == []
    disk.rename_fault = None
    assert store.evict(TABLE).windows == 1
    assert _windows(tmp_path) == []


def test_drop_removes_and_re_creation_shows_nothing_of_before(
    store: StreamStore, clock: ManualClock, tmp_path: Path
) -> None:
    """Case 7."""
    store.append(TABLE, "alice", [(1, "a")])
    store.drop(TABLE)
    assert not (tmp_path / "streams/chat/typing").exists()
    for call in (lambda: store.append(TABLE, "alice", [(2, "b")]), lambda: store.read(TABLE, "alice")):
        with pytest.raises(TableChanged):
            call()
    again = make_table(id=2)
    assert texts(store, again) == []
    store.append(again, "alice", [(3, "c")])
    assert texts(store, again) == ["c"]
    with pytest.raises(TableChanged):
        store.append(TABLE, "alice", [(2, "b")])
    store.drop(TABLE)
    assert texts(store, again) == ["c"], "a late end of the table before takes nothing of this one"
    store.sweep()
    assert [file.name for file in (tmp_path / "streams/.trash").iterdir()] == []


def test_a_call_that_meets_the_drop_half_way_is_told(tmp_path: Path, clock: ManualClock) -> None:
    """Case 7: the table was there when the call began."""

    class DroppingDisk(FailingDisk):
        def free_bytes(self, path: str) -> int:
            store.drop(TABLE)
            return super().free_bytes(path)

    store = make_store(tmp_path, clock, disk=DroppingDisk(), free_bytes_min=1)
    store.open_table(TABLE)
    with pytest.raises(TableChanged):
        store.append(TABLE, "alice", [(1, "a")])
    assert log_files(tmp_path) == []


@pytest.mark.parametrize("steps", range(7))
def test_a_kill_between_any_two_steps_of_drop_and_create_leaves_nothing_of_before(
    tmp_path: Path, clock: ManualClock, steps: int
) -> None:
    """Case 7: the disk stops after some steps, as if the machine were switched off there."""

    class Killed(Exception):
        pass

    class MortalDisk(FailingDisk):
        left = -1

        def _step(self) -> None:
            if self.left == 0:
                raise Killed
            self.left -= 1

        def rename(self, old: str, new: str) -> None:
            self._step()
            super().rename(old, new)

        def make_folder(self, path: str, *, sync: bool) -> None:
            self._step()
            super().make_folder(path, sync=sync)

        def write_whole(self, path: str, content: bytes) -> None:
            self._step()
            super().write_whole(path, content)

        def write_at(self, fd: int, content: bytes | bytearray, position: int) -> None:
            self._step()
            super().write_at(fd, content, position)

    disk = MortalDisk()
    store = make_store(tmp_path, clock, disk=disk)
    store.append(TABLE, "alice", [(1, "old")])
    store.flush()
    again = make_table(id=2)
    disk.left = steps
    try:
        store.drop(TABLE)
        store.append(again, "alice", [(2, "new")])
        store.flush()
    except Killed:
        pass
    store = make_store(tmp_path, clock)
    assert texts(store, again) in ([], ["new"])
    store.append(again, "alice", [(3, "more")])
    assert texts(store, again)[-1:] == ["more"]
    assert "old" not in texts(store, again)
    store.close()


def test_a_folder_whose_owner_cannot_be_told_is_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    store = make_store(tmp_path, clock)
    store.append(TABLE, "alice", [(1, "a")])
    store.close()
    (tmp_path / "streams/chat/typing/table.id").write_bytes(b"\0\0")
    with pytest.raises(StorageCorrupt, match=r"table\.id"):
        make_store(tmp_path, clock).read(TABLE, "alice")
    assert len(log_files(tmp_path)) == 1


def test_an_older_table_never_takes_a_newer_one_away(tmp_path: Path, clock: ManualClock) -> None:
    store = make_store(tmp_path, clock)
    store.append(make_table(id=5), "alice", [(1, "a")])
    store.close()
    make_store(tmp_path, clock).drop(make_table(id=4))
    with pytest.raises(TableChanged):
        make_store(tmp_path, clock).append(make_table(id=4), "alice", [(2, "b")])
    assert len(log_files(tmp_path)) == 1
    assert [path.name for path in (tmp_path / "streams/chat").iterdir()] == ["typing"]


def test_folders_that_a_kill_left_behind_go_at_the_start(tmp_path: Path, clock: ManualClock) -> None:
    """Case 7: the table was dropped, and its folder not yet; what lies in the trash is swept then, too."""
    store = make_store(tmp_path, clock)
    kept = make_table(id=2, name="kept")
    for table in (TABLE, kept):
        store.append(table, "alice", [(1, table.name)])
    store.close()
    store = make_store(tmp_path, clock)
    assert store.drop_others("default", [kept]) == 1
    assert store.drop_others("default", [kept]) == 0
    assert store.drop_others("nobody", []) == 0
    assert texts(store, kept) == ["kept"]
    assert store.sweep().files == 2, "the log and the id"
    assert [path.name for path in (tmp_path / "streams/chat").iterdir()] == ["kept"]
    store.close()
