"""Endpoints of offset ranges, for the Spark source: plan a range, then read its messages as Arrow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial

import msgspec
from starlette.responses import Response

from tidegate.errors import RequestInvalid
from tidegate.model.wire.topics import OffsetRangesResponse
from tidegate.server.api.consume import parse_start
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import ARROW_STREAM, StreamResponse, json_answer
from tidegate.topics.log import reader

# Memory of a stream that is not read: a chunk, and the record batches for the next one.
STREAM_BYTES = 4 * reader.CHUNK_BYTES


class PlanBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of plan."""

    start: str | dict[int, int]
    messages_max: int | None = None
    topic_id: int | None = None


class ReadBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of read."""

    partition: int
    from_: int = msgspec.field(name="from")
    to: int
    topic_id: int | None = None


_plan = msgspec.json.Decoder(PlanBody)
_read = msgspec.json.Decoder(ReadBody)


async def plan(request: HttpRequest) -> Response:
    """Plan the next offset range; done here, so that every reader plans alike."""
    runtime, topic = request.runtime, request.topic()
    body = await request.json(_plan)
    topic.check_id(body.topic_id)
    if body.messages_max is not None and body.messages_max < 1:
        raise RequestInvalid(reason="messagesMax is 1 or more.", hint="Leave it out for no limit.")
    planned = await runtime.threads.read(
        reader.plan, runtime.topics.log, topic, parse_start(body.start), body.messages_max
    )
    return json_answer(OffsetRangesResponse(topic.id, planned.start, planned.end, planned.latest))


async def read(request: HttpRequest) -> Response:
    """The messages of an offset range, as one Arrow stream."""
    runtime, topic = request.runtime, request.topic()
    body = await request.json(_read)
    topic.check_id(body.topic_id)
    if body.to < body.from_:
        raise RequestInvalid(
            reason=f"The range ends at {body.to}, before it starts.", hint="Ranges are half-open."
        )
    chunks = reader.arrow_stream(runtime.topics.log, topic, body.partition, body.from_, body.to)
    runtime.held_responses.add(STREAM_BYTES)
    try:
        # The first chunk is made before the answer begins, so that an error in it is an HTTP error.
        first = await runtime.threads.read(next, chunks)
    except BaseException:
        runtime.held_responses.release(STREAM_BYTES)
        raise
    runtime.metrics.count_consumed(request.tenant, body.to - body.from_, 0)
    release = partial(runtime.held_responses.release, STREAM_BYTES)
    return StreamResponse(_stream(request, first, chunks), ARROW_STREAM, release)


async def _stream(request: HttpRequest, first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    request.runtime.metrics.count_consumed(request.tenant, 0, len(first))
    yield first
    while chunk := await request.runtime.threads.read(next, rest, b""):
        request.check_alive()
        request.runtime.metrics.count_consumed(request.tenant, 0, len(chunk))
        yield chunk
