"""Limits at the door: too much at once, too slow, too long; and an id on every answer."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.access.test_admission import read_answer
from tidegate.testing.server import RunningServer, running_server

LIMITS = {
    "TIDEGATE_SERVER_REQUESTS_MAX": "3",
    "TIDEGATE_SERVER_WAITS_MAX": "2",
    "TIDEGATE_SERVER_PAGE_ROWS_MAX": "5",
    "TIDEGATE_QUERY_STATEMENTS_MAX": "1",
}

WAIT_SECONDS = 40.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder: Path = tmp_path_factory.mktemp("limits") / "home"
    with running_server(folder, environ=LIMITS) as running:
        yield running


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=120) as client:
        yield client


def open_socket(server: RunningServer, text: str) -> socket.socket:
    address = urlsplit(server.url)
    place = str(address.hostname), address.port or 0
    connection = socket.create_connection(place, timeout=WAIT_SECONDS)
    send(server, connection, text)
    return connection


def send(server: RunningServer, connection: socket.socket, text: str) -> None:
    connection.sendall(text.replace("\n", "\r\n").replace("TOKEN", server.token).encode())


def waits_become(http: httpx.Client, count: int) -> bool:
    """Return whether so many wait for messages, before any of them gives up by itself."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if f"tidegate_http_polls_waiting {count}.0" in http.get("/metrics").text:
            return True
        time.sleep(0.05)
    return False


SLOW = """POST /api/v1/sql HTTP/1.1
Host: x
Authorization: Bearer TOKEN
Content-Type: application/json
Content-Length: 100

{"""


def test_a_body_that_does_not_arrive_is_given_up(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "home", environ={"TIDEGATE_SERVER_BODY_SECONDS_MAX": "2.5"}) as server,
        open_socket(server, SLOW) as connection,
    ):
        answer = ""
        while "REQUEST_TIMEOUT" not in answer and (part := connection.recv(65_536)):
            answer += part.decode()
    assert answer.startswith("HTTP/1.1 408")
    assert "REQUEST_TIMEOUT" in answer


def test_many_polls_that_come_at_once_all_wait_and_all_are_answered(tmp_path: Path) -> None:
    """Case 21: who is about to wait is not refused because others are, too."""
    message = {"messages": [{"payload": 1}]}
    with (
        running_server(tmp_path / "home", environ={"TIDEGATE_SERVER_REQUESTS_MAX": "3"}) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as http,
    ):
        http.headers["Authorization"] = f"Bearer {server.token}"
        assert http.post("/api/v1/topics", json={"name": "app.left"}).status_code == 201
        polls = [open_socket(server, "") for _ in range(30)]
        # It finds them all at once, however slow we are.
        server.child.send_signal(signal.SIGSTOP)
        for poll in polls:
            send(server, poll, WAIT)
        server.child.send_signal(signal.SIGCONT)
        assert waits_become(http, 30)
        assert http.post("/api/v1/topics/app.left/publish", json=message).status_code == 200
        answers = [read_answer(poll) for poll in polls]
        for poll in polls:
            poll.close()
    assert [(status, len(json.loads(body)["messages"])) for status, body in answers] == [(200, 1)] * 30


def test_more_requests_than_allowed_get_429_with_a_time_to_wait(
    server: RunningServer, http: httpx.Client
) -> None:
    slow = [open_socket(server, SLOW) for _ in range(3)]
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while (refused := http.get("/api/v1/status")).status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "TOO_MANY_REQUESTS"
        assert int(refused.headers["retry-after"]) >= 1
        # The probes answer however much is going on.
        assert httpx.get(f"{server.url}/ready", trust_env=False, timeout=60).status_code == 200
    finally:
        for connection in slow:
            connection.close()
    deadline = time.monotonic() + WAIT_SECONDS
    while http.get("/api/v1/status").status_code == 429 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert http.get("/api/v1/status").status_code == 200


def test_waiting_for_messages_has_a_limit_of_its_own(server: RunningServer, http: httpx.Client) -> None:
    topic = "/api/v1/topics/app.waits"
    http.post("/api/v1/topics", json={"name": "app.waits"}).raise_for_status()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(http.post, f"{topic}/consume", json={"waitMs": 60_000}) for _ in range(2)]
        assert waits_become(http, 2)
        assert http.post(f"{topic}/consume", json={"waitMs": 60_000}).status_code == 429
        # Those that wait take no room from those that work.
        assert http.get("/api/v1/status").status_code == 200
        http.post(f"{topic}/publish", json={"messages": [{"payload": 1}]}).raise_for_status()
        assert [poll.result().status_code for poll in waiting] == [200, 200]


WAIT = """POST /api/v1/topics/app.left/consume HTTP/1.1
Host: x
Authorization: Bearer TOKEN
Content-Type: application/json
Content-Length: 32

{"waitMs":60000,"from":"latest"}"""


def test_a_wait_ends_when_its_caller_leaves(server: RunningServer, http: httpx.Client) -> None:
    http.post("/api/v1/topics", json={"name": "app.left"}).raise_for_status()
    waiting = [open_socket(server, WAIT) for _ in range(2)]
    assert waits_become(http, 2)
    for connection in waiting:
        connection.close()
    assert waits_become(http, 0)


def test_a_list_comes_in_pages_that_hold_everything_once(http: httpx.Client) -> None:
    names = sorted(f"page.t{number}" for number in range(12))
    for name in names:
        http.post("/api/v1/topics", json={"name": name}).raise_for_status()
    seen: list[str] = []
    after = "page."
    while after:
        page = http.get("/api/v1/topics", params={"limit": 5, "after": after}).json()
        assert len(page["topics"]) <= 5
        seen += [topic["name"] for topic in page["topics"]]
        after = page["next"]
    assert [name for name in seen if name.startswith("page.")] == names
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("limit", ["0", "6", "-1", "x", "1e3", "", "٣"])
def test_a_page_of_a_wrong_size_is_refused(http: httpx.Client, limit: str) -> None:
    answer = http.get("/api/v1/topics", params={"limit": limit})
    assert answer.status_code == 422
    assert "limit" in answer.json()["error"]["message"]


def test_every_answer_has_an_id_and_a_good_one_is_kept(server: RunningServer, http: httpx.Client) -> None:
    made = [http.get("/api/v1/status").headers["x-request-id"] for _ in range(2)]
    assert made[0] != made[1]
    for path in ("/health", "/nowhere", "/api/v1/topics/absent"):
        assert http.get(path, headers={"X-Request-Id": "mine-1.a_b"}).headers["x-request-id"] == "mine-1.a_b"
    assert httpx.get(f"{server.url}/api/v1/status", trust_env=False, timeout=60).headers["x-request-id"]
    for bad in ("a b", "x" * 65, "ü", "<script>"):
        answered = http.get("/health", headers={b"X-Request-Id": bad.encode()}).headers["x-request-id"]
        assert answered != bad


def test_a_socket_where_there_is_none_is_closed(server: RunningServer) -> None:
    upgrade = """GET /api/v1/status HTTP/1.1
Host: x
Authorization: Bearer TOKEN
Connection: Upgrade
Upgrade: websocket
Sec-WebSocket-Version: 13
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==

"""
    with open_socket(server, upgrade) as connection:
        answer = connection.recv(65_536).decode()
    assert answer.split(" ")[1] in ("200", "400", "403", "404")
