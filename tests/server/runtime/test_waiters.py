"""Waiting members of consumer groups, over real HTTP: who is woken, by what, and who gets the message."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.server.group_client import Group, leases, offsets, publish
from tests.server.live_client import metric

POLLS = "tidegate_http_polls_waiting"
# Whoever is not woken is not answered before this is over, which is too late.
WAIT_MS = 60_000
WOKEN_SECONDS = 40


def test_waiting_member_gets_the_message_that_is_published(http: httpx.Client, pair: Any) -> None:
    """Case 21: a long poll wakes on commit."""
    a, b = pair
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.take, 10, waitMs=WAIT_MS)
        _until(lambda: _waits(http, a.topic) == 1)
        publish(http, a.topic, 1)
        assert offsets(waiting.result(WOKEN_SECONDS)) == [0]
    assert b.shown()["members"][0]["member"] == "a"


def test_one_message_for_many_waiting_members_reaches_exactly_one(
    http: httpx.Client, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    members = [Group(http, topic, member=f"m{n}") for n in range(20)]
    with ThreadPoolExecutor(20) as pool:
        waits = [pool.submit(member.take, 1, waitMs=WAIT_MS) for member in members]
        _until(lambda: _waits(http, topic) == 20)
        publish(http, topic, 3)
        _until(lambda: sum(wait.done() for wait in waits) >= 3)
        assert sorted(offsets(wait.result()) for wait in waits if wait.done()) == [[0], [1], [2]]
        # The others wait as before, and each gets one of its own in the end.
        _until(lambda: _waits(http, topic) == 17)
        publish(http, topic, 17)
        found = [offsets(wait.result(WOKEN_SECONDS)) for wait in waits]
    assert sorted(found) == [[number] for number in range(20)]


def test_waiting_member_gets_what_another_gives_back(http: httpx.Client, pair: Any) -> None:
    a, b = pair
    publish(http, a.topic, 1)
    held = a.take()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(b.take, 1, waitMs=WAIT_MS)
        _until(lambda: _waits(http, a.topic) == 1)
        a.done("nack", leases=leases(held))
        assert [(m["offset"], m["deliveries"]) for m in waiting.result(WOKEN_SECONDS)] == [(0, 2)]


def test_waiting_member_is_told_that_the_topic_is_gone(http: httpx.Client, pair: Any) -> None:
    a, _ = pair
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.ask, "consume", waitMs=WAIT_MS)
        _until(lambda: _waits(http, a.topic) == 1)
        http.delete(f"/api/v1/topics/{a.topic}")
        assert waiting.result(WOKEN_SECONDS).status_code == 404


def test_many_members_at_once_get_every_message_once(
    http: httpx.Client, new_topic: Callable[..., str]
) -> None:
    """Case 18: many consumers in a group, no two hold one message."""
    topic = new_topic(2)
    seen: list[tuple[int, int]] = []
    guard, published = threading.Lock(), threading.Event()

    def work(number: int) -> None:
        mine = Group(http, topic, member=f"m{number}")
        while True:
            was_published = published.is_set()
            taken = mine.take(7, waitMs=300)
            if not taken and was_published:
                return
            with guard:
                seen.extend((m["partition"], m["offset"]) for m in taken)
            mine.done("ack", leases=leases(taken))

    with ThreadPoolExecutor(6) as pool:
        workers = [pool.submit(work, number) for number in range(5)]
        for _ in range(10):
            publish(http, topic, 20)
        published.set()
        for worker in workers:
            worker.result(60)
    assert len(seen) == 200 and len(set(seen)) == 200
    assert Group(http, topic).shown()["lag"] == 0


def test_partitions_that_are_added_reach_members_that_wait_already(
    http: httpx.Client, new_topic: Callable[..., str]
) -> None:
    """Case 21: nobody has to ask again to get messages of a partition that was not there before."""
    topic = new_topic()
    early, late = Group(http, topic, member="early"), Group(http, topic, member="late")
    with ThreadPoolExecutor(3) as pool:
        polls = [pool.submit(early.take, 1, waitMs=WAIT_MS)]
        alone = pool.submit(_read_latest, http, topic)
        _until(lambda: _waits(http, topic) == 1 and metric(http, POLLS) == 2)
        assert http.patch(f"/api/v1/topics/{topic}", json={"partitions": 3}).status_code == 200
        polls.append(pool.submit(late.take, 1, waitMs=WAIT_MS))
        _until(lambda: _waits(http, topic) == 2)
        publish(http, topic, 2, partition=2)
        assert sorted(offsets(poll.result(WOKEN_SECONDS)) for poll in polls) == [[0], [1]]
        assert [(m["partition"], m["offset"]) for m in alone.result(WOKEN_SECONDS)][:1] == [(2, 0)]


def test_every_delay_wakes_somebody_also_when_the_first_woken_never_comes_back(
    http: httpx.Client, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    publish(http, topic, 3)
    holder = Group(http, topic, member="holder")
    held = leases(holder.take(3))
    with ThreadPoolExecutor(3) as pool:
        members = [Group(http, topic, member=f"m{n}") for n in range(3)]
        polls = [pool.submit(member.take, 1, waitMs=WAIT_MS) for member in members]
        _until(lambda: _waits(http, topic) == 3)
        for number, lease in enumerate(held):
            holder.done("nack", leases=[lease], delayMs=300 * (number + 1))
        found = [message for poll in polls for message in poll.result(WOKEN_SECONDS)]
        assert sorted(offsets(found)) == [0, 1, 2]


def test_member_of_a_group_that_is_deleted_while_it_waits_gets_what_comes(
    http: httpx.Client, pair: Any
) -> None:
    a, _ = pair
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.take, 1, waitMs=WAIT_MS)
        _until(lambda: _waits(http, a.topic) == 1)
        assert http.delete(f"/api/v1/topics/{a.topic}/groups/g").status_code == 200
        publish(http, a.topic, 1)
        assert offsets(waiting.result(WOKEN_SECONDS)) == [0]


def _read_latest(http: httpx.Client, topic: str) -> list[dict[str, Any]]:
    body = {"from": "latest", "waitMs": WAIT_MS}
    found: list[dict[str, Any]] = http.post(f"/api/v1/topics/{topic}/consume", json=body).json()["messages"]
    return found


def _waits(http: httpx.Client, topic: str) -> int:
    return sum(m["waits"] for g in _groups(http, topic) for m in g["members"])


def _groups(http: httpx.Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.get(f"/api/v1/topics/{topic}/groups").json()["groups"]
    return found


def _until(holds: Callable[[], Any]) -> None:
    ends = time.monotonic() + WOKEN_SECONDS
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)
