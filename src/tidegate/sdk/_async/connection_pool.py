"""A pool of connections to one server: takes a request, gives the answer, keeps connections for a moment."""

from __future__ import annotations

import ssl
from typing import Any

import httpcore
import httpx

from tidegate.sdk.connection_groups import GROUP_CONNECTIONS_MAX, ConnectionGroups
from tidegate.sdk.requests import Request

# Longer than any statement runs by default; a wait that the caller asks for comes on top.
TIMEOUT_SECONDS = 120.0
CONNECT_SECONDS = 5.0
# Below the five seconds after which the server closes an idle connection: else a request may meet its end.
IDLE_SECONDS_MAX = 4.0
# A head and a body up to this size go out together; what is larger is worth a call of its own.
JOINED_BYTES_MAX = 64 * 1024
# A problem of a connection is raised as httpx names it; both have the same names.
PROBLEMS = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


class GroupedConnectionPool:
    """Connections in groups; each group is opened when it is first needed.

    It stands on httpcore, the part of httpx under its client: that one costs as much again for a call, and
    sends head and body apart, so that the server is woken twice.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._groups = ConnectionGroups()
        self._opened: dict[int, httpcore.AsyncConnectionPool] = {}
        self._places: dict[str, httpx.URL] = {}

    async def request(self, request: Request, url: str, headers: dict[str, str]) -> httpx.Response:
        """Send a request to a server and give its whole answer."""
        place = self._places.get(url)
        if place is None:
            place = self._places[url] = _checked(httpx.URL(url))
        seconds = TIMEOUT_SECONDS + request.wait_seconds
        timeout = {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds, "pool": seconds}
        target = place.raw_path.rstrip(b"/") + request.path.encode()
        number = self._groups.take()
        try:
            answer = await self._group(number).request(
                request.method,
                httpcore.URL(scheme=place.raw_scheme, host=place.raw_host, port=place.port, target=target),
                headers=_head(place, request, headers),
                content=request.content,
                extensions={"timeout": timeout},
            )
        except PROBLEMS as problem:
            kind: type[httpx.TransportError] = getattr(httpx, type(problem).__name__)
            raise kind(str(problem)) from problem
        finally:
            self._groups.give_back(number)
        found = httpx.Response(answer.status, headers=answer.headers, content=answer.content)
        if not found.is_success:
            # Where it was asked is told in errors only; to write it down costs as much as to send a request.
            found.request = httpx.Request(request.method, place.copy_with(raw_path=target))
        return found

    async def close(self) -> None:
        """Let the connections go."""
        for group in self._opened.values():
            await group.aclose()

    def _group(self, number: int) -> httpcore.AsyncConnectionPool:
        group = self._opened.get(number)
        if group is None:
            group = httpcore.AsyncConnectionPool(
                ssl_context=self._context,
                max_connections=GROUP_CONNECTIONS_MAX,
                keepalive_expiry=IDLE_SECONDS_MAX,
                network_backend=_Joining(),
            )
            # Two threads may come here at once: one of the two groups is used by both.
            group = self._opened.setdefault(number, group)
        return group


def _checked(place: httpx.URL) -> httpx.URL:
    if place.scheme not in ("http", "https") or not place.host:
        raise httpx.UnsupportedProtocol("the address does not begin with 'http://' or 'https://'")
    return place


def _head(place: httpx.URL, request: Request, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    found = [(b"Host", place.netloc)]
    if request.content is not None:
        found.append((b"Content-Length", str(len(request.content)).encode()))
    return found + [(name.encode(), value.encode()) for name, value in headers.items()]


class _Joining(httpcore.AnyIOBackend):
    """Opens connections that send what is written when an answer is asked for: head and body in one."""

    async def connect_tcp(self, *place: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _Joined(await super().connect_tcp(*place, **options))


class _Joined(httpcore.AsyncNetworkStream):
    """A connection whose small writes wait for the next read."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._written = b""
        # What it tells about itself is what the connection tells: httpcore looks there whether it is closed.
        self.get_extra_info = stream.get_extra_info  # type: ignore[method-assign]

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Send what waits, then receive."""
        if self._written:
            content, self._written = self._written, b""
            await self._stream.write(content, timeout)
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Keep a small write; send a large one at once, behind what waits."""
        self._written += buffer
        if len(self._written) > JOINED_BYTES_MAX:
            content, self._written = self._written, b""
            await self._stream.write(content, timeout)

    async def aclose(self) -> None:
        """Close it; nobody waits for what was not sent."""
        await self._stream.aclose()

    async def start_tls(self, *trust: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        """Go on under TLS."""
        return _Joined(await self._stream.start_tls(*trust, **options))
