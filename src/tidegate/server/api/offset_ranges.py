"""Endpoints of offset ranges, which Spark reads: plan a range, then read exactly its messages as Arrow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial

import msgspec
from starlette.responses import Response

from tidegate.errors import RequestInvalid
from tidegate.server.api.consume import start_of
from tidegate.server.http.request import Call
from tidegate.server.http.responses import ARROW_STREAM, StreamResponse, json_answer
from tidegate.topics.log import reader

# What a stream that is not taken holds: a chunk, and the page of record batches that the next is made from.
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


async def plan(call: Call) -> Response:
    """The next offset range to read, planned here so that every reader plans alike."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    body = await call.json(_plan)
    topic.check_id(body.topic_id)
    if body.messages_max is not None and body.messages_max < 1:
        raise RequestInvalid(reason="messagesMax is 1 or more.", hint="Leave it out for no limit.")
    planned = await running.threads.read(
        reader.plan, running.log, topic, start_of(body.start), body.messages_max
    )
    ends = {"start": planned.start, "end": planned.end, "latest": planned.latest}
    return json_answer({"topicId": topic.id, **ends})


async def read(call: Call) -> Response:
    """Exactly the messages of an offset range, as one Arrow stream."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    body = await call.json(_read)
    topic.check_id(body.topic_id)
    if body.to < body.from_:
        raise RequestInvalid(
            reason=f"The range ends at {body.to}, before it starts.", hint="Ranges are half-open."
        )
    chunks = reader.arrow_stream(running.log, topic, body.partition, body.from_, body.to)
    running.answers.take(STREAM_BYTES)
    try:
        # The first chunk is made before the answer begins, so that an error in it has a status of its own.
        first = await running.threads.read(next, chunks)
    except BaseException:
        running.answers.release(STREAM_BYTES)
        raise
    running.metrics.count_consumed(call.tenant, body.to - body.from_, 0)
    release = partial(running.answers.release, STREAM_BYTES)
    return StreamResponse(_stream(call, first, chunks), ARROW_STREAM, release)


async def _stream(call: Call, first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    call.running.metrics.count_consumed(call.tenant, 0, len(first))
    yield first
    while chunk := await call.running.threads.read(next, rest, b""):
        call.check_alive()
        call.running.metrics.count_consumed(call.tenant, 0, len(chunk))
        yield chunk
