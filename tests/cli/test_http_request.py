"""One request over the standard library: what comes back, and what it never does by itself."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from tidegate.cli.http_request import REQUEST_ERRORS, send_request


class Mirror(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(302 if self.path == "/moved" else 200, f"GET {self.path}".encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(422, body + b" " + self.headers["X-Word"].encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_status_and_body_come_back_whatever_the_status(url: str) -> None:
    assert send_request("GET", f"{url}/a/b?c=%20", timeout_seconds=5) == (200, b"GET /a/b?c=%20")
    answer = send_request("POST", url, timeout_seconds=5, headers={"X-Word": "w"}, body=b"text")
    assert answer == (422, b"text w")


def test_no_redirect_is_followed_and_no_proxy_used(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert send_request("GET", f"{url}/moved", timeout_seconds=5) == (302, b"GET /moved")


def test_a_server_that_is_not_there_or_does_not_answer_is_an_error() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(REQUEST_ERRORS):
            send_request("GET", f"http://127.0.0.1:{port}", timeout_seconds=5)
        silent.listen(1)
        with pytest.raises(REQUEST_ERRORS):
            send_request("GET", f"http://127.0.0.1:{port}", timeout_seconds=0.1)


def test_tls_to_a_plain_port_is_an_error(url: str) -> None:
    with pytest.raises(REQUEST_ERRORS):
        send_request("GET", url.replace("http://", "https://"), timeout_seconds=5)
