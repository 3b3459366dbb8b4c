"""Big answers: they arrive whole, in pieces, and a caller who does not take them harms nobody for long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.server.group_client import Group, offsets
from tidegate.errors import TooManyRequests
from tidegate.model.clock import SystemClock
from tidegate.server.access.admission import ANSWER_BYTES_MAX, HeldResponses
from tidegate.server.api import status
from tidegate.server.api.publish import LARGE_MESSAGES
from tidegate.server.http import responses
from tidegate.server.http.protocol import limited_protocol
from tidegate.server.http.request import LARGE_BODY_BYTES, HttpRequest
from tidegate.server.http.responses import (
    PIECE_BYTES,
    LargeResponse,
    StreamResponse,
)
from tidegate.server.runtime.statement_queue import StatementShares
from tidegate.server.runtime.thread_pools import Threads
from tidegate.settings import ServerSettings
from tidegate.telemetry.metrics import Metrics
from tidegate.testing.server import RunningServer, running_server

WAIT_SECONDS = 60.0
# More than a connection holds between a server that writes and a caller that does not read.
UNREAD_BYTES = 40_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("big") / "home"
    with running_server(folder, environ={"TIDEGATE_SERVER_REQUESTS_MAX": "3"}) as running:
        yield running


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as client:
        yield client


def ask_and_never_read(address: str, path: str, body: object, token: str = "") -> socket.socket:
    place = urlsplit(address)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((str(place.hostname), place.port or 0))
    content = json.dumps(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection.sendall((head + content).encode())
    return connection


def until(told: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not told():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def nobody_runs(http: httpx.Client) -> bool:
    """Return whether nothing runs but the scrape itself: places are free for the next test, too."""
    return "tidegate_http_requests_in_flight 1.0" in http.get("/metrics").text


def large_sql(size_bytes: int) -> dict[str, str]:
    return {"sql": f"SELECT repeat('a', {size_bytes // 4}) AS x FROM range(4)"}


def test_a_large_answer_arrives_whole(http: httpx.Client) -> None:
    for size_bytes in (60_000, 70_000, PIECE_BYTES * 4, 9_000_000):
        answer = http.post("/api/v1/sql", json=large_sql(size_bytes))
        assert int(answer.headers["content-length"]) == len(answer.content) > size_bytes - 4
        assert answer.json()["rows"] == [["a" * (size_bytes // 4)]] * 4
        assert http.get("/api/v1/me").status_code == 200, "the connection goes on"


def test_many_messages_go_in_and_come_out(http: httpx.Client) -> None:
    http.post("/api/v1/topics", json={"name": "big.many", "partitions": 3}).raise_for_status()
    count = LARGE_MESSAGES * 3
    body = {"messages": [{"payload": {"n": n, "pad": "x" * 50}, "key": f"k{n}"} for n in range(count)]}
    assert len(json.dumps(body)) > LARGE_BODY_BYTES
    answer = http.post("/api/v1/topics/big.many/publish", json=body, headers={"Idempotency-Key": "many"})
    places = {(place["partition"], place["offset"]) for place in answer.json()["offsets"]}
    assert len(places) == count
    again = http.post("/api/v1/topics/big.many/publish", json=body, headers={"Idempotency-Key": "many"})
    assert again.content == answer.content
    taken = http.post("/api/v1/topics/big.many/consume", json={"limit": count}).json()["messages"]
    assert sorted(message["payload"]["n"] for message in taken) == list(range(count))


def test_large_messages_are_read_as_a_stream(http: httpx.Client) -> None:
    http.post("/api/v1/topics", json={"name": "big.stream"}).raise_for_status()
    payloads = [str(n) * 700_000 for n in range(8)]
    body = {"messages": [{"payload": payload} for payload in payloads]}
    http.post("/api/v1/topics/big.stream/publish", json=body).raise_for_status()
    answer = http.post("/api/v1/topics/big.stream/read", json={"partition": 0, "from": 1, "to": 8})
    table = pa.ipc.open_stream(answer.content).read_all()
    assert [json.loads(text) for text in table.column("payload").to_pylist()] == payloads[1:]


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.apache.arrow.stream"])
def test_an_answer_that_is_not_read_keeps_its_place_until_its_caller_leaves(
    server: RunningServer, http: httpx.Client, accept: str
) -> None:
    unread = [
        ask_and_never_read(
            server.url, "/api/v1/sql", large_sql(UNREAD_BYTES), f"{server.token}\r\nAccept: {accept}"
        )
        for _ in range(3)
    ]
    try:
        until(lambda: http.get("/api/v1/me").status_code == 429, "nobody holds the places")
        time.sleep(2)
        assert http.get("/api/v1/me").status_code == 429, "the places were given up with answers unread"
    finally:
        for connection in unread:
            connection.close()
    until(lambda: nobody_runs(http), "the places stay taken")
    assert http.get("/api/v1/me").status_code == 200


def test_more_bytes_of_answers_than_fit_are_refused_with_a_time_to_wait(
    server: RunningServer, http: httpx.Client
) -> None:
    body = large_sql(ANSWER_BYTES_MAX * 5 // 8)
    with ask_and_never_read(server.url, "/api/v1/sql", body, server.token) as unread:
        # Its place is taken once it begins to arrive: of two that are made at once, either may be refused.
        assert unread.recv(12) == b"HTTP/1.1 200"

        def refused() -> bool:
            with http.stream("POST", "/api/v1/sql", json=body) as answer:
                if answer.status_code != 429:
                    return False
                answer.read()
                assert answer.json()["error"]["code"] == "TOO_MANY_REQUESTS"
                assert int(answer.headers["retry-after"]) >= 1
                return True

        until(refused, "two answers that do not fit are held")
        assert http.post("/api/v1/sql", json={"sql": "SELECT 1"}).status_code == 200
    until(lambda: nobody_runs(http), "the places stay taken")


def test_what_is_held_is_counted_until_it_is_released() -> None:
    held = HeldResponses(100)
    held.add(1000)  # alone
    with pytest.raises(TooManyRequests):
        held.add(1)
    with pytest.raises(TooManyRequests):
        held.check_room()
    held.release(1000)
    held.add(60)
    held.check_room()
    with pytest.raises(TooManyRequests):
        held.add(41)
    held.add(40)
    assert held.size_bytes == 100


@contextlib.contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an application with the protocol of the server, in a thread."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    config = uvicorn.Config(app, http=limited_protocol(ServerSettings()), lifespan="off", log_config=None)
    made = uvicorn.Server(config)
    thread = threading.Thread(target=made.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        made.should_exit = True
        thread.join(WAIT_SECONDS)
        listener.close()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_caller_who_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    monkeypatch.setattr(responses, "UNREAD_SECONDS", 0.5)
    held, ended = HeldResponses(), threading.Event()

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(UNREAD_BYTES // PIECE_BYTES):
            yield b"x" * PIECE_BYTES

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if streamed:
            held.add(1)
            answer: Any = StreamResponse(chunks(), "text/plain", lambda: held.release(1))
        else:
            answer = LargeResponse(b"x" * UNREAD_BYTES, "text/plain", held=held)
        await answer(scope, receive, send)
        ended.set()

    with serving(app) as url, ask_and_never_read(url, "/", {}) as connection:
        assert ended.wait(WAIT_SECONDS), "the answer waits for a caller who never reads"
        assert held.size_bytes == 0
        taken_bytes = 0
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65_536):
                taken_bytes += len(part)
        assert taken_bytes < UNREAD_BYTES


def test_a_slow_caller_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses, "UNREAD_SECONDS", 30.0)
    size_bytes = 10_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await LargeResponse(b"x" * size_bytes, "text/plain")(scope, receive, send)

    with serving(app) as url, httpx.stream("POST", url, json={}, trust_env=False, timeout=60) as answer:
        taken_bytes = 0
        for part in answer.iter_raw(1_000_000):
            taken_bytes += len(part)
            time.sleep(0.05)
    assert taken_bytes == size_bytes


def test_work_on_a_large_body_leaves_the_event_loop() -> None:
    metrics = Metrics(time.monotonic)
    threads = Threads(StatementShares(1, 1, 1), metrics, SystemClock())
    running: Any = SimpleNamespace(threads=threads, settings=SimpleNamespace(server=ServerSettings()))

    async def worker_of(size_bytes: int) -> str:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"x" * size_bytes}

        call = HttpRequest({"headers": []}, receive, running)
        await call.body()
        return (await call.run_by_size(threading.current_thread)).name

    assert asyncio.run(worker_of(LARGE_BODY_BYTES)) == threading.current_thread().name
    assert asyncio.run(worker_of(LARGE_BODY_BYTES + 1)).startswith("tidegate-read")
    threads.close()


def test_the_status_lists_no_more_topics_than_its_limit(http: httpx.Client) -> None:
    before = http.get("/api/v1/status").json()
    assert before["topicsTotal"] == len(before["topics"])
    missing = range(status.STATUS_TOPICS_MAX + 1 - before["topicsTotal"])
    # Two at a time share a sync.
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(
            lambda n: http.post("/api/v1/topics", json={"name": f"status.t{n}"}).status_code, missing
        )
        assert set(made) == {201}
    after = http.get("/api/v1/status").json()
    assert (len(after["topics"]), after["topicsTotal"]) == (1000, 1001)
    names = [topic["name"] for topic in after["topics"]]
    assert names == sorted(names)


def test_what_does_not_fit_into_an_answer_is_given_next(http: httpx.Client) -> None:
    """What is leased and too much for one answer comes with the next, and as often as it was given."""
    assert http.post("/api/v1/topics", json={"name": "big.leased"}).status_code == 201
    a = Group(http, "big.leased", member="a")
    body = {"messages": [{"payload": "x" * 900_000}] * 12}
    for _ in range(2):  # together more than the 16 MiB of an answer
        assert http.post("/api/v1/topics/big.leased/publish", json=body).status_code == 200
    found = a.take()
    assert 0 < len(found) < 24
    while taken := a.take():
        found += taken
    assert offsets(found) == list(range(24))
    assert {message["deliveries"] for message in found} == {1}
