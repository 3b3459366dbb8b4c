"""Endpoints of topics: make, list, show, delete, publish, consume, and what Spark reads (plan, read)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidegate.errors import InvariantBroken, RequestInvalid
from tidegate.ingest.publish import Messages, Receipt, Sender
from tidegate.model.timeranges import format_time, parse_time
from tidegate.server.bodies import ARROW_STREAM, json_answer, read_json
from tidegate.server.running import Running
from tidegate.topics import reading
from tidegate.topics.definitions import Topic
from tidegate.topics.reading import Start, Taken

CONSUME_LIMIT = 100
PRODUCER_ID_CHARS_MAX = 200


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST topics."""

    name: str
    partitions: int = 1


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a publish."""

    payload: msgspec.Raw
    key: str | None = None
    partition: int | None = None


class PublishBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of publish."""

    messages: list[NewMessage]
    producer_id: str | None = None
    sequence: int | None = None


class FromBody(msgspec.Struct, forbid_unknown_fields=True):
    """The object form of `from`; exactly one field is given."""

    offset: int | None = None
    after: int | None = None
    timestamp: str | None = None
    offsets: dict[int, int] | None = None


class ConsumeBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of consume."""

    from_: str | FromBody = msgspec.field(name="from", default="earliest")
    partition: int | None = None
    limit: int = CONSUME_LIMIT
    wait_ms: int = 0


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


_new_topic = msgspec.json.Decoder(NewTopic)
_publish = msgspec.json.Decoder(PublishBody)
_consume = msgspec.json.Decoder(ConsumeBody)
_plan = msgspec.json.Decoder(PlanBody)
_read = msgspec.json.Decoder(ReadBody)


def topic_answer(running: Running, topic: Topic) -> dict[str, Any]:
    """Describe a topic: its shape, and what each partition holds."""
    counters = [running.log.counters(topic, number) for number in range(topic.partitions)]
    return {
        "name": topic.name,
        "createdAt": format_time(topic.created_us),
        "partitions": [
            {"partition": number, "start": held.start, "end": held.end}
            for number, held in enumerate(counters)
        ],
        "messages": sum(held.end - held.start for held in counters),
        "bytes": sum(held.stored_bytes for held in counters),
    }


async def list_topics(_request: Request, running: Running) -> Response:
    """Every topic."""
    return json_answer({"topics": [topic_answer(running, topic) for topic in running.topics]})


async def create_topic(request: Request, running: Running) -> Response:
    """A new topic, durable on return."""
    body = await read_json(request, _new_topic, running.settings.server.body_bytes_max)
    now_us = running.clock.now_us()
    topic = await running.committer.commit(
        lambda staging: running.topics.stage_create(staging, body.name, body.partitions, now_us)
    )
    return json_answer(topic_answer(running, topic), 201)


async def show_topic(request: Request, running: Running) -> Response:
    """One topic."""
    return json_answer(topic_answer(running, running.topics.get(request.path_params["topic"])))


async def delete_topic(request: Request, running: Running) -> Response:
    """A topic and all of its messages go."""
    name = request.path_params["topic"]
    topic = await running.committer.commit(lambda staging: running.topics.stage_delete(staging, name))
    running.log.forget(topic)
    running.arrivals.wake(topic)
    return json_answer({"deleted": topic.name})


async def publish(request: Request, running: Running) -> Response:
    """Messages in; each one's place out, once all of them are on the disk."""
    topic = running.topics.get(request.path_params["topic"])
    body = await read_json(request, _publish, running.settings.server.body_bytes_max)
    messages = _messages(running, body)
    receipt = await running.publisher.publish(topic, messages, _sender(body))
    running.messages_total += len(messages)
    return json_answer({"offsets": _places(receipt)})


def _messages(running: Running, body: PublishBody) -> Messages:
    count_max = running.settings.server.messages_max
    if not 1 <= len(body.messages) <= count_max:
        reason = f"A publish takes 1 to {count_max} messages, not {len(body.messages)}."
        raise RequestInvalid(reason=reason, hint="Split the request, or raise server.messages_max.")
    payloads = [bytes(message.payload) for message in body.messages]
    bytes_max = running.settings.topics.message_bytes_max
    for index, message in enumerate(body.messages):
        size_bytes = len(payloads[index]) + len((message.key or "").encode())
        if size_bytes > bytes_max:
            reason = f"Message {index} has {size_bytes} bytes of key and payload; the most is {bytes_max}."
            raise RequestInvalid(reason=reason, hint="Send less, or raise topics.message_bytes_max.")
    return Messages(
        [message.key for message in body.messages], payloads, [message.partition for message in body.messages]
    )


def _sender(body: PublishBody) -> Sender | None:
    if body.producer_id is None and body.sequence is None:
        return None
    if body.producer_id is None or body.sequence is None:
        raise RequestInvalid(
            reason="producerId and sequence go together.", hint="Send both, or neither for a plain publish."
        )
    if not 1 <= len(body.producer_id) <= PRODUCER_ID_CHARS_MAX or body.sequence < 0:
        reason = f"producerId has 1 to {PRODUCER_ID_CHARS_MAX} characters, and sequence counts from 0."
        raise RequestInvalid(reason=reason, hint="The sequence is the number of the request's first message.")
    return Sender(body.producer_id, body.sequence)


def _places(receipt: Receipt) -> list[dict[str, Any]]:
    columns = zip(receipt.partitions.tolist(), receipt.offsets.tolist(), receipt.ids.tolist(), strict=True)
    return [
        {"partition": partition, "offset": offset, "messageId": str(message_id)}
        for partition, offset, message_id in columns
    ]


async def consume(request: Request, running: Running) -> Response:
    """Messages from a position on, without a group: nothing is remembered. Waits for the first if asked."""
    topic = running.topics.get(request.path_params["topic"])
    body = await read_json(request, _consume, running.settings.server.body_bytes_max)
    _check_consume(running, body)
    start = _start(body.from_)
    begin = await running.threads.read(reading.start_offsets, running.log, topic, start, body.partition)
    taken = await _take_or_wait(running, topic, begin, body)
    messages = await running.threads.read(_rows, topic, taken)
    return json_answer(
        {"messages": messages, "nextOffsets": {str(key): value for key, value in taken.next_offsets.items()}}
    )


def _check_consume(running: Running, body: ConsumeBody) -> None:
    limits = running.settings.server
    if not 1 <= body.limit <= limits.messages_max:
        reason = f"limit is 1 to {limits.messages_max}, not {body.limit}."
        raise RequestInvalid(reason=reason, hint="Read in pages: go on from nextOffsets.")
    if not 0 <= body.wait_ms <= limits.wait_ms_max:
        reason = f"waitMs is 0 to {limits.wait_ms_max}, not {body.wait_ms}."
        raise RequestInvalid(reason=reason, hint="Ask again after an empty answer.")


async def _take_or_wait(running: Running, topic: Topic, begin: dict[int, int], body: ConsumeBody) -> Taken:
    clock = running.clock
    deadline = clock.monotonic_seconds() + body.wait_ms / 1000
    while True:
        waiter = running.arrivals.arm(topic)
        try:
            # Deleted while this waited: say so, rather than read a topic of the same name made since.
            running.topics.get(topic.name).check_id(topic.id)
            taken = await running.threads.read(reading.take, running.log, topic, begin, body.limit)
            left_seconds = deadline - clock.monotonic_seconds()
            if taken.batches or left_seconds <= 0 or running.stopping:
                return taken
            await asyncio.wait([waiter], timeout=left_seconds)
        finally:
            running.arrivals.disarm(topic, waiter)


def _start(given: str | FromBody | dict[int, int]) -> Start:
    if isinstance(given, dict):
        return Start("offsets", offsets=given)
    if given == "earliest":
        return Start("earliest")
    if given == "latest":
        return Start("latest")
    if isinstance(given, str):
        reason = f"'{given}' is not a position."
        raise RequestInvalid(
            reason=reason, hint='Say "earliest", "latest", {"offset": n}, {"after": n} or {"timestamp": "…"}.'
        )
    chosen = [name for name in FromBody.__struct_fields__ if getattr(given, name) is not None]
    if len(chosen) != 1:
        reason = "A position has exactly one of offset, after, timestamp and offsets."
        raise RequestInvalid(reason=reason, hint='For example {"offset": 12}.')
    if given.timestamp is not None:
        return Start("timestamp", parse_time(given.timestamp))
    if given.offsets is not None:
        return Start("offsets", offsets=given.offsets)
    if given.after is not None:
        return Start("after", given.after)
    if given.offset is not None:
        return Start("offset", given.offset)
    raise InvariantBroken(reason="a position without a field passed the check")


def _rows(topic: Topic, taken: Taken) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in taken.batches:
        columns = batch.to_pydict()
        times = batch.column("ts").cast("int64").to_pylist()
        for index, payload in enumerate(columns["payload"]):
            rows.append(
                {
                    "topic": topic.name,
                    "partition": columns["partition"][index],
                    "offset": columns["offset"][index],
                    "messageId": str(columns["message_id"][index]),
                    "op": columns["op"][index],
                    "ts": format_time(times[index]),
                    "source": columns["source"][index],
                    "payloadMode": columns["payload_mode"][index],
                    "key": columns["key"][index],
                    "payload": msgspec.Raw(payload.encode()),
                }
            )
    return rows


async def plan(request: Request, running: Running) -> Response:
    """The next offset range to read, planned here so that every reader plans alike."""
    topic = running.topics.get(request.path_params["topic"])
    body = await read_json(request, _plan, running.settings.server.body_bytes_max)
    topic.check_id(body.topic_id)
    if body.messages_max is not None and body.messages_max < 1:
        raise RequestInvalid(reason="messagesMax is 1 or more.", hint="Leave it out for no limit.")
    planned = await running.threads.read(
        reading.plan, running.log, topic, _start(body.start), body.messages_max
    )
    ends = {"start": planned.start, "end": planned.end, "latest": planned.latest}
    return json_answer({"topicId": topic.id, **ends})


async def read(request: Request, running: Running) -> Response:
    """Exactly the messages of an offset range, as one Arrow stream."""
    topic = running.topics.get(request.path_params["topic"])
    body = await read_json(request, _read, running.settings.server.body_bytes_max)
    topic.check_id(body.topic_id)
    if body.to < body.from_:
        raise RequestInvalid(
            reason=f"The range ends at {body.to}, before it starts.", hint="Ranges are half-open."
        )
    chunks = reading.arrow_stream(running.log, topic, body.partition, body.from_, body.to)
    # The first chunk is made before the answer begins, so that an error in it still has a status of its own.
    first = await running.threads.read(next, chunks)
    return StreamingResponse(_stream(running, first, chunks), media_type=ARROW_STREAM)


async def _stream(running: Running, first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    while chunk := await running.threads.read(next, rest, b""):
        yield chunk
