"""How often a batch asks its backend: by what it does, not by how many key groups its partition has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidegate.checkpoint.backend import Backend
from tidegate.checkpoint.backends.heap import HeapBackend, HeapFactory
from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec
from tidegate.checkpoint.local.ipc_client import CALLS_MAX, RemoteBackend, connect_remote
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.local.store import acquire, return_store
from tidegate.checkpoint.settings import StateSettings
from tidegate.model.clock import SystemClock
from tidegate.pipeline.stateful.keyed_task import KeyedTask
from tidegate.pipeline.stateful.spark_log import PlannedBatch, SparkTask
from tidegate.pipeline.stateful.task_context import StatefulTaskContext
from tidegate.state.context import Context, Timer
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.value import ValueState
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import plan_operator
from tidegate.state.runtime.chunks import GROUP_COLUMN
from tidegate.state.ttl import Cleanup, Ttl
from tidegate.testing import operators
from tidegate.testing.operators import START_MS, OperatorHarness

KEYS = [f"k{number}" for number in range(50)]
HOUR_MS = 3_600_000
FEW_GROUPS, MANY_GROUPS = 16, 2_048
STRATEGIES: list[Cleanup | None] = [None, "RocksdbCompaction", "FullSnapshot", "IncrementalCleanup"]


@pytest.fixture(autouse=True)
def _closed_pool() -> Iterator[None]:
    yield
    pool().close()


class Counted:
    """Counts the calls that reach a backend."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.counts[name] += 1
        return getattr(self.backend, name)


def operator_with(cleanup: Cleanup | None) -> KeyedOperator[Any, Any]:
    """Return an operator with three states, and timers of both clocks in an hour."""
    ttl = None if cleanup is None else Ttl("30 min", cleanup=cleanup)

    class Seen(KeyedOperator[dict[str, Any], dict[str, Any]]):
        output = "k string, clock string"
        count = ValueState(int, ttl=ttl)
        times = ListState(int, ttl=ttl)
        names = MapState(str, int, ttl=ttl)

        def process(self, event: dict[str, Any], ctx: Context) -> None:
            self.count.update((self.count.value() or 0) + 1)
            self.times.add(event["ts"])
            self.names.put("a", 1)
            ctx.timer(event["ts"] + HOUR_MS)
            ctx.timer(event["ts"] + HOUR_MS, clock="processing")

        def on_timer(self, timer: Timer, ctx: Context) -> dict[str, Any]:
            return {"k": ctx.key, "clock": timer.clock}

    return Seen()


def harness_on(operator: KeyedOperator[Any, Any], backend: Any = None) -> OperatorHarness:
    harness = OperatorHarness(operator, key="k", event_time="ts", columns="k string, ts long")
    harness._backend = Counted(backend or harness._backend)  # type: ignore[assignment]
    return harness


def rows(at_ms: int) -> list[dict[str, Any]]:
    return [{"k": key, "ts": at_ms} for key in KEYS]


def calls(cleanup: Cleanup | None, groups: int, monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """Return the calls of a batch of which nothing is due and expired, and of one where all is."""
    monkeypatch.setattr(operators, "MAX_PARALLELISM", groups)
    harness = harness_on(operator_with(cleanup))
    backend: Any = harness._backend
    for batch in range(2):
        backend.counts.clear()
        assert harness.feed(rows(START_MS + batch)) == []
    seen = [Counter(backend.counts)]
    backend.counts.clear()
    late_ms = START_MS + 2 * HOUR_MS
    assert len(harness.advance(watermark=late_ms, now=late_ms)) == 4 * len(KEYS)
    return [*seen, Counter(backend.counts)]


@pytest.mark.parametrize("cleanup", STRATEGIES)
def test_the_calls_of_a_batch_do_not_grow_with_the_key_groups(
    cleanup: Cleanup | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = calls(cleanup, FEW_GROUPS, monkeypatch)
    many = calls(cleanup, MANY_GROUPS, monkeypatch)
    # What is due may take a second page of some key groups. A sweep goes round in order and feels its way: a
    # few steps more for each state, where key groups are empty.
    more = 3 * 8 if cleanup == "IncrementalCleanup" else 2
    assert all(there.total() <= here.total() + more for here, there in zip(few, many, strict=True))
    assert cleanup == "IncrementalCleanup" or few[0] == many[0]
    assert all(there["scan"] == 0 for there in many)


def test_timers_and_cleanup_of_many_key_groups_leave_a_remote_store_at_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "MAX_PARALLELISM", MANY_GROUPS)
    place = StateSettings(local_root=str(tmp_path)).local_directory(SystemClock())
    local = acquire(place, tmp_path / "copy")
    local.wipe().mkdir()
    local.adopt()
    return_store(place, local)
    found = connect_remote(place, tmp_path / "copy")
    assert found is not None
    harness = harness_on(operator_with("RocksdbCompaction"), found.backend)
    harness.feed(rows(START_MS))
    late_ms = START_MS + 2 * HOUR_MS
    assert len(harness.advance(watermark=late_ms, now=late_ms)) == 2 * len(KEYS)
    assert isinstance(found.backend, RemoteBackend)
    assert found.backend._calls < CALLS_MAX / 2
    found.keep_open()


class SeenJob:
    """Runs the batches of a keyed task without Spark, and counts what they ask for many ranges."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        operator = operator_with(None)
        schema = pa.schema([("k", pa.string())])
        self.key = KeyType.from_arrow(("k",), schema, operator="seen")
        self.task = KeyedTask(
            operator=operator,
            schema_request=plan_operator(operator, "seen").schema_request(self.key, 128),
            context=StatefulTaskContext(
                operator="seen",
                parallelism=1,
                max_parallelism=128,
                settings=StateSettings(backend=HeapFactory(), local_root=str(folder / "local")),
                checkpoint=str(folder / "checkpoint"),
                call="first",
            ),
            event_time="ts",
        )
        self.asked: list[int] = []
        plain = HeapBackend.pages

        def counted(backend: HeapBackend, ranges: Any, count_max: int) -> Any:
            self.asked.append(len(ranges))
            return plain(backend, ranges, count_max)

        monkeypatch.setattr(HeapBackend, "pages", counted, raising=False)

    def run(self, number: int, run: str | None, now_ms: int, parallelism: int = 1) -> tuple[int, int]:
        """Do a batch of one row, on several partitions of none; give its output's rows, and ranges asked."""
        self.asked.clear()
        given = 0
        for partition in range(parallelism):
            planned = PlannedBatch(number, f"plan {number}", now_ms, now_ms)
            context = replace(self.task.context, planned=planned, parallelism=parallelism)
            task = replace(self.task, context=context)
            batches = self._rows(now_ms) if parallelism == 1 else []
            at = SparkTask(partition, f"{run}/{number}/{partition}", number, None, run)
            given += sum(one.num_rows for one in task._output_rows(at, iter(batches), SystemClock()))
        return given, sum(self.asked)

    def _rows(self, now_ms: int) -> list[pa.RecordBatch]:
        column = pa.array(["ann"])
        groups = pa.array(StateKeyCodec(self.key).groups_of([column], 128), pa.int32())
        named = {"k": column, "ts": pa.array([now_ms]), GROUP_COLUMN: groups}
        return [pa.RecordBatch.from_pydict(named)]


def test_what_the_head_before_knows_spares_looking_for_timers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SeenJob(tmp_path, monkeypatch)
    both_clocks = 2 * 128
    assert job.run(0, "one", START_MS) == (0, both_clocks), "the first batch looks"
    assert job.run(1, "one", START_MS + 1) == (0, 0)
    assert job.run(2, "one", START_MS + 2) == (0, 0)
    assert job.run(3, "one", START_MS + HOUR_MS) == (2, both_clocks), "the first timer of each clock is due"
    assert job.run(4, "two", START_MS + HOUR_MS) == (0, both_clocks), "after a restart it looks"
    assert job.run(5, None, START_MS + HOUR_MS) == (0, both_clocks), "where no run is known it looks"
    assert job.run(6, "two", START_MS + HOUR_MS) == (0, both_clocks), "the commit before is of another run"
    assert job.run(7, "two", START_MS + HOUR_MS + 1) == (2, both_clocks)
    assert job.run(8, "two", START_MS + HOUR_MS + 1) == (0, 0)


def test_after_a_change_of_partitions_timers_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = SeenJob(tmp_path, monkeypatch)
    job.run(0, "one", START_MS)
    assert job.run(1, "one", START_MS + 1) == (0, 0)
    assert job.run(2, "one", START_MS + 2, parallelism=2) == (0, 2 * 128)
    assert job.run(3, "one", START_MS + HOUR_MS, parallelism=2)[0] == 2
