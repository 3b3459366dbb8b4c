"""The connections to one server, pooled for reuse by later requests.

Made from _async/connection_pool.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpcore

from tidegate.sdk.connection_groups import GROUP_CONNECTIONS_MAX, ConnectionGroups
from tidegate.sdk.requests import Reply, Request
from tidegate.sdk.server_url import ServerUrl

# Longer than any statement runs by default; a wait that the caller asks for is added.
TIMEOUT_SECONDS = 120.0
CONNECT_SECONDS = 5.0
# Less than the five seconds after which the server closes an idle connection: a request must not meet that.
IDLE_SECONDS_MAX = 4.0
# A head and a body up to this size are sent in one write; what is larger is worth a write of its own.
JOINED_BYTES_MAX = 64 * 1024


class GroupedConnectionPool:
    """Connections in groups; each group is a pool that is made when it is first needed.

    It uses httpcore without a client above it: such a client costs as much again for a call, and sends head
    and body apart, so that the server is woken twice.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._groups = ConnectionGroups()
        self._pools: dict[int, httpcore.ConnectionPool] = {}
        self._urls: dict[str, ServerUrl] = {}

    def request(self, request: Request, url: str, headers: dict[str, str]) -> Reply:
        """Send a request to a server and return its whole answer."""
        server = self._urls.get(url)
        if server is None:
            server = self._urls[url] = ServerUrl.parse(url)
        seconds = TIMEOUT_SECONDS + request.wait_seconds
        timeout = {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds, "pool": seconds}
        target = server.path + request.path.encode()
        number = self._groups.take()
        try:
            answer = self._pool(number).request(
                request.method,
                httpcore.URL(scheme=server.scheme, host=server.host, port=server.port, target=target),
                headers=_head(server, request, headers),
                content=request.content,
                extensions={"timeout": timeout},
            )
        finally:
            self._groups.release(number)
        return Reply(answer.status, answer.headers, answer.content)

    def close(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            pool.close()

    def _pool(self, number: int) -> httpcore.ConnectionPool:
        pool = self._pools.get(number)
        if pool is None:
            pool = httpcore.ConnectionPool(
                ssl_context=self._context,
                max_connections=GROUP_CONNECTIONS_MAX,
                keepalive_expiry=IDLE_SECONDS_MAX,
                network_backend=_JoiningBackend(),
            )
            # Two threads may come here at once: both use the pool that was stored first.
            pool = self._pools.setdefault(number, pool)
        return pool


def _head(server: ServerUrl, request: Request, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    head = [(b"Host", server.authority)]
    if request.content is not None:
        head.append((b"Content-Length", str(len(request.content)).encode()))
    return head + [(name.encode(), value.encode()) for name, value in headers.items()]


class _JoiningBackend(httpcore.SyncBackend):
    """Opens connections that send head and body in one write, when the answer is first read."""

    def connect_tcp(self, *address: Any, **options: Any) -> httpcore.NetworkStream:
        return _JoiningStream(super().connect_tcp(*address, **options))


class _JoiningStream(httpcore.NetworkStream):
    """A connection whose small writes wait for the next read."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream
        self._unsent = b""
        # httpcore looks there whether the connection is closed.
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Send what waits, then receive."""
        if self._unsent:
            content, self._unsent = self._unsent, b""
            self._stream.write(content, timeout)
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Hold a small write back; send a large one at once, after what waits."""
        self._unsent += buffer
        if len(self._unsent) > JOINED_BYTES_MAX:
            content, self._unsent = self._unsent, b""
            self._stream.write(content, timeout)

    def close(self) -> None:
        """Close the connection; what was not sent is dropped."""
        self._stream.close()

    def start_tls(self, *trust: Any, **options: Any) -> httpcore.NetworkStream:
        """Return the connection under TLS."""
        return _JoiningStream(self._stream.start_tls(*trust, **options))
