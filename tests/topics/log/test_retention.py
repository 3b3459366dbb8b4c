"""Retention: what is too old or too much goes, in whole record batches, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.bench import NOW_US, Bench, build
from tidegate.errors import RequestInvalid
from tidegate.storage.keys import I64_MAX
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics import keys
from tidegate.topics.definitions import Retention, Topic
from tidegate.topics.log.log import TopicLog
from tidegate.topics.log.record_batch import LIMITED_BATCH_BYTES_MIN, Origin

SECOND_US = 1_000_000
_ORIGIN = Origin()


def publish_at(bench: Bench, topic: Topic, *seconds: float, count: int = 2, bytes_each: int = 10) -> None:
    """Append a record batch at each of these seconds."""
    for second in seconds:
        bench.clock.set_us(NOW_US + int(second * SECOND_US))
        bench.publish(topic, [b"x" * bytes_each] * count, partitions=[0] * count)


def kept_from(bench: Bench, topic: Topic, second: float) -> int:
    return bench.log.retained_start(topic, 0, NOW_US + int(second * SECOND_US))


def batch_bytes(bench: Bench, topic: Topic) -> list[int]:
    return [len(value) for _, value in bench.engine.scan(keys.record_range(topic.id, 0, 0, keys.OFFSET_END))]


def test_case_22_by_age_a_batch_goes_once_it_is_older_than_the_limit(bench: Bench) -> None:
    topic = bench.create(retention=Retention(seconds=10))
    publish_at(bench, topic, 0, 5, 20)
    assert [kept_from(bench, topic, second) for second in (0, 10, 10.1, 15, 15.1, 30)] == [0, 0, 2, 2, 4, 4]


def test_by_age_all_of_a_log_goes_the_newest_batch_too(bench: Bench) -> None:
    topic = bench.create(retention=Retention(seconds=10))
    publish_at(bench, topic, 0, 5)
    assert kept_from(bench, topic, 16) == 4
    assert bench.trim(topic, 4) == 4
    held = bench.log.counters(topic, 0)
    assert (held.start, held.end, held.stored_bytes) == (4, 4, 0)
    assert kept_from(bench, topic, 100) == 4, "an empty log has nothing to remove"


def test_a_batch_whose_messages_are_partly_over_age_stays_whole(bench: Bench) -> None:
    topic = bench.create(retention=Retention(seconds=10))
    ticking = TopicLog(bench.engine, bench.log._ids, _Ticking(), bench.schemas)
    staged = bench.committer.submit(
        lambda staging: [ticking.stage_append(staging, topic, 0, [None], [b"1"], _ORIGIN) for _ in range(3)]
    )
    staged.result(60)
    fresh = TopicLog(bench.engine, bench.log._ids, bench.clock, bench.schemas)
    (batch,) = fresh.read(topic, 0, 0, 3)
    assert (batch.first_us, batch.last_us) == (NOW_US + SECOND_US, NOW_US + 3 * SECOND_US)
    assert fresh.retained_start(topic, 0, NOW_US + 12 * SECOND_US) == 0
    assert fresh.retained_start(topic, 0, NOW_US + 13 * SECOND_US) == 0
    assert fresh.retained_start(topic, 0, NOW_US + 13 * SECOND_US + 1) == 3


class _Ticking:
    """A clock that is a second later at each look."""

    def __init__(self) -> None:
        self.at_us = NOW_US

    def now_us(self) -> int:
        self.at_us += SECOND_US
        return self.at_us

    def monotonic_seconds(self) -> float:
        return self.at_us / SECOND_US


def test_case_22_by_bytes_the_oldest_go_until_the_rest_fits(bench: Bench) -> None:
    topic = bench.create()
    publish_at(bench, topic, 0, 1, 2, 3)
    sizes = batch_bytes(bench, topic)
    starts = {}
    for limit in (sum(sizes), sum(sizes) - 1, sum(sizes[1:]), sum(sizes[1:]) - 1, sizes[3], sizes[3] - 1, 1):
        changed = bench.committer.submit(
            lambda staging, limit=limit: bench.directory.stage_change(  # type: ignore[misc]
                staging, topic, retention=Retention(max_bytes=limit)
            )
        ).result(60)
        starts[limit] = bench.log.retained_start(changed, 0, NOW_US)
    assert list(starts.values()) == [0, 2, 2, 4, 6, 6, 6], "the newest batch stays, however large it is"


@pytest.mark.parametrize(("count", "bytes_each"), [(100, 1_000), (5_000, 10)])
def test_case_22_by_bytes_one_large_publish_is_cut_to_about_the_limit(
    bench: Bench, count: int, bytes_each: int
) -> None:
    topic = bench.create(retention=Retention(max_bytes=20_000))
    publish_at(bench, topic, 0, count=count, bytes_each=bytes_each)
    assert max(batch_bytes(bench, topic)) <= LIMITED_BATCH_BYTES_MIN + 2_048, "with the head of a batch"
    start = kept_from(bench, topic, 1)
    assert bench.trim(topic, start) == start
    assert 20_000 - LIMITED_BATCH_BYTES_MIN - 2_048 < sum(batch_bytes(bench, topic)) <= 20_000
    assert len(bench.payloads(topic)) == count - start


def test_without_a_limit_in_bytes_a_publish_is_one_batch(bench: Bench) -> None:
    topic = bench.create(retention=Retention(seconds=10))
    publish_at(bench, topic, 0, count=100, bytes_each=1_000)
    assert len(batch_bytes(bench, topic)) == 1
    roomy = bench.create("app.roomy", retention=Retention(max_bytes=I64_MAX))
    publish_at(bench, roomy, 0, count=100, bytes_each=1_000)
    assert len(batch_bytes(bench, roomy)) == 1


def test_one_giant_batch_stays_until_there_is_a_newer_one(bench: Bench) -> None:
    topic = bench.create(retention=Retention(max_bytes=1000))
    publish_at(bench, topic, 0, count=1, bytes_each=100_000)
    assert kept_from(bench, topic, 1) == 0
    publish_at(bench, topic, 1)
    assert kept_from(bench, topic, 1) == 1


def test_with_both_limits_the_stricter_one_holds(bench: Bench) -> None:
    topic = bench.create(retention=Retention(seconds=10, max_bytes=1))
    publish_at(bench, topic, 0, 1, 2)
    assert kept_from(bench, topic, 3) == 4, "bytes"
    assert kept_from(bench, topic, 100) == 6, "age: the newest too"
    roomy = bench.create("app.roomy", retention=Retention(seconds=10, max_bytes=10**9))
    publish_at(bench, roomy, 0, 1, 20)
    assert bench.log.retained_start(roomy, 0, NOW_US + 20 * SECOND_US) == 4


def test_without_limits_and_in_an_empty_log_nothing_goes(bench: Bench) -> None:
    topic = bench.create()
    publish_at(bench, topic, 0, 1)
    assert kept_from(bench, topic, 10**9) == 0
    empty = bench.create("app.empty", retention=Retention(1, 1))
    assert kept_from(bench, empty, 10**6) == 0


def test_a_clock_that_is_set_back_removes_nothing_and_keeps_nothing_for_ever(bench: Bench) -> None:
    topic = bench.create(retention=Retention(seconds=10))
    publish_at(bench, topic, 100, 0, 1)
    times = [batch.last_us - NOW_US for batch in bench.log.read(topic, 0, 0, 6)]
    assert times == [100 * SECOND_US] * 3
    assert kept_from(bench, topic, 1) == 0
    assert kept_from(bench, topic, 110) == 0
    assert kept_from(bench, topic, 110.1) == 6


def test_limits_that_are_none_are_refused(bench: Bench) -> None:
    for wrong in (
        {"seconds": 0},
        {"seconds": -1},
        {"max_bytes": 0},
        {"seconds": 10**12},
        {"max_bytes": 2**63},
    ):
        with pytest.raises(RequestInvalid, match="Retention is 1 to"):
            bench.create(retention=Retention(**wrong))
    assert Retention().is_endless
    assert not Retention(max_bytes=1).is_endless


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 400_000)), min_size=1, max_size=10
    ),
    st.integers(1, 20),
    st.none() | st.integers(1, 30),
    st.none() | st.integers(1, 4_000_000),
)
def test_any_log_is_cut_where_a_plain_count_says(
    appends: list[tuple[int, int, int]], now: int, seconds: int | None, max_bytes: int | None
) -> None:
    """Against a scan of all batches, with trims in between: entries of the time index come and go."""
    bench = build(MemoryEngine(), ManualClock(NOW_US))
    topic = bench.create(retention=Retention(seconds, max_bytes))
    at = 0
    for index, (later, count, size) in enumerate(appends):
        at += later
        publish_at(bench, topic, at, count=count, bytes_each=size)
        if index % 3 == 2:
            start = kept_from(bench, topic, at)
            bench.trim(topic, start)
    held = bench.log.counters(topic, 0)
    sizes = batch_bytes(bench, topic)
    assert held.stored_bytes == sum(sizes)
    batches = list(bench.log.read(topic, 0, held.start, held.end))
    cut_us = NOW_US + (at + now - (seconds or 0)) * SECOND_US
    expected = held.start
    for index, batch in enumerate(batches):
        old = seconds is not None and batch.last_us < cut_us
        newest = index == len(batches) - 1
        much = max_bytes is not None and not newest and sum(sizes[index:]) > max_bytes
        if not (old or much):
            break
        expected = batch.stop_offset
    start = kept_from(bench, topic, at + now)
    assert start == expected
    assert bench.trim(topic, start) == expected - held.start
    assert bench.log.counters(topic, 0).stored_bytes == sum(batch_bytes(bench, topic))
    bench.committer.close()
