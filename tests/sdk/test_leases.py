"""What a consumer holds: when it asks for more, acknowledges and extends, and what it forgets."""

from __future__ import annotations

from typing import cast

import pytest

import tidegate
from tidegate.errors import RequestInvalid
from tidegate.sdk.agent_policy import (
    ConsumerOptions,
    Reject,
    Retry,
    answer_request,
    member_name,
    nack_body,
    reason_of,
)
from tidegate.sdk.leases import ACK_SECONDS, ACKS_AT_ONCE, LeaseTracker
from tidegate.sdk.types import MessageDict


def message(offset: int, deliveries: int = 1) -> MessageDict:
    fields = {"topic": "t", "partition": 0, "offset": offset, "messageId": str(offset), "key": "k"}
    return cast(
        MessageDict, {**fields, "lease": f"0.a.{offset}", "deliveries": deliveries, "payload": offset}
    )


def taken(leases: LeaseTracker, now: float = 0.0) -> int | None:
    found = leases.take(now)
    return None if found is None else found["offset"]


def test_more_is_asked_for_when_half_of_what_may_wait_is_gone() -> None:
    leases = LeaseTracker(30, limit=100, prefetch=10)
    assert leases.fetch_count() == 10
    leases.add([message(n) for n in range(10)], 0)
    asked = []
    for _ in range(6):
        leases.take(0)
        asked.append(leases.fetch_count())
    assert asked == [0, 0, 0, 0, 5, 6]


def test_without_prefetch_only_what_is_waited_for_is_asked_for() -> None:
    leases = LeaseTracker(30, limit=3, prefetch=0)
    assert leases.fetch_count() == 0
    assert [leases.add_waiters(1) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert leases.fetch_count() == 3
    leases.add([message(n) for n in range(3)], 0)
    assert leases.fetch_count() == 2
    assert [leases.add_waiters(-1) for _ in range(3)] == [4, 3, 2]
    assert leases.fetch_count() == 0


def test_a_message_whose_lease_is_over_is_not_given_out() -> None:
    leases = LeaseTracker(30, 100, 200)
    leases.add([message(0)], 0)
    leases.add([message(1)], 10)
    assert taken(leases, 30) == 1
    assert leases.take_all() == ["0.a.1"]


def test_what_is_done_is_acknowledged_together_or_after_a_moment() -> None:
    leases = LeaseTracker(30, 1000, 1000)
    leases.add([message(n) for n in range(200)], 0)
    assert leases.done([f"0.a.{0}"], 1.0) is True
    assert leases.take_done(1.0) == []
    due_in = leases.due_in(1.0)
    assert due_in == pytest.approx(ACK_SECONDS)
    assert leases.take_done(1.0 + ACK_SECONDS) == ["0.a.0"]
    woken = [leases.done([f"0.a.{n}"], 2.0) for n in range(1, ACKS_AT_ONCE + 1)]
    assert woken == [True, *[False] * (ACKS_AT_ONCE - 2), True]
    assert leases.due_in(2.0) == 0
    assert len(leases.take_done(2.0)) == ACKS_AT_ONCE


def test_what_could_not_be_acknowledged_comes_first_the_next_time() -> None:
    leases = LeaseTracker(30, 100, 200)
    leases.add([message(n) for n in range(3)], 0)
    leases.done(["0.a.0"], 0)
    first = leases.take_done(0, at_once=True)
    leases.done(["0.a.1"], 1)
    leases.put_back_done(first, 1)
    assert leases.take_done(1, at_once=True) == ["0.a.0", "0.a.1"]
    assert leases.take_done(9, at_once=True) == []
    assert leases.take_all() == ["0.a.2"]


def test_all_that_is_held_is_extended_after_a_third_of_the_time() -> None:
    leases = LeaseTracker(30, 100, 200)
    assert leases.due_in(0) is None
    leases.add([message(0), message(1)], 0)
    leases.add([message(2)], 9)
    assert leases.due_in(0) == 10
    assert leases.due_to_extend(9.9) == []
    assert leases.due_to_extend(10) == ["0.a.0", "0.a.1", "0.a.2"]
    leases.extend(["0.a.0", "0.a.2"], 10)
    assert leases.due_in(10) == 10
    assert [taken(leases, 31), taken(leases, 31)] == [0, 2]
    leases.done(["0.a.0", "0.a.2"], 31)
    leases.take_done(31, at_once=True)
    assert leases.due_to_extend(40) == []
    assert leases.due_in(40) is None


def test_a_lost_message_is_dropped_and_said_when_it_is_in_work() -> None:
    leases = LeaseTracker(30, 100, 200)
    leases.add([message(n) for n in range(4)], 0)
    assert taken(leases) == 0
    assert leases.lose(["0.a.0", "0.a.1"]) == ["0.a.0"]
    assert leases.done(["0.a.0"], 1) is False
    assert leases.take_done(9, at_once=True) == []
    assert taken(leases) == 2
    assert leases.take_buffered() == ["0.a.3"]
    assert leases.take_all() == ["0.a.2"]


def test_pauses_grow_up_to_the_longest() -> None:
    retry = Retry(first_ms=1000, factor=2, most_ms=300_000)
    assert [retry.pause_ms(n) for n in (1, 2, 3, 4, 9, 10, 1_000_000)] == [
        *(1000, 2000, 4000, 8000, 256_000, 300_000, 300_000)
    ]
    assert Retry(first_ms=0).pause_ms(40) == 0
    assert not retry.is_over(4)
    assert retry.is_over(5)
    assert not Retry(attempts=None).is_over(10**9)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first_ms": -1}, {"factor": 0.5}, {"most_ms": 10}])
def test_a_policy_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(RequestInvalid):
        Retry(**wrong)
    with pytest.raises(RequestInvalid):
        ConsumerOptions("g", "m", limit=0)


def test_a_failure_says_why_and_when_it_comes_again() -> None:
    retry = Retry(attempts=3)
    known = {"leases": ["0.a.0"], "reason": "ValueError: no such room"}
    assert nack_body(ValueError("no\nsuch room"), message(0, 2), retry) == {**known, "delayMs": 2000}
    assert nack_body(ValueError("no such room"), message(0, 3), retry) == {**known, "dead": True}
    refused = nack_body(tidegate.Reject("not for us"), message(0, 1), retry)
    assert refused == {"leases": ["0.a.0"], "reason": "not for us", "dead": True}
    assert reason_of(Reject()) == "Reject"
    assert len(reason_of(ValueError("x" * 10_000))) == 500
    assert reason_of(ValueError("a \ud800 half")) == "ValueError: a \\ud800 half"


def test_an_answer_has_one_name_for_a_message_and_a_group() -> None:
    path = "/topics/a/publish"
    one = answer_request(path, ("g", "t"), message(1), {"text": "yes"})
    other = answer_request(path, ("g", "t"), message(1), {"key": "x", "payload": "no"})
    assert one.key == other.key
    assert one.content == b'{"messages":[{"payload":{"text":"yes"},"key":"k"}]}'
    assert other.content == b'{"messages":[{"key":"x","payload":"no"}]}'
    assert answer_request(path, ("h", "t"), message(1), 1).key != one.key
    assert answer_request(path, ("g", "t"), message(2), 1).key != one.key
    assert answer_request("/topics/b/publish", ("g", "t"), message(1), 1).key != one.key


def test_every_member_has_a_name_of_its_own() -> None:
    assert member_name() != member_name()
    assert 1 <= len(member_name()) <= 200
