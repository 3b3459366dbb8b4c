"""Endpoints of batches in parts: tasks store parts, then the batch is committed once, or given up."""

from __future__ import annotations

import logging
from functools import partial

import msgspec
from starlette.responses import Response

from tidegate.errors import ContentTypeUnsupported, RequestInvalid, TidegateError
from tidegate.ingest.batch_commit import PART_MESSAGES_MAX, BatchParts, check_partitions, stage_old
from tidegate.model.names import shorten
from tidegate.server.api.publish import check_message_bytes
from tidegate.server.http.arrow import messages_of
from tidegate.server.http.request import Call
from tidegate.server.http.responses import ARROW_STREAM, json_answer
from tidegate.server.runtime.runtime import Running
from tidegate.topics.dedup import checked_digests
from tidegate.topics.definitions import Topic
from tidegate.topics.staged_batches import BatchName

QUERY = ("writer", "batch", "topicId")
# A batch of the largest size in parts of a few messages each; more ids than this are a mistake.
PARTS_MAX = 100_000
_NUMBER_CHARS_MAX = 19

log = logging.getLogger(__name__)


class CommitBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of commit; `topicId` refuses a topic that was made again since the parts were stored."""

    writer: str
    batch: int
    parts: list[str]
    topic_id: int | None = None
    # A writer that commits one batch and never comes again says so: it is forgotten after a day.
    lasts: bool = True


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of abort."""

    writer: str
    batch: int
    parts: list[str]


class PartStored(msgspec.Struct, rename="camel"):
    """A part is on the disk; without a number where the batch was committed before."""

    part: str | None
    topic_id: int
    messages: int


class BatchCommitted(msgspec.Struct):
    """Whether the batch was written now, how many messages it has, and how many of them were duplicates."""

    committed: bool
    messages: int
    duplicates: int


class BatchAborted(msgspec.Struct):
    """How many parts were removed."""

    removed: int


_commit = msgspec.json.Decoder(CommitBody)
_abort = msgspec.json.Decoder(AbortBody)


async def store_part(call: Call) -> Response:
    """Messages of a part of a batch in, as Arrow; nobody reads them before the batch is committed."""
    running, query = call.running, call.query
    unknown = sorted(set(query) - set(QUERY))
    if unknown:
        reason = f"A part has no parameter '{shorten(unknown[0])}'."
        raise RequestInvalid(reason=reason, hint=f"It takes {', '.join(QUERY)}.")
    topic = running.topics.get(call.tenant, call.params["topic"])
    if "topicId" in query:
        topic.check_id(_number("topicId", query["topicId"]))
    name = BatchName(query.get("writer", ""), _number("batch", query.get("batch", "")))
    if call.content_type() != ARROW_STREAM:
        raise ContentTypeUnsupported(
            content_type=call.content_type()[:80] or "(none)", supported=ARROW_STREAM
        )
    content = await call.body()
    count = await running.threads.read(_checked, running, topic, content)
    part_id = await running.committer.commit(_parts(running).plan_part(topic, name, content, count))
    return json_answer(PartStored(None if part_id is None else str(part_id), topic.id, count))


async def commit_batch(call: Call) -> Response:
    """The messages of the parts named go into the topic in one write; a batch goes in once."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    body = await call.json(_commit)
    topic.check_id(body.topic_id)
    name, part_ids = BatchName(body.writer, body.batch), _part_ids(body.parts)
    parts = _parts(running)
    async with parts.turn:
        plan = partial(parts.plan_commit, topic, name, part_ids, lasts=body.lasts)
        change = await running.threads.read(plan)
        outcome = await running.committer.commit(change)
    if outcome.committed:
        running.count_published(call.tenant, outcome.messages - outcome.duplicates)
    return json_answer(BatchCommitted(outcome.committed, outcome.messages, outcome.duplicates))


async def abort_batch(call: Call) -> Response:
    """The parts named go; those of a batch that was committed are gone already."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    body = await call.json(_abort)
    name, part_ids = BatchName(body.writer, body.batch), _part_ids(body.parts)
    change = await running.threads.read(_parts(running).plan_abort, topic, name, part_ids)
    return json_answer(BatchAborted(await running.committer.commit(change)))


async def remove_old_parts(running: Running) -> None:
    """Remove parts that waited for a day, and what is known of writers that never come again."""
    for topic in list(running.topics):
        try:
            for old in await running.threads.upkeep(_parts(running).old, topic):
                await running.committer.commit(partial(stage_old, old=old))
        except TidegateError as problem:
            log.error("topics: parts: '%s': %s: %s", topic.name, problem.code, problem)


def _parts(running: Running) -> BatchParts:
    return running.topic.parts


def _checked(running: Running, topic: Topic, content: bytes) -> int:
    """Refuse what could not be committed; give the number of messages."""
    limits = running.settings
    messages = messages_of(content, PART_MESSAGES_MAX, limits.server.body_bytes_max)
    if not len(messages):
        raise RequestInvalid(reason="A part has at least one message.", hint="Leave an empty part out.")
    check_message_bytes(messages, limits.topics.message_bytes_max)
    check_partitions(topic, messages.partitions)
    if messages.dedup_keys is not None:
        checked_digests(topic, messages.dedup_keys)
    return len(messages)


def _part_ids(given: list[str]) -> list[int]:
    if len(given) > PARTS_MAX:
        reason = f"A batch has at most {PARTS_MAX} parts, not {len(given)}."
        raise RequestInvalid(reason=reason, hint="Put more messages into each.")
    return [_number("A part", text) for text in given]


def _number(what: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > _NUMBER_CHARS_MAX:
        raise RequestInvalid(
            reason=f"{what} is a whole number, not '{shorten(text)}'.", hint="Numbers count from 0."
        )
    return int(text)
