"""Idempotency keys over HTTP: a request that is sent again is done once."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tidegate.testing.server import RunningServer, running_server

NewTopic = Callable[..., str]


def keyed(key: str | None = None) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid.uuid4())}


def test_a_publish_sent_again_with_its_key_is_stored_once(http: httpx.Client, new_topic: NewTopic) -> None:
    topic, headers = new_topic(), keyed()
    body = {"messages": [{"payload": 1}, {"payload": 2}]}
    answers = [
        http.post(f"/api/v1/topics/{topic}/publish", json=body, headers=headers).json() for _ in range(3)
    ]
    assert answers[0] == answers[1] == answers[2]
    assert http.get(f"/api/v1/topics/{topic}").json()["messages"] == 2


def test_a_topic_made_again_with_its_key_is_no_conflict(http: httpx.Client) -> None:
    headers, body = keyed(), {"name": f"app.t{uuid.uuid4().hex}"}
    first, second = (http.post("/api/v1/topics", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert http.post("/api/v1/topics", json=body).json()["error"]["code"] == "TOPIC_EXISTS"


def test_a_key_with_another_body_is_refused(http: httpx.Client, new_topic: NewTopic) -> None:
    topic, headers = new_topic(), keyed()
    for payload, status in ((1, 200), (2, 409)):
        answer = http.post(
            f"/api/v1/topics/{topic}/publish", json={"messages": [{"payload": payload}]}, headers=headers
        )
        assert answer.status_code == status
    assert answer.json()["error"]["code"] == "IDEMPOTENCY_KEY_REUSED"


def test_a_key_with_another_path_is_refused(http: httpx.Client, new_topic: NewTopic) -> None:
    headers, body = keyed(), {"messages": [{"payload": 1}]}
    assert http.post(f"/api/v1/topics/{new_topic()}/publish", json=body, headers=headers).status_code == 200
    assert http.post(f"/api/v1/topics/{new_topic()}/publish", json=body, headers=headers).status_code == 409


@pytest.mark.parametrize("key", ["", "x" * 201, "tab\tinside"])
def test_a_key_that_cannot_be_one_is_refused(http: httpx.Client, new_topic: NewTopic, key: str) -> None:
    answer = http.post(
        f"/api/v1/topics/{new_topic()}/publish",
        json={"messages": [{"payload": 1}]},
        headers={"Idempotency-Key": key},
    )
    assert answer.status_code == 422


def test_a_refused_request_does_not_use_its_key_up(http: httpx.Client) -> None:
    name, headers = f"app.t{uuid.uuid4().hex}", keyed()
    missing = http.post(
        f"/api/v1/topics/{name}/publish", json={"messages": [{"payload": 1}]}, headers=headers
    )
    assert missing.status_code == 404
    http.post("/api/v1/topics", json={"name": name}).raise_for_status()
    again = http.post(f"/api/v1/topics/{name}/publish", json={"messages": [{"payload": 1}]}, headers=headers)
    assert again.status_code == 200


def test_a_key_is_remembered_after_a_kill(home: Path) -> None:
    headers = keyed()
    body = {"messages": [{"payload": "once"}]}

    def send(server: RunningServer) -> httpx.Response:
        bearer = {"Authorization": f"Bearer {server.token}", **headers}
        url = f"{server.url}/api/v1/topics/app.x/publish"
        return httpx.post(url, json=body, headers=bearer, trust_env=False, timeout=60)

    with running_server(home) as server:
        bearer = {"Authorization": f"Bearer {server.token}"}
        httpx.post(
            f"{server.url}/api/v1/topics", json={"name": "app.x"}, headers=bearer, trust_env=False, timeout=60
        ).raise_for_status()
        first = send(server).json()
        server.kill()
    with running_server(home) as server:
        assert send(server).json() == first
