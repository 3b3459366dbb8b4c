"""Cleanup: what is expired goes, by each strategy, with its index and with its disk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.bench import Bench
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.value import ValueState
from tidegate.state.runtime import ttl_cleanup
from tidegate.state.ttl import Cleanup, Ttl

STRATEGIES: list[Cleanup] = ["FullSnapshot", "IncrementalCleanup", "RocksdbCompaction"]
# The widest bucket that the TTLs of these tests have.
BUCKET_MS = 1_000


@pytest.fixture(params=["heap", "rocksdb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(request.param, tmp_path / "copy")
    yield bench.batch()
    bench.backend.close()


def bind_all(bench: Bench, ttl: Ttl) -> tuple[ValueState[Any, Any], ListState[Any], MapState[Any, Any]]:
    value = bench.bind(ValueState(int, ttl=ttl), 1)
    return value, bench.bind(ListState(int, ttl=ttl), 2), bench.bind(MapState(str, int, ttl=ttl), 3)


def write_all(bench: Bench, ttl: Ttl, keys: range) -> None:
    value, elements, entries = bind_all(bench, ttl)
    for number in keys:
        bench.on(f"k{number}")
        value.update(number)
        elements.add_all([number, number])
        entries.put_all({"a": 1, "b": 2})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_removes_what_is_expired_and_nothing_else(bench: Bench, strategy: Cleanup) -> None:
    """Case 7: full snapshot, incremental, and by time index."""
    ttl = Ttl("10 s", cleanup=strategy, entries_per_access=1_000)
    write_all(bench, ttl, range(30))
    bench.commit()
    bench.batch(8_000)
    write_all(bench, ttl, range(20, 40))
    bench.commit()
    bench.batch(13_000)
    value, _, _ = bind_all(bench, ttl)
    for number in range(20):
        bench.on(f"k{number}")
        assert value.value() is None
    for state in bench.states:
        state.cells.accesses += 1
    cleaned = bench.clean(13_000, snapshot=True)
    bench.commit()
    # 20 keys wholly, and of those that were written again the two older elements of the list.
    assert cleaned.removed_count == 20 * 5 + 10 * 2
    bench.batch(18_000)
    value, elements, entries = bind_all(bench, ttl)
    for number in range(20, 40):
        bench.on(f"k{number}")
        assert (value.value(), elements.get(), entries.keys()) == (number, [number] * 2, ["a", "b"])
    for state in bench.states:
        state.cells.accesses += 1
    assert bench.clean(18_001 + BUCKET_MS, snapshot=True).removed_count == 20 * 5
    bench.commit()
    assert bench.entry_count() == 0


def test_what_was_touched_since_stays_and_is_found_by_its_new_time(bench: Bench) -> None:
    declared = ValueState(int, ttl=Ttl("10 s", update="OnReadAndWrite"))
    for now_ms in (0, 5_000, 10_000, 15_000):
        state = bench.batch(now_ms).bind(declared)
        bench.on("ann")
        if now_ms == 0:
            state.update(1)
        assert state.value() == 1
        assert bench.clean(now_ms).removed_count == 0
        bench.commit()
    bench.batch(25_000).bind(declared)
    assert bench.clean(25_000).removed_count == 0
    bench.commit()
    bench.batch(27_000).bind(declared)
    assert bench.clean(27_000).removed_count == 1
    bench.commit()
    assert bench.entry_count() == 0


@pytest.mark.parametrize(("first", "second", "gone_ms"), [("10 s", "60 s", 65_000), ("60 s", "10 s", 65_000)])
def test_another_ttl_still_finds_what_the_first_one_wrote(
    bench: Bench, first: str, second: str, gone_ms: int
) -> None:
    state = bench.bind(ValueState(int, ttl=Ttl(first)))
    bench.on("ann")
    state.update(1)
    bench.commit()
    changed = ValueState(int, ttl=Ttl(second))
    bench.batch(12_000).bind(changed)
    assert bench.clean(12_000).removed_count == 0
    bench.commit()
    bench.batch(gone_ms).bind(changed)
    assert bench.clean(gone_ms).removed_count == 1
    bench.commit()
    assert bench.entry_count() == 0


def test_by_event_time_the_watermark_says_what_goes(bench: Bench) -> None:
    declared = ValueState(int, ttl=Ttl("10 s", clock="event"))
    state = bench.bind(declared)
    bench.on("ann", 1_000)
    state.update(1)
    bench.commit()
    for watermark_ms, removed in ((None, 0), (11_000, 0), (13_000, 1)):
        bench.batch(10**9).bind(declared)
        assert bench.clean(10**9, watermark_ms=watermark_ms).removed_count == removed
        bench.commit()


def test_a_batch_cleans_so_much_and_the_next_goes_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl_cleanup, "CLEANED_PER_BATCH", 40)
    declared = ValueState(int, ttl=Ttl("10 s"))
    state = bench.bind(declared)
    for number in range(100):
        bench.on(f"k{number}")
        state.update(number)
    bench.commit()
    removed = []
    for _ in range(4):
        bench.batch(60_000).bind(declared)
        removed.append(bench.clean(60_000).removed_count)
        bench.commit()
    assert removed == [40, 40, 20, 0]
    assert bench.entry_count() == 0


def test_cleaning_keeps_up_with_writing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl_cleanup, "CLEANED_PER_BATCH", 1)
    declared = ListState(int, ttl=Ttl("1 s"))
    for number in range(12):
        state = bench.batch(number * 1_000).bind(declared)
        bench.on("ann")
        state.add_all(range(50))
        bench.clean(number * 1_000)
        bench.commit()
    assert bench.entry_count() <= 2 * 50 * 4


def test_incremental_cleanup_looks_at_so_many_entries_an_access(bench: Bench) -> None:
    declared = ValueState(int, ttl=Ttl("10 s", cleanup="IncrementalCleanup", entries_per_access=7))
    state = bench.bind(declared)
    for number in range(100):
        bench.on(f"k{number}")
        state.update(number)
    bench.commit()
    looked = removed = 0
    for _ in range(30):
        state = bench.batch(60_000).bind(declared)
        bench.on("k0")
        state.update(1)
        cleaned = bench.clean(60_000)
        assert cleaned.checked_count <= 7
        looked, removed = looked + cleaned.checked_count, removed + cleaned.removed_count
        bench.commit()
    assert removed == 99
    assert looked > 99


def accessed(state: Any, count: int) -> None:
    """Let a bound state have had so many accesses in this batch."""
    state.cells.accesses = count


def test_a_sweep_of_one_entry_a_batch_comes_past_key_groups_that_are_empty(bench: Bench) -> None:
    declared = ValueState(int, ttl=Ttl("10 s", cleanup="IncrementalCleanup", entries_per_access=1))
    state = bench.bind(declared)
    for key in ("ann", "bob", "cid"):
        bench.on(key)
        state.update(1)
    bench.commit()
    removed = 0
    for _ in range(20):
        state = bench.batch(60_000).bind(declared)
        bench.on("ann")
        state.clear()
        accessed(state, 1)
        removed += bench.clean(60_000).removed_count
        bench.commit()
    assert removed == 2
    assert bench.entry_count() == 0


@pytest.mark.parametrize("per_group", [1, 40, 700])
def test_a_sweep_looks_at_every_entry_once_a_round(bench: Bench, per_group: int) -> None:
    """Short and long key groups, and one that is longer than all others together."""
    declared = MapState(int, int, ttl=Ttl("10 s", cleanup="IncrementalCleanup", entries_per_access=100))
    state = bench.bind(declared)
    sizes = {f"k{number}": per_group for number in range(5)} | {"long": 3 * per_group + 17}
    for key, size in sizes.items():
        bench.on(key)
        state.put_all(dict.fromkeys(range(size), 1))
    bench.commit()
    looked, batches = 0, 0
    while looked < sum(sizes.values()):
        accessed(bench.batch(1_000).bind(declared), 1)
        cleaned = bench.clean(1_000)
        assert 0 < cleaned.checked_count <= 100
        looked, batches = looked + cleaned.checked_count, batches + 1
        bench.commit()
    removed = 0
    for _ in range(2):  # what lies before the place where it stopped comes with the next round
        bench.batch(60_000)
        accessed(bench.bind(declared), 10**6)
        removed += bench.clean(60_000).removed_count
        bench.commit()
    assert removed == sum(sizes.values())
    assert batches <= sum(sizes.values()) // (100 - 8) + 1


def test_many_key_groups_take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ttl_cleanup, "GROUPS_PER_BATCH", 3)
    declared = ValueState(int, ttl=Ttl("10 s"))
    state = bench.bind(declared)
    for number in range(100):
        bench.on(f"k{number}")
        state.update(number)
    bench.commit()
    removed = []
    for _ in range(3):
        bench.batch(60_000).bind(declared)
        removed.append(bench.clean(60_000).removed_count)
        bench.commit()
    assert sum(removed) == 100
    assert all(removed)


def test_what_a_late_row_puts_into_a_bucket_that_is_over_is_found_later(bench: Bench) -> None:
    declared = ListState(int, ttl=Ttl("10 s", clock="event"))
    state = bench.bind(declared)
    bench.on("ann", 1_000)
    state.add_all(range(ttl_cleanup.RANGE_FROM_ENTRIES + 1))
    bench.commit()
    state = bench.batch().bind(declared)
    bench.on("ann", 1_001)
    state.add(7)
    assert bench.clean(0, watermark_ms=50_000).removed_count == ttl_cleanup.RANGE_FROM_ENTRIES + 1
    bench.commit()
    bench.batch().bind(declared)
    assert bench.clean(0, watermark_ms=50_000).removed_count == 1
    bench.commit()
    assert bench.entry_count() == 0


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.sst"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cleaning_frees_disk(strategy: Cleanup, tmp_path: Path) -> None:
    """Case 7: each strategy really frees disk, measured."""
    folder = tmp_path / "copy"
    bench = Bench("rocksdb", folder)
    declared = ValueState(bytes, ttl=Ttl("10 s", cleanup=strategy, entries_per_access=10_000))
    rng = random.Random(7)
    state = bench.batch().bind(declared)
    for number in range(5_000):
        bench.on(f"k{number}")
        state.update(rng.randbytes(400))
    bench.commit()
    compacted(bench, folder)
    before = folder_bytes(folder)
    assert before > 5_000 * 400
    state = bench.batch(60_000).bind(declared)
    bench.on("other")
    state.update(b"x")
    assert bench.clean(60_000, snapshot=True).removed_count == 5_000
    bench.commit()
    compacted(bench, folder)
    assert folder_bytes(folder) < before / 20
    bench.backend.close()


def compacted(bench: Bench, folder: Path) -> None:
    """Close the copy, which flushes it, and compact it as RocksDB does in the background."""
    bench.backend.close()
    backend = RocksBackend(folder)
    backend.compact()
    bench.backend = backend
