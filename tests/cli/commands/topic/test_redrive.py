"""Dead letters sent again, and readers that outlive their server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.calls import CALL_SECONDS_MAX, on_a_terminal, tidegate_here
from tidegate import connect
from tidegate.cli.commands.topic.redrive import GROUP, is_letter
from tidegate.sdk.client import Client
from tidegate.testing.server import running_server

PIPE = subprocess.PIPE


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running_server(tmp_path_factory.mktemp("redrive") / "home") as running:
        yield running.home


@pytest.fixture
def client(home: Path) -> Iterator[Client]:
    with connect(home=home) as found:
        yield found


def failed(client: Client, topic: str, messages: list[dict[str, Any]]) -> None:
    """Make a topic whose messages all are dead letters."""
    made = client.topics.create(topic)
    made.publish(messages)
    leases = [str(message["lease"]) for message in made.consume(group="g")["messages"]]
    made.nack("g", leases, dead=True, reason="no")


def test_dead_letters_are_sent_again_once_with_key_and_payload(client: Client, home: Path) -> None:
    messages: list[dict[str, Any]] = [
        {"key": "k", "payload": {"n": 1}},
        {"payload": "ü"},
        {"key": "", "payload": None},
    ]
    failed(client, "Shop.re-drive", messages)
    client.topic("Shop.re-drive.dead").publish([{"payload": "no letter"}])
    words = ("topic", "redrive", "Shop.re-drive", "--yes")
    answer = tidegate_here(*words, "--limit", "1", home=home)
    assert answer.stderr == ""
    said = answer.stdout
    assert said == "Sent 1 letter to Shop.re-drive again; Shop.re-drive.dead keeps them as well.\n"
    counts = json.loads(tidegate_here(*words, "--json", home=home).stdout)
    assert counts == {"sent": 2, "leftOut": 1, "refused": 0}
    assert "Nothing to send" in tidegate_here(*words, home=home).stdout
    again = client.topic("Shop.re-drive").consume(group="g")["messages"]
    assert [(one["key"], one["payload"]) for one in again] == [("k", {"n": 1}), (None, "ü"), ("", None)]


def test_a_letter_that_was_sent_and_not_acknowledged_is_not_sent_twice(client: Client, home: Path) -> None:
    failed(client, "shop.once", [{"payload": 1}])
    words = ("topic", "redrive", "shop.once", "--yes", "--json")
    assert json.loads(tidegate_here(*words, home=home).stdout)["sent"] == 1
    client.topic("shop.once.dead").reset(GROUP, "earliest")
    assert json.loads(tidegate_here(*words, home=home).stdout)["sent"] == 1
    assert client.topics.show("shop.once")["messages"] == 2


def test_letters_go_when_someone_says_yes(client: Client, home: Path) -> None:
    failed(client, "shop.asked", [{"payload": 1}])
    unasked = tidegate_here("topic", "redrive", "shop.asked", home=home)
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
    code, said = on_a_terminal("topic", "redrive", "shop.asked", home=home, typed="n\n")
    assert (code, "Send up to 1 letter of shop.asked.dead to shop.asked again?" in said) == (1, True)
    assert client.topics.show("shop.asked")["messages"] == 1
    client.topics.create("shop.fine")
    none = tidegate_here("topic", "redrive", "shop.fine", "--yes", home=home)
    assert (none.returncode, "No message of shop.fine has failed" in none.stderr) == (1, True)


def test_a_letter_without_a_message_is_not_sent() -> None:
    lost = {"op": "DEAD", "payload": {"reason": "the message could not be read (…)", "payload": None}}
    assert not is_letter(lost)
    assert is_letter({"op": "DEAD", "payload": {"reason": "no", "payload": None}})


def follower(home: Path, *flags: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tidegate", "topic", "consume", "app.events", "--follow", "--json", *flags]
    return subprocess.Popen([*words, "--home", str(home)], stdout=PIPE, stderr=PIPE, text=True)


def line_of(stream: IO[str] | None) -> Any:
    assert stream is not None
    line = stream.readline()
    assert line.startswith("{"), line
    return json.loads(line)


def test_who_follows_waits_for_a_server_that_starts_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running_server(home) as running, connect(home=home) as first:
        first.topics.create("app.events").publish([{"payload": 1}])
        children = [follower(home), follower(home, "--group", "g", "--ack")]
        for child in children:
            assert line_of(child.stdout)["payload"] == 1
        while first.topic("app.events").groups()[0]["lag"]:
            time.sleep(0.05)  # one that is on its way when the server falls may be told as lost
        running.kill()
    try:
        for child in children:
            assert line_of(child.stderr) == {"event": "the server is away"}
        with running_server(home), connect(home=home) as second:
            second.topic("app.events").publish([{"payload": 2}])
            for child in children:
                assert line_of(child.stderr) == {"event": "the server is back"}
                assert line_of(child.stdout)["payload"] == 2
                child.send_signal(signal.SIGINT)
                assert child.wait(CALL_SECONDS_MAX) == 130
                # An acknowledgement whose answer the kill took is asked for again, and told as lost.
                out, told = child.communicate()
                assert out == "" and all("LEASE_LOST" in line for line in told.splitlines())
    finally:
        for child in children:
            child.kill()
            child.communicate()
