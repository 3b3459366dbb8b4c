"""Wrong requests: each has its status, its code and a hint, and changes nothing."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest

from tidegate.testing.server import RunningServer

NewTopic = Callable[..., str]
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "TOKEN_MISSING"),
        ({"Authorization": "Bearer wrong"}, "TOKEN_WRONG"),
        ({"Authorization": "Basic YTpi"}, "TOKEN_WRONG"),
        ({"Authorization": ""}, "TOKEN_WRONG"),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/status", "/api/v1/topics", "/nowhere"])
def test_nothing_but_health_and_ready_answers_without_the_token(
    server: RunningServer, headers: dict[str, str], code: str, path: str
) -> None:
    answer = httpx.get(server.url + path, headers=headers, trust_env=False, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
    assert answer.headers["www-authenticate"] == "Bearer"
    for open_path in ("/health", "/ready"):
        assert (
            httpx.get(server.url + open_path, headers=headers, trust_env=False, timeout=60).status_code == 200
        )


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b'{"messages": [', JSON, 400, "REQUEST_MALFORMED"),
        (b'{"messages": [{"payload": {"a" 1}}]}', JSON, 400, "REQUEST_MALFORMED"),
        (b'{"messages": [{"payload": "\xff"}]}', JSON, 400, "REQUEST_MALFORMED"),
        (
            b'{"messages": [{"payload": ' + b"[" * 40_000 + b"]" * 40_000 + b"}]}",
            JSON,
            400,
            "REQUEST_MALFORMED",
        ),
        (b"", JSON, 400, "REQUEST_MALFORMED"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "CONTENT_TYPE_UNSUPPORTED"),
        (b"{}", {}, 415, "CONTENT_TYPE_UNSUPPORTED"),
        (b'{"messages": "x"}', JSON, 422, "REQUEST_INVALID"),
        (b'{"messages": [{"key": "a"}]}', JSON, 422, "REQUEST_INVALID"),
        (b'{"messages": []}', JSON, 422, "REQUEST_INVALID"),
        (b'{"messages": [{"payload": 1, "colour": 2}]}', JSON, 422, "REQUEST_INVALID"),
        (b'{"messages": [{"payload": 1}], "producerId": "p"}', JSON, 422, "REQUEST_INVALID"),
        (b'{"messages": [{"payload": 1}], "producerId": "p", "sequence": -1}', JSON, 422, "REQUEST_INVALID"),
        (b'{"messages": [{"payload": 1, "partition": 9}]}', JSON, 404, "PARTITION_NOT_FOUND"),
        (b'{"messages": [{"payload": 1, "partition": -1}]}', JSON, 404, "PARTITION_NOT_FOUND"),
        (b'{"messages": [{"payload": "' + b"x" * 6000 + b'"}]}', JSON, 422, "REQUEST_INVALID"),
        (b'{"messages": [{"payload": 1, "key": "' + b"x" * 6000 + b'"}]}', JSON, 422, "REQUEST_INVALID"),
        (b'{"messages": [' + b'{"payload":1},' * 1000 + b'{"payload":1}]}', JSON, 422, "REQUEST_INVALID"),
        (b" " * 100_001, JSON, 413, "BODY_TOO_LARGE"),
    ],
)
def test_bad_publishes(
    http: httpx.Client, new_topic: NewTopic, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    topic = new_topic()
    answer = http.post(f"/api/v1/topics/{topic}/publish", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert answer.json()["error"]["hint"]
    assert http.get(f"/api/v1/topics/{topic}").json()["messages"] == 0


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(server: RunningServer, new_topic: NewTopic) -> None:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    headers = {**JSON, "Authorization": f"Bearer {server.token}", "Transfer-Encoding": "chunked"}
    connection.putrequest("POST", f"/api/v1/topics/{new_topic()}/publish")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    # More than the limit, and no end of it: the answer comes without one.
    for _ in range(101):
        connection.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"from": "middle"}, 422, "REQUEST_INVALID"),
        ({"from": {}}, 422, "REQUEST_INVALID"),
        ({"from": {"offset": 1, "after": 2}}, 422, "REQUEST_INVALID"),
        ({"from": {"offset": 99}}, 416, "OFFSET_OUT_OF_RANGE"),
        ({"from": {"offset": -1}}, 416, "OFFSET_OUT_OF_RANGE"),
        ({"from": {"timestamp": "soon"}}, 422, "TIME_RANGE_INVALID"),
        ({"limit": 0}, 422, "REQUEST_INVALID"),
        ({"limit": 10**9}, 422, "REQUEST_INVALID"),
        ({"waitMs": -1}, 422, "REQUEST_INVALID"),
        ({"partition": 3}, 404, "PARTITION_NOT_FOUND"),
        ({"leaseMs": 5}, 422, "REQUEST_INVALID"),
        ({"group": ""}, 422, "NAME_INVALID"),
    ],
)
def test_bad_consumes(
    http: httpx.Client, new_topic: NewTopic, body: dict[str, object], status: int, code: str
) -> None:
    answer = http.post(f"/api/v1/topics/{new_topic()}/consume", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/topics/no.such", 404, "TOPIC_NOT_FOUND"),
        ("DELETE", "/api/v1/topics/no.such", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/api/v1/topics/no.such/publish", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/api/v1/topics/no.such/consume", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/api/v1/topics/no.such/plan", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/api/v1/topics/no.such/read", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/api/v1/pipelines/none", 404, "PIPELINE_NOT_FOUND"),
        ("GET", "/api/v2/topics", 404, "ENDPOINT_NOT_FOUND"),
        ("PATCH", "/api/v1/topics", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/api/v1/sql", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_what_is_not_there(http: httpx.Client, method: str, path: str, status: int, code: str) -> None:
    answer = http.request(method, path, json={} if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"partition": 0, "from": 0, "to": 1}, 416),
        ({"partition": 0, "from": 1, "to": 0}, 422),
        ({"partition": 7, "from": 0, "to": 0}, 404),
        ({"partition": 0}, 422),
    ],
)
def test_bad_reads(http: httpx.Client, new_topic: NewTopic, body: dict[str, int], status: int) -> None:
    assert http.post(f"/api/v1/topics/{new_topic()}/read", json=body).status_code == status


def test_an_error_carries_the_values_that_explain_it(http: httpx.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    answer = http.post(f"/api/v1/topics/{topic}/consume", json={"from": {"offset": 5}})
    details = answer.json()["error"]["details"]
    assert (details["topic"], details["earliest"], details["latest"]) == (topic, 0, 0)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/links"),
        ("POST", "/api/v1/backups"),
        ("POST", "/api/v1/tenants/default/enable"),
        ("POST", "/api/v1/worker/report"),
        ("PATCH", "/api/v1/users/admin"),
        ("POST", "/enter"),
    ],
)
def test_a_key_is_refused_where_a_repeat_would_be_done_again(
    http: httpx.Client, method: str, path: str
) -> None:
    answer = http.request(method, path, json={}, headers={"Idempotency-Key": "once"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "REQUEST_INVALID")
    assert "Idempotency-Key" in error["message"]
    assert "POST /api/v1/topics/{topic}/publish" in error["hint"]


def test_a_key_does_no_harm_where_nothing_is_changed(http: httpx.Client, new_topic: NewTopic) -> None:
    topic, key = f"/api/v1/topics/{new_topic()}", {"Idempotency-Key": "once"}
    reads: list[tuple[str, dict[str, object]]] = [
        (f"{topic}/consume", {}),
        (f"{topic}/plan", {"start": "earliest"}),
        (f"{topic}/read", {"partition": 0, "from": 0, "to": 0}),
        ("/api/v1/sql", {"sql": "SELECT 1"}),
    ]
    for path, body in reads:
        assert http.post(path, json=body, headers=key).status_code == 200, path
    assert http.get(topic, headers=key).status_code == 200
    assert http.delete(topic, headers=key).status_code == 200
