"""Endpoints of staged batches: tasks store parts, then the batch is committed once, or aborted."""

from __future__ import annotations

import logging
from functools import partial

import msgspec
from starlette.responses import Response

from tidegate.errors import ContentTypeUnsupported, RequestInvalid
from tidegate.ingest.batch_commit import PART_MESSAGES_MAX, BatchParts, check_partitions
from tidegate.model.names import shorten
from tidegate.model.wire.topics import AbortResponse, CommitResponse, PartResponse
from tidegate.server.api.publish import check_messages
from tidegate.server.http.arrow import messages_of
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import ARROW_STREAM, json_answer
from tidegate.server.runtime.runtime import Runtime
from tidegate.storage.group_commit import Staging
from tidegate.topics.dedup import checked_digests
from tidegate.topics.definitions import Topic
from tidegate.topics.staged_batches import BatchName

QUERY = ("writer", "batch", "topicId")
# A batch of the largest size in parts of a few messages each; more ids than that are a mistake.
PARTS_MAX = 100_000
_NUMBER_CHARS_MAX = 19

log = logging.getLogger(__name__)


class CommitBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of commit; with `topicId` a topic that was recreated since the parts were stored is refused."""

    writer: str
    batch: int
    parts: list[str]
    topic_id: int | None = None
    # False for a writer that commits one batch alone: it is forgotten after a day.
    lasts: bool = True


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of abort."""

    writer: str
    batch: int
    parts: list[str]


_commit = msgspec.json.Decoder(CommitBody)
_abort = msgspec.json.Decoder(AbortBody)


async def store_part(request: HttpRequest) -> Response:
    """Store a part of a batch, as Arrow; its messages are invisible until the batch is committed."""
    runtime, query = request.runtime, request.query
    unknown = sorted(set(query) - set(QUERY))
    if unknown:
        reason = f"A part has no parameter '{shorten(unknown[0])}'."
        raise RequestInvalid(reason=reason, hint=f"It takes {', '.join(QUERY)}.")
    topic = request.topic()
    if "topicId" in query:
        topic.check_id(_number("topicId", query["topicId"]))
    name = BatchName(query.get("writer", ""), _number("batch", query.get("batch", "")))
    if request.content_type() != ARROW_STREAM:
        raise ContentTypeUnsupported(
            content_type=request.content_type()[:80] or "(none)", supported=ARROW_STREAM
        )
    content = await request.body()
    count = await runtime.threads.read(_check_part, runtime, topic, content)
    if runtime.quotas.limits_published:
        runtime.quotas.take_published(request.principal, len(content))
    user = request.principal.qualified_name
    change = _parts(runtime).plan_part(topic, name, user, content, count)

    def stage(staging: Staging) -> int | None:
        part_id = change(staging)
        if part_id is not None:  # a part of a batch that is committed is not stored again
            runtime.quotas.check_disk(topic.tenant)
        return part_id

    part_id = await runtime.committer.commit(stage)
    return json_answer(PartResponse(None if part_id is None else str(part_id), topic.id, count))


async def commit_batch(request: HttpRequest) -> Response:
    """Append the messages of parts to the topic in one write; a batch is committed once."""
    runtime, topic = request.runtime, request.topic()
    body = await request.json(_commit)
    topic.check_id(body.topic_id)
    name, part_ids = BatchName(body.writer, body.batch), _part_ids(body.parts)
    parts, user = _parts(runtime), request.principal.qualified_name
    async with parts.turn:
        plan = partial(parts.plan_commit, topic, name, user, part_ids, lasts=body.lasts)
        change = await runtime.threads.read(plan)
        outcome = await runtime.committer.commit(change)
    if outcome.committed:
        runtime.metrics.count_published(request.tenant, outcome.messages - outcome.duplicates)
    return json_answer(CommitResponse(outcome.committed, outcome.messages, outcome.duplicates))


async def abort_batch(request: HttpRequest) -> Response:
    """Delete parts; those of a committed batch are gone already."""
    runtime, topic = request.runtime, request.topic()
    body = await request.json(_abort)
    name, part_ids = BatchName(body.writer, body.batch), _part_ids(body.parts)
    user = request.principal.qualified_name
    change = await runtime.threads.read(_parts(runtime).plan_abort, topic, name, user, part_ids)
    return json_answer(AbortResponse(await runtime.committer.commit(change)))


def _parts(runtime: Runtime) -> BatchParts:
    return runtime.topics.batches


def _check_part(runtime: Runtime, topic: Topic, content: bytes) -> int:
    """Raise for messages that could not be committed; return their number."""
    limits = runtime.settings
    messages = messages_of(content, PART_MESSAGES_MAX, limits.server.body_bytes_max)
    if not len(messages):
        raise RequestInvalid(reason="A part has at least one message.", hint="Leave an empty part out.")
    check_messages(messages, limits.topics.message_bytes_max)
    check_partitions(topic, messages.partitions)
    if messages.dedup_keys is not None:
        checked_digests(topic, messages.dedup_keys)
    return len(messages)


def _part_ids(parts: list[str]) -> list[int]:
    if len(parts) > PARTS_MAX:
        reason = f"A batch has at most {PARTS_MAX} parts, not {len(parts)}."
        raise RequestInvalid(reason=reason, hint="Put more messages into each.")
    return [_number("A part", text) for text in parts]


def _number(what: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _NUMBER_CHARS_MAX:
        raise RequestInvalid(
            reason=f"{what} is a whole number, not '{shorten(text)}'.", hint="Numbers count from 0."
        )
    return int(text)
