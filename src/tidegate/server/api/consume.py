"""The endpoint of consume: messages out, in JSON or in Arrow, leased to a member of a group or not.

Positions in a topic as callers write them: a word, an object with one field, or offsets by partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tidegate.errors import InvariantBroken, RequestInvalid
from tidegate.model.names import shorten
from tidegate.model.timeranges import format_time, parse_time
from tidegate.query.step import ConsumeAsk
from tidegate.server.api.long_poll import Consumed, consumed
from tidegate.server.http.arrow import arrow_answer
from tidegate.server.http.request import Call
from tidegate.server.http.responses import ARROW_STREAM, JSON, ready_answer
from tidegate.topics.definitions import Topic
from tidegate.topics.log.reader import Start

HINT = 'Say "earliest", "latest", {"offset": n}, {"after": n}, {"timestamp": "…"} or {"offsets": {"0": n}}.'


class FromBody(msgspec.Struct, forbid_unknown_fields=True):
    """The object form of a position; exactly one field is given."""

    offset: int | None = None
    after: int | None = None
    timestamp: str | None = None
    offsets: dict[int, int] | None = None


def start_of(given: str | FromBody | dict[int, int]) -> Start:
    """Read a position."""
    if isinstance(given, dict):
        return Start("offsets", offsets=given)
    if given == "earliest":
        return Start("earliest")
    if given == "latest":
        return Start("latest")
    if isinstance(given, str):
        raise RequestInvalid(reason=f"'{shorten(given)}' is not a position.", hint=HINT)
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


# Where an Arrow answer carries the offsets to go on from, and what a group missed.
NEXT_OFFSETS = "tidegate.nextOffsets"
MISSED = "tidegate.missed"
# Answers up to this are written on the event loop: a thread costs more than they do.
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


async def consume(call: Call) -> Response:
    """Messages from a position on, where nothing is remembered, or the next ones of a group, leased."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    body = await call.json(_consume)
    if body.group is not None and call.raw_header(b"idempotency-key") is not None:
        raise RequestInvalid(
            reason="A consume of a group takes no Idempotency-Key.",
            hint="What was leased to an answer that is lost comes again after its lease.",
        )
    ask = ConsumeAsk(
        topic=topic,
        group=body.group,
        member=body.member,
        start=start_of(body.from_),
        partition=body.partition,
        limit=None if isinstance(body.limit, UnsetType) else body.limit,
        wait_ms=body.wait_ms,
        lease_ms=body.lease_ms,
    )
    running.answers.check_room()
    found = await consumed(call, ask)
    write, kind = (_arrow, ARROW_STREAM) if call.wants_arrow() else (_json, JSON)
    if found.count <= SMALL_MESSAGES:
        content = write(topic, found)
    else:
        content = await running.threads.read(write, topic, found)
    return ready_answer(content, kind, held=running.answers)


def _arrow(_topic: Topic, found: Consumed) -> bytes:
    notes = {NEXT_OFFSETS: _encode(by_name(found.next_offsets)).decode()}
    if found.missed:
        notes[MISSED] = _encode(by_name(found.missed)).decode()
    return arrow_answer(found.batches, found.schema, notes)


def _json(topic: Topic, found: Consumed) -> bytes:
    answer: dict[str, Any] = {
        "messages": [message for batch in found.batches for message in message_rows(topic.name, batch)],
        "nextOffsets": by_name(found.next_offsets),
    }
    if found.missed:
        answer["missed"] = by_name(found.missed)
    return _encode(answer)


def by_name(by_partition: Mapping[int, int]) -> dict[str, int]:
    """Return numbers by partition as JSON has them."""
    return {str(key): value for key, value in by_partition.items()}


def message_rows(topic: str, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the messages of a batch as JSON has them; payloads go out as they are."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name not in _OWN}
    nothing = [None] * batch.num_rows
    payloads = batch.column("payload").cast(pa.binary()).to_pylist()
    texts: dict[int, str] = {}
    times = []
    for time_us in batch.column("ts").cast("int64").to_pylist():
        text = texts.get(time_us)
        times.append(text or texts.setdefault(time_us, format_time(time_us)))
    return [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "messageId": str(message_id),
            "lease": lease,
            "deliveries": deliveries,
            "op": op,
            "ts": ts,
            "source": source,
            "user": user,
            "payloadMode": mode,
            "key": key,
            "payload": msgspec.Raw(payload),
        }
        for partition, offset, message_id, lease, deliveries, op, ts, source, user, mode, key, payload in zip(
            columns["partition"],
            columns["offset"],
            columns["message_id"],
            columns.get("lease", nothing),
            columns.get("deliveries", nothing),
            columns["op"],
            times,
            columns["source"],
            columns["user"],
            columns["payload_mode"],
            columns["key"],
            payloads,
            strict=True,
        )
    ]


_OWN = frozenset({"ts", "payload"})
