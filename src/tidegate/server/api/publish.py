"""The endpoint of publish: messages in, in JSON or in Arrow; each one's place out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from starlette.responses import Response

from tidegate.errors import ContentTypeUnsupported, RequestInvalid
from tidegate.ingest.idempotency import Answer, Once, stage_once
from tidegate.ingest.publish import Messages, Receipt, Sender
from tidegate.model.names import shorten
from tidegate.server.http.arrow import messages_of
from tidegate.server.http.request import Call, decode_json
from tidegate.server.http.responses import ARROW_STREAM, JSON, ready_answer
from tidegate.server.runtime.runtime import Running
from tidegate.settings import Settings
from tidegate.storage.group_commit import Staging

PRODUCER_ID_CHARS_MAX = 200
# More messages than this are routed and answered in a thread: on the event loop they would hold up others.
LARGE_MESSAGES = 2_000
_QUERY = ("producerId", "sequence")


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a publish."""

    payload: msgspec.Raw
    key: str | None = None
    partition: int | None = None
    dedup_key: str | None = msgspec.field(default=None, name="dedupKey")


class PublishBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of publish."""

    messages: list[NewMessage]
    producer_id: str | None = None
    sequence: int | None = None


_publish = msgspec.json.Decoder(PublishBody)
_encoder = msgspec.json.Encoder()


async def publish(call: Call) -> Response:
    """Messages in; each one's place out, once all of them are on the disk."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    messages, sender = await _taken(call)
    large = len(messages) > LARGE_MESSAGES
    plan = running.publisher.plan
    change = (
        await running.threads.read(plan, topic, messages, sender) if large else plan(topic, messages, sender)
    )
    key = call.idempotency_key()
    if key is None:
        receipt = await running.committer.commit(change)
        body = await running.threads.read(_written, receipt) if large else _written(receipt)
        stored_count = receipt.stored_count
    else:
        # A topic that was deleted and made again has nothing of what the old one of its name stored.
        asked = await call.fingerprint() + topic.id.to_bytes(8, "big")
        print_of = hashlib.blake2b(asked, digest_size=16).digest()
        once = Once(call.tenant, call.principal.full_name, key, print_of, running.clock.now_us())
        body, stored_count = await _publish_once(running, change, once)
    running.count_published(call.tenant, stored_count)
    return ready_answer(body, JSON)


async def _publish_once(
    running: Running, change: Callable[[Staging], Receipt], once: Once
) -> tuple[bytes, int]:
    """Return the answer, and how many messages were stored: none where it is the answer of an earlier try."""
    stored_count = 0

    def deed(staging: Staging) -> Answer:
        nonlocal stored_count
        receipt = change(staging)
        stored_count = receipt.stored_count
        return Answer(200, _written(receipt))

    answer = await running.committer.commit(lambda staging: stage_once(staging, once, deed))
    return answer.body, stored_count


async def _taken(call: Call) -> tuple[Messages, Sender | None]:
    kind, limits = call.content_type(), call.running.settings
    in_query = _sender_of_query(call) if call.scope["query_string"] else None
    if kind == JSON:
        if in_query is not None:
            reason = "With a JSON body, producerId and sequence stand in the body."
            raise RequestInvalid(reason=reason, hint="In the query they belong to an Arrow body.")
        return await call.worked(_from_json, await call.body(), limits)
    if kind == ARROW_STREAM:
        return await call.running.threads.read(_from_arrow, await call.body(), limits), in_query
    raise ContentTypeUnsupported(content_type=kind[:80] or "(none)", supported=f"{JSON}' or '{ARROW_STREAM}")


def _from_json(content: bytes, limits: Settings) -> tuple[Messages, Sender | None]:
    body = decode_json(content, _publish)
    dedup_keys = [message.dedup_key for message in body.messages]
    messages = Messages(
        [message.key for message in body.messages],
        [bytes(message.payload) for message in body.messages],
        [message.partition for message in body.messages],
        dedup_keys if dedup_keys.count(None) < len(dedup_keys) else None,
    )
    sender = _sender(body.producer_id, body.sequence)
    _check_sizes(limits, messages)
    return messages, sender


def _from_arrow(content: bytes, limits: Settings) -> Messages:
    messages = messages_of(content, limits.server.messages_max, limits.server.body_bytes_max)
    _check_sizes(limits, messages)
    return messages


def _check_sizes(limits: Settings, messages: Messages) -> None:
    count_max = limits.server.messages_max
    if not 1 <= len(messages) <= count_max:
        reason = f"A publish takes 1 to {count_max} messages, not {len(messages)}."
        raise RequestInvalid(reason=reason, hint="Split the request, or raise server.messages_max.")
    check_message_bytes(messages, limits.topics.message_bytes_max)


def check_message_bytes(messages: Messages, bytes_max: int) -> None:
    """Refuse a message whose key and payload are too large."""
    for index, (key, payload) in enumerate(zip(messages.keys, messages.payloads, strict=True)):
        size_bytes = len(payload) + len((key or "").encode())
        if size_bytes > bytes_max:
            reason = f"Message {index} has {size_bytes} bytes of key and payload; the most is {bytes_max}."
            raise RequestInvalid(reason=reason, hint="Send less, or raise topics.message_bytes_max.")


def _sender_of_query(call: Call) -> Sender | None:
    query = call.query
    unknown = sorted(set(query) - set(_QUERY))
    if unknown:
        reason = f"A publish has no parameter '{shorten(unknown[0])}'."
        raise RequestInvalid(reason=reason, hint=f"It takes {' and '.join(_QUERY)}, for an Arrow body.")
    return _sender(query.get("producerId"), _number(query.get("sequence")))


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise RequestInvalid(reason="sequence is a whole number.", hint="It counts from 0.")
    return int(text)


def _sender(producer_id: str | None, sequence: int | None) -> Sender | None:
    if producer_id is None and sequence is None:
        return None
    if producer_id is None or sequence is None:
        raise RequestInvalid(
            reason="producerId and sequence go together.", hint="Send both, or neither for a plain publish."
        )
    if not 1 <= len(producer_id) <= PRODUCER_ID_CHARS_MAX or not 0 <= sequence < 2**62:
        reason = f"producerId has 1 to {PRODUCER_ID_CHARS_MAX} characters, and sequence counts from 0."
        raise RequestInvalid(reason=reason, hint="The sequence is the number of the request's first message.")
    return Sender(producer_id, sequence)


def _written(receipt: Receipt) -> bytes:
    columns = zip(receipt.partitions.tolist(), receipt.offsets.tolist(), receipt.ids.tolist(), strict=True)
    places: list[dict[str, Any]] = [
        {"partition": partition, "offset": offset, "messageId": str(message_id)}
        for partition, offset, message_id in columns
    ]
    if receipt.duplicates is not None:
        for index in np.flatnonzero(receipt.duplicates).tolist():
            places[index]["duplicate"] = True
    return _encoder.encode({"offsets": places})
