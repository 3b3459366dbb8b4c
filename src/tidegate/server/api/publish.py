"""The publish endpoint, for messages in JSON or in Arrow."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec
import numpy as np
from starlette.responses import Response

from tidegate.errors import ContentTypeUnsupported, RequestInvalid
from tidegate.ingest.idempotency import Answer, IdempotentRequest, stage_idempotent
from tidegate.ingest.publish import Messages, Receipt, Sender
from tidegate.model.json_limits import HARMLESS_BYTES_MAX, HINT, find_unreadable
from tidegate.model.names import shorten
from tidegate.model.wire.topics import NewMessage, PublishedMessage, PublishResponse
from tidegate.server.http.arrow import messages_of
from tidegate.server.http.request import HttpRequest, decode_json
from tidegate.server.http.responses import ARROW_STREAM, JSON, ready_answer
from tidegate.server.runtime.runtime import Runtime
from tidegate.settings import Settings
from tidegate.storage.group_commit import Staging
from tidegate.topics.log.record_batch import message_bytes

PRODUCER_ID_CHARS_MAX = 200
# More messages than this are routed and answered in a thread: on the event loop they would delay others.
LARGE_MESSAGES = 2_000
_QUERY = ("producerId", "sequence")


class PublishBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of publish."""

    messages: list[NewMessage]
    producer_id: str | None = None
    sequence: int | None = None


_publish = msgspec.json.Decoder(PublishBody)
_encoder = msgspec.json.Encoder()


async def publish(request: HttpRequest) -> Response:
    """Publish messages; answers with the place of each, once all of them are on the disk."""
    runtime, topic = request.runtime, request.topic()
    messages, sender = await _read_messages(request)
    large = len(messages) > LARGE_MESSAGES
    if runtime.quotas.limits_published:
        runtime.quotas.take_published(request.principal, message_bytes(messages.keys, messages.payloads))
    plan = runtime.topics.publisher.plan
    change = (
        await runtime.threads.read(plan, topic, messages, sender) if large else plan(topic, messages, sender)
    )
    key = request.idempotency_key()
    if key is None:
        receipt = await runtime.committer.commit(change)
        body = await runtime.threads.read(_response, receipt) if large else _response(receipt)
        stored_count = receipt.stored_count
    else:
        # The topic's id: a topic that was recreated has none of the messages of the old one.
        digest_input = await request.fingerprint() + topic.id.to_bytes(8, "big")
        fingerprint = hashlib.blake2b(digest_input, digest_size=16).digest()
        idempotent = IdempotentRequest(
            request.tenant, request.principal.full_name, key, fingerprint, runtime.clock.now_us()
        )
        body, stored_count = await _publish_once(runtime, change, idempotent)
    runtime.metrics.count_published(request.tenant, stored_count)
    return ready_answer(body, JSON)


async def _publish_once(
    runtime: Runtime, change: Callable[[Staging], Receipt], idempotent: IdempotentRequest
) -> tuple[bytes, int]:
    """Return the answer and the number of stored messages: 0 where it is the answer of an earlier try."""
    stored_count = 0

    def publish_now(staging: Staging) -> Answer:
        nonlocal stored_count
        receipt = change(staging)
        stored_count = receipt.stored_count
        return Answer(200, _response(receipt))

    answer = await runtime.committer.commit(
        lambda staging: stage_idempotent(staging, idempotent, publish_now)
    )
    return answer.body, stored_count


async def _read_messages(request: HttpRequest) -> tuple[Messages, Sender | None]:
    kind, limits = request.content_type(), request.runtime.settings
    in_query = _sender_of_query(request) if request.scope["query_string"] else None
    if kind == JSON:
        if in_query is not None:
            reason = "With a JSON body, producerId and sequence belong in the body."
            raise RequestInvalid(reason=reason, hint="In the query they belong to an Arrow body.")
        user = request.principal.qualified_name
        return await request.run_by_size(_from_json, await request.body(), limits, user)
    if kind == ARROW_STREAM:
        return await request.runtime.threads.read(_from_arrow, await request.body(), limits), in_query
    raise ContentTypeUnsupported(content_type=kind[:80] or "(none)", supported=f"{JSON}' or '{ARROW_STREAM}")


def _from_json(content: bytes, limits: Settings, user: str) -> tuple[Messages, Sender | None]:
    body = decode_json(content, _publish)
    dedup_keys = [message.dedup_key for message in body.messages]
    messages = Messages(
        [message.key for message in body.messages],
        [bytes(message.payload) for message in body.messages],
        [message.partition for message in body.messages],
        dedup_keys if dedup_keys.count(None) < len(dedup_keys) else None,
    )
    sender = _sender(body.producer_id, body.sequence, user)
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
    check_messages(messages, limits.topics.message_bytes_max)


def check_messages(messages: Messages, bytes_max: int) -> None:
    """Raise RequestInvalid for a message that is too large, or that not every client could read."""
    for index, (key, payload) in enumerate(zip(messages.keys, messages.payloads, strict=True)):
        size_bytes = len(payload) + len((key or "").encode())
        if size_bytes > bytes_max:
            reason = f"Message {index} has {size_bytes} bytes of key and payload; the most is {bytes_max}."
            raise RequestInvalid(reason=reason, hint="Send less, or raise topics.message_bytes_max.")
        if size_bytes > HARMLESS_BYTES_MAX and (why := find_unreadable(payload)):
            raise RequestInvalid(
                reason=f"Message {index} is not readable for every client: {why}.", hint=HINT
            )


def _sender_of_query(request: HttpRequest) -> Sender | None:
    query = request.query
    unknown = sorted(set(query) - set(_QUERY))
    if unknown:
        reason = f"A publish has no parameter '{shorten(unknown[0])}'."
        raise RequestInvalid(reason=reason, hint=f"It takes {' and '.join(_QUERY)}, for an Arrow body.")
    user = request.principal.qualified_name
    return _sender(query.get("producerId"), _number(query.get("sequence")), user)


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise RequestInvalid(reason="sequence is a whole number.", hint="It counts from 0.")
    return int(text)


def _sender(producer_id: str | None, sequence: int | None, user: str) -> Sender | None:
    if producer_id is None and sequence is None:
        return None
    if producer_id is None or sequence is None:
        raise RequestInvalid(
            reason="producerId and sequence go together.", hint="Send both, or neither for a plain publish."
        )
    if not 1 <= len(producer_id) <= PRODUCER_ID_CHARS_MAX or not 0 <= sequence < 2**62:
        reason = f"producerId has 1 to {PRODUCER_ID_CHARS_MAX} characters, and sequence counts from 0."
        raise RequestInvalid(reason=reason, hint="The sequence is the number of the request's first message.")
    return Sender(producer_id, sequence, user)


def _response(receipt: Receipt) -> bytes:
    columns = zip(receipt.partitions.tolist(), receipt.offsets.tolist(), receipt.ids.tolist(), strict=True)
    places = [
        PublishedMessage(partition, offset, str(message_id)) for partition, offset, message_id in columns
    ]
    if receipt.duplicates is not None:
        for index in np.flatnonzero(receipt.duplicates).tolist():
            places[index].duplicate = True
    return _encoder.encode(PublishResponse(places))
