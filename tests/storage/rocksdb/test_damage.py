"""Cut and flipped bytes in RocksDB's files: found and named, never answered wrongly or left out in silence.

Each opening runs in a child with a time limit: the log reader of RocksDB can hang on a flipped bit.
"""

from __future__ import annotations

import multiprocessing
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.storage.live_copy import copy_still
from tidegate.errors import StorageCorrupt, TidegateError
from tidegate.storage.engine import KeyRange
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.storage.rocksdb.options import EngineOptions
from tidegate.storage.rocksdb.wal import (
    BLOCK_BYTES,
    HEADER_BYTES,
    SECTOR_BYTES,
    check_logs,
    locate_damage,
    log_files,
)

RECORDS = 60
OPEN_SECONDS_MAX = 60.0
EVERYTHING = KeyRange(b"", b"\xff" * 8)

WRITER = """
import os, sys
from pathlib import Path
from tidegate.storage.rocksdb.engine import RocksEngine
engine = RocksEngine(Path(sys.argv[1]))
for number in range(int(sys.argv[2])):
    batch = engine.batch()
    batch.put(b"%06d" % number, bytes([number % 251]) * int(sys.argv[3]))
    engine.write(batch)
engine.sync()
os._exit(0)  # as a kill: nothing is closed, the log is all there is
"""


def killed_store(folder: Path, records: int = RECORDS, value_bytes: int = 30) -> Path:
    """Return a store whose process ended without closing it: everything stands in the write-ahead log."""
    subprocess.run([sys.executable, "-c", WRITER, str(folder), str(records), str(value_bytes)], check=True)
    return folder


def written(records: int = RECORDS, value_bytes: int = 30) -> list[tuple[bytes, bytes]]:
    return [(b"%06d" % number, bytes([number % 251]) * value_bytes) for number in range(records)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return killed_store(tmp_path_factory.mktemp("killed") / "engine")


def the_log(folder: Path) -> Path:
    return max(folder.glob("*.log"), key=lambda path: path.stat().st_size)


def newest_table(folder: Path) -> Path:
    """Return the table with the largest number: two may have been written at one time of the file system."""
    return max(folder.glob("*.sst"), key=lambda path: int(path.stem))


Outcome = tuple[str, object]


def read_all(folder: Path) -> Outcome:
    """Return ("pairs", what a scan finds) or ("corrupt", the place that the error names)."""
    try:
        engine = RocksEngine(folder, EngineOptions(free_bytes_min=0))
    except StorageCorrupt as error:
        return "corrupt", error.values["place"]
    try:
        forwards = list(engine.scan(EVERYTHING))
        if forwards[::-1] != list(engine.scan(EVERYTHING, reverse=True)):
            return "differs", "the two directions of a scan"
        keys = [key for key, _ in forwards]
        if engine.get_many(keys) != [value for _, value in forwards]:
            return "differs", "scan and multi-get"
        return "pairs", forwards
    except StorageCorrupt as error:
        return "corrupt", error.values["place"]
    finally:
        engine.close()


def _run_cases(cases: list[tuple[str, Path, bytes]], folder: Path, answers: Connection) -> None:
    for name, file, damaged in cases:
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(file.parent, copy)
        (copy / file.name).write_bytes(damaged)
        try:
            outcome = read_all(copy)
        except TidegateError as error:
            outcome = type(error).__name__, str(error)
        answers.send((name, outcome))
    answers.close()


def outcomes(cases: Iterable[tuple[str, Path, bytes]], folder: Path) -> dict[str, Outcome]:
    """Open each damaged copy in one child; a case that hangs is reported as such."""
    listed = list(cases)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    # Not a fork of this process: RocksDB's threads do not live on in one, and their locks may be held.
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__])
    child = forks.Process(target=_run_cases, args=(listed, folder, theirs))
    child.start()
    theirs.close()
    found: dict[str, Outcome] = {}
    for name, _, _ in listed:
        if not ours.poll(OPEN_SECONDS_MAX):
            child.kill()
            found[name] = ("hangs", name)
            break
        answered, outcome = ours.recv()
        found[answered] = outcome
    child.join()
    return found


def flips(
    file: Path, positions: Iterable[int], bits: Iterable[int] = range(8)
) -> list[tuple[str, Path, bytes]]:
    raw = file.read_bytes()
    cases = []
    for position in positions:
        for bit in bits:
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            cases.append((f"{file.name} byte {position} bit {bit}", file, bytes(damaged)))
    return cases


def check_named(
    found: dict[str, Outcome], good: list[tuple[bytes, bytes]], file: Path, allowed: Callable[[Outcome], bool]
) -> int:
    """Every outcome is intact, corrupt with the file named, or allowed; give how many were corrupt."""
    corrupt = 0
    for name, outcome in found.items():
        if outcome == ("pairs", good) or allowed(outcome):
            continue
        assert outcome[0] == "corrupt", f"{name}: {str(outcome)[:300]}"
        assert Path(str(outcome[1])).name == file.name, f"{name}: the error names {outcome[1]}"
        corrupt += 1
    return corrupt


def never(_outcome: Outcome) -> bool:
    return False


def test_a_log_cut_at_any_byte_keeps_every_record_before_the_cut(store: Path, tmp_path: Path) -> None:
    log = the_log(store)
    raw = log.read_bytes()
    record_bytes = len(raw) // RECORDS
    assert record_bytes * RECORDS == len(raw)
    cuts = [*range(len(raw) - 2 * record_bytes - 3, len(raw) + 1), *range(0, len(raw), 97)]
    found = outcomes([(str(cut), log, raw[:cut]) for cut in cuts], tmp_path)
    good = written()
    for cut in cuts:
        assert found[str(cut)] == ("pairs", good[: cut // record_bytes]), f"cut at byte {cut}"


@pytest.mark.parametrize("record", [0, 1, RECORDS // 2, RECORDS - 1])
def test_a_flipped_bit_in_the_head_of_a_log_record_is_found(store: Path, tmp_path: Path, record: int) -> None:
    log = the_log(store)
    at = len(log.read_bytes()) // RECORDS * record
    cases = flips(log, range(at, at + HEADER_BYTES))
    assert check_named(outcomes(cases, tmp_path), written(), log, never) == len(cases)


def test_a_flipped_bit_in_the_payload_of_a_log_record_is_found(store: Path, tmp_path: Path) -> None:
    log = the_log(store)
    record_bytes = len(log.read_bytes()) // RECORDS
    positions = [record * record_bytes + HEADER_BYTES + record % 30 for record in range(RECORDS)]
    cases = flips(log, positions, bits=[3])
    assert check_named(outcomes(cases, tmp_path), written(), log, never) == len(cases)


def test_records_that_cross_blocks_are_checked_too(tmp_path: Path) -> None:
    folder = killed_store(tmp_path / "engine", records=12, value_bytes=9_000)
    log = the_log(folder)
    size = log.stat().st_size
    picks = random.Random(7)
    heads = [start + byte for start in range(0, size, 2 * BLOCK_BYTES) for byte in range(HEADER_BYTES)]
    cases = flips(log, heads, bits=[2, 7])
    cases += flips(log, sorted(picks.sample(range(size), 20)), bits=[picks.randrange(8)])
    found = outcomes(cases, tmp_path)
    # The bytes that fill up a block behind its last record carry nothing.
    assert check_named(found, written(12, 9_000), log, never) >= len(cases) - 5
    cuts = [*range(0, size, 4_999), *range(BLOCK_BYTES - 9, BLOCK_BYTES + 9)]
    raw = log.read_bytes()
    for name, outcome in outcomes([(str(cut), log, raw[:cut]) for cut in cuts], tmp_path).items():
        pairs = outcome[1]
        assert outcome[0] == "pairs" and isinstance(pairs, list), f"cut at byte {name}: {outcome}"
        assert pairs == written(12, 9_000)[: len(pairs)], f"cut at byte {name}"
        assert len(pairs) >= int(name) // 9_100, f"cut at byte {name}: only {len(pairs)} records"


def test_a_log_that_goes_on_with_rubbish_or_zeros_keeps_every_record(store: Path, tmp_path: Path) -> None:
    log = the_log(store)
    raw = log.read_bytes()
    tails = {"zeros": b"\x00" * 300, "ff": b"\xff" * 300, "random": random.Random(3).randbytes(300)}
    found = outcomes([(name, log, raw + tail) for name, tail in tails.items()], tmp_path)
    for name in ("zeros", "ff"):
        assert found[name] == ("pairs", written())
    check_named({"random": found["random"]}, written(), log, never)


def test_a_last_record_that_a_power_cut_left_in_zeros_is_cut_off(tmp_path: Path) -> None:
    """The length of the file got to the disk, the last sectors did not: they were never acknowledged."""
    engine = RocksEngine(tmp_path / "engine")
    for key, value in written(12, 3_000):
        batch = engine.batch()
        batch.put(key, value)
        engine.write(batch, sync=True)
    log = the_log(tmp_path / "engine")
    raw = log.read_bytes()
    for zeros_bytes in (SECTOR_BYTES, 2_000):
        copy = tmp_path / f"copy-{zeros_bytes}"
        copy_still(tmp_path / "engine", copy)
        zeros_at = (len(raw) - zeros_bytes) // SECTOR_BYTES * SECTOR_BYTES
        the_log(copy).write_bytes(raw[:zeros_at] + b"\x00" * (len(raw) - zeros_at))
        assert read_all(copy) == ("pairs", written(12, 3_000)[:-1])
    engine.close()


def test_zeros_that_were_written_stay_and_zeros_inside_a_sector_are_damage(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "engine")
    batch = engine.batch()
    batch.put(b"k", b"x" + b"\x00" * 3_000)
    engine.write(batch, sync=True)
    copy = tmp_path / "copy"
    copy_still(tmp_path / "engine", copy)
    assert read_all(copy) == ("pairs", [(b"k", b"x" + b"\x00" * 3_000)])
    damaged = tmp_path / "damaged"
    copy_still(tmp_path / "engine", damaged)
    raw = bytearray(the_log(damaged).read_bytes())
    raw[raw.index(b"x\x00\x00")] = 0
    raw[-1] = 1
    the_log(damaged).write_bytes(bytes(raw))
    with pytest.raises(StorageCorrupt):
        RocksEngine(damaged)
    engine.close()


@pytest.fixture(scope="module")
def flushed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flushed") / "engine"
    engine = RocksEngine(folder)
    for _ in range(3):
        batch = engine.batch()
        for key, value in written(3_000):
            batch.put(key, value)
        engine.write(batch)
        engine.reopen()
    engine.close()
    return folder


def test_flipped_bits_in_a_table_file_are_found_when_they_are_read(flushed: Path, tmp_path: Path) -> None:
    table = newest_table(flushed)
    picks = random.Random(11)
    positions = sorted(picks.sample(range(table.stat().st_size), 60))
    cases = flips(table, positions, bits=[picks.randrange(8)])
    corrupt = check_named(outcomes(cases, tmp_path), written(3_000), table, never)
    assert corrupt >= 30, "most bytes of a table carry pairs"


def test_flipped_bits_in_the_manifest_are_found(flushed: Path, tmp_path: Path) -> None:
    manifest = log_files(flushed)[-1]
    assert manifest.name.startswith("MANIFEST")
    cases = flips(manifest, range(0, manifest.stat().st_size, 3), bits=[1])
    cases += flips(manifest, range(HEADER_BYTES))
    found = outcomes(cases, tmp_path)
    assert check_named(found, written(3_000), manifest, never) >= len(cases) - 5


def test_a_missing_table_file_stops_the_open_and_is_named(flushed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(flushed, copy)
    table = newest_table(copy)
    table.unlink()
    with pytest.raises(StorageCorrupt) as refused:
        RocksEngine(copy)
    assert Path(refused.value.values["place"]).name == table.name


def test_damage_elsewhere_leaves_the_rest_readable(flushed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(flushed, copy)
    table = newest_table(copy)
    damaged = bytearray(table.read_bytes())
    damaged[100] ^= 1
    table.write_bytes(damaged)
    engine = RocksEngine(copy)
    with pytest.raises(StorageCorrupt):
        list(engine.scan(EVERYTHING))
    with pytest.raises(StorageCorrupt):
        engine.get(b"%06d" % 1)
    assert engine.get(b"%06d" % 2_999) == written(3_000)[-1][1]
    engine.close()


def test_logs_of_a_running_and_of_a_closed_store_pass_the_check(store: Path, flushed: Path) -> None:
    check_logs(store)
    check_logs(flushed)
    assert locate_damage(store) is None
    assert locate_damage(flushed) is None


def test_an_empty_folder_and_one_that_is_not_there_pass_the_check(tmp_path: Path) -> None:
    check_logs(tmp_path)
    check_logs(tmp_path / "missing")
