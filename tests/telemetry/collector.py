"""A tiny OTLP collector over HTTP: takes what an exporter posts, keeps the spans it decodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Received:
    """Everything that arrived, and how to answer from now on."""

    url: str
    spans: list[Any] = field(default_factory=list)
    service_names: set[str] = field(default_factory=set)
    status: int = 200
    hold: threading.Event | None = None  # while it is not set, nobody is answered

    def span(self, name: str) -> Any:
        (found,) = [span for span in self.spans if span.name == name]
        return found


@contextmanager
def collector() -> Iterator[Received]:
    """Listen on a free port of this machine until the `with` ends."""
    received = Received("")

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if received.hold is not None:
                received.hold.wait(90)
            if received.status == 200:
                take(received, body)
            self.send_response(received.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    received.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield received
    finally:
        if received.hold is not None:
            received.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


def take(received: Received, body: bytes) -> None:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
        received.service_names.add(names["service.name"])
        for scope in resource.scope_spans:
            received.spans.extend(scope.spans)


def attributes(span: Any) -> dict[str, Any]:
    """Return a span's attributes as plain values."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
