"""TTL: when an entry is gone, what keeps it alive, who still sees it, by which clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.bench import Bench
from tidegate.errors import DurationInvalid, StateInvalid, TidegateError, ValueInvalid
from tidegate.state.kinds.list import ListState
from tidegate.state.kinds.map import MapState
from tidegate.state.kinds.reducing import ReducingState
from tidegate.state.kinds.value import ValueState
from tidegate.state.ttl import Ttl, TtlRule


@pytest.fixture(params=["heap", "rocksdb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(request.param, tmp_path / "copy")
    yield bench.batch()
    bench.backend.close()


def at(bench: Bench, now_ms: int) -> None:
    bench.cursor.batch_ms = now_ms


def test_an_entry_is_there_at_exactly_its_ttl_and_gone_after_it(bench: Bench) -> None:
    """Case 6: at exactly ttl still there; after it gone."""
    state = bench.bind(ValueState(int, default=0, ttl=Ttl("10 ms")))
    bench.on("ann")
    at(bench, 1_000)
    state.update(5)
    at(bench, 1_010)
    assert state.value() == 5
    at(bench, 1_011)
    assert state.value() == 0


def test_a_write_counts_anew_and_a_read_does_not(bench: Bench) -> None:
    """Case 6: OnCreateAndWrite."""
    state = bench.bind(ValueState(int, ttl=Ttl("10 ms")))
    bench.on("ann")
    state.update(1)
    at(bench, 8)
    state.update(2)
    at(bench, 15)
    assert state.value() == 2
    at(bench, 19)
    assert state.value() is None


READ = Ttl("10 ms", update="OnReadAndWrite")

READS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "value": (lambda: ValueState(int, ttl=READ), lambda s: s.update(1), lambda s: s.value()),
    "reducing": (lambda: ReducingState(int, max, ttl=READ), lambda s: s.add(1), lambda s: s.get()),
    "list": (lambda: ListState(int, ttl=READ), lambda s: s.add(1), lambda s: s.get()),
    "map get": (lambda: MapState(str, int, ttl=READ), lambda s: s.put("a", 1), lambda s: s.get("a")),
    "map contains": (
        lambda: MapState(str, int, ttl=READ),
        lambda s: s.put("a", 1),
        lambda s: s.contains("a"),
    ),
    "map keys": (lambda: MapState(str, int, ttl=READ), lambda s: s.put("a", 1), lambda s: s.keys()),
    "map values": (lambda: MapState(str, int, ttl=READ), lambda s: s.put("a", 1), lambda s: s.values()),
    "map entries": (lambda: MapState(str, int, ttl=READ), lambda s: s.put("a", 1), lambda s: s.entries()),
}


@pytest.mark.parametrize("kind", READS)
def test_every_read_counts_with_on_read_and_write(bench: Bench, kind: str) -> None:
    """Case 6: OnReadAndWrite, by get, contains and iteration too."""
    declare, write, read = READS[kind]
    declared = declare()
    state = bench.bind(declared)
    bench.on("ann")
    write(state)
    bench.commit()
    for now_ms in (10, 20, 30):
        state = bench.batch(now_ms).bind(declared)
        bench.on("ann")
        assert read(state)
        bench.commit()
    state = bench.batch(41).bind(declared)
    bench.on("ann")
    assert not read(state)


def test_is_empty_is_no_read(bench: Bench) -> None:
    state = bench.bind(MapState(str, int, ttl=READ))
    bench.on("ann")
    state.put("a", 1)
    at(bench, 10)
    assert not state.is_empty()
    at(bench, 11)
    assert state.is_empty()


def test_expired_entries_are_shown_until_they_are_cleaned_up_if_asked_for(bench: Bench) -> None:
    """Case 6: ReturnExpiredIfNotCleanedUp."""
    ttl = Ttl("10 ms", visibility="ReturnExpiredIfNotCleanedUp", update="OnReadAndWrite")
    declared = ValueState(int, default=0, ttl=ttl)
    state = bench.bind(declared)
    bench.on("ann")
    state.update(5)
    at(bench, 500)
    assert state.value() == 5
    # Reading what is expired does not bring it back to life.
    assert state.value() == 5
    bench.commit()
    state = bench.batch(5_000).bind(declared)
    assert bench.clean(5_000).removed_count == 1
    bench.on("ann")
    assert state.value() == 0


def test_entries_of_a_map_and_elements_of_a_list_expire_one_by_one(bench: Bench) -> None:
    """Case 6: entries of a map or list expire one by one."""
    entries = bench.bind(MapState(str, int, ttl=Ttl("10 ms")), 1)
    elements = bench.bind(ListState(int, ttl=Ttl("10 ms")), 2)
    bench.on("ann")
    for number, name in enumerate("abc"):
        at(bench, number * 5)
        entries.put(name, number)
        elements.add(number)
    at(bench, 11)
    assert (entries.keys(), elements.get(), entries.get("a")) == (["b", "c"], [1, 2], None)
    assert (entries.contains("a"), entries.is_empty()) == (False, False)
    at(bench, 20)
    assert (entries.entries(), elements.get()) == ([("c", 2)], [2])
    at(bench, 21)
    assert entries.is_empty()
    assert elements.get() == []


def test_folding_starts_anew_after_the_ttl(bench: Bench) -> None:
    state = bench.bind(ReducingState(int, lambda a, b: a + b, ttl=Ttl("10 ms")))
    bench.on("ann")
    state.add(1)
    at(bench, 10)
    state.add(2)
    assert state.get() == 3
    at(bench, 21)
    state.add(4)
    assert state.get() == 4


def test_by_event_time_now_is_what_the_row_says(bench: Bench) -> None:
    """Case 6: event time."""
    state = bench.bind(ValueState(int, ttl=Ttl("10 ms", clock="event")))
    bench.on("ann", 1_000)
    state.update(1)
    bench.on("ann", 1_010)
    assert state.value() == 1
    bench.on("ann", 1_011)
    assert state.value() is None
    # A late row still sees it, and does not shorten its life by writing.
    bench.on("ann", 990)
    assert state.value() == 1
    state.update(2)
    bench.on("ann", 1_005)
    assert state.value() == 2


def test_event_time_is_needed_for_a_ttl_by_event_time(bench: Bench) -> None:
    state = bench.bind(ValueState(int, ttl=Ttl("10 ms", clock="event"), name="n"))
    bench.on("ann")
    with pytest.raises(StateInvalid, match="event_time"):
        state.update(1)


def test_entries_from_before_the_ttl_do_not_expire_until_written_again(bench: Bench) -> None:
    state = bench.bind(ValueState(int))
    bench.on("ann")
    state.update(1)
    bench.commit()
    timed = bench.batch(10_000).bind(ValueState(int, ttl=Ttl("10 ms")))
    bench.on("ann")
    assert timed.value() == 1
    timed.update(2)
    at(bench, 10_011)
    assert timed.value() is None
    bench.commit()
    plain = bench.batch(20_000).bind(ValueState(int))
    bench.on("ann")
    assert plain.value() == 2


@pytest.mark.parametrize("given", ["24 h", timedelta(days=1), "1 day"])
def test_durations_are_text_or_timedeltas(given: Any) -> None:
    ttl = Ttl(given)
    assert (ttl.duration, ttl.duration_ms) == ("1 day", 86_400_000)
    assert Ttl.from_json(ttl.to_json()) == ttl


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"duration": "0 s"}, ValueInvalid),
        ({"duration": "1 us"}, ValueInvalid),
        ({"duration": timedelta(seconds=-1)}, ValueInvalid),
        ({"duration": "soon"}, DurationInvalid),
        ({"duration": "1 s", "update": "OnRead"}, ValueInvalid),
        ({"duration": "1 s", "visibility": "Always"}, ValueInvalid),
        ({"duration": "1 s", "cleanup": "Never"}, ValueInvalid),
        ({"duration": "1 s", "clock": "wall"}, ValueInvalid),
        ({"duration": "1 s", "entries_per_access": 0}, ValueInvalid),
    ],
)
def test_words_that_are_unknown_are_refused(settings: dict[str, Any], error: type[TidegateError]) -> None:
    with pytest.raises(error):
        Ttl(**settings)


@pytest.mark.parametrize("ttl", ["1 ms", "16 s", "3 h"])
def test_a_bucket_is_due_only_when_all_of_it_is_expired(ttl: str) -> None:
    rule = TtlRule(Ttl(ttl))
    for time_ms in (-5, 0, 1, 999, 123_456_789):
        bucket = rule.bucket_of(time_ms)
        assert bucket <= time_ms + rule.ttl_ms < bucket + rule.bucket_ms
        assert not bucket < rule.due_stop(bucket + rule.bucket_ms - 1)
        assert bucket < rule.due_stop(bucket + rule.bucket_ms)
        assert rule.is_expired(time_ms, bucket + rule.bucket_ms)
