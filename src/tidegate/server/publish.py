"""The endpoint of publish: messages in, in JSON or in Arrow; each one's place out."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from tidegate.errors import ContentTypeUnsupported, RequestInvalid
from tidegate.ingest.answers import Answer, Once, stage_once
from tidegate.ingest.publish import Messages, Receipt, Sender
from tidegate.server.arrow_bodies import messages_of
from tidegate.server.call import ARROW_STREAM, JSON, Call, decode_json
from tidegate.server.running import Running
from tidegate.storage.commit import Staging
from tidegate.topics.definitions import Topic

PRODUCER_ID_CHARS_MAX = 200


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


_publish = msgspec.json.Decoder(PublishBody)
_encoder = msgspec.json.Encoder()


async def publish(call: Call) -> Response:
    """Messages in; each one's place out, once all of them are on the disk."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    messages, sender = await _taken(call)
    key = call.idempotency_key()
    if key is None:
        receipt = await running.publisher.publish(topic, messages, sender)
        body = _encoder.encode({"offsets": _places(receipt)})
    else:
        once = Once(
            call.tenant, call.principal.full_name, key, await call.fingerprint(), running.clock.now_us()
        )
        body = await _publish_once(running, topic, messages, sender, once)
    running.count_published(call.tenant, len(messages))
    return Response(body, media_type=JSON)


async def _publish_once(
    running: Running, topic: Topic, messages: Messages, sender: Sender | None, once: Once
) -> bytes:
    change = running.publisher.plan(topic, messages, sender)

    def deed(staging: Staging) -> Answer:
        return Answer(200, _encoder.encode({"offsets": _places(change(staging))}))

    return (await running.committer.commit(lambda staging: stage_once(staging, once, deed))).body


async def _taken(call: Call) -> tuple[Messages, Sender | None]:
    kind = call.content_type()
    if kind == JSON:
        body = decode_json(await call.body(), _publish)
        messages = _messages_of(body)
        sender = _sender(body.producer_id, body.sequence)
        if call.scope["query_string"] and _sender_of_query(call) is not None:
            reason = "With a JSON body, producerId and sequence stand in the body."
            raise RequestInvalid(reason=reason, hint="In the query they belong to an Arrow body.")
    elif kind == ARROW_STREAM:
        limit = call.running.settings.server.messages_max
        messages = await call.running.threads.read(messages_of, await call.body(), limit)
        sender = _sender_of_query(call)
    else:
        raise ContentTypeUnsupported(
            content_type=kind[:80] or "(none)", supported=f"{JSON}' or '{ARROW_STREAM}"
        )
    _check_sizes(call.running, messages)
    return messages, sender


def _messages_of(body: PublishBody) -> Messages:
    return Messages(
        [message.key for message in body.messages],
        [bytes(message.payload) for message in body.messages],
        [message.partition for message in body.messages],
    )


def _check_sizes(running: Running, messages: Messages) -> None:
    count_max = running.settings.server.messages_max
    if not 1 <= len(messages) <= count_max:
        reason = f"A publish takes 1 to {count_max} messages, not {len(messages)}."
        raise RequestInvalid(reason=reason, hint="Split the request, or raise server.messages_max.")
    bytes_max = running.settings.topics.message_bytes_max
    for index, (key, payload) in enumerate(zip(messages.keys, messages.payloads, strict=True)):
        size_bytes = len(payload) + len((key or "").encode())
        if size_bytes > bytes_max:
            reason = f"Message {index} has {size_bytes} bytes of key and payload; the most is {bytes_max}."
            raise RequestInvalid(reason=reason, hint="Send less, or raise topics.message_bytes_max.")


def _sender_of_query(call: Call) -> Sender | None:
    query = call.query
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


def _places(receipt: Receipt) -> list[dict[str, Any]]:
    columns = zip(receipt.partitions.tolist(), receipt.offsets.tolist(), receipt.ids.tolist(), strict=True)
    return [
        {"partition": partition, "offset": offset, "messageId": str(message_id)}
        for partition, offset, message_id in columns
    ]
