"""Reads of maps: small ones are read whole, and return what the write batch returns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.bench import Bench
from tidegate.state.kinds import map as map_reads
from tidegate.state.kinds.map import MapState


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench("rocksdb", tmp_path / "copy")
    yield bench.batch()
    bench.backend.close()


class Reads:
    """Counts what reaches a backend."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.gets = self.scans = 0

    def get(self, key: bytes) -> bytes | None:
        self.gets += 1
        found: bytes | None = self.backend.get(key)
        return found

    def scan(self, start: bytes, stop: bytes) -> Any:
        self.scans += 1
        return self.backend.scan(start, stop)


def filled(bench: Bench, count: int) -> tuple[MapState[int, int], Reads]:
    """Return a map of so many entries in the next batch, and what counts its reads."""
    declared = MapState(int, int)
    state = bench.bind(declared)
    bench.on("ann")
    state.put_all({number: number for number in range(count)})
    bench.commit()
    bench.batch()
    reads = Reads(bench.backend)
    stage: Any = bench.stage
    stage.backend = reads
    state = bench.bind(declared)
    bench.on("ann")
    return state, reads


def test_the_second_read_of_a_small_map_is_the_last(bench: Bench) -> None:
    state, reads = filled(bench, 20)
    assert [state.get(number) for number in range(25)] == [*range(20), *[None] * 5]
    assert [state.contains(number) for number in (3, 30)] == [True, False]
    assert (reads.gets, reads.scans) == (1, 1)


def test_a_large_map_is_read_entry_by_entry(bench: Bench) -> None:
    state, reads = filled(bench, map_reads.WHOLE_ENTRIES_MAX + 1)
    assert [state.get(number) for number in range(10)] == list(range(10))
    assert (reads.gets, reads.scans) == (10, 1)


@pytest.mark.parametrize("limit", ["REMEMBERED_MAX", "WRITTEN_MAX"])
def test_beyond_the_limits_of_memory_answers_stay_right(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(map_reads, limit, 3)
    state, _ = filled(bench, 20)
    assert [state.get(number) for number in range(5)] == list(range(5))
    for number in range(4, 12):
        state.put(number, -number)
    state.remove(1)
    assert [state.get(number) for number in (0, 1, 4, 11, 12)] == [0, None, -4, -11, 12]
    state.clear()
    bench.on("bob")
    assert [state.get(number) for number in range(5)] == [None] * 5
    bench.on("ann")
    assert [state.get(number) for number in range(5)] == [None] * 5


def test_an_undone_row_is_undone_for_maps_too(bench: Bench) -> None:
    state, _ = filled(bench, 5)
    assert [state.get(0), state.get(1)] == [0, 1]
    bench.stage.begin_row()
    state.put(0, 100)
    state.remove(1)
    assert [state.get(0), state.get(1)] == [100, None]
    bench.stage.undo_row()
    assert [state.get(0), state.get(1)] == [0, 1]
    bench.stage.begin_row()
    state.clear()
    assert state.get(0) is None
    bench.stage.undo_row()
    assert [state.get(0), state.get(1)] == [0, 1]
