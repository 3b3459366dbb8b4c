"""The consume endpoint: messages in JSON or in Arrow, with or without a consumer group.

A position in a topic is a word, an object with one field, or offsets by partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tidegate.errors import InvariantBroken, RequestInvalid
from tidegate.model.names import shorten
from tidegate.model.times import format_time, parse_time
from tidegate.model.wire.topics import MessagePage, MessageResponse
from tidegate.query.step import ConsumeRequest
from tidegate.server.api.long_poll import FetchedMessages, fetch_messages
from tidegate.server.http.arrow import arrow_answer
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import ARROW_STREAM, JSON, ready_answer
from tidegate.topics.definitions import Topic
from tidegate.topics.log.reader import Start

HINT = 'Say "earliest", "latest", {"offset": n}, {"after": n}, {"timestamp": "…"} or {"offsets": {"0": n}}.'


class FromBody(msgspec.Struct, forbid_unknown_fields=True):
    """The object form of a position; exactly one field is set."""

    offset: int | None = None
    after: int | None = None
    timestamp: str | None = None
    offsets: dict[int, int] | None = None


def parse_start(position: str | FromBody | dict[int, int]) -> Start:
    """Return the start position of a request."""
    if isinstance(position, dict):
        return Start("offsets", offsets=position)
    if position == "earliest":
        return Start("earliest")
    if position == "latest":
        return Start("latest")
    if isinstance(position, str):
        raise RequestInvalid(reason=f"'{shorten(position)}' is not a position.", hint=HINT)
    chosen = [name for name in FromBody.__struct_fields__ if getattr(position, name) is not None]
    if len(chosen) != 1:
        reason = "A position has exactly one of offset, after, timestamp and offsets."
        raise RequestInvalid(reason=reason, hint='For example {"offset": 12}.')
    if position.timestamp is not None:
        return Start("timestamp", parse_time(position.timestamp))
    if position.offsets is not None:
        return Start("offsets", offsets=position.offsets)
    if position.after is not None:
        return Start("after", position.after)
    if position.offset is not None:
        return Start("offset", position.offset)
    raise InvariantBroken(reason="a position without a field passed the check")


# Metadata of an Arrow answer: the offsets to continue from, and what a group missed.
NEXT_OFFSETS = "tidegate.nextOffsets"
MISSED = "tidegate.missed"
# Answers of up to this many messages are encoded on the event loop: a thread would cost more.
SMALL_MESSAGES = 20


class ConsumeBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of consume."""

    from_: str | FromBody = msgspec.field(name="from", default="earliest")
    partition: int | None = None
    limit: int | UnsetType = UNSET
    wait_ms: int = 0
    group: str | None = None
    member: str | None = None
    lease_ms: int | None = None


_consume = msgspec.json.Decoder(ConsumeBody)
_encode = msgspec.json.Encoder().encode
_skip = msgspec.json.Decoder(list[msgspec.Raw])


async def consume(request: HttpRequest) -> Response:
    """Messages from a position on, without any state, or the next ones of a consumer group, leased."""
    runtime, topic = request.runtime, request.topic()
    body = await request.json(_consume)
    if body.group is not None and request.raw_header(b"idempotency-key") is not None:
        raise RequestInvalid(
            reason="A consume of a group takes no Idempotency-Key.",
            hint="What was leased to an answer that is lost is redelivered when its lease expires.",
        )
    ask = ConsumeRequest(
        topic=topic,
        group=body.group,
        member=body.member,
        start=parse_start(body.from_),
        partition=body.partition,
        limit=None if isinstance(body.limit, UnsetType) else body.limit,
        wait_ms=body.wait_ms,
        lease_ms=body.lease_ms,
    )
    runtime.held_responses.check_room()
    found = await fetch_messages(request, ask)
    write, kind = (_arrow, ARROW_STREAM) if request.wants_arrow() else (_json, JSON)
    if found.count <= SMALL_MESSAGES:
        content = write(topic, found)
    else:
        content = await runtime.threads.read(write, topic, found)
    return ready_answer(content, kind, held=runtime.held_responses)


def _arrow(_topic: Topic, found: FetchedMessages) -> bytes:
    notes = {NEXT_OFFSETS: _encode(found.next_offsets)}
    if found.missed:
        notes[MISSED] = _encode(found.missed)
    return arrow_answer(found.table(), notes)


def _json(topic: Topic, found: FetchedMessages) -> bytes:
    messages = [message for batch in found.batches for message in _messages(topic.name, batch)]
    _mark_unreadable(messages)
    if found.damage is not None:
        messages[0].unreadable = found.damage.message
    return _encode(MessagePage(messages, found.next_offsets, found.missed or UNSET))


def _mark_unreadable(messages: list[MessageResponse]) -> None:
    """Send payloads that are no JSON as text, with the reason: in an answer as they are, they would break it.

    No door stores such a payload. One check of all of them costs a fiftieth of the answer.
    """
    if _are_json([bytes(message.payload) for message in messages]):
        return
    for message in messages:
        payload = bytes(message.payload)
        if not _are_json([payload]):
            message.payload = msgspec.Raw(_encode(payload.decode(errors="replace")))
            message.unreadable = "the stored payload is no JSON, or nested too deep"


def _are_json(payloads: list[bytes]) -> bool:
    joined = b"[%b]" % b",".join(payloads)
    try:
        joined.decode()  # skipped texts are not looked at
        return len(_skip.decode(joined)) == len(payloads)
    except (ValueError, RecursionError):
        return False


def _messages(topic: str, batch: pa.RecordBatch) -> Iterator[MessageResponse]:
    """Yield the messages of a batch; their payloads are JSON already."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name not in _CONVERTED}
    nothing = [None] * batch.num_rows
    texts: dict[int, str] = {}
    times = []
    for time_us in batch.column("ts").cast("int64").to_pylist():
        text = texts.get(time_us)
        times.append(text or texts.setdefault(time_us, format_time(time_us)))
    return map(
        MessageResponse,
        repeat(topic),
        columns["partition"],
        columns["offset"],
        map(str, columns["message_id"]),
        columns.get("lease", nothing),
        columns.get("deliveries", nothing),
        columns["op"],
        times,
        columns["source"],
        columns["user"],
        columns["payload_mode"],
        columns["key"],
        map(msgspec.Raw, batch.column("payload").cast(pa.binary()).to_pylist()),
    )


# Columns that do not go out as they are stored.
_CONVERTED = frozenset({"ts", "payload"})
