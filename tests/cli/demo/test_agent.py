"""The demo's questions and answers: the route, the agent, and what the console view sees of them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tidegate
from tests.cli.calls import CALL_SECONDS_MAX
from tidegate.cli.console.status_feed import GroupLag, group_lags
from tidegate.cli.demo.agent import answer_to
from tidegate.cli.demo.demo import PRESENCE_INSERT, QUESTION_INSERT, prepare_demo
from tidegate.cli.demo.feeds import AGENT_GROUP, ANSWERS_TOPIC, QUESTIONS_TOPIC, ExchangeFeed, exchange_of
from tidegate.sdk.client import Client
from tidegate.storage.home.home import Home
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("asked") / "home") as running:
        with connect(running) as client:
            for _ in range(2):  # a second start of the demo goes on with what is there
                prepare_demo(client, Home.existing(running.home))
        yield running


def connect(server: RunningServer) -> Client:
    return tidegate.connect(server.url, token=server.token)


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with connect(server) as connected:
        yield connected


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + CALL_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def launch(home: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tidegate", "demo-agent", "--home", str(home)])


def answers(client: Client) -> list[str]:
    page = client.topic(ANSWERS_TOPIC).consume(limit=1000)
    return [message["payload"]["question"] for message in page["messages"]]


def test_questions_are_answered_from_the_stream_of_who_is_where(client: Client) -> None:
    for row in (["ada", "lobby", True], ["bob", "lobby", False], ["ada", "lobby", False]):
        client.sql(PRESENCE_INSERT, row)
    assert answer_to(client, "Who is in lobby?") == "Ada and Bob."
    assert answer_to(client, "How many are in lobby?") == "2 in lobby."
    assert answer_to(client, "Who is in grid?") == "Nobody is in grid."
    assert answer_to(client, "What is love?") == "That I do not know."


def test_a_question_in_the_table_is_answered_once_though_the_agent_is_killed(
    client: Client, server: RunningServer
) -> None:
    feed = ExchangeFeed(lambda: connect(server))
    feed.start()
    asked = [["cleo", f"Who is in help, number {number}?"] for number in range(6)]
    first = launch(server.home)
    client.sql(QUESTION_INSERT, asked)
    wait_for(lambda: answers(client))
    first.kill()
    first.wait()
    # What the killed agent held comes again when its leases run out; nobody waits for that here.
    client.topic(QUESTIONS_TOPIC).reset(AGENT_GROUP, "earliest")
    second = launch(server.home)
    try:
        wait_for(lambda: not any(one.lag for one in group_lags(client)))
        second.send_signal(signal.SIGTERM)
        assert second.wait(CALL_SECONDS_MAX) == 0
    finally:
        second.kill()
        second.wait()
    assert sorted(answers(client)) == sorted(text for _, text in asked)
    assert group_lags(client) == [GroupLag(QUESTIONS_TOPIC, AGENT_GROUP, 0, 0)]
    wait_for(lambda: len(feed.newest()) == len(asked))
    assert feed.newest()[0].who == "cleo"
    feed.stop()


def test_an_answer_of_another_make_is_shown_as_far_as_it_goes() -> None:
    for payload in ({"answer": "Yes.", "seconds": None}, "Yes."):
        assert exchange_of(payload).answer == "Yes."
