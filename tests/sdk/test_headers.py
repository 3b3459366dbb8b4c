"""What travels beside a call: request id, tenant, the caller's trace; and lists whose pages nobody sees."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import tidegate
from tests.sdk.faults import Fault, Say, faulty_server
from tidegate.errors import RequestInvalid, ServerNotRunning, TopicNotFound
from tidegate.testing.server import RunningServer

NOT_FOUND = b'{"error": {"code": "TOPIC_NOT_FOUND", "details": {"topic": "x"}}}'


def test_every_call_has_an_id_of_its_own_and_attempts_share_it() -> None:
    with faulty_server("drop") as faulty, tidegate.connect(faulty.url, token="t") as client:
        client.status()
        client.status()
        ids = [seen.headers["x-request-id"] for seen in faulty.seen]
    assert ids[0] == ids[1] != ids[2]
    assert all(re.fullmatch("[A-Za-z0-9._-]{1,64}", one) for one in ids)


def test_an_error_carries_the_id_that_the_server_answered_with() -> None:
    script: list[Fault] = [Say(404, NOT_FOUND, {"X-Request-Id": "abc"}), Say(404, NOT_FOUND), "drop"]
    with (
        faulty_server(*script) as faulty,
        tidegate.connect(faulty.url, token="t", retry_seconds=0) as client,
    ):
        with pytest.raises(TopicNotFound) as told:
            client.topics.show("x")
        with pytest.raises(TopicNotFound) as untold:
            client.topics.show("x")
        with pytest.raises(ServerNotRunning) as lost:
            client.topics.show("x")
        sent = [seen.headers["x-request-id"] for seen in faulty.seen]
    assert [told.value.request_id, untold.value.request_id, lost.value.request_id] == ["abc", *sent[1:]]
    assert TopicNotFound(topic="x").request_id is None


def test_an_error_of_a_real_server_names_the_request(client: tidegate.Client) -> None:
    with pytest.raises(TopicNotFound) as caught:
        client.topics.show("app.nowhere")
    assert re.fullmatch("[0-9a-f]{16}", caught.value.request_id or "")


def test_a_tenant_is_named_in_every_call_or_in_none() -> None:
    with faulty_server() as faulty:
        with tidegate.connect(faulty.url, token="t", tenant="acme") as client:
            client.status()
        with tidegate.connect(faulty.url, token="t") as client:
            client.status()
        assert [seen.headers.get("x-tenant") for seen in faulty.seen] == ["acme", None]
    for wrong in ("", "a\r\nX-Other: 1", "é"):
        with pytest.raises(RequestInvalid):
            tidegate.connect("http://127.0.0.1:1", token="t", tenant=wrong)


def test_a_program_that_neither_traces_nor_waits_loads_nothing_for_it(server: RunningServer) -> None:
    program = (
        "import sys, tidegate\n"
        f"tidegate.connect({server.url!r}, token={server.token!r}).status()\n"
        "print(sorted({'opentelemetry', 'asyncio'} & {name.split('.')[0] for name in sys.modules}))\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_span_of_a_program_that_traces_is_passed_on() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    context = trace.SpanContext(0x1234, 0x56, is_remote=False, trace_flags=trace.TraceFlags(1))
    with faulty_server() as faulty, tidegate.connect(faulty.url, token="t") as client:
        with trace.use_span(trace.NonRecordingSpan(context)):
            client.status()
        client.status()
        sent = [seen.headers.get("traceparent") for seen in faulty.seen]
    assert sent == [f"00-{0x1234:032x}-{0x56:016x}-01", None]


def test_lists_are_read_to_their_last_page() -> None:
    pages = [
        Say(content=b'{"topics": [{"name": "a"}, {"name": "b"}], "next": "a b&c"}'),
        Say(content=b'{"topics": [], "next": "more"}'),
        Say(content=b'{"topics": [{"name": "c"}], "next": null}'),
    ]
    with faulty_server(*pages) as faulty, tidegate.connect(faulty.url, token="t") as client:
        assert [topic["name"] for topic in client.topics.list()] == ["a", "b", "c"]
        paths = [seen.path for seen in faulty.seen]
    assert paths == ["/api/v1/topics", "/api/v1/topics?after=a+b%26c", "/api/v1/topics?after=more"]


def test_a_limited_list_asks_for_no_more_than_it_needs() -> None:
    page = b'{"events": [%s], "next": "n"}'
    pages = [Say(content=page % b",".join([b"{}"] * 100)), Say(content=page % b",".join([b"{}"] * 50))]
    with faulty_server(*pages) as faulty, tidegate.connect(faulty.url, token="t") as client:
        assert len(client.audit.list(user="ann", limit=150)) == 150
        paths = [seen.path for seen in faulty.seen]
        assert client.audit.list(limit=0) == []
    assert paths == ["/api/v1/audit?user=ann", "/api/v1/audit?user=ann&after=n&limit=50"]


def test_names_are_one_part_of_a_path_whatever_is_in_them() -> None:
    with faulty_server() as faulty, tidegate.connect(faulty.url, token="t") as client:
        client.topics.show("a/../b?c#d")
        client.users.revoke("ann/x", "1/2")
        paths = [seen.path for seen in faulty.seen]
    assert paths == ["/api/v1/topics/a%2F..%2Fb%3Fc%23d", "/api/v1/users/ann%2Fx/tokens/1%2F2"]


def test_a_lifetime_is_said_only_when_named() -> None:
    with faulty_server() as faulty, tidegate.connect(faulty.url, token="t") as client:
        client.users.make_token("ann")
        client.users.make_token("ann", label="ci", lifetime_seconds=60)
        client.users.make_token("ann", lifetime_seconds=None)
        bodies = [seen.body for seen in faulty.seen]
    assert bodies == [b"{}", b'{"label":"ci","lifetimeSeconds":60}', b'{"lifetimeSeconds":null}']
