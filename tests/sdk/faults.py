"""A server that misbehaves as told: stands alone or before a real one, and remembers what it was sent."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

UPSTREAM_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class Say:
    """Answer this; with `cut`, close the connection in the middle of the body."""

    status: int = 200
    content: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


# drop: read the request and hang up. lose: let the real server do it, then hang up. through: be a proxy.
Fault = Say | Literal["drop", "lose", "through"]


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class FaultyServer:
    """Follows its script, a fault a request; after the last one it is well."""

    url: str
    script: list[Fault]
    upstream: str | None = None
    seen: list[Seen] = field(default_factory=list)

    def next_fault(self) -> Fault:
        if self.script:
            return self.script.pop(0)
        return "through" if self.upstream else Say()


class Chosen(list[Fault]):
    """A script that lets everything through, but for the first requests of one kind."""

    def __init__(self, faulty: FaultyServer, verb: str, *faults: Fault) -> None:
        super().__init__(faults)
        self._faulty = faulty
        self._verb = verb

    def pop(self, _index: object = 0) -> Fault:
        if self._faulty.seen[-1].path.endswith(f"/{self._verb}"):
            return super().pop(0)
        return "through"


@contextlib.contextmanager
def faulty_server(
    *script: Fault, upstream: str | None = None, context: ssl.SSLContext | None = None
) -> Iterator[FaultyServer]:
    """Serve the script on a free port."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        faulty: FaultyServer

        def finish_request(self, request: Any, client_address: Any) -> None:
            # The handshake belongs to the connection's own thread; a client may break it off.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                wrapped = context.wrap_socket(request, server_side=True) if context else request
                super().finish_request(wrapped, client_address)

    server = Server(("127.0.0.1", 0), _Door)
    scheme = "https" if context else "http"
    server.faulty = FaultyServer(f"{scheme}://127.0.0.1:{server.server_port}", list(script), upstream)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.faulty
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Door(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        faulty: FaultyServer = self.server.faulty
        faulty.seen.append(
            Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        )
        fault = faulty.next_fault()
        if fault == "drop":
            self._hang_up()
        elif fault == "lose":
            self._asked(body)
            self._hang_up()
        elif fault == "through":
            self._say(self._asked(body))
        else:
            self._say(fault)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _asked(self, body: bytes) -> Say:
        address = urlsplit(str(self.server.faulty.upstream))
        connection = http.client.HTTPConnection(
            str(address.hostname), address.port, timeout=UPSTREAM_SECONDS_MAX
        )
        try:
            connection.request(self.command, self.path, body or None, dict(self.headers.items()))
            answer = connection.getresponse()
            kept = ("content-type", "x-request-id", "retry-after")
            headers = {name: value for name, value in answer.getheaders() if name.lower() in kept}
            return Say(answer.status, answer.read(), headers)
        finally:
            connection.close()

    def _say(self, said: Say) -> None:
        self.send_response(said.status)
        for name, value in said.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(said.content) + (10 if said.cut else 0)))
        self.end_headers()
        self.wfile.write(said.content)
        if said.cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_words: object) -> None:
        """Say nothing."""
