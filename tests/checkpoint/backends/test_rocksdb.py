"""The backend on RocksDB: after a kill, names of files, damage, a full disk (cases 1, 5, 8, 12)."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.backends import rocksdb, rocksdb_unlogged
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.backends.rocksdb_options import MIB, RocksSettings
from tidegate.checkpoint.backends.rocksdb_snapshot import INDEX_SUFFIX, TABLE_SUFFIX
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFailed, StorageFull
from tidegate.storage.files import disk_free_bytes

# Memtables so small that RocksDB writes several out while the child below runs.
SMALL = RocksSettings(write_buffer_size=MIB, memory_bytes_max=16 * MIB)

# Writes batches of values that say their batch, and a part of a batch that is never over, then dies.
CHILD = """
import os, random, signal, sys
from pathlib import Path
from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.backends.rocksdb_options import MIB, RocksSettings

rng = random.Random(int(sys.argv[2]))
settings = RocksSettings(write_buffer_size=MIB, memory_bytes_max=16 * MIB)
backend = RocksBackend(Path(sys.argv[1]), settings)
def changes(batch):
    filling = rng.randbytes(rng.randrange(1, 60_000))
    return StateChanges(entries={b"k%d" % n: b"%d:" % batch + filling for n in range(10)})
last = rng.randrange(1, 25)
for batch in range(1, last + 1):
    backend.apply(changes(batch), Version(1, batch, f"head-{batch}"))
for part in range(int(sys.argv[3])):
    backend.write_partly(changes(1000 + part))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[RocksBackend]:
    opened = RocksBackend(tmp_path / "copy", SMALL)
    yield opened
    opened.close()


def version(batch: int) -> Version:
    return Version(1, batch, f"head-{batch}")


def batches_seen(backend: RocksBackend) -> set[int]:
    return {int(value.partition(b":")[0]) for _, value in backend.scan(b"", META_GROUP)}


@pytest.mark.parametrize("parts", [0, 1, 20])
def test_after_a_kill_entries_and_version_fit_together(tmp_path: Path, parts: int) -> None:
    """Case 8: a copy that was killed stands whole at an older batch, or has no version."""
    for seed in range(2):
        folder = tmp_path / str(seed)
        died = subprocess.run([sys.executable, "-c", CHILD, folder, str(seed), str(parts)], check=False)
        assert died.returncode == -signal.SIGKILL
        backend = RocksBackend(folder, SMALL)
        stands, seen = backend.version(), batches_seen(backend)
        backend.close()
        if stands is not None:
            assert seen == {stands.batch}
        elif parts == 0:
            assert seen == set()
        if parts == 20:  # more than the memtables hold: some of it is on the disk
            assert stands is None


def test_a_kill_after_a_part_was_written_out_leaves_no_version(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path / "copy", SMALL)
    backend.apply(StateChanges(entries={b"k": b"1:"}), version(1))
    backend.write_partly(StateChanges(entries={b"k": b"2:"}))
    backend.snapshot(tmp_path / "as-the-disk-has-it")
    backend.close()
    after_kill = RocksBackend(tmp_path / "as-the-disk-has-it", SMALL)
    assert after_kill.version() is None
    after_kill.close()


def test_a_change_beyond_one_piece_is_whole_or_without_version(
    backend: RocksBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.apply(StateChanges(entries={b"old": b"v"}), version(1))
    monkeypatch.setattr(rocksdb, "PIECE_BYTES_MAX", 10_000)
    monkeypatch.setattr(rocksdb, "PIECE_CHECK_KEYS", 10)
    entries: dict[bytes, bytes | None] = {b"k%04d" % number: b"v" * 200 for number in range(500)}
    backend.apply(StateChanges(ranges=[(b"old", b"p")], entries=entries), version(2))
    assert backend.version() == version(2)
    assert dict(backend.scan(b"", META_GROUP)) == entries

    rooms = iter([1 << 40, 1 << 40, 0])
    backend._free_bytes = lambda _folder: next(rooms, 0)
    with pytest.raises(StorageFull):
        backend.apply(StateChanges(entries=dict.fromkeys(entries, b"w" * 200)), version(3))
    assert backend.version() is None


def test_a_full_disk_changes_nothing_and_the_copy_goes_on(backend: RocksBackend, tmp_path: Path) -> None:
    backend.apply(StateChanges(entries={b"k": b"1:"}), version(1))
    backend._free_bytes = lambda _folder: 1000
    with pytest.raises(StorageFull):
        backend.apply(StateChanges(entries={b"k": b"2:"}), version(2))
    with pytest.raises(StorageFull):
        backend.write_partly(StateChanges(entries={b"k": b"2:"}))
    with pytest.raises(StorageFull):
        backend.snapshot(tmp_path / "snapshot")
    assert not (tmp_path / "snapshot").exists()
    assert backend.version() == version(1)
    assert backend.get(b"k") == b"1:"
    backend._free_bytes = disk_free_bytes
    backend.apply(StateChanges(entries={b"k": b"2:"}), version(2))
    assert backend.version() == version(2)


def test_a_disk_that_fills_up_in_a_snapshot_leaves_no_folder(
    backend: RocksBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_folder: Path) -> list[Path]:
        raise OSError(errno.ENOSPC, "No space left on device")

    backend.apply(StateChanges(entries={b"k": b"1:"}), version(1))
    with monkeypatch.context() as patched:
        patched.setattr(rocksdb_unlogged, "pack_snapshot", no_room)
        with pytest.raises(StorageFull):
            backend.snapshot(tmp_path / "snapshot")
    assert not (tmp_path / "snapshot").exists()
    assert backend.snapshot(tmp_path / "snapshot")


def tables(files: list[Path]) -> set[str]:
    return {file.name for file in files if file.suffix == TABLE_SUFFIX}


def test_an_unchanged_table_keeps_its_name_over_snapshots(backend: RocksBackend, tmp_path: Path) -> None:
    """Case 12: a checkpoint is incremental, by the names of the files."""
    backend.apply(StateChanges(entries={b"a": b"1" * 1000}), version(1))
    first = tables(backend.snapshot(tmp_path / "s1"))
    backend.apply(StateChanges(entries={b"b": b"2" * 1000}), version(2))
    second = tables(backend.snapshot(tmp_path / "s2"))
    assert len(first) == 1
    assert first < second


def test_copies_rebuilt_from_one_snapshot_never_share_a_name_by_chance(
    backend: RocksBackend, tmp_path: Path
) -> None:
    backend.apply(StateChanges(entries={b"a": b"1" * 1000}), version(1))
    backend.snapshot(tmp_path / "s1")
    contents: dict[str, bytes] = {}
    numbers = []
    for way in (b"x", b"y"):
        place = tmp_path / f"rebuilt-{way.decode()}"
        shutil.copytree(tmp_path / "s1", place)
        rebuilt = RocksBackend(place, SMALL)
        rebuilt.apply(StateChanges(entries={b"b": way * 1000}), version(2))
        files = rebuilt.snapshot(tmp_path / f"s2-{way.decode()}")
        rebuilt.close()
        numbers.append(sorted(file.name for file in place.glob("*.sst")))
        for file in files:
            assert contents.setdefault(file.name, file.read_bytes()) == file.read_bytes()
    assert numbers[0] == numbers[1], "the numbers were to collide, or this test shows nothing"
    assert len([name for name in contents if name.endswith(TABLE_SUFFIX)]) == 3


def test_an_unpacking_cut_short_is_done_again(backend: RocksBackend, tmp_path: Path) -> None:
    for batch in range(3):
        backend.apply(StateChanges(entries={b"k%d" % batch: b"v"}), version(batch))
        backend.snapshot(tmp_path / f"s{batch}")
    halfway = tmp_path / "halfway"
    shutil.copytree(tmp_path / "s2", halfway)
    # One table has its number already; the entry into the folder is not there.
    one = next(backend.folder.glob("*.sst"))
    ours = {file.read_bytes(): file for file in halfway.glob("*.sst")}
    ours[one.read_bytes()].rename(halfway / one.name)
    again = RocksBackend(halfway, SMALL)
    assert again.version() == version(2)
    assert len(list(again.scan(b"k", b"l"))) == 3
    again.close()
    assert not list(halfway.glob(f"*{INDEX_SUFFIX}"))


def test_a_snapshot_without_one_of_its_files_is_corrupt(backend: RocksBackend, tmp_path: Path) -> None:
    backend.apply(StateChanges(entries={b"k": b"v"}), version(1))
    files = backend.snapshot(tmp_path / "s1")
    next(file for file in files if file.suffix == TABLE_SUFFIX).unlink()
    with pytest.raises(StorageCorrupt, match="missing"):
        RocksBackend(tmp_path / "s1", SMALL)


def test_two_snapshots_in_one_folder_are_corrupt(backend: RocksBackend, tmp_path: Path) -> None:
    for batch in range(2):
        backend.apply(StateChanges(entries={b"k%d" % batch: b"v"}), version(batch))
        backend.snapshot(tmp_path / f"s{batch}")
    for index in (tmp_path / "s1").glob(f"*{INDEX_SUFFIX}"):
        shutil.copy(index, tmp_path / "s0")
    with pytest.raises(StorageCorrupt, match="2 snapshots"):
        RocksBackend(tmp_path / "s0", SMALL)


def test_a_copy_whose_table_is_gone_is_corrupt(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path, SMALL)
    backend.apply(StateChanges(entries={b"k": b"v"}), version(1))
    backend.close()
    for table in tmp_path.glob("*.sst"):
        table.unlink()
    with pytest.raises(StorageCorrupt):
        RocksBackend(tmp_path, SMALL)


@pytest.mark.parametrize("way", ["get", "get_many", "scan"])
def test_a_damaged_block_is_never_taken_for_an_answer(tmp_path: Path, way: str) -> None:
    backend = RocksBackend(tmp_path, SMALL)
    entries: dict[bytes, bytes | None] = {b"k%05d" % number: b"v" * 50 for number in range(3000)}
    backend.apply(StateChanges(entries=entries), version(1))
    backend.close()
    (table,) = tmp_path.glob("*.sst")
    content = bytearray(table.read_bytes())
    content[100] ^= 1
    table.write_bytes(content)
    again = RocksBackend(tmp_path, SMALL)
    with pytest.raises(StorageCorrupt, match=table.name):
        match way:
            case "get":
                again.get(b"k00000")
            case "get_many":
                again.get_many([b"k00000", b"k00001"])
            case _:
                list(again.scan(b"k", b"l"))
    again.close()


def test_a_copy_is_held_by_one_at_a_time(backend: RocksBackend) -> None:
    with pytest.raises(StorageFailed, match="has it open"):
        RocksBackend(backend.folder, SMALL)


def test_a_copy_whose_folder_was_taken_away_says_so(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path / "copy", SMALL)
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(StorageFailed):
        backend.apply(StateChanges(entries={b"k": b"v"}), version(1))
    backend.close()


def test_a_closed_copy_can_be_opened_at_once_after_a_snapshot_and_a_scan(tmp_path: Path) -> None:
    backend = RocksBackend(tmp_path / "copy", SMALL)
    backend.apply(StateChanges(entries={b"k%d" % number: b"v" for number in range(100)}), version(1))
    backend.snapshot(tmp_path / "s1")
    started = backend.scan(b"k", b"l")
    next(started)
    backend.close()
    again = RocksBackend(tmp_path / "copy", SMALL)
    with pytest.raises(InvariantBroken, match="closed"):
        list(started)
    again.close()


def test_a_copy_that_outgrows_whole_filters_goes_on(tmp_path: Path) -> None:
    settings = RocksSettings(
        write_buffer_size=MIB, block_cache_size=MIB, memory_bytes_max=16 * MIB, compression_type="none"
    )
    backend = RocksBackend(tmp_path, settings)
    for batch in range(6):
        entries: dict[bytes, bytes | None] = {
            b"%d-%d" % (batch, number): bytes(1000) for number in range(1000)
        }
        backend.apply(StateChanges(entries=entries), version(batch))
    assert not backend._filters_whole
    assert backend.version() == version(5)
    assert len(list(backend.scan(b"", META_GROUP))) == 6000
    assert None not in backend.get_many([b"%d-%d" % (batch, 999) for batch in range(6)])
    backend.close()


def test_many_cleared_ranges_leave_no_deleted_ranges_behind(backend: RocksBackend) -> None:
    """Case 1: clearing short lists costs later reads nothing."""
    entries: dict[bytes, bytes | None] = {
        b"k%03d-%d" % (number, element): b"v" for number in range(200) for element in range(3)
    }
    backend.apply(StateChanges(entries=entries), version(1))
    ranges = [(b"k%03d-" % number, b"k%03d." % number) for number in range(199)]
    backend.apply(StateChanges(ranges=ranges), version(2))
    assert len(list(backend.scan(b"k", b"l"))) == 3
    backend.compact()
    assert len(list(backend.scan(b"k", b"l"))) == 3
    assert backend.sizes().entry_count <= 10


def test_a_short_scan_does_not_read_through_what_was_deleted_behind_it(backend: RocksBackend) -> None:
    """Case 1: reading a cleared list costs the same, however many others were cleared."""
    entries: dict[bytes, bytes | None] = {b"k%06d" % number: b"v" for number in range(60_000)}
    backend.apply(StateChanges(entries=entries), version(1))
    backend.apply(StateChanges(entries=dict.fromkeys(entries)), version(2))
    # Quadratic, this would take minutes.
    found = [pair for number in range(10_000) for pair in backend.scan(b"k%06d" % number, b"k%06d+" % number)]
    assert found == []


def test_what_was_deleted_one_by_one_soon_takes_no_room(backend: RocksBackend) -> None:
    """Case 7: cleaning frees the disk in the background, without anyone asking for it."""
    entries: dict[bytes, bytes | None] = {b"k%06d" % number: b"%06d" % number * 50 for number in range(5000)}
    backend.apply(StateChanges(entries=entries), version(1))
    backend.flush()
    full_bytes = backend.sizes().size_bytes
    backend.apply(StateChanges(entries=dict.fromkeys(list(entries)[:4500])), version(2))
    backend.flush()
    for _ in range(600):
        if backend.sizes().size_bytes < full_bytes / 2:
            break
        time.sleep(0.05)
    assert backend.sizes().size_bytes < full_bytes / 2
    assert len(list(backend.scan(b"k", b"l"))) == 500
