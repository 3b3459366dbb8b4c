"""Timers: which fire, in which order, what is left."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.checkpoint.bench import GROUPS, Bench
from tidegate.errors import ValueInvalid
from tidegate.state import timers as timers_module
from tidegate.state.timers import NextTimers, TimerClock, Timers


@pytest.fixture(params=["heap", "rocksdb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(request.param, tmp_path / "copy")
    yield bench.batch()
    bench.backend.close()


class Keyed:
    """Sets and cancels timers of keys by their names."""

    def __init__(self, bench: Bench, known: NextTimers | None = None) -> None:
        self.bench = bench
        self.timers: Timers = bench.timers(known)

    def parts(self, key: str) -> tuple[bytes, bytes]:
        return self.bench.group(key), self.bench.codec.encode(key)

    def set(self, key: str, at_ms: int, clock: TimerClock = "event") -> None:
        self.timers.set(*self.parts(key), clock, at_ms)

    def cancel(self, key: str, at_ms: int, clock: TimerClock = "event") -> None:
        self.timers.cancel(*self.parts(key), clock, at_ms)

    def fired(self, watermark_ms: int | None, processing_ms: int | None = None) -> list[tuple[str, int]]:
        due = self.timers.due(watermark_ms, processing_ms)
        return [(self.bench.codec.decode(timer.stored)[0], timer.at_ms) for timer in due]

    def left(self) -> NextTimers:
        return NextTimers(self.timers.next_event_ms(), self.timers.next_processing_ms())


def test_timers_fire_in_order_of_time_then_key_over_all_key_groups(bench: Bench) -> None:
    """Case 11: timers of keys without rows in the batch fire, in both clocks."""
    keyed = Keyed(bench)
    for key in ("dan", "ann", "cid", "bob"):
        keyed.set(key, 20)
    keyed.set("eve", -5)
    keyed.set("ann", 31)
    keyed.set("ann", 10, "processing")
    bench.commit()
    bench.batch()
    keyed = Keyed(bench)
    assert keyed.fired(30, None) == [("eve", -5), ("ann", 20), ("bob", 20), ("cid", 20), ("dan", 20)]
    assert keyed.left() == NextTimers(31, 10)
    bench.commit()
    bench.batch()
    keyed = Keyed(bench)
    assert keyed.fired(31, 10) == [("ann", 10), ("ann", 31)]
    assert keyed.left() == NextTimers(None, None)
    bench.commit()
    assert bench.entry_count() == 0


def test_a_timer_is_due_at_its_time_and_not_before(bench: Bench) -> None:
    keyed = Keyed(bench)
    keyed.set("ann", 100)
    keyed.set("ann", 100, "processing")
    assert keyed.fired(99, 99) == []
    assert Keyed(bench).fired(100, 100) == [("ann", 100), ("ann", 100)]


def test_setting_twice_is_setting_once_and_cancelling_takes_it_back(bench: Bench) -> None:
    keyed = Keyed(bench)
    keyed.set("ann", 5)
    keyed.set("ann", 5)
    keyed.set("bob", 5)
    keyed.cancel("bob", 5)
    keyed.cancel("bob", 6)
    keyed.cancel("bob", 2**70)
    assert keyed.fired(10) == [("ann", 5)]


def test_timers_set_while_timers_fire_come_in_the_same_batch_when_due(bench: Bench) -> None:
    keyed = Keyed(bench)
    for at_ms in (10, 20, 30):
        keyed.set("ann", at_ms)
    seen = []
    for timer in keyed.timers.due(30, None):
        seen.append(timer.at_ms)
        if timer.at_ms == 10:
            keyed.set("bob", 5)
            keyed.set("bob", 25)
            keyed.set("bob", 99)
            keyed.cancel("ann", 20)
        if timer.at_ms == 25:
            keyed.cancel("ann", 30)
            keyed.set("ann", 30)
    assert seen == [10, 5, 25, 30]
    assert keyed.left() == NextTimers(99, None)


def test_what_a_failed_row_did_to_timers_is_undone(bench: Bench) -> None:
    keyed = Keyed(bench)
    for at_ms in (10, 20):
        keyed.set("ann", at_ms)
    seen = []
    for timer in keyed.timers.due(30, None):
        seen.append(timer.at_ms)
        bench.stage.begin_row()
        keyed.cancel("ann", 20)
        keyed.set("bob", 15)
        bench.stage.undo_row()
    assert seen == [10, 20]


def test_more_timers_than_are_read_at_once_fire_once_each(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "CHUNK_TIMERS", 7)
    rng = random.Random(5)
    keyed = Keyed(bench)
    wanted = {(f"k{rng.randrange(9)}", rng.randrange(200)) for _ in range(300)}
    for key, at_ms in wanted:
        keyed.set(key, at_ms)
    bench.commit()
    bench.batch()
    keyed = Keyed(bench)
    fired = []
    for timer in keyed.timers.due(150, None):
        key = bench.codec.decode(timer.stored)[0]
        fired.append((timer.at_ms, key))
        if timer.at_ms % 10 == 3 and timer.at_ms < 150:
            keyed.set(key, timer.at_ms + 1)
            wanted.add((key, timer.at_ms + 1))
    assert fired == sorted((at_ms, key) for key, at_ms in wanted if at_ms <= 150)
    assert keyed.left().event_ms == min(at_ms for _, at_ms in wanted if at_ms > 150)


def test_what_the_batch_before_left_spares_reading_and_changes_nothing(bench: Bench) -> None:
    keyed = Keyed(bench)
    keyed.set("ann", 50)
    keyed.set("ann", 70, "processing")
    assert keyed.fired(10, 10) == []
    known = keyed.left()
    assert known == NextTimers(50, 70)
    bench.commit()
    bench.batch()
    keyed = Keyed(bench, known)
    keyed.set("bob", 40)
    assert keyed.fired(39, 69) == []
    known = keyed.left()
    assert known == NextTimers(40, 70)
    bench.commit()
    bench.batch()
    keyed = Keyed(bench, known)
    keyed.set("cid", 45)
    assert keyed.fired(50, 70) == [("bob", 40), ("cid", 45), ("ann", 50), ("ann", 70)]
    assert keyed.left() == NextTimers(None, None)


def test_times_beyond_64_bits_are_refused(bench: Bench) -> None:
    with pytest.raises(ValueInvalid, match="64 bits"):
        Keyed(bench).set("ann", 2**63)


def test_many_timers_are_set_at_once(bench: Bench) -> None:
    keyed = Keyed(bench)
    keys = ["ann", "bob"]
    groups = bench.codec.groups_of([pa.array(keys)], GROUPS).tolist()
    keyed.timers.set_many(groups, [bench.codec.encode(key) for key in keys], "event", [5, 4])
    assert keyed.fired(9) == [("bob", 4), ("ann", 5)]
