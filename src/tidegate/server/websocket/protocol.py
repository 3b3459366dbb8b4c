"""The protocol of live sockets: uvicorn's, with back pressure that can be seen and ends that are final.

Messages that are made already are written past the ASGI interface, which would wake a task and encode a
frame for each of a thousand sockets. A transport that holds too much says so before more is written. A
socket that ends gets a moment to take what lies there, and is cut off then: closing in good order would
wait for a peer that does not read for ever.
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
# A socket holds this much that its peer has not taken, and what is written in the step that goes beyond.
WAITING_BYTES_MAX = 256 * 1024
# The system holds no more than this unsent beside what is on its way. With its own limits of megabytes, slow
# peers are noticed late, and the answer to a ping waits behind all of it.
UNSENT_BYTES_MAX = 128 * 1024
# What a close code may say beside, in bytes.
REASON_BYTES_MAX = 120
# Time that a peer gets to take what is written to it and to answer when its socket ends.
END_SECONDS = 1.0

_library_log = logging.getLogger("uvicorn.error.sockets")
_library_log.setLevel(logging.WARNING)


class _Heard(asyncio.Queue[Any]):
    """What the application is to hear; the end is told at once, wherever in uvicorn it came from."""

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
        # Uvicorn and its library note every socket that opens; that is told where sockets are served.
        self.logger = self.conn.logger = _library_log
        self._on_room: Callable[[], None] | None = None
        self._end_timer: asyncio.TimerHandle | None = None
        self.queue = _Heard(self._learn_end)

    def connection_made(self, transport: BaseTransport) -> None:
        """Take over the connection from HTTP, and bound what lies in it."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)
        plain = transport.get_extra_info("socket")
        if plain is not None:
            # A system that knows no such limit has its own.
            with contextlib.suppress(OSError, AttributeError):
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        if self._end_timer is not None:
            self._end_timer.cancel()

    def resume_writing(self) -> None:
        """Learn that there is room again."""
        super().resume_writing()
        self._tell_room()

    async def run_asgi(self) -> None:
        """Run the application; when it is done, the connection is, too."""
        offered: dict[str, Any] = {**(self.scope.get("extensions") or {}), SOCKET: self}
        self.scope["extensions"] = offered
        await super().run_asgi()
        self._end_soon()

    def keepalive_timeout(self) -> None:
        """End a socket whose peer does not answer pings."""
        self.pong_timer = None
        self.end(CloseCode.INTERNAL_ERROR, "no answer to a ping")

    # What sessions use.

    @property
    def is_ended(self) -> bool:
        """Whether nothing can be written any more."""
        return self.close_sent or self.disconnected or self.transport.is_closing()

    @property
    def is_full(self) -> bool:
        """Whether the peer has not taken enough of what was written."""
        return not self.writable.is_set()

    @property
    def waiting_bytes(self) -> int:
        """How much was written that the system has not taken yet."""
        return int(self.transport.get_write_buffer_size())

    def when_room(self, call: Callable[[], None]) -> None:
        """Have a function called whenever there is room again, and at the end."""
        self._on_room = call

    def write(self, frames: bytes) -> None:
        """Write whole frames; after the end they are dropped."""
        if not self.is_ended:
            self.transport.write(frames)

    def end(self, code: int, reason: str) -> None:
        """Say why the socket ends, and cut it off when the peer does not take that in time."""
        if self.is_ended:
            return
        self.stop_keepalive()
        short = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        with contextlib.suppress(InvalidState):  # the peer said it first
            self.conn.send_close(code, short)
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        # Uvicorn leaves the connection to whoever set this timer.
        self.close_timer = self.loop.call_later(END_SECONDS, self.transport.abort)

    def _learn_end(self) -> None:
        """Let nobody wait for a peer that is going, and let it not take long."""
        self.writable.set()
        self._tell_room()
        self._end_soon()

    def _end_soon(self) -> None:
        if not self.disconnected and self._end_timer is None:
            self._end_timer = self.loop.call_later(END_SECONDS, self.transport.abort)

    def _tell_room(self) -> None:
        if self._on_room is not None:
            self._on_room()
