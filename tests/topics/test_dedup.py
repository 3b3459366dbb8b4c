"""Dedup keys: a topic stores one message of a key in its time, and tells the others where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.bench import ADA, NOW_US, Bench, build
from tidegate.errors import RequestInvalid, StorageCorrupt, StorageFailed
from tidegate.ingest.publish import Messages, Receipt, Sender
from tidegate.storage.group_commit import Staging
from tidegate.testing.clock import ManualClock
from tidegate.topics import dedup, keys
from tidegate.topics.dedup import (
    DEDUP_KEY_CHARS_MAX,
    SEGMENT_SECONDS_MIN,
    SEGMENTS_MAX,
    SegmentList,
    segment_of,
)
from tidegate.topics.definitions import DEDUP_SECONDS_MAX, Retention, Topic

HOUR, DAY = 3_600, 86_400
_US = 1_000_000


def _made(bench: Bench, seconds: int = HOUR, partitions: int = 3) -> Topic:
    return bench.create(partitions=partitions, retention=Retention(dedup_seconds=seconds))


def _places(receipt: Receipt) -> list[tuple[int, int, int]]:
    return list(zip(receipt.partitions.tolist(), receipt.offsets.tolist(), receipt.ids.tolist(), strict=True))


def _dropped(receipt: Receipt) -> list[bool]:
    return [] if receipt.duplicates is None else receipt.duplicates.tolist()


def _count(bench: Bench, topic: Topic) -> int:
    return sum(bench.log.counters(topic, number).end for number in range(topic.partitions))


def _stored(bench: Bench, topic: Topic) -> int:
    """Count what is kept of dedup keys, the list of segments left out."""
    span = keys.dedup_range(topic.id, 0, 2**64 - 1)
    return sum(1 for _ in bench.engine.scan(span))


def _run(bench: Bench, change: Callable[[Staging], object]) -> object:
    return bench.committer.submit(change).result(60)


def _put(key: bytes, value: bytes, staging: Staging) -> None:
    staging.put(key, value)


def _alter(bench: Bench, topic: Topic, retention: Retention) -> Topic:
    return bench.committer.submit(
        lambda staging: bench.directory.stage_change(staging, topic, retention=retention)
    ).result(60)


def test_a_key_is_stored_once_and_its_duplicate_is_told_where(bench: Bench) -> None:
    topic = _made(bench)
    first = bench.publish(topic, [b"1"], keys=["a"], dedup_keys=["order-1"])
    bench.clock.advance(HOUR - 0.001)
    again = bench.publish(topic, [b"2"], keys=["z"], dedup_keys=["order-1"])
    assert _places(again) == _places(first)
    assert _dropped(first) == [False]
    assert _dropped(again) == [True]
    assert again.stored_count == 0
    assert _count(bench, topic) == 1
    assert bench.dedup.dropped(topic) == 1
    assert bench.dedup.dropped_by_tenant() == {"default": 1}


def test_exactly_the_time_later_it_is_stored_again(bench: Bench) -> None:
    topic = _made(bench)
    first = bench.publish(topic, [b"1"], dedup_keys=["k"])
    bench.clock.advance(HOUR)
    second = bench.publish(topic, [b"2"], dedup_keys=["k"])
    assert _dropped(second) == [False]
    bench.clock.advance(1)
    assert _places(bench.publish(topic, [b"3"], dedup_keys=["k"])) == _places(second) != _places(first)


def test_twice_in_a_request_and_beside_messages_without_a_key(bench: Bench) -> None:
    topic = _made(bench)
    keys_given = ["a", None, "a", "b", None, "b"]
    receipt = bench.publish(
        topic,
        [str(number).encode() for number in range(6)],
        partitions=[0, 0, 1, 2, 1, 0],
        dedup_keys=keys_given,
    )
    assert _dropped(receipt) == [False, False, True, False, False, True]
    places = _places(receipt)
    assert places[2] == places[0]
    assert places[5] == places[3]
    assert receipt.stored_count == 4
    assert [bench.payloads(topic, number) for number in range(3)] == [["0", "1"], ["4"], ["3"]]
    assert _dropped(bench.publish(topic, [b"x", b"y"], dedup_keys=["b", "c"])) == [True, False]


def test_two_requests_in_one_commit_group_store_one(bench: Bench) -> None:
    topic = _made(bench)
    messages = Messages([None], [b"1"], [None], ["k"])

    async def both() -> list[Receipt]:
        return list(await asyncio.gather(*(bench.publisher.publish(topic, messages) for _ in range(20))))

    receipts = asyncio.run(both())
    assert sorted(_dropped(receipt)[0] for receipt in receipts) == [False] + [True] * 19
    assert len({_places(receipt)[0] for receipt in receipts}) == 1
    assert _count(bench, topic) == 1


def test_a_topic_without_a_time_refuses_keys_and_stores_nothing(bench: Bench) -> None:
    topic = bench.create()
    with pytest.raises(RequestInvalid, match="takes no dedup keys") as refused:
        bench.publish(topic, [b"1"], dedup_keys=["k"])
    assert "dedup_seconds" in str(refused.value.hint)
    assert bench.payloads(topic) == []
    assert bench.publish(topic, [b"1"], dedup_keys=[None]).duplicates is None


@pytest.mark.parametrize("key", ["", "k" * (DEDUP_KEY_CHARS_MAX + 1)])
def test_a_key_that_is_empty_or_too_long_is_refused(bench: Bench, key: str) -> None:
    topic = _made(bench)
    with pytest.raises(RequestInvalid, match="1 to 1000 characters"):
        bench.publish(topic, [b"1"], dedup_keys=[key])
    assert _count(bench, topic) == 0


@pytest.mark.parametrize("seconds", [0, -1, DEDUP_SECONDS_MAX + 1])
def test_a_time_out_of_bounds_is_refused(seconds: int) -> None:
    with pytest.raises(RequestInvalid, match="1 to 8640000 seconds"):
        Retention(dedup_seconds=seconds)
    assert Retention(dedup_seconds=DEDUP_SECONDS_MAX).is_endless


def test_a_clock_that_is_set_back_lets_no_duplicate_through(bench: Bench) -> None:
    topic = _made(bench, seconds=120)
    bench.publish(topic, [b"1"], dedup_keys=["k"])
    bench.clock.set_us(NOW_US - 30 * DAY * _US)
    assert _dropped(bench.publish(topic, [b"2"], dedup_keys=["k"])) == [True]
    # What is accepted now counts from the time that was reached, not from before it.
    bench.publish(topic, [b"3"], dedup_keys=["late"])
    bench.clock.advance(30 * DAY + 119)
    assert _dropped(bench.publish(topic, [b"4", b"5"], dedup_keys=["k", "late"])) == [True, True]
    bench.clock.advance(1)
    assert _dropped(bench.publish(topic, [b"6", b"7"], dedup_keys=["k", "late"])) == [False, False]


def test_a_clock_that_is_set_back_over_a_restart_lets_no_duplicate_through(bench: Bench) -> None:
    topic = _made(bench, seconds=120)
    first = bench.publish(topic, [b"1"], dedup_keys=["k"])
    bench.committer.close()
    bench.engine.crash()
    again = build(bench.engine, ManualClock(NOW_US - 365 * DAY * _US))
    assert _places(again.publish(topic, [b"2"], dedup_keys=["k"])) == _places(first)
    again.committer.close()


def test_retention_of_the_first_message_does_not_forget_its_key(bench: Bench) -> None:
    topic = _made(bench, partitions=1)
    first = bench.publish(topic, [b"1"], dedup_keys=["k"])
    bench.trim(topic, 1)
    assert bench.payloads(topic) == []
    assert _places(bench.publish(topic, [b"2"], dedup_keys=["k"])) == _places(first)
    assert bench.payloads(topic) == []


@pytest.mark.parametrize("survives", [True, False])
def test_after_a_failed_sync_the_key_and_the_message_are_both_there_or_neither(
    bench: Bench, survives: bool
) -> None:
    topic = _made(bench, partitions=1)
    bench.engine.fail_next_sync(StorageFailed(path="memory", reason="no"), survives=survives)
    with pytest.raises(StorageFailed):
        bench.publish(topic, [b"1"], dedup_keys=["k"])
    receipt = bench.publish(topic, [b"1"], dedup_keys=["k"])
    assert _dropped(receipt) == [survives]
    assert receipt.offsets.tolist() == [0]
    assert bench.payloads(topic) == ["1"]
    assert bench.dedup.dropped(topic) == survives


def test_what_is_over_goes_in_whole_segments(bench: Bench) -> None:
    topic = _made(bench, seconds=120)
    for number in range(4):
        bench.publish(topic, [b"1"], dedup_keys=[f"k{number}"])
        bench.clock.advance(SEGMENT_SECONDS_MIN)
    assert _stored(bench, topic) == 4
    assert bench.dedup.has_expired(bench.engine, topic)
    assert _run(bench, lambda staging: bench.dedup.stage_expire(staging, topic)) == 2
    assert _stored(bench, topic) == 2
    assert not bench.dedup.has_expired(bench.engine, topic)
    assert _run(bench, lambda staging: bench.dedup.stage_expire(staging, topic)) == 0
    assert _dropped(bench.publish(topic, [b"1", b"1"], dedup_keys=["k3", "k2"])) == [True, False]
    # It was so late when they went; a clock that is set back does not ask for them again.
    bench.clock.set_us(NOW_US - DAY * _US)
    assert _dropped(bench.publish(topic, [b"1", b"1"], dedup_keys=["k3", "k0"])) == [True, False]


def test_an_idle_topic_is_emptied(bench: Bench) -> None:
    topic = _made(bench, seconds=1)
    bench.publish(topic, [b"1"], dedup_keys=["k"])
    bench.clock.advance(SEGMENT_SECONDS_MIN + 1)
    _run(bench, lambda staging: bench.dedup.stage_expire(staging, topic))
    assert _stored(bench, topic) == 0


def test_without_upkeep_the_list_of_segments_stays_short(bench: Bench) -> None:
    topic = _made(bench, seconds=1)
    for number in range(3 * SEGMENTS_MAX):
        bench.publish(topic, [b"1"], dedup_keys=[f"k{number}"])
        bench.clock.advance(SEGMENT_SECONDS_MIN)
    listed = SegmentList.decode(bench.engine.get(keys.dedup_segments_key(topic.id)), topic)
    assert len(listed.names) <= SEGMENTS_MAX
    assert _stored(bench, topic) <= SEGMENTS_MAX
    assert _count(bench, topic) == 3 * SEGMENTS_MAX


def test_no_more_than_three_segments_are_live(bench: Bench) -> None:
    topic = _made(bench, seconds=DAY)
    for hour in range(24 * 4):
        bench.publish(topic, [b"1"], dedup_keys=[f"k{hour}"])
        listed = SegmentList.decode(bench.engine.get(keys.dedup_segments_key(topic.id)), topic)
        assert sum(segment > bench.clock.now_us() - DAY * _US for segment in listed.names) <= 3
        bench.clock.advance(HOUR)


def test_a_change_of_the_time_counts_at_once_and_finds_keys_of_before(bench: Bench) -> None:
    topic = _made(bench, seconds=120)
    first = bench.publish(topic, [b"1"], dedup_keys=["k"])
    bench.clock.advance(121)
    topic = _alter(bench, topic, Retention(dedup_seconds=10 * DAY))
    assert _places(bench.publish(topic, [b"2"], dedup_keys=["k"])) == _places(first)
    bench.publish(topic, [b"3"], dedup_keys=["long"])
    topic = _alter(bench, topic, Retention(dedup_seconds=60))
    bench.clock.advance(59)
    assert _dropped(bench.publish(topic, [b"4", b"5"], dedup_keys=["long", "k"])) == [True, False]
    bench.clock.advance(1)
    assert _dropped(bench.publish(topic, [b"6"], dedup_keys=["long"])) == [False]


def test_taken_away_and_set_again_the_topic_begins_anew(bench: Bench) -> None:
    topic = _made(bench)
    bench.publish(topic, [b"1"], dedup_keys=["k"])
    plan = bench.publisher.plan(topic, Messages([None], [b"2"], [None], ["other"]))
    off = _alter(bench, topic, Retention())
    assert _stored(bench, topic) == 0
    with pytest.raises(RequestInvalid, match="takes no dedup keys"):
        _run(bench, plan)  # it came in before the change, and is staged after it
    on = _alter(bench, off, Retention(dedup_seconds=HOUR))
    assert _dropped(bench.publish(on, [b"2"], dedup_keys=["k"])) == [False]


def test_clear_and_delete_remove_the_keys(bench: Bench) -> None:
    topic = _made(bench)
    bench.publish(topic, [b"1"], dedup_keys=["k"])
    _run(bench, lambda staging: bench.dedup.stage_clear(staging, topic))
    assert _stored(bench, topic) == 0
    assert _dropped(bench.publish(topic, [b"2"], dedup_keys=["k"])) == [False]
    bench.delete(topic)
    assert list(bench.engine.scan(keys.dedup_everything(topic.id))) == []


def test_topics_do_not_share_keys(bench: Bench) -> None:
    one = _made(bench)
    other = bench.create("app.other", retention=Retention(dedup_seconds=HOUR))
    bench.publish(one, [b"1"], dedup_keys=["k"])
    assert _dropped(bench.publish(other, [b"1"], dedup_keys=["k"])) == [False]


def test_a_producer_that_sends_again_gets_the_answers_of_the_first_time(bench: Bench) -> None:
    topic = _made(bench)
    bench.publish(topic, [b"0"], dedup_keys=["a"])
    given_keys = ["b", "a", None, "b"]
    payloads = [b"1", b"2", b"3", b"4"]
    first = bench.publish(topic, payloads, dedup_keys=given_keys, sender=Sender("p", 0, ADA))
    assert _dropped(first) == [False, True, False, True]
    bench.clock.advance(2 * HOUR)  # the keys are over, the memory of the producer is not
    again = bench.publish(topic, payloads, dedup_keys=given_keys, sender=Sender("p", 0, ADA))
    assert _places(again) == _places(first)
    assert _dropped(again) == _dropped(first)
    more = bench.publish(topic, [b"4", b"5"], dedup_keys=["b", "c"], sender=Sender("p", 3, ADA))
    assert _dropped(more) == [True, False]
    assert _places(more)[0] == _places(first)[3]
    assert _count(bench, topic) == 4


def test_a_retry_of_a_producer_in_the_same_group_gets_the_same_answer(bench: Bench) -> None:
    topic = _made(bench)
    bench.publish(topic, [b"0"], dedup_keys=["a"])
    messages = Messages([None] * 2, [b"1", b"2"], [None] * 2, ["a", "b"])

    async def both() -> list[Receipt]:
        tries = (bench.publisher.publish(topic, messages, Sender("p", 0, ADA)) for _ in range(5))
        return list(await asyncio.gather(*tries))

    receipts = asyncio.run(both())
    assert all(_places(receipt) == _places(receipts[0]) for receipt in receipts)
    assert all(_dropped(receipt) == [True, False] for receipt in receipts)


def test_a_damaged_key_or_list_is_named_and_not_believed(bench: Bench) -> None:
    topic = _made(bench, partitions=1)
    bench.publish(topic, [b"1"], dedup_keys=["k"])
    place = keys.dedup_prefix(topic.id, segment_of(topic, NOW_US)) + keys.dedup_digest("k")
    stored = bench.engine.get(place)
    assert stored is not None
    for wrong in (stored[:-1], b"\x09" + stored[1:]):
        _run(bench, partial(_put, place, wrong))
        with pytest.raises(StorageCorrupt, match=r"dedup keys of topic 'app\.events'"):
            bench.publish(topic, [b"2"], dedup_keys=["k"])
    listed = keys.dedup_segments_key(topic.id)
    for wrong in (b"", b"\x01", b"\x09" + bytes(8)):
        _run(bench, partial(_put, listed, wrong))
        with pytest.raises(StorageCorrupt):
            bench.publish(topic, [b"2"], dedup_keys=["other"])
    assert bench.payloads(topic) == ["1"]


def test_many_keys_are_looked_up_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "LOOKUP_KEYS_MAX", 3)
    topic = _made(bench)
    names = [f"k{number}" for number in range(10)]
    first = bench.publish(topic, [b"1"] * 10, dedup_keys=names)
    again = bench.publish(topic, [b"1"] * 11, dedup_keys=[*names[::-1], "new"])
    assert _dropped(again) == [True] * 10 + [False]
    assert _places(again)[:10] == _places(first)[::-1]


@given(st.lists(st.integers(-(2**40), 2**40), max_size=6), st.integers(1, DEDUP_SECONDS_MAX))
def test_a_segment_ends_after_its_moment_and_not_long_after(offsets_us: list[int], seconds: int) -> None:
    topic = Topic(1, "t", 1, 0, dedup_seconds=seconds)
    for offset_us in offsets_us:
        now_us = NOW_US + offset_us
        length_us = max(seconds * _US // 2, SEGMENT_SECONDS_MIN * _US)
        assert now_us < segment_of(topic, now_us) <= now_us + length_us
