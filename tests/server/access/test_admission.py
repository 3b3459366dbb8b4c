"""What holds before anyone is let in: room, headers, connections, and what a stranger is told."""

from __future__ import annotations

import json
import re
import select
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.accounts import Office
from tidegate.server.app import ANONYMOUS_MAX
from tidegate.testing.server import RunningServer, running_server

REQUESTS_MAX = 3
CONNECTIONS_MAX = 100
HEADER_BYTES_MAX = 8192
ANSWER_SECONDS = 60.0
SLOW_ENTER = (
    "POST /enter HTTP/1.1\nHost: x\nContent-Type: application/x-www-form-urlencoded\n"
    "Content-Length: 4000\n\nc"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    limits = {
        "TIDEGATE_SERVER_REQUESTS_MAX": str(REQUESTS_MAX),
        "TIDEGATE_SERVER_CONNECTIONS_MAX": str(CONNECTIONS_MAX),
    }
    with running_server(tmp_path_factory.mktemp("door") / "home", environ=limits) as running:
        yield running


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    limits = {
        "TIDEGATE_SERVER_HEADER_BYTES_MAX": str(HEADER_BYTES_MAX),
    }
    with running_server(tmp_path_factory.mktemp("strict") / "home", environ=limits) as running:
        yield running


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that gives a head less time than it keeps a connection between two requests."""
    limits = {"TIDEGATE_SERVER_BODY_SECONDS_MAX": "2"}
    with running_server(tmp_path_factory.mktemp("hasty") / "home", environ=limits) as running:
        yield running


def connect(server: RunningServer, text: str = "") -> socket.socket:
    address = urlsplit(server.url)
    connection = socket.create_connection((str(address.hostname), address.port or 0), timeout=ANSWER_SECONDS)
    connection.sendall(text.replace("\n", "\r\n").replace("TOKEN", server.token).encode())
    return connection


def read_all(connection: socket.socket) -> bytes:
    """Return everything up to the end of the connection; it ends, or this fails."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass  # closed while we still had something to say
    return b"".join(parts)


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Return one answer that tells its length."""
    text = b""
    while b"\r\n\r\n" not in text:
        part = connection.recv(65_536)
        assert part, text
        text += part
    head, _, body = text.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < int(lengths[0].partition(b":")[2]):
        body += connection.recv(65_536)
    return int(head.split(b" ")[1]), body


def admin(server: RunningServer) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30)


def test_strangers_have_a_limit_of_their_own_and_shut_nobody_out(server: RunningServer) -> None:
    beyond = 4
    slow = [connect(server, SLOW_ENTER) for _ in range(ANONYMOUS_MAX + beyond)]
    try:
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(answered := select.select(slow, [], [], 0.1)[0]) < beyond and time.monotonic() < deadline:
            pass
        assert len(answered) == beyond
        assert {read_answer(connection)[0] for connection in answered} == {429}
        with admin(server) as http:
            assert http.get("/api/v1/me").status_code == 200
    finally:
        for connection in slow:
            connection.close()


def test_what_is_refused_leaves_its_room_to_others(server: RunningServer) -> None:
    with admin(server) as http:
        for _ in range(REQUESTS_MAX + 2):
            assert http.get("/api/v1/topics/absent").status_code == 404
            assert http.get("/nowhere").status_code == 404
            assert httpx.get(f"{server.url}/api/v1/me", trust_env=False, timeout=60).status_code == 401
        assert http.get("/api/v1/me").status_code == 200


def test_more_connections_than_allowed_are_told_so_and_closed(server: RunningServer) -> None:
    held = [connect(server) for _ in range(CONNECTIONS_MAX)]
    try:
        with connect(server) as more:
            answer = read_all(more)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1" in answer
        error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
        assert (error["code"], error["details"]["setting"]) == ("TOO_MANY_REQUESTS", "server.connections_max")
    finally:
        for connection in held:
            connection.close()
    deadline = time.monotonic() + ANSWER_SECONDS
    with admin(server) as http:
        while http.get("/api/v1/me").status_code == 429 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert http.get("/api/v1/me").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        "GET /health HTTP/1.1\nHost: x\nX: " + "a" * HEADER_BYTES_MAX + "\n\n",
        "GET /health HTTP/1.1\nHost: x\n" + "X: aaaaaaaa\n" * (HEADER_BYTES_MAX // 12) + "\n",
        "GET /health?" + "a" * HEADER_BYTES_MAX + " HTTP/1.1\nHost: x\n\n",
        "POST /enter HTTP/1.1\nHost: x\nContent-Length: 3\nX: " + "a" * HEADER_BYTES_MAX + "\n\nabc",
    ],
)
def test_a_head_that_is_too_large_is_refused_and_the_connection_closed(
    strict: RunningServer, head: str
) -> None:
    with connect(strict, head) as connection:
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "HEADERS_TOO_LARGE"
    assert error["details"]["limit_bytes"] == HEADER_BYTES_MAX


@pytest.mark.parametrize("begin", ["GET /health HTTP/1.1\nHost: x\nX: ", "GET /health?"])
def test_a_head_without_an_end_is_cut_off_at_the_limit(server: RunningServer, begin: str) -> None:
    sent_bytes = 0
    with connect(server, begin) as connection:
        try:
            while sent_bytes < 100_000_000:
                connection.sendall(b"a" * 100_000)
                sent_bytes += 100_000
        except (BrokenPipeError, ConnectionResetError):
            pass
    # What the system keeps between the two ends is a few megabytes.
    assert sent_bytes < 50_000_000


def test_a_head_within_the_limit_is_taken_also_in_pieces_and_one_after_the_other(
    strict: RunningServer,
) -> None:
    head = "GET /health HTTP/1.1\nHost: x\nX: " + "a" * (HEADER_BYTES_MAX - 200) + "\n\n"
    with connect(strict) as connection:
        for _ in range(3):
            for at in range(0, len(head), 2000):
                connection.sendall(head[at : at + 2000].replace("\n", "\r\n").encode())
                time.sleep(0.01)
            assert read_answer(connection)[0] == 200
    with connect(strict, head * 3) as connection:
        assert read_answer(connection)[0] == 200


@pytest.mark.parametrize("text", ["", "GET /health HTTP/1.1\nHost: x\n", "\n"])
def test_a_connection_on_which_no_request_comes_is_closed(hasty: RunningServer, text: str) -> None:
    with connect(hasty, text) as connection:
        assert read_all(connection) == b""


def test_a_connection_stays_open_between_requests_and_while_one_is_answered(hasty: RunningServer) -> None:
    with admin(hasty) as http:
        http.post("/api/v1/topics", json={"name": "door.wait"}).raise_for_status()
    body = '{"from": "latest", "waitMs": 2500}'
    ask = (
        "POST /api/v1/topics/door.wait/consume HTTP/1.1\nHost: x\nAuthorization: Bearer TOKEN\n"
        f"Content-Type: application/json\nContent-Length: {len(body)}\n\n{body}"
    )
    with connect(hasty, ask) as connection:
        assert read_answer(connection)[0] == 200
        with connect(hasty) as other:
            assert read_all(other) == b""  # a head may not take longer than this
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_answer(connection)[0] == 200


def test_two_authorization_headers_are_refused_whichever_is_right(server: RunningServer) -> None:
    right, wrong = "Authorization: Bearer TOKEN\n", "Authorization: Bearer wrong\n"
    for pair in (right + wrong, wrong + right, right + right):
        with connect(server, f"GET /api/v1/me HTTP/1.1\nHost: x\n{pair}\n") as connection:
            status, body = read_answer(connection)
        assert (status, json.loads(body)["error"]["code"]) == (401, "TOKEN_WRONG")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "127.0.0.1:8787"}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:1"}, 200),
        ({"Host": "[::1]:8787"}, 200),
        ({"Host": "tidegate.example"}, 401),
        ({"Host": "127.0.0.1.example:8787"}, 401),
        ({"Host": "x@localhost.example"}, 401),
        ({"Host": ""}, 401),
        ({"Host": "[::1"}, 401),
        ({"X-Forwarded-For": "203.0.113.9"}, 401),
        ({"X-Forwarded-Host": "tidegate.example"}, 401),
        ({"X-Real-Ip": "203.0.113.9"}, 401),
        ({"Forwarded": "for=203.0.113.9"}, 401),
        ({"Via": "1.1 proxy"}, 401),
        ({"Via": ""}, 401),
    ],
)
def test_metrics_without_a_token_are_for_this_machine_alone(
    server: RunningServer, headers: dict[str, str], status: int
) -> None:
    assert (
        httpx.get(f"{server.url}/metrics", headers=headers, trust_env=False, timeout=60).status_code == status
    )


def test_a_part_that_is_broken_is_told_in_a_few_words_and_the_log_has_the_rest(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        shutil.rmtree(server.home / "lake")
        answer = httpx.get(f"{server.url}/ready", trust_env=False, timeout=60)
        assert answer.status_code == 503
        parts = answer.json()["error"]["details"]["parts"]
        assert parts["lake"] == {"ok": False, "reason": "cannot be read"}
        assert str(tmp_path) not in answer.text
        assert f"{server.home / 'lake'} is not there" in _log_of(server)


def test_a_stream_that_is_cut_leaves_one_line_in_the_log(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        office = Office(server)
        office.ask("POST", "/api/v1/topics", json={"name": "long"})
        for _ in range(40):
            office.ask(
                "POST", "/api/v1/topics/long/publish", json={"messages": [{"payload": "x" * 1_000_000}]}
            )
        person = office.person("reader")
        asked = {"partition": 0, "from": 0, "to": 40}
        with person.http.stream("POST", "/api/v1/topics/long/read", json=asked) as answer:
            chunks = answer.iter_raw(65_536)
            next(chunks)
            office.revoke(person)
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in chunks:
                    pass
        office.close()
    written = _log_of(server)
    assert len(re.findall(r"answer aborted .* error_code=TOKEN_REVOKED ", written)) == 1
    assert "Traceback" not in written
    assert "ASGI" not in written


def _log_of(server: RunningServer) -> str:
    return (server.home.parent / f"{server.home.name}.server.log").read_text()
