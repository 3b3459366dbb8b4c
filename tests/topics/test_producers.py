"""Idempotent producers: what is sent again is stored once and answered alike; what is skipped is refused."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.bench import ADA, NOW_US, Bench, build
from tidegate.errors import OwnedByAnother, SequenceGap, SequenceReused, SequenceTooOld, StorageFailed
from tidegate.ingest.publish import Messages, Receipt, Sender
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.producers import (
    MESSAGES_RETAINED_MAX,
    REQUESTS_RETAINED_MAX,
    ProducerRequest,
    ProducerState,
)


def _same(one: Receipt, other: Receipt) -> bool:
    return all(
        getattr(one, name).tolist() == getattr(other, name).tolist()
        for name in ("partitions", "offsets", "ids")
    )


def test_a_repeated_request_is_stored_once_and_answered_alike(bench: Bench) -> None:
    topic = bench.create(partitions=3)
    keys = ["a", "b", "c", "a"]
    first = bench.publish(topic, [b"1"] * 4, keys=keys, sender=Sender("p", 0, ADA))
    bench.publish(topic, [b"2"], sender=Sender("p", 4, ADA))
    assert _same(bench.publish(topic, [b"1"] * 4, keys=keys, sender=Sender("p", 0, ADA)), first)
    assert sum(bench.log.counters(topic, number).end for number in range(3)) == 5


def test_a_request_that_repeats_in_part_stores_the_rest(bench: Bench) -> None:
    topic = bench.create()
    bench.publish(topic, [b"0", b"1"], sender=Sender("p", 0, ADA))
    receipt = bench.publish(topic, [b"1", b"2", b"3"], sender=Sender("p", 1, ADA))
    assert receipt.offsets.tolist() == [1, 2, 3]
    assert bench.payloads(topic) == ["0", "1", "2", "3"]


def test_a_gap_is_refused_and_nothing_is_stored(bench: Bench) -> None:
    topic = bench.create()
    with pytest.raises(SequenceGap) as caught:
        bench.publish(topic, [b"1"], sender=Sender("p", 1, ADA))
    assert caught.value.values["expected"] == 0
    assert bench.payloads(topic) == []


def test_producers_do_not_see_each_other(bench: Bench) -> None:
    topic = bench.create()
    bench.publish(topic, [b"p"], sender=Sender("p", 0, ADA))
    bench.publish(topic, [b"q"], sender=Sender("q", 0, ADA))
    assert bench.payloads(topic) == ["p", "q"]


def test_what_is_too_old_to_be_remembered_is_refused_not_stored_again(bench: Bench) -> None:
    topic = bench.create()
    for number in range(REQUESTS_RETAINED_MAX + 1):
        bench.publish(topic, [b"x"], sender=Sender("p", number, ADA))
    with pytest.raises(SequenceTooOld):
        bench.publish(topic, [b"x"], sender=Sender("p", 0, ADA))
    assert len(bench.payloads(topic)) == REQUESTS_RETAINED_MAX + 1


def test_a_retry_in_the_same_group_as_the_first_try_gets_the_same_answer(bench: Bench) -> None:
    topic = bench.create()
    messages = Messages([None], [b"1"], [None])

    async def both() -> list[Receipt]:
        tries = (bench.publisher.publish(topic, messages, Sender("p", 0, ADA)) for _ in range(5))
        return list(await asyncio.gather(*tries))

    receipts = asyncio.run(both())
    assert all(_same(receipt, receipts[0]) for receipt in receipts)
    assert bench.payloads(topic) == ["1"]


@pytest.mark.parametrize("survives", [True, False])
def test_a_retry_after_a_failed_sync_is_stored_once_whatever_the_disk_did(
    bench: Bench, survives: bool
) -> None:
    topic = bench.create()
    bench.publish(topic, [b"0"], sender=Sender("p", 0, ADA))
    bench.engine.fail_next_sync(StorageFailed(path="memory", reason="no"), survives=survives)
    with pytest.raises(StorageFailed):
        bench.publish(topic, [b"1"], sender=Sender("p", 1, ADA))
    assert bench.publish(topic, [b"1"], sender=Sender("p", 1, ADA)).offsets.tolist() == [1]
    assert bench.payloads(topic) == ["0", "1"]


def test_of_large_requests_fewer_are_kept_but_always_the_last(bench: Bench) -> None:
    topic = bench.create()
    large = [b"x"] * MESSAGES_RETAINED_MAX
    bench.publish(topic, large, sender=Sender("p", 0, ADA))
    last = bench.publish(topic, large, sender=Sender("p", MESSAGES_RETAINED_MAX, ADA))
    assert _same(bench.publish(topic, large, sender=Sender("p", MESSAGES_RETAINED_MAX, ADA)), last)
    with pytest.raises(SequenceTooOld):
        bench.publish(topic, large, sender=Sender("p", 0, ADA))


def test_the_memory_survives_a_crash_with_its_messages(bench: Bench) -> None:
    topic = bench.create()
    first = bench.publish(topic, [b"1"], sender=Sender("p", 0, ADA))
    bench.committer.close()
    bench.engine.crash()
    again = build(bench.engine, bench.clock)
    assert _same(
        again.publish(again.directory.get("default", topic.name), [b"1"], sender=Sender("p", 0, ADA)), first
    )
    assert again.payloads(topic) == ["1"]
    again.committer.close()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12))
def test_any_mix_of_new_and_repeated_requests_stores_each_number_once(steps: list[tuple[int, int]]) -> None:
    bench = build(MemoryEngine(), ManualClock(NOW_US))
    topic = bench.create(partitions=2)
    expected = 0
    for back, count in steps:
        start = max(0, expected - back)
        payloads = [str(number).encode() for number in range(start, start + count)]
        keys = [str(number) for number in range(start, start + count)]
        bench.publish(topic, payloads, keys=keys, sender=Sender("p", start, ADA))
        expected = max(expected, start + count)
    stored = bench.payloads(topic, 0) + bench.payloads(topic, 1)
    bench.committer.close()
    assert sorted(map(int, stored)) == list(range(expected))


def test_other_messages_under_numbers_that_were_used_are_refused_and_nothing_is_stored(bench: Bench) -> None:
    topic = bench.create()
    bench.publish(topic, [b'{"a": 1, "b": 2}', b"2"], keys=["x", None], sender=Sender("p", 0, ADA))
    again = bench.publish(topic, [b'{"b":2,"a":1}', b"2"], keys=["x", None], sender=Sender("p", 0, ADA))
    assert again.offsets.tolist() == [0, 1], "the same, written in another way"
    for payloads, keys in (
        ([b"9"], ["x"]),
        ([b'{"a": 1, "b": 2}'], ["y"]),
        ([b'{"a": 1, "b": 2}', b"3"], None),
    ):
        with pytest.raises(SequenceReused):
            bench.publish(topic, payloads, keys=keys or ["x", None], sender=Sender("p", 0, ADA))
    with pytest.raises(SequenceReused) as refused:
        bench.publish(topic, [b"7", b"3"], sender=Sender("p", 1, ADA))
    assert refused.value.values["sequence"] == 1
    assert bench.payloads(topic) == ['{"a": 1, "b": 2}', "2"]


EVE = "default/eve"


def test_a_producer_of_another_user_is_refused_and_goes_on_as_before(bench: Bench) -> None:
    """Otherwise one publish under the next number makes those of the other count as sent before."""
    topic = bench.create()
    bench.publish(topic, [b"1"], sender=Sender("p", 0, ADA))
    for sequence, payload in ((1, b"2"), (1, b"evil"), (0, b"1"), (0, b"evil"), (7, b"2")):
        with pytest.raises(OwnedByAnother, match="belongs to another user"):
            bench.publish(topic, [payload], sender=Sender("p", sequence, EVE))
    assert bench.publish(topic, [b"2"], sender=Sender("p", 1, ADA)).stored_count == 1
    assert bench.publish(topic, [b"1"], sender=Sender("p", 0, ADA)).stored_count == 0
    assert bench.payloads(topic) == ["1", "2"]


def test_a_name_belongs_to_a_user_in_one_topic_alone(bench: Bench) -> None:
    one, other = bench.create("app.one"), bench.create("app.other")
    bench.publish(one, [b"1"], sender=Sender("p", 0, ADA))
    bench.publish(other, [b"2"], sender=Sender("p", 0, EVE))
    assert (bench.payloads(one), bench.payloads(other)) == (["1"], ["2"])
    with pytest.raises(OwnedByAnother):
        bench.publish(other, [b"3"], sender=Sender("p", 1, ADA))


def test_the_owner_survives_a_crash_with_the_messages(bench: Bench) -> None:
    topic = bench.create()
    bench.publish(topic, [b"1"], sender=Sender("p", 0, ADA))
    bench.committer.close()
    bench.engine.crash()
    again = build(bench.engine, bench.clock)
    with pytest.raises(OwnedByAnother):
        again.publish(topic, [b"2"], sender=Sender("p", 1, EVE))
    assert again.publish(topic, [b"2"], sender=Sender("p", 1, ADA)).stored_count == 1
    again.committer.close()


def test_two_users_who_begin_at_once_share_no_producer(bench: Bench) -> None:
    topic = bench.create()

    async def both() -> list[object]:
        users = (Sender("p", 0, user) for user in (ADA, EVE))
        tries = (bench.publisher.publish(topic, Messages([None], [b"1"], [None]), one) for one in users)
        return list(await asyncio.gather(*tries, return_exceptions=True))

    first, second = asyncio.run(both())
    assert isinstance(first, Receipt) and isinstance(second, OwnedByAnother)
    assert bench.payloads(topic) == ["1"]


def test_bytes_of_states_stay_readable() -> None:
    """Golden: version 1 without owner, version 2 with one."""
    request = ProducerRequest(0, b"\x00\x00\x00\x00", b"\x05" + bytes(7))
    first = bytes.fromhex("9401a17001919400c40400000000c4080500000000000000c400")
    assert msgspec.msgpack.decode(first, type=ProducerState) == ProducerState(1, "p", 1, [request], "")
    second = ProducerState(producer="p", expected=1, requests=[request], owner=ADA)
    assert msgspec.msgpack.encode(second).hex() == (
        "9502a17001919400c40400000000c4080500000000000000c400ab64656661756c742f616461"
    )
