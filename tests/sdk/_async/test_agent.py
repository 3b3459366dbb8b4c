"""An agent: what it answers, what it tries again, what it gives up, and how it ends."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import threading
from typing import Any

import pytest

import tidegate
from tests.sdk.consuming import group_of, payloads, wait_until
from tests.sdk.faults import faulty_server
from tests.sdk.running import BOTH, Count, Run, program, run_blocking
from tidegate.errors import RequestInvalid, TopicNotFound
from tidegate.sdk.types import MessageDict
from tidegate.testing.server import RunningServer

QUICK = tidegate.Retry(attempts=3, first_ms=0)


@pytest.fixture
def topic(client: tidegate.Client) -> str:
    name = f"agent.t{secrets.token_hex(4)}"
    client.topics.create(name)
    client.topics.create(f"{name}_answers")
    client.topic(name).publish([{"payload": number, "key": f"k{number}"} for number in range(8)])
    return name


@BOTH
def test_every_message_is_answered_and_keeps_its_key(
    run: Run, server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    count = Count(8)

    def work(agent: Any, message: MessageDict) -> object:
        count(agent, message)
        return {"double": message["payload"] * 2} if message["payload"] else None

    run(server, topic, work, answers=f"{topic}_answers")
    answers = client.topic(f"{topic}_answers").consume()["messages"]
    found = {message["key"]: message["payload"]["double"] for message in answers}
    assert found == {f"k{number}": number * 2 for number in range(1, 8)}
    assert len(answers) == 7
    assert group_of(client, topic, "ai")["lag"] == 0


@BOTH
def test_what_fails_is_tried_again_and_given_up_with_its_reason(
    run: Run, server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    count = Count(7 + 2 + 3)

    def work(agent: Any, message: MessageDict) -> None:
        count(agent, message)
        if message["payload"] == 2 and message["deliveries"] == 1:
            raise ValueError("not yet")
        if message["payload"] == 5:
            raise ValueError("never")
        if message["payload"] == 6:
            raise tidegate.Reject("not for us")

    # 0 to 7 once, 2 once more, 5 twice more: 11; one more question is put so that the last nack is seen.
    client.topic(topic).publish([{"payload": 8}])
    run(server, topic, work, retry=QUICK)
    wait_until(lambda: group_of(client, topic, "ai")["lag"] == 0)
    assert (2, 2) in count.seen
    assert [deliveries for payload, deliveries in count.seen if payload == 5] == [1, 2, 3]
    dead = client.topic(f"{topic}.dead").consume()["messages"]
    reasons = {one["payload"]["payload"]: one["payload"]["reason"] for one in dead}
    assert reasons == {5: "ValueError: never", 6: "not for us"}


@BOTH
def test_several_are_worked_on_at_once(
    run: Run, server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    together = threading.Barrier(4, timeout=90)
    count = Count(8)

    def work(agent: Any, message: MessageDict) -> None:
        together.wait()
        count(agent, message)

    run(server, topic, work, workers=4)
    assert sorted(payload for payload, _ in count.seen) == list(range(8))
    assert group_of(client, topic, "ai")["lag"] == 0


def test_a_stop_waits_for_what_is_in_work(server: RunningServer, client: tidegate.Client, topic: str) -> None:
    def work(agent: Any, message: MessageDict) -> object:
        agent.stop()
        wait_until(lambda: group_of(client, topic, "ai")["inFlight"] <= 1)
        return "late"

    run_blocking(server, topic, work, workers=1, answers=f"{topic}_answers")
    assert payloads(client.topic(f"{topic}_answers").consume()["messages"]) == ["late"]
    assert group_of(client, topic, "ai")["lag"] == 7


def test_an_answer_whose_acknowledgement_was_lost_is_not_published_twice(
    server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    """A message that is given again after its answer was stored, with another answer the second time."""
    seen: list[int] = []

    def work(agent: Any, message: MessageDict) -> object:
        seen.append(message["payload"])
        agent.stop()
        return {"try": len(seen)}

    run_blocking(server, topic, work, workers=1, answers=f"{topic}_answers")
    client.topic(topic).reset("ai", "earliest")
    run_blocking(server, topic, work, workers=1, answers=f"{topic}_answers")
    assert seen == [0, 0]
    assert payloads(client.topic(f"{topic}_answers").consume()["messages"]) == [{"try": 1}]
    assert group_of(client, topic, "ai")["lag"] == 7


def test_a_lost_answer_of_the_server_publishes_nothing_twice(
    server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    # The answers' topic is looked at, the first message is taken, then more; its answer is lost twice.
    with faulty_server(upstream=server.url) as faulty:
        with tidegate.connect(faulty.url, token=server.token) as through:
            agent = through.topic(topic).agent("ai", answers=f"{topic}_answers", workers=1)

            def work(message: MessageDict) -> object:
                agent.stop()
                faulty.script += ["lose"] * 2
                return "once"

            agent.run(work)
        published = [seen for seen in faulty.seen if seen.path.endswith("/publish")]
    assert len({seen.headers["idempotency-key"] for seen in published}) == 1
    assert payloads(client.topic(f"{topic}_answers").consume()["messages"]) == ["once"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_when_the_messages_in_work_are_done(
    server: RunningServer, client: tidegate.Client, topic: str, number: signal.Signals
) -> None:
    with program(server, topic, 0.3) as (child, output):
        first = output.readline()
        child.send_signal(number)
        said = output.read().split()
        assert child.wait() == 0
    assert said[-1] == "ended"
    done = {int(first), *map(int, said[:-1])}
    answers = client.topic(f"{topic}_answers").consume()["messages"]
    assert set(payloads(answers)) == done
    assert group_of(client, topic, "ai")["lag"] == 8 - len(done)
    assert group_of(client, topic, "ai")["inFlight"] == 0


def test_what_a_killed_agent_had_comes_again_to_another(
    server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    """Case 18: A dies, its messages come again after the lease."""
    with program(server, topic, 3600, lease_ms=1000) as (_child, output):
        begun = {int(output.readline()), int(output.readline())}
    count = Count(8)

    def work(agent: Any, message: MessageDict) -> object:
        count(agent, message)
        return message["payload"]

    run_blocking(server, topic, work, answers=f"{topic}_answers")
    assert sorted(payload for payload, _ in count.seen) == list(range(8))
    assert {payload for payload, deliveries in count.seen if deliveries > 1} == begun
    assert sorted(payloads(client.topic(f"{topic}_answers").consume()["messages"])) == list(range(8))


def test_a_cancelled_agent_gives_everything_back(
    server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    async def scene() -> None:
        begun = asyncio.Event()

        async def work(message: MessageDict) -> None:
            begun.set()
            await asyncio.sleep(3600)

        async with tidegate.connect_async(server.url, token=server.token) as own:
            running = asyncio.create_task(own.topic(topic).agent("ai").run(work))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(scene())
    shown = group_of(client, topic, "ai")
    assert (shown["lag"], shown["inFlight"]) == (8, 0)


def test_what_cannot_work_is_said_at_the_start(client: tidegate.Client, topic: str) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"):
        client.topic(topic).agent("ai", answers="agent.nowhere").run(json.dumps)
    with pytest.raises(TopicNotFound, match="not_there"):
        client.topic("agent.not_there").agent("ai").run(json.dumps)
    with pytest.raises(RequestInvalid, match="function"):
        client.topic(topic).agent("ai").run()
    with pytest.raises(RequestInvalid, match="workers"):
        client.topic(topic).agent("ai", workers=0)
