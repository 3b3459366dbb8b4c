"""Dedup keys against a dictionary: whatever the clock does, and whenever the server dies."""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.bench import NOW_US, Bench, build
from tidegate.ingest.publish import Receipt
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.dedup import segment_of
from tidegate.topics.definitions import Retention, Topic

_US = 1_000_000

_STEPS = st.one_of(
    st.tuples(
        st.just("publish"),
        st.lists(st.tuples(st.sampled_from("abcdef-"), st.integers(0, 2)), min_size=1, max_size=6),
    ),
    st.tuples(st.just("wait"), st.sampled_from([1, 20, 59, 60, 61, 200, -30, -5_000])),
    st.tuples(st.just("alter"), st.sampled_from([1, 60, 120, 500])),
    st.tuples(st.sampled_from(["expire", "crash", "clear"]), st.none()),
)


def _places(receipt: Receipt) -> list[tuple[int, int, int]]:
    return list(zip(receipt.partitions.tolist(), receipt.offsets.tolist(), receipt.ids.tolist(), strict=True))


class _Model:
    """What a topic should do, with a dictionary: when and where keys were accepted, by key and segment."""

    def __init__(self, seconds: int) -> None:
        self.seconds = seconds
        self.newest_us = 0
        self.accepted: dict[tuple[str, int], tuple[int, tuple[int, int, int]]] = {}

    def first_of(self, key: str, now_us: int) -> tuple[int, int, int] | None:
        found = [kept for (known, _), kept in self.accepted.items() if known == key]
        at_us, place = max(found, default=(0, (0, 0, 0)))
        return place if now_us - at_us < self.seconds * _US else None

    def expire(self, now_us: int) -> None:
        horizon_us = now_us - self.seconds * _US
        left = {where: kept for where, kept in self.accepted.items() if where[1] > horizon_us}
        if len(left) < len(self.accepted):
            self.accepted, self.newest_us = left, now_us


def _check_publish(bench: Bench, topic: Topic, model: _Model, messages: list[tuple[str, int]]) -> None:
    now_us = max(bench.clock.now_us(), model.newest_us)
    before = [bench.log.counters(topic, number).end for number in range(topic.partitions)]
    names = [None if name == "-" else name for name, _ in messages]
    receipt = bench.publish(
        topic,
        [name.encode() for name, _ in messages],
        partitions=[partition for _, partition in messages],
        dedup_keys=names,
    )
    places = _places(receipt)
    dropped = [False] * len(messages) if receipt.duplicates is None else receipt.duplicates.tolist()
    for name, (_, partition), place, is_dropped in zip(names, messages, places, dropped, strict=True):
        first = None if name is None else model.first_of(name, now_us)
        assert is_dropped == (first is not None)
        if first is not None:
            assert place == first
            continue
        assert place[:2] == (partition, before[partition])
        before[partition] += 1
        if name is not None:
            model.accepted[name, segment_of(topic, now_us)] = (now_us, place)
            model.newest_us = now_us
    assert before == [bench.log.counters(topic, number).end for number in range(topic.partitions)]


@settings(max_examples=100)
@given(st.lists(_STEPS, max_size=20))
def test_any_course_of_publishes_is_as_a_dictionary_says(steps: list[tuple[str, object]]) -> None:
    engine, clock = MemoryEngine(), ManualClock(NOW_US)
    bench = build(engine, clock)
    topic, model = bench.create(partitions=3, retention=Retention(dedup_seconds=120)), _Model(120)
    change, commit = bench.directory.stage_change, bench.committer.submit
    for step, value in steps:
        if step == "publish":
            _check_publish(bench, topic, model, value)  # type: ignore[arg-type]
        elif isinstance(value, int) and step == "wait":
            clock.set_us(clock.now_us() + value * _US)
        elif isinstance(value, int):
            limits = Retention(dedup_seconds=value)
            topic = commit(partial(change, topic=topic, retention=limits)).result(60)
            model.seconds = value
        elif step == "expire":
            commit(partial(bench.dedup.stage_expire, topic=topic)).result(60)
            model.expire(max(clock.now_us(), model.newest_us))
        elif step == "clear":
            commit(partial(bench.dedup.stage_clear, topic=topic)).result(60)
            model.accepted, model.newest_us = {}, 0
        else:
            bench.committer.close()
            engine.crash()
            bench = build(engine, clock)
            change, commit = bench.directory.stage_change, bench.committer.submit
    bench.committer.close()
