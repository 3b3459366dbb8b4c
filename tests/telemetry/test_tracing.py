"""Tracing: off it is nothing, on it sends spans with parents, and a collector that is away harms nobody."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry import trace as global_trace

from tests.telemetry.collector import Received, attributes, collector
from tidegate.errors import StorageFull, TopicNotFound
from tidegate.settings import TracingSettings
from tidegate.telemetry import otlp as sent
from tidegate.telemetry.tracing import (
    NO_SPAN,
    is_tracing,
    span,
    start_tracing,
    stop_tracing,
    traceparent,
)

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
HEADER = f"00-{TRACE_ID}-{PARENT_ID}-01"
SECRET = "Zq8_vXw0pLmN4kJ7sR1tY6uB3cD9eF5g"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # A collector that is there is waited for, however busy the machine is.
    monkeypatch.setattr(sent, "SEND_SECONDS_MAX", 60.0)
    monkeypatch.setattr(sent, "STOP_SECONDS_MAX", 60.0)
    with collector() as received:
        try:
            yield received
        finally:
            stop_tracing()


def begin(received: Received, sample_ratio: float = 1.0) -> None:
    start_tracing(
        TracingSettings(endpoint_url=received.url, sample_ratio=sample_ratio), "tidegate-server", "1.2"
    )


def test_off_is_one_shared_object_and_no_header() -> None:
    start_tracing(TracingSettings(), "tidegate-server")
    assert not is_tracing()
    with span("a", remote_parent=HEADER, tenant="t") as first, span("b") as second:
        first.set(status=200)
        assert first is second is NO_SPAN
        assert traceparent() == ""
    with pytest.raises(ZeroDivisionError), span("c"):
        _ = 1 / 0
    stop_tracing()


def test_off_imports_nothing_of_opentelemetry() -> None:
    code = """
import sys
from tidegate.settings import TracingSettings
from tidegate.telemetry.tracing import span, start_tracing, stop_tracing
start_tracing(TracingSettings(), "x")
with span("a", remote_parent="", n=1) as one:
    one.set(status=200)
stop_tracing()
print([name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "google", "requests")])
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_on_without_the_packages_says_what_to_install() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from tidegate.errors import StartRefused
from tidegate.settings import TracingSettings
from tidegate.telemetry.tracing import start_tracing
try:
    start_tracing(TracingSettings(endpoint_url="http://127.0.0.1:1/v1/traces"), "x")
except StartRefused as refused:
    print(refused, refused.hint)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tracing.endpoint_url" in answer.stdout
    assert "'opentelemetry" in answer.stdout
    assert "pip install 'tidegate[tracing]'" in answer.stdout


def test_spans_arrive_with_name_parent_and_attributes(receiver: Received) -> None:
    begin(receiver)
    assert is_tracing()
    with span("POST /api/v1/sql", remote_parent=HEADER, method="POST", tenant="acme") as outer:
        with span("query", rows=3):
            inner_header = traceparent()
        outer.set(status=200)
    stop_tracing()
    outer_span, inner_span = receiver.span("POST /api/v1/sql"), receiver.span("query")
    assert outer_span.trace_id.hex() == inner_span.trace_id.hex() == TRACE_ID
    assert outer_span.parent_span_id.hex() == PARENT_ID
    assert inner_span.parent_span_id == outer_span.span_id
    assert inner_header == f"00-{TRACE_ID}-{inner_span.span_id.hex()}-01"
    assert attributes(outer_span) == {
        "http.request.method": "POST",
        "tidegate.tenant": "acme",
        "http.response.status_code": 200,
    }
    assert attributes(inner_span) == {"tidegate.rows": 3}
    assert (outer_span.kind, inner_span.kind) == (2, 1)  # server, internal
    assert receiver.service_names == {"tidegate-server"}


BAD_HEADERS = ["", "nonsense", "00-0-0-00", f"00-{'0' * 32}-{'0' * 16}-01", "ü" * 55]


@pytest.mark.parametrize("header", BAD_HEADERS, ids=["none", "a word", "short", "zeros", "not ASCII"])
def test_a_parent_that_cannot_be_read_begins_a_new_trace(receiver: Received, header: str) -> None:
    begin(receiver)
    with span("root", remote_parent=header):
        pass
    stop_tracing()
    root = receiver.span("root")
    assert root.parent_span_id == b""
    assert len(root.trace_id) == 16


def test_an_error_is_noted_without_its_secret_and_goes_on(receiver: Received) -> None:
    begin(receiver)
    with pytest.raises(ValueError, match="refused"), span("fails", remote_parent="", note=f"token={SECRET}"):
        raise ValueError(f"refused: password={SECRET}")
    stop_tracing()
    failed = receiver.span("fails")
    assert failed.status.code == 2
    assert attributes(failed)["error.type"] == "ValueError"
    assert SECRET not in str(failed)
    assert not failed.events


def test_a_mistake_of_the_caller_is_no_failure_of_ours(receiver: Received) -> None:
    begin(receiver)
    with pytest.raises(TopicNotFound), span("refused", remote_parent=""):
        raise TopicNotFound(topic="x")
    with pytest.raises(StorageFull), span("failed", remote_parent=""):
        raise StorageFull
    stop_tracing()
    refused, failed = receiver.span("refused"), receiver.span("failed")
    assert (refused.status.code, failed.status.code) == (0, 2)
    assert attributes(refused) == {"error.type": "TopicNotFound", "http.response.status_code": 404}
    assert attributes(failed) == {"error.type": "StorageFull", "http.response.status_code": 507}


def test_tasks_keep_their_spans_apart(receiver: Received) -> None:
    begin(receiver)

    async def request(number: int) -> None:
        with span(f"outer{number}", remote_parent=""):
            await asyncio.sleep(0)
            with span(f"inner{number}"):
                await asyncio.sleep(0)

    async def all_of_them() -> None:
        await asyncio.gather(*(request(number) for number in range(10)))

    asyncio.run(all_of_them())
    stop_tracing()
    for number in range(10):
        assert receiver.span(f"inner{number}").parent_span_id == receiver.span(f"outer{number}").span_id
    assert len({receiver.span(f"outer{number}").trace_id for number in range(10)}) == 10


def test_none_of_the_requests_are_traced_at_ratio_zero_but_a_sampled_parent_is(receiver: Received) -> None:
    begin(receiver, sample_ratio=0.0)
    with span("alone", remote_parent=""):
        assert int(traceparent()[-2:], 16) & 1 == 0  # tells the next one not to trace it either
    with span("asked for", remote_parent=HEADER):
        pass
    stop_tracing()
    assert [one.name for one in receiver.spans] == ["asked for"]


def test_a_collector_that_refuses_is_said_once_and_again_when_it_is_back(
    receiver: Received, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = sent._LoggingExporter(receiver.url)
    with caplog.at_level(logging.INFO):
        receiver.status = 400
        for _ in range(3):
            exporter.export([])
        receiver.status = 200
        for _ in range(3):
            exporter.export([])
    exporter.shutdown()
    ours = [record.getMessage() for record in caplog.records if record.name == "tidegate.telemetry.otlp"]
    assert ours == [
        f"spans lost, collector does not accept them endpoint={receiver.url}",
        f"collector accepts spans again endpoint={receiver.url}",
    ]


def test_an_unreachable_collector_breaks_nothing_and_stops_in_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        start_tracing(TracingSettings(endpoint_url="http://127.0.0.1:9/v1/traces"), "tidegate-server")
        for number in range(sent.QUEUE_SPANS_MAX * 2):  # more than the queue holds
            with span("request", remote_parent="", number=number):
                pass
        stopped = threading.Thread(target=stop_tracing)
        stopped.start()
        stopped.join(90)
    assert not stopped.is_alive()
    assert not is_tracing()
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.name for record in said} == {"tidegate.telemetry.otlp"}
    assert len(said) <= 2  # that spans are lost, and that the last ones were not sent


def test_a_collector_that_hangs_holds_up_no_request(receiver: Received) -> None:
    receiver.hold = threading.Event()
    begin(receiver)
    made = 0
    for _ in range(sent.QUEUE_SPANS_MAX + sent.BATCH_SPANS_MAX * 2):
        with span("request", remote_parent=""):
            made += 1
    # every span was made while the first batch was still held; the queue dropped what was too much
    assert made == sent.QUEUE_SPANS_MAX + sent.BATCH_SPANS_MAX * 2
    assert receiver.spans == []
    receiver.hold.set()
    stop_tracing()
    assert 0 < len(receiver.spans) <= made


def test_the_program_keeps_its_own_tracing(receiver: Received) -> None:
    before = global_trace.get_tracer_provider()
    begin(receiver)
    assert global_trace.get_tracer_provider() is before


def test_starting_again_replaces_the_first(receiver: Received) -> None:
    begin(receiver)
    with span("first", remote_parent=""):
        pass
    begin(receiver)
    with span("second", remote_parent=""):
        pass
    stop_tracing()
    stop_tracing()
    assert sorted(one.name for one in receiver.spans) == ["first", "second"]
