"""HTTP responses: JSON, and large answers that are sent in pieces, no faster than the client reads them.

The HTTP server holds what is written to a connection until the client reads it. It makes a writer wait only
at the next write, so a large answer that is written at once would stay in memory, uncounted, for as
long as the client likes. In pieces, the request lasts until the client has nearly all of it, and counts as
running for that time. A client that reads nothing is disconnected.

The bytes of answers that are complete and not yet sent are limited as a whole (`HeldResponses`).
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

from tidegate.server.access.admission import HeldResponses

JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"


# Large enough that the cost of one send is negligible.
PIECE_BYTES = 256 * 1024
# An answer up to this size fits into the connection's buffer and needs no pieces.
WHOLE_BYTES_MAX = 64 * 1024
# A client that reads less than a piece in this time is disconnected.
UNREAD_SECONDS = 30.0
# The ASGI extension with which the protocol drops a connection and everything that was written to it. Closing
# would wait until the client has read that.
ABORT = "tidegate.abort"

log = logging.getLogger(__name__)


class LargeResponse(Response):
    """A complete answer that is sent in pieces."""

    def __init__(
        self, content: bytes, media_type: str, status_code: int = 200, held: HeldResponses | None = None
    ) -> None:
        """Count the bytes of the answer in `held` until it is sent.

        Raise TooManyRequests where that is full.
        """
        super().__init__(content, status_code=status_code, media_type=media_type)
        self._release: Callable[[], None] = _nothing
        if held is not None:
            held.add(len(content))
            self._release = partial(held.release, len(content))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await _send(self, _one(bytes(self.body)), scope, receive, send)
        finally:
            self._release()


class StreamResponse(StreamingResponse):
    """An answer that is made while it is sent."""

    def __init__(self, chunks: AsyncIterator[bytes], media_type: str, release: Callable[[], None]) -> None:
        """`release` is called when the chunks are sent or the client has left."""
        super().__init__(chunks, media_type=media_type)
        self._chunks = chunks
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
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
    disconnected = asyncio.ensure_future(wait_disconnect(receive))
    start = {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
    try:
        await _send_one(send, start)
        async for chunk in chunks:
            for at in range(0, len(chunk), PIECE_BYTES):
                if disconnected.done():
                    return
                await _send_one(send, _body(chunk[at : at + PIECE_BYTES], more=True))
        # Empty, to wait: until then the client may have read nothing of the last piece.
        await _send_one(send, _body(b"", more=False))
    except _Unread:
        log.warning("client disconnected: answer not read method=%s path=%s", scope["method"], scope["path"])
        await _abort(scope, disconnected)
    finally:
        disconnected.cancel()


def _body(piece: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": more}


async def wait_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected; what it still sends is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Unread(Exception):
    """The client does not read the answer."""


async def _send_one(send: Send, message: Message) -> None:
    try:
        async with asyncio.timeout(UNREAD_SECONDS):
            await send(message)
    except TimeoutError as problem:
        raise _Unread from problem


async def _abort(scope: Scope, disconnected: asyncio.Future[None]) -> None:
    """Drop the connection with everything that was written to it."""
    extension = (scope.get("extensions") or {}).get(ABORT)
    if extension is None:
        raise _Unread  # another server: it closes the connection of an answer that failed
    extension["now"]()
    await disconnected


def json_answer(content: Any, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return ready_answer(msgspec.json.encode(content), JSON, status)


def ready_answer(
    content: bytes, media_type: str, status: int = 200, held: HeldResponses | None = None
) -> Response:
    """Return an answer of encoded content; a large one is sent in pieces, and counted in `held`."""
    if len(content) <= WHOLE_BYTES_MAX:
        return Response(content, status_code=status, media_type=media_type)
    return LargeResponse(content, media_type, status, held)
