"""Agents whose set-up is wrong or was made anew, and what the log says of messages that fail."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tidegate
from tests.sdk.consuming import payloads
from tests.sdk.faults import Chosen, Say, faulty_server
from tests.sdk.running import BOTH, Count, Run, run_blocking
from tidegate.errors import Forbidden, RequestInvalid, TokenWrong, TopicNotFound
from tidegate.sdk.agent_policy import describe_outcome
from tidegate.sdk.types import MessageDict
from tidegate.testing.server import RunningServer

# A message that fails once is a dead letter.
ONCE = tidegate.Retry(attempts=1)


@pytest.fixture
def topic(client: tidegate.Client) -> str:
    name = f"setup.t{secrets.token_hex(4)}"
    client.topics.create(name)
    client.topics.create(f"{name}_answers")
    client.topic(name).publish([{"payload": number} for number in range(3)])
    return name


@pytest.fixture
def reader(server: RunningServer, client: tidegate.Client) -> Iterator[tidegate.Client]:
    name = f"u{secrets.token_hex(4)}"
    client.users.add(name, roles=["reader"])
    made = client.users.make_token(name, label="agent")
    with tidegate.connect(server.url, token=made["token"]) as connected:
        yield connected


def answering(agent: Any) -> Callable[[MessageDict], object]:
    """Return a function that answers; an agent that comes to the last message ends without an error."""

    def answer(message: MessageDict) -> object:
        if message["payload"] == 2:
            agent.stop()
        return message["payload"]

    return answer


def assert_all_given_back(client: tidegate.Client, topic: str) -> None:
    page = client.topic(topic).consume(group="ai", member="other")
    assert [(one["payload"], one["deliveries"]) for one in page["messages"]] == [(0, 1), (1, 1), (2, 1)]
    assert f"{topic}.dead" not in [one["name"] for one in client.topics.list()]


def test_answers_that_the_token_may_not_publish_end_the_agent_and_nothing_is_dead(
    client: tidegate.Client, reader: tidegate.Client, topic: str
) -> None:
    agent = reader.topic(topic).agent("ai", answers=f"{topic}_answers", retry=ONCE, workers=1)
    with pytest.raises(Forbidden):
        agent.run(answering(agent))
    assert_all_given_back(client, topic)


@BOTH
def test_a_topic_of_answers_that_is_deleted_ends_the_agent_and_nothing_is_dead(
    run: Run, server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    def work(agent: Any, message: MessageDict) -> object:
        if message["payload"] == 0:
            client.topics.delete(f"{topic}_answers")
        return answering(agent)(message)

    with pytest.raises(TopicNotFound, match="_answers"):
        run(server, topic, work, answers=f"{topic}_answers", retry=ONCE, workers=1)
    assert_all_given_back(client, topic)


def test_a_token_that_is_refused_at_the_answer_ends_the_agent_and_nothing_is_dead(
    server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    refusal = Say(401, b'{"error": {"code": "TOKEN_WRONG", "details": {}}}')
    with faulty_server(upstream=server.url) as faulty:
        faulty.script = Chosen(faulty, "publish", refusal)
        with tidegate.connect(faulty.url, token=server.token) as through:
            agent = through.topic(topic).agent("ai", answers=f"{topic}_answers", retry=ONCE, workers=1)
            with pytest.raises(TokenWrong):
                agent.run(answering(agent))
    assert_all_given_back(client, topic)


def test_a_topic_of_answers_that_is_made_anew_gets_answers_anew(
    server: RunningServer, client: tidegate.Client, topic: str
) -> None:
    for _ in range(2):
        count = Count(3)

        def work(agent: Any, message: MessageDict, count: Count = count) -> object:
            count(agent, message)
            return message["payload"]

        run_blocking(server, topic, work, answers=f"{topic}_answers", workers=1)
        answers = client.topic(f"{topic}_answers").consume()["messages"]
        assert payloads(answers) == [0, 1, 2]
        client.topics.delete(f"{topic}_answers")
        client.topics.create(f"{topic}_answers")
        client.topic(topic).reset("ai", "earliest")


async def waits(_message: MessageDict) -> None:
    """Do what only the other client can run."""


def yields(_message: MessageDict) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "hint"), [(waits, "connect_async"), (yields, "Return")], ids=["coroutine", "generator"]
)
def test_a_function_whose_call_does_not_do_its_work_is_refused_before_a_message_is_taken(
    client: tidegate.Client, topic: str, function: Callable[..., Any], hint: str
) -> None:
    agent = client.topic(topic).agent("ai")
    agent.stop()  # it would end at once, without a word
    with pytest.raises(RequestInvalid) as caught:
        agent.run(function)
    assert hint in str(caught.value.hint)
    assert client.topic(topic).groups() == []


def test_the_log_says_which_message_failed_and_what_becomes_of_it(
    server: RunningServer, client: tidegate.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    count = Count(4)

    def work(agent: Any, message: MessageDict) -> None:
        count(agent, message)
        if message["payload"] == 0:
            raise ValueError("not now" if message["deliveries"] == 1 else "never")
        if message["payload"] == 1:
            raise tidegate.Reject("not for us")

    with caplog.at_level(logging.WARNING):
        run_blocking(server, topic, work, retry=tidegate.Retry(attempts=2, first_ms=50), workers=1)
    dead = f"it is a dead letter now, in {topic}.dead"
    ids = [message["messageId"] for message in client.topic(topic).consume()["messages"]]
    ours = [record for record in caplog.records if record.name == "tidegate.agent"]
    lines = [record.getMessage() for record in ours]
    first, second = (
        f"topic={topic} partition=0 offset={offset} message={ids[offset]} delivery=" for offset in (0, 1)
    )
    assert sorted(lines) == [
        f"message failed {first}1 next='again in 0.05 s'",
        f"message failed {first}2 next='{dead}'",
        f"message rejected {second}1 reason='not for us' next='{dead}'",
    ]
    raised = [str(record.exc_info[1]) for record in ours if record.exc_info]
    assert raised == ["not now", "never"]


def test_what_becomes_of_a_message_whose_failure_could_not_be_told(topic: str) -> None:
    message: Any = {"topic": topic}
    body = {"delayMs": 2_000}
    assert describe_outcome(message, body, {"dead": 0}) == "again in 2 s"
    assert describe_outcome(message, {}, {"dead": 0}) == "again at once"
    assert describe_outcome(message, body, TokenWrong()) == "again when its lease ends"
    assert describe_outcome(message, body, TopicNotFound(topic=topic)) == "its topic or its group is gone"
    assert describe_outcome(message, body, None) == "its lease expired; another member may have it"
