"""The protocol: takes the bytes of a connection, gives requests, within the limits that hold before the door.

Uvicorn's parser takes headers of any size for any time from any number of connections. Here each has an end.
Counting costs a request next to nothing: almost always its whole head is in the first bytes that arrive.

Joined writes: the head of an answer waits for its body, so that a small answer is one write to the socket.

The HTTP server writes the two one after the other, and each write is a call of the system: a fifth of what a
small request costs. A head whose body does not follow at once goes alone in the next turn of the event loop.
"""

from __future__ import annotations

import asyncio
import http
import logging
import math
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tidegate.errors import HeadersTooLarge, TidegateError, TooManyRequests
from tidegate.server.http.responses import CUT, JSON
from tidegate.settings import ServerSettings

# What a connection that finds no room is asked to wait.
RETRY_SECONDS = 1
# Bytes of a header beside its name and value: a colon, a space and the end of the line.
_HEADER_MARKS_BYTES = 4

log = logging.getLogger(__name__)


class CutShort(Exception):
    """Ends the connection of an answer that cannot be finished; whoever raises it has said why."""


def limited_protocol(settings: ServerSettings) -> type[LimitedProtocol]:
    """Return the protocol with the limits of the settings."""

    class Limited(LimitedProtocol):
        header_bytes_max = settings.header_bytes_max
        header_seconds_max = settings.body_seconds_max
        connections_max = settings.connections_max

    return Limited


def hide_cuts() -> None:
    """Keep uvicorn from writing a traceback of an answer that was cut on purpose."""
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut)


def _is_no_cut(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], CutShort))


class LimitedProtocol(HttpToolsProtocol):
    """One connection; belongs to the event loop."""

    header_bytes_max: int
    header_seconds_max: float
    connections_max: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._refusal: TidegateError | None = None
        self._is_upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or say that there are too many and close it."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            self._refuse(
                TooManyRequests(
                    what="connections are open already",
                    limit=self.connections_max,
                    setting="server.connections_max",
                    retry_after_seconds=RETRY_SECONDS,
                )
            )
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._unset_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; while they are part of a head, they are counted and must not take too long."""
        was_in_head = self._in_head
        super().data_received(data)
        if self._in_head:
            # The bytes in which a head begins may belong to the request before: those behind are its own.
            if was_in_head:
                self._head_bytes += len(data)
            if self._head_bytes > self.header_bytes_max:
                self._refuse(HeadersTooLarge(limit_bytes=self.header_bytes_max))
            else:
                self._expect_head()
        elif self._is_idle() and not self._is_upgraded:
            # Bytes that begin nothing, or the rest of a body that was refused, keep no connection open.
            self._expect_head(max(self.header_seconds_max, self.timeout_keep_alive))

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope["extensions"] = {CUT: {"now": self.transport.abort}}

    def on_headers_complete(self) -> None:
        """End a head, and begin its request unless it is too large."""
        self._in_head = False
        if self._head_timer is not None:
            self._unset_head_timer()
        size_bytes = len(self.url)
        for name, value in self.headers:
            size_bytes += len(name) + len(value) + _HEADER_MARKS_BYTES
        if size_bytes > self.header_bytes_max:
            self._refusal = HeadersTooLarge(limit_bytes=self.header_bytes_max)
            raise self._refusal  # stops the parser, which then has a refusal sent
        super().on_headers_complete()
        if self.cycle is not None and isinstance(self.cycle.transport, asyncio.Transport):
            self.cycle.transport = JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to the protocol of sockets."""
        self._is_upgraded = True
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not take."""
        self._in_head = False
        if self._refusal is not None or not self._is_idle():
            self._refuse(self._refusal)
        else:
            super().send_400_response(msg)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self, seconds: float | None = None) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            patience = self.header_seconds_max if seconds is None else seconds
            self._head_timer = self.loop.call_later(patience, self._head_is_late)

    def _unset_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_idle():
            self._refuse(None)
        else:
            self._expect_head()  # the answer to an earlier request is not cut for a later one

    def _refuse(self, problem: TidegateError | None) -> None:
        """Close the connection; say why where no other answer is on its way."""
        self._in_head = False
        self._unset_head_timer()
        if self.transport.is_closing():
            return
        if problem is not None and self._is_idle():
            self.transport.write(_whole_answer(problem))
        log.debug("a connection of %s is closed: %s", self.client, problem or "no request came")
        self.transport.close()


def _whole_answer(problem: TidegateError) -> bytes:
    content = msgspec.json.encode(problem.to_wire())
    lines = [
        f"HTTP/1.1 {problem.status} {http.HTTPStatus(problem.status).phrase}",
        f"content-type: {JSON}",
        f"content-length: {len(content)}",
        "connection: close",
    ]
    if "retry_after_seconds" in problem.values:
        lines.append(f"retry-after: {math.ceil(problem.values['retry_after_seconds'])}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + content


# A larger body is not copied behind its head.
JOINED_BYTES_MAX = 64 * 1024
_CONTINUE = b"HTTP/1.1 100"


class JoinedWrites:
    """The transport of one answer, as far as the HTTP server uses it. Belongs to the event loop."""

    __slots__ = ("_head", "_is_begun", "_loop", "_transport", "_turn")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._turn: asyncio.Handle | None = None
        self._is_begun = False

    def write(self, content: bytes) -> None:
        """Write the head together with what follows it."""
        if not self._is_begun and not content.startswith(_CONTINUE):
            self._is_begun = True
            self._head = content
            self._turn = self._loop.call_soon(self._flush)
            return
        head, self._head = self._head, None
        if head is None:
            self._transport.write(content)
            return
        if self._turn is not None:
            self._turn.cancel()
        if len(content) <= JOINED_BYTES_MAX:
            self._transport.write(head + content)
        else:
            self._transport.write(head)
            self._transport.write(content)

    def close(self) -> None:
        """Close behind what waits."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the connection is closed or closes."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)
