"""Starting and stopping the server: refusals that leave no trace, a stop that finishes what was accepted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.warm import command_line
from tidegate.errors import SettingInvalid
from tidegate.settings import SettingNote, describe_settings, load_settings
from tidegate.storage.home.home import Home
from tidegate.testing.server import RunningServer, running_server


def _serve(home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = command_line("serve", "--home", str(home), *more)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_taken_port_is_named_and_the_home_stays_usable(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = _serve(tmp_path / "home", "--port", str(port))
    assert refused.returncode != 0
    assert f"Port {port}" in refused.stderr
    assert f"--port {port + 1}" in refused.stderr
    with running_server(tmp_path / "home"):
        pass


def test_a_second_server_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as first:
        refused = _serve(tmp_path / "home", "--port", "0")
        assert refused.returncode != 0
        assert str(first.child.pid) in refused.stderr
        assert httpx.get(f"{first.url}/ready", trust_env=False, timeout=60).status_code == 200


def test_a_home_of_a_newer_layout_is_refused_and_untouched(tmp_path: Path) -> None:
    with running_server(tmp_path / "home"):
        pass
    (tmp_path / "home" / "layout.json").write_text(json.dumps({"layout": 99}))
    before = sorted(str(path) for path in (tmp_path / "home").rglob("*"))
    refused = _serve(tmp_path / "home", "--port", "0")
    assert refused.returncode != 0
    assert "layout 99" in refused.stderr
    assert sorted(str(path) for path in (tmp_path / "home").rglob("*")) == before


def test_a_wrong_setting_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "tidegate.toml").write_text("[server]\nprot = 1\n")
    refused = _serve(tmp_path / "home")
    assert refused.returncode != 0
    assert "server.port" in refused.stderr


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("note", [note for note in describe_settings() if note.kind == "float"])
def test_a_setting_is_a_finite_number(note: SettingNote, number: str, tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match=note.key):
        load_settings(None, {note.environment: number})
    section, name = note.key.split(".")
    (tmp_path / "tidegate.toml").write_text(f"[{section}]\n{name} = {number}\n")
    with pytest.raises(SettingInvalid, match=note.key):
        load_settings(tmp_path, {})


def test_a_whole_number_that_no_number_holds_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text(f"[server]\ngrace_seconds = 1{'0' * 400}\n")
    with pytest.raises(SettingInvalid, match=r"server\.grace_seconds"):
        load_settings(tmp_path, {})


def test_a_stop_answers_waiting_polls_and_forgets_the_address(tmp_path: Path) -> None:
    answers: list[httpx.Response] = []
    with running_server(tmp_path / "home") as server:
        http = httpx.Client(
            base_url=server.url,
            headers={"Authorization": f"Bearer {server.token}"},
            trust_env=False,
            timeout=60,
        )
        assert http.post("/api/v1/topics", json={"name": "a.b"}).status_code == 201
        body = {"from": "latest", "waitMs": 30_000}
        poll = threading.Thread(
            target=lambda: answers.append(http.post("/api/v1/topics/a.b/consume", json=body))
        )
        poll.start()
        _wait_until_scraped(server, "tidegate_http_polls_waiting 1.0")
        os.kill(server.child.pid, signal.SIGTERM)
        # Long before the wait is over by itself.
        poll.join(20)
        assert server.child.wait(60) == 0
    assert [answer.status_code for answer in answers] == [200]
    assert not (tmp_path / "home" / "run" / "server.json").exists()


def test_a_stop_breaks_off_statements_and_tells_their_callers(tmp_path: Path) -> None:
    answers: list[httpx.Response] = []
    with running_server(tmp_path / "home", environ={"TIDEGATE_SERVER_GRACE_SECONDS": "2"}) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        body = {"sql": "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"}

        def ask() -> None:
            answers.append(
                httpx.post(
                    f"{server.url}/api/v1/sql", json=body, headers=headers, trust_env=False, timeout=60
                )
            )

        asking = threading.Thread(target=ask)
        asking.start()
        _wait_until_scraped(server, "tidegate_sql_statements_running 1.0")
        os.kill(server.child.pid, signal.SIGTERM)
        asking.join(60)
        assert server.child.wait(60) == 0
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [
        (503, "NOT_READY")
    ]


def _begin(server: RunningServer, path: str, head: str, body: str) -> socket.socket:
    """Send a request and leave its answer where it is."""
    address = urlsplit(server.url)
    connection = socket.create_connection((str(address.hostname), address.port or 0), timeout=60)
    lines = ["Host: x", "Content-Type: application/json", f"Authorization: Bearer {server.token}", head]
    connection.sendall("\r\n".join([f"POST {path} HTTP/1.1", *lines, "", body]).encode())
    return connection


def _wait_until_scraped(server: RunningServer, line: str) -> None:
    headers = {"Authorization": f"Bearer {server.token}"}
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        scraped = httpx.get(f"{server.url}/metrics", headers=headers, trust_env=False, timeout=60).text
        if f"\n{line}\n" in scraped:
            return
        time.sleep(0.05)
    raise AssertionError(f"it was never so: {line}")


@pytest.mark.parametrize("grace_seconds", ["0", "0.4"])
def test_a_request_that_the_grace_does_not_suffice_for_is_told_so(tmp_path: Path, grace_seconds: str) -> None:
    environ = {"TIDEGATE_SERVER_GRACE_SECONDS": grace_seconds}
    with running_server(tmp_path / "home", environ=environ) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        topics = f"{server.url}/api/v1/topics"
        httpx.post(
            topics, json={"name": "a"}, headers=headers, trust_env=False, timeout=60
        ).raise_for_status()
        with _begin(server, "/api/v1/topics/a/publish", "Content-Length: 99", '{"mess') as unfinished:
            # The scrape itself is one of them.
            _wait_until_scraped(server, "tidegate_http_requests_in_flight 2.0")
            os.kill(server.child.pid, signal.SIGTERM)
            answer = b""
            while part := unfinished.recv(65_536):
                answer += part
        assert server.child.wait(60) == 0
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "NOT_READY"
    written = (tmp_path / "home.server.log").read_text()
    assert "Traceback" not in written
    assert written.rstrip().endswith("stopped")


def test_a_caller_who_does_not_read_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with running_server(tmp_path / "home", environ={"TIDEGATE_SERVER_GRACE_SECONDS": "0.5"}) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as http:
            http.post("/api/v1/topics", json={"name": "a"}).raise_for_status()
            for _ in range(30):
                body = {"messages": [{"payload": "x" * 1_000_000}]}
                http.post("/api/v1/topics/a/publish", json=body).raise_for_status()
        asked = json.dumps({"partition": 0, "from": 0, "to": 30})
        with _begin(server, "/api/v1/topics/a/read", f"Content-Length: {len(asked)}", asked) as unread:
            assert unread.recv(100).startswith(b"HTTP/1.1 200 ")
            os.kill(server.child.pid, signal.SIGTERM)
            assert server.child.wait(60) == 0
    written = (tmp_path / "home.server.log").read_text()
    assert written.count("answer aborted by stop") == 1
    assert "Traceback" not in written
    assert written.rstrip().endswith("stopped")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda home: (home / "admin.token").write_text(""), "admin.token"),
        (lambda home: (home / "admin.token").unlink(), "admin.token"),
        (lambda home: (home / "admin.token").write_bytes(b"\xff" * 40), "admin.token"),
        (lambda home: (home / "layout.json").write_bytes(b"\xff"), "layout.json"),
    ],
)
def test_a_spoilt_home_is_refused_with_what_is_wrong(
    tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    Home.open(tmp_path / "home", lambda: "x" * 43)
    spoil(tmp_path / "home")
    refused = _serve(tmp_path / "home", "--port", "0")
    assert refused.returncode != 0
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr


def test_missing_folders_are_made_again(tmp_path: Path) -> None:
    Home.open(tmp_path / "home", lambda: "x" * 43)
    (tmp_path / "home" / "locks").rmdir()
    (tmp_path / "home" / "run").rmdir()
    with running_server(tmp_path / "home") as server:
        assert (tmp_path / "home" / "run" / "server.json").exists()
        assert (tmp_path / "home" / "locks" / "server.lock").read_text().split()[0] == str(server.child.pid)


@pytest.mark.crash
def test_what_was_acknowledged_is_there_after_kill_9(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as http:
            http.post("/api/v1/topics", json={"name": "a.b"})
            http.post("/api/v1/topics/a.b/publish", json={"messages": [{"payload": 1}, {"payload": 2}]})
        server.kill()
    with running_server(tmp_path / "home") as server:
        answer = httpx.post(
            f"{server.url}/api/v1/topics/a.b/consume", headers=headers, json={}, trust_env=False, timeout=60
        )
        assert [message["payload"] for message in answer.json()["messages"]] == [1, 2]
