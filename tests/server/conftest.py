"""One real server for the tests of this folder; each test uses topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.accounts import Office
from tests.server.group_client import Group
from tests.server.live_client import Tables
from tidegate.testing.server import RunningServer, running_server

# Longer than the longest wait for messages, which is a minute.
CLIENT_SECONDS = 120
_numbers = itertools.count()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    home: Path = tmp_path_factory.mktemp("server") / "home"
    limits = {
        "TIDEGATE_SERVER_BODY_BYTES_MAX": "100000",
        "TIDEGATE_SERVER_MESSAGES_MAX": "1000",
        "TIDEGATE_TOPICS_MESSAGE_BYTES_MAX": "5000",
        # Wrong tokens and links of many files come from one address, on a quick machine in one minute.
        "TIDEGATE_AUTH_GUESSES_MAX": "100000",
    }
    with running_server(home, environ=limits) as running:
        yield running


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(
        base_url=server.url, headers=headers, trust_env=False, timeout=CLIENT_SECONDS
    ) as client:
        yield client


@pytest.fixture
def new_topic(http: httpx.Client) -> Callable[..., str]:
    def make(partitions: int = 1) -> str:
        name = f"test.t{next(_numbers)}"
        answer = http.post("/api/v1/topics", json={"name": name, "partitions": partitions})
        assert answer.status_code == 201, answer.text
        return name

    return make


@pytest.fixture(scope="module")
def office(server: RunningServer) -> Iterator[Office]:
    made = Office(server)
    yield made
    made.close()


@pytest.fixture
def tables(http: httpx.Client) -> Tables:
    return Tables(http)


@pytest.fixture
def pair(http: httpx.Client, new_topic: Callable[..., str]) -> tuple[Group, Group]:
    topic = new_topic()
    return Group(http, topic, member="a"), Group(http, topic, member="b")
