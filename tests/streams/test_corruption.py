"""Damaged logs through the store: named once, everything else readable, appends go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streams.factories import log_files, make_store, make_table, texts
from tidegate.errors import StorageCorrupt
from tidegate.streams.corruption import scan_damage
from tidegate.streams.frame_reader import Damage
from tidegate.streams.frames import FrameContent, FrameKind, make_frame
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

TABLE = make_table()
COUNT = 5


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Path:
    """A log of five frames of equal size, one row each."""
    store = make_store(tmp_path, clock)
    for number in range(COUNT):
        store.append(TABLE, "alice", [(number, str(number))])
        clock.advance(0.001)
    store.close()
    (file,) = log_files(tmp_path)
    return file


def _reopened(folder: Path, clock: ManualClock) -> tuple[StreamStore, list[Damage]]:
    store = make_store(folder, clock)
    told: list[Damage] = []
    store.on_damage = told.append
    return store, told


def test_a_log_cut_at_every_byte_of_its_last_frames_is_read_and_appended_to(
    tmp_path: Path, clock: ManualClock, log: Path
) -> None:
    """Case 2: first read, then appended to; and the other way round."""
    whole = log.read_bytes()
    size = len(whole) // COUNT
    for cut in range(len(whole) - 2 * size, len(whole) + 1):
        expected = [str(number) for number in range(cut // size)]
        for reads_first in (True, False):
            log.write_bytes(whole[:cut])
            store, told = _reopened(tmp_path, clock)
            if reads_first:
                assert texts(store, TABLE) == expected, cut
                assert texts(store, TABLE, last=9) == expected[::-1], cut
            store.append(TABLE, "alice", [(9, "later")])
            assert texts(store, TABLE) == [*expected, "later"], cut
            assert texts(store, TABLE, last=2) == ["later", *expected[-1:]], cut
            store.close()
            assert texts(make_store(tmp_path, clock), TABLE) == [*expected, "later"], cut
            assert told == [], cut


def test_a_flipped_byte_is_named_once_with_file_and_position(
    tmp_path: Path, clock: ManualClock, log: Path
) -> None:
    """Case 2: in every frame, at bytes of its header, payload and foot."""
    whole = log.read_bytes()
    size = len(whole) // COUNT
    for frame in range(COUNT):
        for place in (0, 4, 13, 30, 33, 40, size - 6, size - 1):
            flipped = bytearray(whole)
            flipped[frame * size + place] ^= 0x10
            log.write_bytes(flipped)
            store, told = _reopened(tmp_path, clock)
            expected = [str(number) for number in range(COUNT) if number != frame]
            found = store.read(TABLE, "alice")
            assert [row[1] for row in found.rows] == expected
            (warning,) = found.warnings
            assert f"alice.log, byte {frame * size}: " in warning
            assert str(tmp_path) not in warning
            assert texts(store, TABLE, last=9) == expected[::-1]
            store.append(TABLE, "alice", [(9, "later")])
            assert texts(store, TABLE) == [*expected, "later"]
            assert [(damage.file, damage.position) for damage in told] == [(str(log), frame * size)]
            store.close()
            scanned = [(damage.file, damage.position) for damage in scan_damage(tmp_path / "streams")]
            assert scanned == [(str(log), frame * size)]


def test_a_long_torn_end_is_gone_once_a_short_frame_is_appended(
    tmp_path: Path, clock: ManualClock, log: Path
) -> None:
    """Case 2: nothing of it is left behind the new frame."""
    whole = log.read_bytes()
    torn = make_frame(len(whole), FrameContent(FrameKind.ROWS, 1, 1, b"x" * 900), 1, 1)[:-1]
    log.write_bytes(whole + torn)
    store, told = _reopened(tmp_path, clock)
    store.append(TABLE, "alice", [(9, "9")])
    store.close()
    size = len(whole) // COUNT
    assert abs(log.stat().st_size - len(whole) - size) < size
    assert told == list(scan_damage(tmp_path / "streams")) == []


def test_zeros_after_a_power_loss_are_cut(tmp_path: Path, clock: ManualClock, log: Path) -> None:
    """Case 2."""
    log.write_bytes(log.read_bytes() + b"\0" * 5000)
    store, told = _reopened(tmp_path, clock)
    store.append(TABLE, "alice", [(9, "later")])
    assert texts(store, TABLE) == ["0", "1", "2", "3", "4", "later"]
    assert told == []
    store.close()


def test_opening_a_whole_log_reads_its_two_ends_only(tmp_path: Path, clock: ManualClock, log: Path) -> None:
    from tests.streams.factories import FailingDisk

    read: list[int] = []

    class CountingDisk(FailingDisk):
        def read_at(self, fd: int, count: int, position: int) -> bytes:
            read.append(count)
            return super().read_at(fd, count, position)

    store = make_store(tmp_path, clock, disk=CountingDisk())
    store.append(TABLE, "alice", [(9, "later")])
    assert sum(read) < 64
    store.close()


def test_a_frame_of_a_later_version_is_refused_by_name(
    tmp_path: Path, clock: ManualClock, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = log.stat().st_size
    monkeypatch.setattr("tidegate.streams.frames.FRAME_VERSION", 2)
    later = make_frame(position, FrameContent(FrameKind.ROWS, 1, 1, b"payload"), 1, 1)
    monkeypatch.undo()
    log.write_bytes(log.read_bytes() + later)
    store = make_store(tmp_path, clock)
    with pytest.raises(StorageCorrupt, match=f"byte {position}.*version 2"):
        store.read(TABLE, "alice")
    with pytest.raises(StorageCorrupt, match=f"byte {position}.*version 2"):
        store.append(TABLE, "alice", [(9, "later")])
    assert log.stat().st_size == position + len(later)
    (found,) = scan_damage(tmp_path / "streams")
    assert "version 2" in found.reason


def test_a_payload_that_does_not_fit_its_header_is_damage(
    tmp_path: Path, clock: ManualClock, log: Path
) -> None:
    position = log.stat().st_size
    now_us = clock.now_us()
    log.write_bytes(
        log.read_bytes() + make_frame(position, FrameContent(FrameKind.ROWS, 1, 7, b"\x90"), now_us, 1)
    )
    store, told = _reopened(tmp_path, clock)
    assert texts(store, TABLE) == ["0", "1", "2", "3", "4"]
    assert [damage.position for damage in told] == [position]
    store.close()
