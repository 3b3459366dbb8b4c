"""Joined writes: the head of an answer waits for its body, so that a small answer is one write to the socket.

The HTTP server writes the two one after the other, and each write is a call of the system: a fifth of what a
small request costs. A head whose body does not follow at once goes alone in the next turn of the event loop.
"""

from __future__ import annotations

import asyncio

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
        """Say whether the connection is closed or closes."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)
