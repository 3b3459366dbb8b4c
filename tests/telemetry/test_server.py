"""A real server, watched from outside: its log in JSON at the level debug, and its spans at a collector."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.telemetry.collector import attributes, collector
from tidegate.testing.server import RunningServer, running_server

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
PUBLISH = "POST /api/v1/topics/{topic}/publish"
ARRIVAL_SECONDS_MAX = 60.0
WRONG = "tg_0123456789abcdef_" + "Zq8vXw0pLmN4kJ7sR1tY6uB3cD9eF5g"
ENVIRON = {
    "TIDEGATE_LOG_FORMAT": "json",
    "TIDEGATE_LOG_LEVEL": "debug",
    "TIDEGATE_LOG_SLOW_REQUEST_MS": "0",
    "NO_PROXY": "127.0.0.1",
}


def log_of(server: RunningServer) -> str:
    return (server.home.parent / f"{server.home.name}.server.log").read_text(encoding="utf-8")


def use(server: RunningServer) -> None:
    """Make a topic, publish, ask for what is not there, and try secrets in every place a caller has."""
    headers = {
        "Authorization": f"Bearer {server.token}",
        "X-Request-Id": "watched-1",
        "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01",
    }
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30) as http:
        assert http.post("/api/v1/topics", json={"name": "app.events"}).status_code == 201
        body = {"messages": [{"payload": {"n": 1}}]}
        assert http.post("/api/v1/topics/app.events/publish", json=body).status_code == 200
        assert http.get("/api/v1/topics/not.there").status_code == 404
        for path in (
            f"/enter?code={WRONG}",
            f"/{WRONG}",
            f"/api/v1/topics/{WRONG}",
            f"/api/v1/status?token={WRONG}",
        ):
            http.get(path)
            http.get(path, headers={"Authorization": f"Bearer {WRONG}"})
            http.get(path, headers={"Cookie": f"tidegate_session={WRONG}"})
        http.post("/api/v1/sql", json={"sql": f"SELECT '{WRONG}' FROM nowhere"})
        http.post(
            "/api/v1/sql", content=f'{{"sql": "{WRONG}'.encode(), headers={"Content-Type": "application/json"}
        )


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, list[Any]]:
    """Run a server through `use` and a clean stop; give its token, its log and its spans."""
    home: Path = tmp_path_factory.mktemp("watched") / "home"
    with collector() as received:
        environ = {**ENVIRON, "TIDEGATE_TRACING_ENDPOINT_URL": received.url}
        with running_server(home, environ=environ) as server:
            use(server)
            # A server that stops gives a busy collector a few seconds and no more.
            deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
            while PUBLISH not in [span.name for span in list(received.spans)]:
                assert time.monotonic() < deadline, "the span did not arrive"
                time.sleep(0.05)
        return server.token, log_of(server), list(received.spans)


def test_every_line_is_an_object_with_the_promised_fields(watched: tuple[str, str, list[Any]]) -> None:
    lines = [json.loads(line) for line in watched[1].splitlines()]
    assert len(lines) > 10
    for line in lines:
        assert {"time", "level", "logger", "message", "process", "pid"} <= set(line)
    assert {line["process"] for line in lines} <= {"server", "tidegate"}


def test_lines_of_a_request_carry_its_id(watched: tuple[str, str, list[Any]]) -> None:
    lines = [json.loads(line) for line in watched[1].splitlines()]
    slow = [line for line in lines if "app.events/publish" in line["message"]]
    assert slow
    assert all(line.get("requestId") == "watched-1" for line in slow)


def test_no_secret_is_in_the_log_even_at_debug(watched: tuple[str, str, list[Any]]) -> None:
    token, log_text, _ = watched
    for secret in (token, WRONG, WRONG[-31:]):
        found = log_text.find(secret)
        assert found < 0, log_text[max(0, found - 300) : found + 50]


def test_a_request_gives_a_span_below_the_callers(watched: tuple[str, str, list[Any]]) -> None:
    (publish,) = [span for span in watched[2] if span.name == PUBLISH]
    assert publish.trace_id.hex() == TRACE_ID
    assert publish.parent_span_id.hex() == PARENT_ID
    assert attributes(publish)["tidegate.tenant"] == "default"
    assert watched[0] not in str(watched[2])
    assert WRONG[-31:] not in str(watched[2])
