"""A consumer of a group: what counts as done, what comes again and when, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import tidegate
from tests.sdk.consuming import BOTH, Where, consume_blocking, group_of, payloads, wait_until
from tests.sdk.faults import faulty_server
from tidegate.errors import LeaseLost, RequestInvalid, TopicNotFound
from tidegate.sdk import leases
from tidegate.sdk.types import MessageDict
from tidegate.testing.server import RunningServer

Consume = Callable[..., list[MessageDict]]


@pytest.fixture
def topic(client: tidegate.Client, request: pytest.FixtureRequest) -> str:
    name = f"consumer.{request.node.name.partition('[')[0].removeprefix('test_')[:60]}_{secrets.token_hex(3)}"
    client.topics.create(name)
    client.topic(name).publish([{"payload": number} for number in range(10)])
    return name


@pytest.fixture
def where(server: RunningServer, topic: str) -> Where:
    return Where(server.url, server.token, topic)


@BOTH
def test_a_message_is_done_when_the_next_is_asked_for_and_break_gives_the_rest_back(
    consume: Consume, where: Where, client: tidegate.Client
) -> None:
    given = consume(where, lambda _, message: message["payload"] == 4)
    assert payloads(given) == [0, 1, 2, 3, 4]
    shown = group_of(client, where.topic)
    assert (shown["lag"], shown["inFlight"], shown["partitions"][0]["position"]) == (6, 0, 4)
    again = consume(where, lambda _, message: message["payload"] == 9)
    assert [(message["payload"], message["deliveries"]) for message in again][:2] == [(4, 1), (5, 1)]
    assert group_of(client, where.topic)["lag"] == 1


@BOTH
def test_an_exception_gives_its_message_back_to_come_later_and_the_others_at_once(
    consume: Consume, where: Where, client: tidegate.Client
) -> None:
    def fail(_consumer: object, message: MessageDict) -> None:
        if message["payload"] == 2:
            raise ValueError("cannot do 2")

    with pytest.raises(ValueError, match="cannot do 2"):
        consume(where, fail, retry=tidegate.Retry(attempts=None, first_ms=3_600_000, most_ms=3_600_000))
    shown = group_of(client, where.topic)
    assert (shown["lag"], shown["inFlight"], shown["partitions"][0]["position"]) == (8, 0, 2)
    others = consume(where, lambda _, message: message["payload"] == 9)
    assert payloads(others) == [3, 4, 5, 6, 7, 8, 9]
    assert group_of(client, where.topic)["waiting"] >= 1


@BOTH
def test_what_failed_comes_again_with_its_count_and_ends_as_a_dead_letter(
    consume: Consume, where: Where, client: tidegate.Client
) -> None:
    def fail(_consumer: object, message: MessageDict) -> None:
        raise ValueError("never")

    retry = tidegate.Retry(attempts=3, first_ms=0)
    for _ in range(3):
        with pytest.raises(ValueError, match="never"):
            consume(where, fail, retry=retry)
    dead = client.topic(f"{where.topic}.dead").consume()["messages"]
    assert [message["payload"]["payload"] for message in dead] == [0]
    assert dead[0]["payload"]["reason"] == "ValueError: never"
    assert dead[0]["payload"]["origin"]["deliveries"] == 3
    assert payloads(consume(where, lambda *_: True)) == [1]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit])
def test_an_end_of_the_program_is_no_failure_of_the_message(
    where: Where, client: tidegate.Client, problem: type[BaseException]
) -> None:
    def end(_consumer: object, message: MessageDict) -> None:
        if message["payload"] == 1:
            raise problem

    with pytest.raises(problem):
        consume_blocking(where, end)
    shown = group_of(client, where.topic)
    assert (shown["inFlight"], shown["partitions"][0]["position"]) == (0, 1)
    again = consume_blocking(where, lambda *_: True)
    assert (again[0]["payload"], again[0]["deliveries"]) == (1, 1)


def test_a_cancelled_task_gives_everything_back(where: Where, client: tidegate.Client) -> None:
    async def scene() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            async with (
                tidegate.connect_async(where.url, token=where.token) as own,
                own.topic(where.topic).consumer("g", wait_ms=100) as consumer,
            ):
                async for message in consumer:
                    if message["payload"] == 3:
                        begun.set()
                        await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    shown = group_of(client, where.topic)
    assert (shown["inFlight"], shown["partitions"][0]["position"]) == (0, 3)


@BOTH
def test_stop_ends_the_loop_after_the_message_in_work(
    consume: Consume, where: Where, client: tidegate.Client
) -> None:
    def stop(consumer: Any, message: MessageDict) -> None:
        if message["payload"] == 3:
            consumer.stop()
            # What waits is given back before the message in work is done.
            wait_until(lambda: group_of(client, where.topic)["inFlight"] == 1)

    assert payloads(consume(where, stop)) == [0, 1, 2, 3]
    shown = group_of(client, where.topic)
    assert (shown["inFlight"], shown["partitions"][0]["position"]) == (0, 4)


@BOTH
def test_stop_wakes_a_consumer_that_waits(consume: Consume, where: Where, client: tidegate.Client) -> None:
    def stop_soon(consumer: Any, message: MessageDict) -> None:
        if message["payload"] == 9:
            threading.Timer(0.1, consumer.stop).start()

    assert len(consume(where, stop_soon)) == 10
    assert group_of(client, where.topic)["lag"] == 0


def test_a_signal_may_stop_it_wherever_it_interrupts(where: Where) -> None:
    given: list[MessageDict] = []
    with tidegate.connect(where.url, token=where.token) as client:
        consumer = client.topic(where.topic).consumer("g", wait_ms=100)
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
        main = threading.get_ident()
        try:
            with consumer:
                for message in consumer:
                    given.append(message)
                    if message["payload"] == 9:
                        threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGUSR1]).start()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert len(given) == 10


def test_a_stopped_consumer_gives_nothing(where: Where, client: tidegate.Client) -> None:
    consumer = client.topic(where.topic).consumer("g", wait_ms=100)
    consumer.stop()
    with consumer:
        assert list(consumer) == []
    assert group_of(client, where.topic)["lag"] == 10


def test_a_loop_that_begins_anew_does_not_count_the_message_it_left_as_done(
    where: Where, client: tidegate.Client
) -> None:
    given = []
    with client.topic(where.topic).consumer("g", wait_ms=100, retry=tidegate.Retry(first_ms=0)) as consumer:
        with pytest.raises(ValueError, match="once"):
            for message in consumer:
                given.append((message["payload"], message["deliveries"]))
                raise ValueError("once")
        for message in consumer:
            given.append((message["payload"], message["deliveries"]))
            if (0, 2) in given:
                consumer.ack(message)
                break
    assert given[0] == (0, 1)
    assert (0, 2) in given
    position = group_of(client, where.topic)["partitions"][0]["position"]
    assert position >= 1


def test_ack_and_nack_say_at_once_what_became_of_a_message(where: Where, client: tidegate.Client) -> None:
    with client.topic(where.topic).consumer("g", wait_ms=100) as consumer:
        for message in consumer:
            if message["payload"] == 1:
                consumer.nack(message, delay_ms=3_600_000, reason="later")
            elif message["payload"] == 3:
                consumer.ack(message)
                with pytest.raises(LeaseLost):
                    consumer.ack(message)
                break
    shown = group_of(client, where.topic)
    assert (shown["lag"], shown["inFlight"], shown["partitions"][0]["position"]) == (7, 0, 1)


def test_a_consumer_belongs_into_a_with(where: Where, client: tidegate.Client) -> None:
    with pytest.raises(RequestInvalid, match="with"):
        next(iter(client.topic(where.topic).consumer("g")))
    with pytest.raises(TopicNotFound), client.topic("consumer.not_there").consumer("g"):
        raise AssertionError("it is not there")


def test_two_consumers_share_the_messages_and_the_one_that_ends_leaves_its_share(
    where: Where, client: tidegate.Client
) -> None:
    """Case 18: two consumers of one partition get different messages."""
    topic = client.topic(where.topic)
    with topic.consumer("g", wait_ms=100, limit=2) as one, topic.consumer("g", wait_ms=100, limit=2) as other:
        assert one.member != other.member
        first, second = next(iter(one)), next(iter(other))
        assert first["offset"] != second["offset"]
        members = {shown["member"]: shown["holds"] for shown in group_of(client, where.topic)["members"]}
        assert members[one.member] >= 1
        assert members[other.member] >= 1
        one.stop()
        assert next(one, None) is None
        rest = {second["offset"]}
        while len(rest) < 9:
            rest.add(next(other)["offset"])
        assert rest == set(range(10)) - {first["offset"]}


def test_latest_begins_with_what_comes_after_the_with_is_entered(
    where: Where, client: tidegate.Client
) -> None:
    with client.topic(where.topic).consumer("late", start="latest", wait_ms=100) as consumer:
        client.topic(where.topic).publish([{"payload": "new"}])
        assert next(iter(consumer))["payload"] == "new"
    with client.topic(where.topic).consumer("late", start="earliest", wait_ms=100) as consumer:
        assert next(iter(consumer))["payload"] == "new"


def test_without_prefetch_nothing_waits_while_a_message_is_in_work(
    where: Where, client: tidegate.Client
) -> None:
    with client.topic(where.topic).consumer("g", prefetch=0, wait_ms=100) as consumer:
        for message in consumer:
            # What is done may be on its way to be acknowledged; nothing behind the one in work is held.
            partition = group_of(client, where.topic)["partitions"][0]
            assert partition["next"] == message["offset"] + 1
            if message["payload"] == 3:
                break


@BOTH
def test_leases_are_extended_while_the_body_runs(
    consume: Consume,
    where: Where,
    server: RunningServer,
    client: tidegate.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Extended often and long: a moment in which nothing runs is no end of a lease.
    lease_ms = 6_000
    monkeypatch.setattr(leases, "EXTEND_AFTER", 250 / lease_ms)
    with faulty_server(upstream=server.url) as faulty:

        def extensions() -> int:
            return sum(seen.path.endswith("/extend") for seen in list(faulty.seen))

        def slow(_consumer: object, message: MessageDict) -> bool:
            if message["payload"] == 0:
                over = time.monotonic() + lease_ms / 1000 + 0.5
                wait_until(lambda: extensions() >= 4 and time.monotonic() > over)
            return bool(message["payload"] == 9)

        through = Where(faulty.url, where.token, where.topic)
        given = consume(through, slow, lease_ms=lease_ms)
    assert [message["deliveries"] for message in given] == [1] * 10
    assert group_of(client, where.topic)["partitions"][0]["position"] == 9


def test_what_retention_took_is_told(
    where: Where, client: tidegate.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 20: a group goes on at the earliest, and says how many it missed."""
    topic = client.topic(where.topic)
    topic.consume(group="g", limit=1)
    client.topics.clear(where.topic)
    topic.publish([{"payload": "after"}])
    with caplog.at_level(logging.WARNING), topic.consumer("g", wait_ms=100) as consumer:
        assert next(iter(consumer))["payload"] == "after"
        assert sum(consumer.missed.values()) >= 9
    assert "messages removed before they were fetched" in caplog.text


def test_batches_are_tables_that_are_done_one_by_one(where: Where, client: tidegate.Client) -> None:
    topic = client.topic(where.topic)
    with topic.consumer("g", limit=4, wait_ms=100) as consumer:
        sizes = []
        for batch in consumer.batches():
            sizes.append((batch.num_rows, pc.sum(batch.table.column("deliveries")).as_py()))
            if len(sizes) == 2:
                break
    assert sizes == [(4, 4), (4, 4)]
    assert group_of(client, where.topic)["lag"] == 6
    with topic.consumer("g", limit=4, wait_ms=100) as consumer, pytest.raises(ValueError, match="no"):
        for batch in consumer.batches():
            if batch.table.column("offset")[0].as_py() == 8:
                raise ValueError("no")
            batch.ack()
            with pytest.raises(LeaseLost):
                batch.ack()
    shown = group_of(client, where.topic)
    assert (shown["lag"], shown["inFlight"], shown["waiting"]) == (2, 0, 2)


def test_batches_with_asyncio(where: Where, client: tidegate.Client) -> None:
    async def follow() -> int:
        count = 0
        async with (
            tidegate.connect_async(where.url, token=where.token) as own,
            own.topic(where.topic).consumer("g", limit=3, wait_ms=100) as consumer,
        ):
            async for batch in consumer.batches():
                count += batch.num_rows
                if count == 10:
                    await batch.ack()
                    consumer.stop()
        return count

    assert asyncio.run(follow()) == 10
    assert group_of(client, where.topic)["lag"] == 0


def test_closing_the_client_ends_its_consumers(where: Where, client: tidegate.Client) -> None:
    with tidegate.connect(where.url, token=where.token) as own:
        consumer = own.topic(where.topic).consumer("g", wait_ms=100)
        with consumer:
            next(iter(consumer))
            own.close()
            assert group_of(client, where.topic)["inFlight"] == 0
            assert next(consumer, None) is None
