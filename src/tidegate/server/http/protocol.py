"""The HTTP protocol of a connection: uvicorn's, with limits on headers and connections, and joined writes.

Uvicorn's parser accepts headers of any size for any time from any number of connections; here each has a
limit. Counting costs a request next to nothing: almost always its whole head is in the first bytes that
arrive.

The head of an answer waits for its body, so that a small answer is one write to the socket. Uvicorn writes
the two one after the other, and each write is a system call: a fifth of the cost of a small request. A head
whose body does not follow at once is written alone in the next turn of the event loop.
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
from tidegate.server.http.responses import ABORT, JSON
from tidegate.settings import ServerSettings

# Retry-After of a connection too many.
RETRY_SECONDS = 1
# Bytes of a header beside its name and value: a colon, a space and the line end.
_HEADER_MARKS_BYTES = 4

log = logging.getLogger(__name__)


class AnswerAborted(Exception):
    """Closes the connection of an answer that cannot be finished; the reason is in the log already."""


def limited_protocol(settings: ServerSettings) -> type[LimitedProtocol]:
    """Return the protocol with the limits of the settings."""

    class Limited(LimitedProtocol):
        header_bytes_max = settings.header_bytes_max
        header_seconds_max = settings.body_seconds_max
        connections_max = settings.connections_max

    return Limited


def hide_aborted_answers() -> None:
    """Keep uvicorn from logging a traceback of an answer that was aborted on purpose."""
    logging.getLogger("uvicorn.error").addFilter(_is_no_abort)


def _is_no_abort(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], AnswerAborted))


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
        """Accept the connection, or answer that there are too many and close it."""
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
        """Parse bytes; those of a head are counted and have a time limit."""
        was_in_head = self._in_head
        super().data_received(data)
        if self._in_head:
            # The chunk in which a head begins may belong to the request before; later ones are its own.
            if was_in_head:
                self._head_bytes += len(data)
            if self._head_bytes > self.header_bytes_max:
                self._refuse(HeadersTooLarge(limit_bytes=self.header_bytes_max))
            else:
                self._expect_head()
        elif self._is_idle() and not self._is_upgraded:
            # Bytes that begin no request, or the rest of a refused body, do not keep a connection open.
            self._expect_head(max(self.header_seconds_max, self.timeout_keep_alive))

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: {"now": self.transport.abort}}

    def on_headers_complete(self) -> None:
        """End a head, and start its request unless the head is too large."""
        self._in_head = False
        if self._head_timer is not None:
            self._unset_head_timer()
        size_bytes = len(self.url)
        for name, value in self.headers:
            size_bytes += len(name) + len(value) + _HEADER_MARKS_BYTES
        if size_bytes > self.header_bytes_max:
            self._refusal = HeadersTooLarge(limit_bytes=self.header_bytes_max)
            raise self._refusal  # stops the parser, which then calls send_400_response
        super().on_headers_complete()
        if self.cycle is not None and isinstance(self.cycle.transport, asyncio.Transport):
            self.cycle.transport = JoinedWrites(self.transport, self.loop)  # type: ignore[assignment]

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the WebSocket protocol."""
        self._is_upgraded = True
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that the parser rejected."""
        self._in_head = False
        if self._refusal is not None or not self._is_idle():
            self._refuse(self._refusal)
        else:
            super().send_400_response(msg)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self, seconds: float | None = None) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            timeout = self.header_seconds_max if seconds is None else seconds
            self._head_timer = self.loop.call_later(timeout, self._head_timeout)

    def _unset_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timeout(self) -> None:
        self._head_timer = None
        if self._is_idle():
            self._refuse(None)
        else:
            self._expect_head()  # the answer to an earlier request is not aborted for a later one

    def _refuse(self, problem: TidegateError | None) -> None:
        """Close the connection; answer with the reason unless another answer is being sent."""
        self._in_head = False
        self._unset_head_timer()
        if self.transport.is_closing():
            return
        if problem is not None and self._is_idle():
            self.transport.write(_whole_answer(problem))
        log.debug("connection closed client=%s reason=%r", self.client, str(problem or "no request"))
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


# A larger body is not copied to join it with its head.
JOINED_BYTES_MAX = 64 * 1024
_CONTINUE = b"HTTP/1.1 100"


class JoinedWrites:
    """The transport of one answer, with the methods that uvicorn uses. Belongs to the event loop."""

    __slots__ = ("_head", "_is_begun", "_loop", "_transport", "_turn")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None
        self._turn: asyncio.Handle | None = None
        self._is_begun = False

    def write(self, content: bytes) -> None:
        """Write the head together with the first part of the body."""
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
        """Write what is pending, then close."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """True if the connection is closed or closing."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)
