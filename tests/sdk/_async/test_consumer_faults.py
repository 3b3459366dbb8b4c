"""Consumers over a server that goes away, answers that are lost, and leases that others got meanwhile."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tidegate
from tests.sdk.consuming import (
    BOTH,
    SECONDS_MAX,
    WAIT_MS,
    Where,
    consume_blocking,
    group_of,
    payloads,
    wait_until,
)
from tests.sdk.faults import Chosen, FaultyServer, Say, faulty_server
from tidegate.errors import ServerNotRunning, TopicNotFound
from tidegate.sdk import leases
from tidegate.sdk.types import MessageDict
from tidegate.testing.server import RunningServer, running_server

Consume = Callable[..., list[MessageDict]]


@pytest.fixture
def topic(client: tidegate.Client) -> str:
    name = f"faults.t{secrets.token_hex(4)}"
    client.topics.create(name)
    client.topic(name).publish([{"payload": number} for number in range(10)])
    return name


def sent(faulty: FaultyServer, verb: str) -> list[list[str]]:
    return [json.loads(seen.body)["leases"] for seen in faulty.seen if seen.path.endswith(f"/{verb}")]


@BOTH
def test_a_lost_answer_to_an_acknowledgement_is_asked_for_again_and_no_loss(
    consume: Consume,
    server: RunningServer,
    client: tidegate.Client,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with faulty_server(upstream=server.url) as faulty, caplog.at_level(logging.WARNING):
        faulty.script = Chosen(faulty, "ack", "lose", "drop")
        consume(Where(faulty.url, server.token, topic), lambda _, message: message["payload"] == 9)
        acks = sent(faulty, "ack")
    assert len(acks) >= 3
    assert acks[0] == acks[1] == acks[2]
    assert group_of(client, topic)["partitions"][0]["position"] == 9
    assert "leases expired" not in caplog.text


@BOTH
def test_a_lease_that_is_lost_while_its_message_is_in_work_is_told_and_not_acknowledged(
    consume: Consume,
    server: RunningServer,
    client: tidegate.Client,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 18: a consumer that comes back late cannot ack another's lease."""
    lease_ms = 60_000
    monkeypatch.setattr(leases, "EXTEND_AFTER", 500 / lease_ms)  # soon, so that the loss is noticed
    stolen: list[str] = []

    def steal(_consumer: object, message: MessageDict) -> bool:
        if message["payload"] == 0 and not stolen:
            # A reset takes the lease away, and someone else is given the message in work.
            client.topic(topic).reset("g", "earliest")
            page = client.topic(topic).consume(group="g", member="thief", limit=2, lease_ms=lease_ms)
            stolen.extend(str(taken["lease"]) for taken in page["messages"])
            wait_until(lambda: "message in work lost" in caplog.text)
        return bool(message["payload"] == 9)

    with faulty_server(upstream=server.url) as faulty, caplog.at_level(logging.WARNING):
        given = consume(Where(faulty.url, server.token, topic), steal, lease_ms=lease_ms, prefetch=0)
        acked = {lease for told in sent(faulty, "ack") for lease in told}
    assert payloads(given) == [0, *range(2, 10)]
    assert str(given[0]["lease"]) not in acked
    assert client.topic(topic).ack("g", stolen, member="thief")["acked"] == 2
    assert group_of(client, topic)["partitions"][0]["position"] == 9


def test_messages_that_are_done_too_late_are_told(
    server: RunningServer, client: tidegate.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def reset(_consumer: object, message: MessageDict) -> bool:
        if message["payload"] == 0 and message["deliveries"] == 1:
            client.topic(topic).reset("g", {"offset": 5})
        return bool(message["payload"] == 9)

    with caplog.at_level(logging.WARNING):
        consume_blocking(Where(server.url, server.token, topic), reset, prefetch=0)
    assert "messages done after their leases expired" in caplog.text


def test_an_error_for_good_ends_the_loop(client: tidegate.Client, topic: str) -> None:
    seen = []
    with client.topic(topic).consumer("g", wait_ms=100) as consumer, pytest.raises(TopicNotFound):
        for message in consumer:
            seen.append(message["payload"])
            if message["payload"] == 0:
                client.topics.delete(topic)
    assert seen[0] == 0


@pytest.mark.parametrize("gone", ["topic", "group"])
def test_what_is_said_of_messages_whose_topic_or_group_was_deleted_is_true(
    client: tidegate.Client, topic: str, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    # It is not iterated: another question would make the group anew.
    with caplog.at_level(logging.WARNING), client.topic(topic).consumer("g"):
        if gone == "topic":
            client.topics.delete(topic)
        else:
            client.topic(topic).delete_group("g")
    assert "messages no longer held verb=nack count=1" in caplog.text
    assert "redelivered" not in caplog.text


def test_a_server_that_is_not_there_at_the_start_is_told() -> None:
    with (
        tidegate.connect("http://127.0.0.1:1", token="t", retry_seconds=0.1) as client,
        pytest.raises(ServerNotRunning),
        client.topic("t").consumer("g"),
    ):
        raise AssertionError("nobody answers")


def test_a_consumer_ends_while_its_server_is_away(topic: str, server: RunningServer) -> None:
    busy = Say(503, b'{"error": {"code": "NOT_READY", "details": {"reason": "r"}}}')
    with (
        faulty_server(upstream=server.url) as faulty,
        tidegate.connect(faulty.url, token=server.token, retry_seconds=0.2) as client,
        client.topic(topic).consumer("g", wait_ms=100, prefetch=0) as consumer,
    ):
        next(iter(consumer))
        asked = len(faulty.seen) + 3
        faulty.script = [busy] * 1_000_000

        def stop() -> None:
            wait_until(lambda: len(faulty.seen) >= asked)
            consumer.stop()

        threading.Thread(target=stop).start()
        assert next(consumer, None) is None
    assert len(faulty.seen) > 3


@pytest.mark.crash
def test_consumers_go_on_over_a_kill_of_the_server(tmp_path: Path) -> None:
    """Case 18 and recovery: what was leased comes again, what was acknowledged does not."""
    home = tmp_path / "home"
    given: list[int] = []
    is_back = threading.Event()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(running_server(home))
        client = stack.enter_context(tidegate.connect(home=home, retry_seconds=90))
        topic = client.topics.create("faults.killed")
        client.topics.create("faults.answers")
        topic.publish([{"payload": number} for number in range(40)])
        agent = topic.agent("ai", answers="faults.answers", workers=2, lease_ms=10_000)
        consumer = topic.consumer("g", wait_ms=WAIT_MS, limit=5, lease_ms=10_000)

        def work(message: MessageDict) -> object:
            if message["payload"] == 20:
                is_back.wait(SECONDS_MAX)  # the server is away while this is worked on
            return message["payload"]

        def end() -> None:
            try:
                assert is_back.wait(SECONDS_MAX)
                wait_until(lambda: all(shown["lag"] == 0 for shown in topic.groups()))
            finally:
                consumer.stop()
                agent.stop()

        beside = stack.enter_context(ThreadPoolExecutor(2))
        agent_run, ending = beside.submit(agent.run, work), beside.submit(end)
        with consumer:
            for message in consumer:
                given.append(message["payload"])
                if message["payload"] == 20 and not is_back.is_set():
                    wait_until(lambda: group_of(client, "faults.killed")["partitions"][0]["position"] >= 20)
                    first.kill()
                    second = stack.enter_context(running_server(home))
                    stack.callback(second.kill)  # quicker than an end in order, which others look at
                    is_back.set()
        ending.result()
        agent_run.result()
        assert [(shown["lag"], shown["inFlight"]) for shown in topic.groups()] == [(0, 0)] * 2
        assert given[:21] == list(range(21))
        assert set(given) == set(range(40))
        assert not set(given[21:]) & set(range(20))
        answers = client.topic("faults.answers").consume(limit=1000)["messages"]
        assert sorted(payloads(answers)) == list(range(40))
