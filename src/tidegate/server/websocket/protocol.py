"""The WebSocket protocol of live sockets: uvicorn's, with visible backpressure and a bounded close.

Encoded messages are written past the ASGI interface, which would wake a task and encode a frame for each of a
thousand sockets. A transport that holds too much reports it before more is written. A socket that is closed
gets a moment to send what is pending, and is aborted then: an orderly close would wait forever for a peer
that does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from asyncio.transports import BaseTransport
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.frames import CloseCode

# The extension under which an application finds its socket.
SOCKET = "tidegate.socket"
# Largest message that a client may send: a statement and its parameters.
MESSAGE_BYTES_MAX = 64 * 1024
# A socket buffers this much that its peer has not read, and the write that goes beyond it.
WAITING_BYTES_MAX = 256 * 1024
# The kernel buffers no more than this unsent. With its own limits of megabytes, slow peers are noticed late,
# and the answer to a ping waits behind all of it.
UNSENT_BYTES_MAX = 128 * 1024
# The longest reason beside a close code, in bytes.
REASON_BYTES_MAX = 120
# Time in which a peer must read what is pending and answer when its socket is closed.
END_SECONDS = 1.0

_library_log = logging.getLogger("uvicorn.error.sockets")
_library_log.setLevel(logging.WARNING)


class _EventQueue(asyncio.Queue[Any]):
    """The events for the application.

    Calls `on_end` at once for a disconnect, wherever in uvicorn it comes from.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        super().__init__()
        self._on_end = on_end

    def put_nowait(self, item: Any) -> None:
        super().put_nowait(item)
        if item["type"] == "websocket.disconnect":
            self._on_end()


class LiveProtocol(WebSocketsSansIOProtocol):
    """One socket; belongs to the event loop."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Uvicorn and its library log every socket that opens; the endpoint does that.
        self.logger = self.conn.logger = _library_log
        self._on_room: Callable[[], None] | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self.queue = _EventQueue(self._on_disconnect)

    def connection_made(self, transport: BaseTransport) -> None:
        """Take over the connection from HTTP, and limit its buffers."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)
        plain = transport.get_extra_info("socket")
        if plain is not None:
            # Not every system has this option.
            with contextlib.suppress(OSError, AttributeError):
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        if self._end_timer is not None:
            self._end_timer.cancel()

    def resume_writing(self) -> None:
        """Report that there is room again."""
        super().resume_writing()
        self._notify_room()

    async def run_asgi(self) -> None:
        """Run the application; the connection ends with it."""
        extensions: dict[str, Any] = {**(self.scope.get("extensions") or {}), SOCKET: self}
        self.scope["extensions"] = extensions
        await super().run_asgi()
        self._end_soon()

    def keepalive_timeout(self) -> None:
        """Close a socket whose peer does not answer pings."""
        self.pong_timer = None
        self.end(CloseCode.INTERNAL_ERROR, "no answer to a ping")

    # The interface for sessions.

    @property
    def is_ended(self) -> bool:
        """True if nothing can be written any more."""
        return self.close_sent or self.disconnected or self.transport.is_closing()

    @property
    def is_full(self) -> bool:
        """True if the peer has not read enough of what was written."""
        return not self.writable.is_set()

    @property
    def waiting_bytes(self) -> int:
        """The number of written bytes that the kernel has not accepted yet."""
        return int(self.transport.get_write_buffer_size())

    def when_room(self, call: Callable[[], None]) -> None:
        """Call a function whenever there is room again, and at the end."""
        self._on_room = call

    def write(self, frames: bytes) -> None:
        """Write whole frames; after the close they are dropped."""
        if not self.is_ended:
            self.transport.write(frames)

    def end(self, code: int, reason: str) -> None:
        """Send a close frame, and abort the connection if the peer does not read it in time."""
        if self.is_ended:
            return
        self.stop_keepalive()
        short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        with contextlib.suppress(InvalidState):  # the peer closed first
            self.conn.send_close(code, short)
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        # Uvicorn leaves closing the connection to this timer.
        self.close_timer = self.loop.call_later(END_SECONDS, self.transport.abort)

    def _on_disconnect(self) -> None:
        """Wake everything that waits for the peer, and bound the time to the end of the connection."""
        self.writable.set()
        self._notify_room()
        self._end_soon()

    def _end_soon(self) -> None:
        if not self.disconnected and self._end_timer is None:
            self._end_timer = self.loop.call_later(END_SECONDS, self.transport.abort)

    def _notify_room(self) -> None:
        if self._on_room is not None:
            self._on_room()
