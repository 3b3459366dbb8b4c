"""The engine on RocksDB: what outlives the process, full disks, locks, shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import rocksdict

from tests.storage.live_copy import copy_still
from tidegate.errors import InvariantBroken, StorageFailed, StorageFull
from tidegate.storage.engine import KeyRange
from tidegate.storage.rocksdb import engine as rocks
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.storage.rocksdb.options import MIB, EngineOptions

EVERYTHING = KeyRange(b"", b"\xff" * 8)
SMALL = EngineOptions(write_buffer_bytes=MIB, free_bytes_min=0)
HEAL_SECONDS_MAX = 60.0  # RocksDB looks for room every five seconds


def put(engine: RocksEngine, key: bytes, value: bytes = b"v", *, sync: bool = False) -> None:
    batch = engine.batch()
    batch.put(key, value)
    engine.write(batch, sync=sync)


def keys_of(engine: RocksEngine) -> list[bytes]:
    return [key for key, _ in engine.scan(EVERYTHING)]


def test_what_was_written_is_there_after_a_close(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "new" / "engine")
    put(engine, b"a")
    engine.close()
    again = RocksEngine(tmp_path / "new" / "engine")
    assert keys_of(again) == [b"a"]
    again.close()


@pytest.mark.crash
def test_every_acknowledged_write_outlives_a_kill(tmp_path: Path) -> None:
    writer = (
        "import sys; from pathlib import Path; from tidegate.storage.rocksdb.engine import RocksEngine\n"
        "engine = RocksEngine(Path(sys.argv[1]))\n"
        "for number in range(10**9):\n"
        "    batch = engine.batch(); batch.put(b'%09d' % number, b'x' * 500); engine.write(batch)\n"
        "    print(number, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", writer, str(tmp_path)], stdout=subprocess.PIPE) as child:
        stdout = child.stdout
        assert stdout is not None
        lines = [stdout.readline() for _ in range(2_000)]
        child.kill()
        lines += stdout.readlines()
    acknowledged = int([line for line in lines if line.endswith(b"\n")][-1])
    engine = RocksEngine(tmp_path)
    found = keys_of(engine)
    engine.close()
    assert found == [b"%09d" % number for number in range(len(found))], "no gap and nothing torn"
    assert len(found) in (acknowledged + 1, acknowledged + 2), "one more may have been on its way"


def test_a_store_that_is_open_here_is_refused_with_the_reason(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    with pytest.raises(StorageFailed, match="this process has it open"):
        RocksEngine(tmp_path)
    engine.close()


def test_a_store_that_another_process_holds_is_refused_with_the_reason(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    opener = (
        "import sys; from pathlib import Path; from tidegate.storage.rocksdb.engine import RocksEngine\n"
        "RocksEngine(Path(sys.argv[1]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", opener, str(tmp_path)], capture_output=True, text=True, check=False
    )
    engine.close()
    assert ran.returncode == 1
    assert "another process has it open" in ran.stderr


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StorageFailed, match="file"):
        RocksEngine(tmp_path / "file")


def test_close_frees_the_lock_even_with_scans_snapshots_and_checkpoints_about(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "engine")
    for number in range(1_000):
        put(engine, b"%04d" % number)
    scan = engine.scan(EVERYTHING)
    next(scan)
    snapshot = engine.snapshot()
    engine.checkpoint(tmp_path / "copy")
    engine.close()
    again = RocksEngine(tmp_path / "engine")
    with pytest.raises(InvariantBroken, match="engine is closed"):
        list(scan)
    with pytest.raises(InvariantBroken, match="engine is closed"):
        snapshot.get(b"0001")
    again.close()


def test_a_scan_that_meets_a_reopen_raises_rather_than_ends_short(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    for number in range(1_000):
        put(engine, b"%04d" % number)
    scan = engine.scan(EVERYTHING)
    next(scan)
    engine.reopen()
    with pytest.raises(StorageFailed, match="opened again"):
        list(scan)
    assert len(keys_of(engine)) == 1_000
    engine.close()


def test_reads_writes_and_syncs_on_other_threads_live_through_reopens(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    put(engine, b"a", b"0")
    faults: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            while not done.is_set():
                put(engine, b"a", b"1", sync=True)
                if engine.get(b"a") is None or engine.get_many([b"a", b"b"])[0] is None:
                    raise ValueError("lost")
        except BaseException as fault:  # noqa: BLE001 - carried to the test's own thread
            faults.append(fault)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in range(5):
        engine.reopen()
    done.set()
    for worker in workers:
        worker.join()
    engine.close()
    assert faults == []


def test_a_sync_lets_other_threads_run(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path)
    stop = threading.Event()
    counted = [0]

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    counter = threading.Thread(target=count)
    counter.start()
    give_up = time.monotonic() + HEAL_SECONDS_MAX
    for number in range(10**9):
        put(engine, b"%d" % number, b"x" * 10_000, sync=True)
        if (number >= 50 and counted[0] > 1_000) or time.monotonic() > give_up:
            break
    stop.set()
    counter.join()
    engine.close()
    assert counted[0] > 1_000


def test_settings_hold_for_a_store_that_exists_already_and_the_cache_is_shared(tmp_path: Path) -> None:
    first = RocksEngine(tmp_path / "first", EngineOptions(block_cache_bytes=64 * MIB))
    first.close()
    first = RocksEngine(tmp_path / "first", EngineOptions(block_cache_bytes=96 * MIB))
    second = RocksEngine(tmp_path / "second", EngineOptions(block_cache_bytes=16 * MIB))
    sizes = {engine._db.property_value("rocksdb.block-cache-capacity") for engine in (first, second)}
    # One cache for the whole program, as large as the largest that anyone asked for.
    (size,) = sizes
    assert int(size) >= 96 * MIB
    for engine in (first, second):
        engine.close()


def test_a_write_is_refused_before_the_reserve_is_touched_and_works_once_there_is_room(
    tmp_path: Path,
) -> None:
    free = [1_000 * MIB]
    engine = RocksEngine(tmp_path, EngineOptions(free_bytes_min=64 * MIB), free_bytes=lambda _: free[0])
    put(engine, b"a")
    free[0] = 63 * MIB
    with pytest.raises(StorageFull, match="Nothing was written") as refused:
        for number in range(rocks.ROOM_CHECK_WRITES + 2):
            put(engine, b"b%d" % number)
    assert refused.value.values["free_bytes"] == 63 * MIB
    before = keys_of(engine)
    with pytest.raises(StorageFull):
        put(engine, b"c")
    assert keys_of(engine) == before, "reads go on, nothing was added"
    assert not engine.reopen_needed
    with pytest.raises(StorageFull):
        engine.reopen()
    assert keys_of(engine) == before, "a reopen without room leaves the store open"
    free[0] = 65 * MIB
    put(engine, b"c", sync=True)
    engine.close()


def test_a_large_batch_counts_against_the_reserve_itself(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path, EngineOptions(free_bytes_min=10 * MIB), free_bytes=lambda _: 12 * MIB)
    put(engine, b"a")
    with pytest.raises(StorageFull):
        put(engine, b"b", b"x" * (3 * MIB))
    engine.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB that is really full when it is full."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill_until_refused(engine: RocksEngine, start: int = 0) -> int:
    number = start
    with pytest.raises(StorageFull):
        while True:
            put(engine, b"%08d" % number, os.urandom(50_000), sync=True)
            number += 1
    return number


def reopen_on_a_full_disk(engine: RocksEngine, disk: Path) -> None:
    """Fill the disk until a reopen fails: work in the background may free some room at any moment."""
    for number in range(20):
        fill_disk(disk / f"more-{number}")
        try:
            engine.reopen()
        except StorageFull:
            return
    pytest.fail("the disk never was full enough")


def fill_disk(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return


def test_a_full_disk_refuses_writes_keeps_reads_and_heals_by_itself(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 10 * MIB)
    engine = RocksEngine(small_disk / "engine", SMALL)
    count = fill_until_refused(engine)
    with pytest.raises(StorageFull):
        put(engine, b"refused")
    assert keys_of(engine) == [b"%08d" % number for number in range(count)], "reads go on"
    ballast.unlink()
    give_up = time.monotonic() + HEAL_SECONDS_MAX
    while True:
        try:
            put(engine, b"after", sync=True)
            break
        except StorageFull:
            assert time.monotonic() < give_up, "writes did not come back"
            time.sleep(0.1)
    expected = [*(b"%08d" % number for number in range(count)), b"after"]
    assert keys_of(engine) == expected
    # What a kill at this moment would leave on the disk opens, with everything that was acknowledged.
    copy_still(small_disk / "engine", tmp_path / "killed")
    engine.close()
    killed = RocksEngine(tmp_path / "killed")
    assert keys_of(killed) == expected
    killed.close()


def test_a_reopen_heals_a_full_disk_at_once_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 10 * MIB)
    engine = RocksEngine(small_disk / "engine", SMALL)
    count = fill_until_refused(engine)
    ballast.unlink()
    engine.reopen()
    put(engine, b"after", sync=True)
    assert keys_of(engine) == [*(b"%08d" % number for number in range(count)), b"after"]
    engine.close()


def test_a_reopen_that_fails_on_a_full_disk_can_be_tried_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 10 * MIB)
    engine = RocksEngine(small_disk / "engine", SMALL)
    count = fill_until_refused(engine)
    reopen_on_a_full_disk(engine, small_disk)
    needed_before = engine.reopen_needed
    engine._room_writes_left = 0  # the next write looks at the disk first
    for use in (lambda: engine.get(b"a"), lambda: put(engine, b"a"), engine.snapshot, engine.sync):
        with pytest.raises(StorageFailed, match="did not open again"):
            use()
    with pytest.raises(StorageFull):
        engine.reopen()
    for file in (ballast, *small_disk.glob("more-*")):
        file.unlink()
    engine.reopen()
    assert (needed_before, engine.reopen_needed) == (True, False)
    put(engine, b"after", sync=True)
    assert keys_of(engine) == [*(b"%08d" % number for number in range(count)), b"after"]
    engine.close()


def test_a_new_store_on_a_full_disk_is_refused_and_made_once_there_is_room(small_disk: Path) -> None:
    fill_disk(small_disk / "ballast")
    with pytest.raises(StorageFull):
        RocksEngine(small_disk / "engine", SMALL)
    (small_disk / "ballast").unlink()
    engine = RocksEngine(small_disk / "engine", SMALL)
    put(engine, b"a", sync=True)
    engine.close()


def test_the_faults_of_the_binding_that_are_worked_around_are_still_there(tmp_path: Path) -> None:
    """When this fails, the binding has changed: look again at what `rocks_reads` says it gets wrong."""
    options = rocksdict.Options(raw_mode=True)
    db = rocksdict.Rdict(str(tmp_path), options)
    db.put(b"a", b"old")
    snapshot = db.snapshot()
    db.put(b"a", b"new")
    assert list(snapshot.items()) == [(b"a", b"new")]
    bounds = rocksdict.ReadOptions()
    bounds.set_iterate_lower_bound(b"a")
    assert list(db.items(read_opt=bounds)) == []
    del snapshot
    db.close()
