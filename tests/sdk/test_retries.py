"""What is tried again and what is not: a lost request, a busy server, one that is away."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpcore
import pytest

import tidegate
from tests.sdk.faults import Fault, FaultyServer, Say, faulty_server
from tidegate.errors import (
    CatalogUnavailable,
    NotReady,
    ServerNotRunning,
    TooManyRequests,
    TopicExists,
    TopicNotFound,
)
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.client import Client
from tidegate.sdk.requests import Request
from tidegate.sdk.retries import (
    ATTEMPTS_MAX,
    EndlessRetryState,
    FailedAttempt,
    FailureKind,
    RetryPolicy,
    RetryState,
    connection_failure,
)
from tidegate.storage.home.address import ServerEndpoint
from tidegate.testing.clock import ManualClock
from tidegate.testing.server import RunningServer, running_server

TOPIC = Say(200, b'{"name": "app.x"}')
BUSY = Say(
    429,
    b'{"error": {"code": "TOO_MANY_REQUESTS", "details": {"retry_after_seconds": 3}}}',
    {"Retry-After": "3", "X-Request-Id": "server-1"},
)
NOT_READY = Say(
    503, b'{"error": {"code": "NOT_READY", "details": {"reason": "starting"}}}', {"Retry-After": "2"}
)
GET = Request("GET", "/")
POST = Request("POST", "/")
AWAY = FailedAttempt(FailureKind.UNSENT, ServerNotRunning(url="u", reason="r"))
LOST = FailedAttempt(FailureKind.LOST, ServerNotRunning(url="u", reason="r"))


class Pauses:
    """Time that passes only while a client waits."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.seconds: list[float] = []

    def pause(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.clock.advance(seconds)

    def retry_policy(self, seconds: float = 10.0) -> RetryPolicy:
        return RetryPolicy(seconds, clock=self.clock, chance=random.Random(7))


@contextmanager
def client_of(faulty: FaultyServer, pauses: Pauses, seconds: float = 10.0) -> Iterator[Client]:
    found = ServerEndpoint(faulty.url, "token")
    transport = Transport(lambda: found, retry_policy=pauses.retry_policy(seconds), pause=pauses.pause)
    with Client(transport) as client:
        yield client


@contextmanager
def through(*script: Fault, server: RunningServer) -> Iterator[tuple[FaultyServer, Client]]:
    with (
        faulty_server(*script, upstream=server.url) as faulty,
        tidegate.connect(faulty.url, token=server.token) as client,
    ):
        yield faulty, client


@pytest.mark.parametrize("fault", ["drop", Say(200, b'{"name"', cut=True), Say(502, b"<html>")])
def test_reading_is_tried_again_when_the_answer_is_lost(fault: Say) -> None:
    pauses = Pauses()
    with faulty_server(fault, fault, TOPIC) as faulty, client_of(faulty, pauses) as client:
        assert client.topics.show("app.x")["name"] == "app.x"
        assert [seen.method for seen in faulty.seen] == ["GET"] * 3
    assert len(pauses.seconds) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.topic("app.x").publish([{"payload": 1}]),
        lambda client: client.sql("INSERT INTO app.t VALUES (1)"),
        lambda client: client.insert("app.t", [{"a": 1}]),
        lambda client: client.users.make_token("ann"),
        lambda client: client.open_link(),
        lambda client: client.topic("app.x").publish([{"payload": 1}], producer_id="p"),
    ],
)
@pytest.mark.parametrize("fault", ["drop", NOT_READY, BUSY])
def test_what_may_act_twice_is_sent_once(call: Callable[[Client], object], fault: Say) -> None:
    with faulty_server(fault) as faulty, client_of(faulty, Pauses()) as client:
        with pytest.raises((ServerNotRunning, NotReady, TooManyRequests)):
            call(client)
        assert len(faulty.seen) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.topics.create("app.x"),
        lambda client: client.tenants.create("acme"),
        lambda client: client.users.add("ann"),
    ],
)
def test_what_makes_something_comes_again_under_the_same_key(call: Callable[[Client], object]) -> None:
    with faulty_server("drop", NOT_READY) as faulty, client_of(faulty, Pauses()) as client:
        call(client)
        call(client)
        keys = [seen.headers["idempotency-key"] for seen in faulty.seen]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert len({(seen.path, seen.body) for seen in faulty.seen}) == 1


def test_the_server_says_how_long_to_wait() -> None:
    pauses = Pauses()
    with faulty_server(BUSY, NOT_READY, TOPIC) as faulty, client_of(faulty, pauses) as client:
        client.topics.show("app.x")
    first, second = pauses.seconds
    assert 3 < first < 3.1
    assert 2 < second < 2.2


def test_a_wait_beyond_the_patience_is_not_begun() -> None:
    pauses = Pauses()
    with faulty_server(BUSY, BUSY) as faulty, client_of(faulty, pauses, 5.0) as client:
        with pytest.raises(TooManyRequests) as caught:
            client.status()
        assert len(faulty.seen) == 2
    assert caught.value.request_id == "server-1"
    assert sum(pauses.seconds) < 5


def test_without_patience_nothing_is_tried_again() -> None:
    pauses = Pauses()
    with faulty_server("drop") as faulty, client_of(faulty, pauses, 0.0) as client:
        with pytest.raises(ServerNotRunning):
            client.status()
        assert len(faulty.seen) == 1
    assert pauses.seconds == []


def test_an_error_of_the_server_is_final() -> None:
    refused = Say(404, b'{"error": {"code": "TOPIC_NOT_FOUND", "details": {"topic": "app.x"}}}')
    with faulty_server(refused) as faulty, client_of(faulty, Pauses()) as client:
        with pytest.raises(TopicNotFound):
            client.topics.show("app.x")
        with pytest.raises(TopicNotFound):
            faulty.script.append(refused)
            client.topics.delete("app.x")
        assert len(faulty.seen) == 2


def test_a_delete_whose_answer_was_lost_is_done_when_nothing_is_found(
    server: RunningServer, client: tidegate.Client
) -> None:
    client.topics.create("app.lost_delete")
    with through("lose", server=server) as (faulty, other):
        other.topics.delete("app.lost_delete")
        assert len(faulty.seen) == 2
        with pytest.raises(TopicNotFound):
            other.topics.delete("app.lost_delete")


def test_a_create_whose_answer_was_lost_makes_one_topic_and_raises_nothing(
    server: RunningServer, client: tidegate.Client
) -> None:
    with through("lose", "lose", server=server) as (faulty, other):
        other.topics.create("app.lost_create", partitions=2)
        assert len(faulty.seen) == 3
        with pytest.raises(TopicExists):
            other.topics.create("app.lost_create", partitions=2)
    assert len(client.topics.show("app.lost_create")["partitions"]) == 2


def test_a_server_that_is_away_is_waited_for_even_by_what_may_act_twice(home: Path) -> None:
    with running_server(home) as server, tidegate.connect(home=home) as client:
        client.topics.create("app.x")
        first = server.url
        server.kill()
        patient = tidegate.connect(home=home, retry_seconds=60)
        placed: list[object] = []
        waiting = threading.Thread(
            target=lambda: placed.extend(patient.topic("app.x").publish([{"payload": 1}]))
        )
        waiting.start()
        with running_server(home) as again:
            assert again.url != first
            waiting.join(60)
            assert len(placed) == 1
            assert patient.url == again.url
        patient.close()


def test_a_port_where_nobody_listens_ends_within_the_patience() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = ServerEndpoint(f"http://127.0.0.1:{taken.getsockname()[1]}", "token")
        pauses = Pauses()
        transport = Transport(lambda: found, retry_policy=pauses.retry_policy(4.0), pause=pauses.pause)
        with Client(transport) as client, pytest.raises(ServerNotRunning) as caught:
            client.sql("SELECT 1")
    assert caught.value.request_id
    assert 3 < sum(pauses.seconds) <= 4


def test_pauses_double_up_to_a_second_and_are_jittered() -> None:
    pauses = Pauses()
    retry_state = RetryState(pauses.retry_policy(3600), GET)
    seconds = [retry_state.next_pause(LOST) or 0.0 for _ in range(12)]
    full = [min(0.05 * 2**attempt, 1.0) for attempt in range(12)]
    assert all(half / 2 <= one <= half for one, half in zip(seconds, full, strict=True))
    assert len(set(seconds)) == 12


def test_attempts_are_bounded_whatever_the_patience() -> None:
    retry_state = RetryState(Pauses().retry_policy(1e9), GET)
    attempts = 1
    while retry_state.next_pause(AWAY) is not None:
        attempts += 1
    assert attempts == ATTEMPTS_MAX


def test_a_server_that_says_nothing_is_not_asked_again() -> None:
    silent = connection_failure(httpcore.ReadTimeout(""), "http://h")
    retry_state = RetryState(Pauses().retry_policy(3600), GET)
    assert retry_state.next_pause(silent) is None
    assert retry_state.may_have_arrived


def test_a_long_wait_takes_nothing_from_the_patience() -> None:
    pauses = Pauses()
    retry_state = RetryState(pauses.retry_policy(10), GET)
    pauses.clock.advance(60)
    assert retry_state.next_pause(LOST) is not None
    pauses.clock.advance(11)
    assert retry_state.next_pause(LOST) is None


def test_a_course_knows_whether_something_may_have_arrived() -> None:
    retry_policy = Pauses().retry_policy()
    busy = FailedAttempt(FailureKind.BUSY, TooManyRequests())
    for failures, expected in (
        ([AWAY, busy], False),
        ([AWAY, LOST, busy], True),
        ([FailedAttempt(FailureKind.BUSY, CatalogUnavailable(reason="r"))], True),
    ):
        retry_state = RetryState(retry_policy, POST)
        for failure in failures:
            retry_state.next_pause(failure)
        assert retry_state.may_have_arrived is expected


def test_a_vigil_goes_on_until_it_is_over() -> None:
    pauses, over = Pauses(), threading.Event()
    vigil = EndlessRetryState(pauses.retry_policy(0), GET, over.is_set)
    silent = connection_failure(httpcore.ReadTimeout(""), "http://h")
    troubled = FailedAttempt(FailureKind.FINAL, CatalogUnavailable(reason="r"))
    for failure in (AWAY, LOST, silent, troubled) * ATTEMPTS_MAX:
        pauses.clock.advance(3600)
        assert vigil.next_pause(failure) is not None
    assert vigil.next_pause(FailedAttempt(FailureKind.FINAL, TopicNotFound(topic="t"))) is None
    over.set()
    assert vigil.next_pause(LOST) is None
