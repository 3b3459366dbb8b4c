"""The backend in memory: its file, its order of keys, what a kill leaves (cases 5, 8)."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.backends import heap, sorted_keys
from tidegate.checkpoint.backends import heap as heap_file
from tidegate.checkpoint.backends.heap import (
    FORMAT,
    LOCAL_NAME,
    MAGIC,
    HeapBackend,
    read_entries,
    write_entries,
)
from tidegate.checkpoint.backends.sorted_keys import SortedKeys
from tidegate.errors import StorageCorrupt, StorageFull

VERSION = Version(3, 7, "héad")
KEYS = st.binary(min_size=1, max_size=2)


def test_a_file_gives_back_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_file, "BATCH_ENTRIES", 7)
    entries = {b"%03d" % number: bytes([number]) * number for number in range(100)}
    write_entries(tmp_path / "file", VERSION, entries.items())
    assert read_entries(tmp_path / "file") == (VERSION, entries)


def test_a_file_without_version_and_entries_is_read(tmp_path: Path) -> None:
    write_entries(tmp_path / "file", None, [])
    assert read_entries(tmp_path / "file") == (None, {})


def test_a_file_begins_with_its_magic_and_format(tmp_path: Path) -> None:
    write_entries(tmp_path / "file", VERSION, [(b"k", b"v")])
    assert (tmp_path / "file").read_bytes().startswith(MAGIC + bytes([FORMAT]))


def test_a_damaged_byte_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_entries(file, VERSION, [(b"k", b"v")])
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StorageCorrupt):
            read_entries(file)
        file.write_bytes(whole[:place])
        with pytest.raises(StorageCorrupt):
            read_entries(file)


def test_a_file_of_a_later_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_file, "FORMAT", 9)
    write_entries(tmp_path / "file", VERSION, [(b"k", b"v")])
    monkeypatch.undo()
    with pytest.raises(StorageCorrupt, match="format 9"):
        read_entries(tmp_path / "file")


def test_a_copy_that_was_not_closed_stands_at_its_older_version(tmp_path: Path) -> None:
    """Case 8: a kill loses what came since the copy was opened, and its version with it."""
    first = HeapBackend(tmp_path)
    first.apply(StateChanges(entries={b"k": b"1"}), Version(0, 1, "one"))
    first.close()
    killed = HeapBackend(tmp_path)
    killed.apply(StateChanges(entries={b"k": b"2"}), Version(0, 2, "two"))
    after = HeapBackend(tmp_path)
    assert after.version() == Version(0, 1, "one")
    assert after.get(b"k") == b"1"


def test_a_copy_that_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    first = HeapBackend(tmp_path)
    first.apply(StateChanges(entries={b"k": b"1"}), VERSION)
    first.close()
    before = (tmp_path / LOCAL_NAME).stat().st_ino
    again = HeapBackend(tmp_path)
    again.close()
    assert (tmp_path / LOCAL_NAME).stat().st_ino == before


def test_a_copy_opened_from_a_snapshot_keeps_its_own_file_from_then_on(tmp_path: Path) -> None:
    origin = HeapBackend(tmp_path / "origin")
    origin.apply(StateChanges(entries={b"k": b"1"}), Version(0, 1, "one"))
    origin.snapshot(tmp_path / "copy")
    local = HeapBackend(tmp_path / "copy")
    local.apply(StateChanges(entries={b"k": b"2"}), Version(0, 2, "two"))
    local.close()
    again = HeapBackend(tmp_path / "copy")
    assert again.version() == Version(0, 2, "two")
    assert again.get(b"k") == b"2"


def test_a_folder_with_two_snapshots_is_refused(tmp_path: Path) -> None:
    write_entries(tmp_path / "a.heap", VERSION, [])
    write_entries(tmp_path / "b.heap", VERSION, [])
    with pytest.raises(StorageCorrupt, match="2 snapshots"):
        HeapBackend(tmp_path)


def test_a_full_disk_is_said_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: Path, *_rest: object) -> str:
        path.write_bytes(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    backend = HeapBackend(tmp_path / "copy")
    backend.apply(StateChanges(entries={b"k": b"1"}), VERSION)
    with monkeypatch.context() as patched:
        patched.setattr(heap, "write_entries", no_room)
        with pytest.raises(StorageFull):
            backend.snapshot(tmp_path / "snapshot")
    assert not (tmp_path / "snapshot").exists()
    backend.snapshot(tmp_path / "snapshot")
    monkeypatch.setattr(heap, "write_entries", no_room)
    with pytest.raises(StorageFull):
        backend.close()
    assert list((tmp_path / "copy").iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(
    first=st.sets(KEYS, max_size=30),
    rounds=st.lists(st.tuples(st.sets(KEYS, max_size=20), KEYS, KEYS), max_size=6),
)
def test_keys_of_a_range_come_in_order(
    first: set[bytes], rounds: list[tuple[set[bytes], bytes, bytes]]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sorted_keys, "RUN_KEYS", 4)
        keys = set(first)
        order = SortedKeys(keys)
        for turned, start, stop in rounds:
            for key in turned:
                if key in keys:
                    keys.remove(key)
                    order.remove(key)
                else:
                    keys.add(key)
                    order.add(key)
            assert list(order.between(start, stop)) == sorted(key for key in keys if start <= key < stop)
        assert list(order.between(b"", b"\xff\xff\xff")) == sorted(keys)


@pytest.mark.parametrize("is_new", [True, False])
def test_half_a_batch_stands_at_no_version(tmp_path: Path, is_new: bool) -> None:
    """Case 5: whatever stops a batch halfway, what is closed then is not taken for the one before."""
    backend = HeapBackend(tmp_path)
    backend.apply(StateChanges(entries={b"a": b"1", b"b": b"1"}), VERSION)
    list(backend.scan(b"", b"z"))
    wrong: Any = {b"a": b"2", (b"c" if is_new else b"b"): 5}
    with pytest.raises(TypeError):
        backend.apply(StateChanges(entries=wrong), Version(3, 8, "next"))
    assert backend.version() is None
    backend.close()
    again = HeapBackend(tmp_path)
    assert (again.version(), again.get(b"a")) == (None, b"2")
