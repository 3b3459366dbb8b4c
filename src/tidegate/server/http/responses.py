"""Sending: gives an answer in pieces, no faster than its caller takes them, and cuts off who takes nothing.

The HTTP server below holds what is written to a connection until the caller reads it. It tells a writer to
wait only at the next write, so a large answer that is written at once lies there, counted by nobody, for as
long as the caller likes. In pieces, the request goes on until the caller has nearly all of it, and its place
among the requests that run is taken so long.

Answers: writes JSON.

Answers held: counts the bytes of answers that are made and not sent yet, and refuses more than fit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from tidegate.errors import TooManyRequests

JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"


# Large enough that the cost of a send does not count.
PIECE_BYTES = 256 * 1024
# An answer up to this lies in the connection's buffer, which has this size, and needs no care.
WHOLE_BYTES_MAX = 64 * 1024
# A caller who takes less than a piece in this time is cut off: its place belongs to others.
UNREAD_SECONDS = 30.0
# The extension under which the protocol offers to drop a connection with all that was written to it. To close
# one would wait until the caller has read that.
CUT = "tidegate.cut"

log = logging.getLogger(__name__)


class LargeResponse(Response):
    """An answer that was made as a whole and goes out in pieces."""

    def __init__(
        self, content: bytes, media_type: str, status_code: int = 200, held: AnswersHeld | None = None
    ) -> None:
        """Take an answer, whose bytes are counted until it is sent; refuse it where too many are held."""
        super().__init__(content, status_code=status_code, media_type=media_type)
        self._release: Callable[[], None] = _nothing
        if held is not None:
            held.take(len(content))
            self._release = partial(held.release, len(content))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await _send(self, _one(bytes(self.body)), scope, receive, send)
        finally:
            self._release()


class StreamResponse(StreamingResponse):
    """An answer that is made while it goes out."""

    def __init__(self, chunks: AsyncIterator[bytes], media_type: str, release: Callable[[], None]) -> None:
        """Take the chunks, and what is to be done when they are sent or nobody takes them."""
        super().__init__(chunks, media_type=media_type)
        self._chunks = chunks
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await _send(self, self._chunks, scope, receive, send)
        finally:
            self._release()


def _nothing() -> None:
    """Do nothing: the answer is not counted."""


async def _one(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _send(
    answer: Response, chunks: AsyncIterator[bytes], scope: Scope, receive: Receive, send: Send
) -> None:
    leaving = asyncio.ensure_future(left(receive))
    start = {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
    try:
        await _send_one(send, start)
        async for chunk in chunks:
            for at in range(0, len(chunk), PIECE_BYTES):
                if leaving.done():
                    return
                await _send_one(send, _body(chunk[at : at + PIECE_BYTES], more=True))
        # Empty, for its wait alone: until then the caller may have taken nothing of the last piece.
        await _send_one(send, _body(b"", more=False))
    except _Unread:
        log.warning(
            "%s %s: the caller did not take the answer and is cut off", scope["method"], scope["path"]
        )
        await _cut(scope, leaving)
    finally:
        leaving.cancel()


def _body(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


async def left(receive: Receive) -> None:
    """Return when the caller is gone; what it still sends is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Unread(Exception):
    """The caller takes nothing."""


async def _send_one(send: Send, message: Message) -> None:
    try:
        async with asyncio.timeout(UNREAD_SECONDS):
            await send(message)
    except TimeoutError as problem:
        raise _Unread from problem


async def _cut(scope: Scope, leaving: asyncio.Future[None]) -> None:
    """Drop the connection with all that was written to it."""
    offered = (scope.get("extensions") or {}).get(CUT)
    if offered is None:
        raise _Unread  # a server that is not ours: it closes the connection of an answer that failed
    offered["now"]()
    await leaving


def json_answer(content: Any, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return ready_answer(msgspec.json.encode(content), JSON, status)


def ready_answer(
    content: bytes, media_type: str, status: int = 200, held: AnswersHeld | None = None
) -> Response:
    """Return an answer that is written; a large one goes in pieces, and is counted where `held` is given."""
    if len(content) <= WHOLE_BYTES_MAX:
        return Response(content, status_code=status, media_type=media_type)
    return LargeResponse(content, media_type, status, held)


# Beyond this answers would take the memory that the rest of the server needs.
ANSWER_BYTES_MAX = 256 * 1024 * 1024
# What a caller who finds no room is asked to wait.
RETRY_SECONDS = 2


class AnswersHeld:
    """The answers that wait for their callers to take them; belongs to the event loop."""

    def __init__(self, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.size_bytes = 0

    def check_room(self) -> None:
        """Refuse work whose answer could not be held anyway."""
        if self.size_bytes >= self._bytes_max:
            raise self._refusal()

    def take(self, size_bytes: int) -> None:
        """Count an answer; one that is larger than the bound is held when it is alone."""
        if self.size_bytes and self.size_bytes + size_bytes > self._bytes_max:
            raise self._refusal()
        self.size_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Count an answer no longer: it is sent, or nobody takes it."""
        self.size_bytes -= size_bytes

    def _refusal(self) -> TooManyRequests:
        return TooManyRequests(
            what="bytes of answers wait until their callers take them",
            limit=self._bytes_max,
            retry_after_seconds=RETRY_SECONDS,
            hint=f"Try again in {RETRY_SECONDS} s, or ask for less at once.",
        )
