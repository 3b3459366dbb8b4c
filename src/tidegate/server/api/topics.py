"""Endpoints of topics: create, list, show, change, clear, delete."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType, structs
from starlette.responses import Response

from tidegate.catalog.paging import PageRequest
from tidegate.errors import RequestInvalid
from tidegate.ingest.idempotency import Answer, IdempotentRequest, stage_idempotent
from tidegate.model.changes import Op
from tidegate.model.names import check_topic_name
from tidegate.model.times import format_time
from tidegate.model.wire.struct import DeleteResponse
from tidegate.model.wire.topics import (
    ClearResponse,
    ColumnResponse,
    PartitionResponse,
    TopicChangeResponse,
    TopicPage,
    TopicResponse,
    TopicSchema,
    TopicSource,
)
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import JSON, json_answer
from tidegate.server.runtime.runtime import Runtime
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Retention, Topic, order_notice


class NewTopic(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of POST topics."""

    name: str
    partitions: int = 1
    retention_seconds: int | None = None
    retention_max_bytes: int | None = None
    dedup_seconds: int | None = None


class TopicChange(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of PATCH topics/{topic}: an omitted field does not change; null removes a limit."""

    partitions: int | UnsetType = UNSET
    retention_seconds: int | UnsetType | None = UNSET
    retention_max_bytes: int | UnsetType | None = UNSET
    dedup_seconds: int | UnsetType | None = UNSET


# An operation as SQL writes it.
_OPS: dict[Op, Literal["INSERT", "UPDATE", "DELETE"]] = {
    "insert": "INSERT",
    "update": "UPDATE",
    "delete": "DELETE",
}
_new_topic = msgspec.json.Decoder(NewTopic)
_topic_change = msgspec.json.Decoder(TopicChange)


def topic_response(runtime: Runtime, topic: Topic) -> TopicResponse:
    """Return the description of a topic: its settings, what each partition holds, and what feeds it."""
    topics = runtime.topics
    counters = [topics.log.counters(topic, number) for number in range(topic.partitions)]
    return TopicResponse(
        name=topic.name,
        created_at=format_time(topic.created_us),
        partitions=[
            PartitionResponse(number, held.start, held.end, held.stored_bytes)
            for number, held in enumerate(counters)
        ],
        messages=sum(held.end - held.start for held in counters),
        bytes=sum(held.stored_bytes for held in counters),
        retention_seconds=topic.retention_seconds,
        retention_max_bytes=topic.retention_max_bytes,
        dedup_seconds=topic.dedup_seconds,
        duplicates=topics.dedup.dropped(topic),
        sources=_sources(runtime, topic),
        schemas=[
            TopicSchema(
                schema.number,
                schema.source,
                [ColumnResponse(column.name, str(column.type)) for column in schema.columns],
            )
            for schema in topics.schemas.of(topic.id)
        ],
    )


def _sources(runtime: Runtime, topic: Topic) -> list[TopicSource]:
    sources = []
    for route in runtime.topics.routes.of_topic(topic.id):
        table = runtime.tables.directory.by_id(route.table_id)
        if table is not None:  # else it was dropped just now
            sources.append(
                TopicSource(
                    table=table.full_name,
                    op=_OPS[route.op],
                    where=route.where,
                    partition_by=list(route.partition_by),
                    payload=route.payload,
                    preview=route.preview_chars,
                )
            )
    return sources


async def list_topics(request: HttpRequest) -> Response:
    """The topics of the tenant, by name, in pages."""
    page, runtime = request.page(), request.runtime
    shown, following = page_of(runtime.topics.directory.of(request.tenant), page)
    return json_answer(TopicPage([topic_response(runtime, topic) for topic in shown], following))


def page_of(topics: list[Topic], page: PageRequest) -> tuple[list[Topic], str | None]:
    """Return the topics of a page, and the name after which the next page begins."""
    later = [topic for topic in topics if page.after is None or topic.name > page.after]
    shown = later[: page.limit]
    return shown, shown[-1].name if len(later) > len(shown) else None


async def create_topic(request: HttpRequest) -> Response:
    """Create a topic, durable on return."""
    body = await request.json(_new_topic)
    runtime, tenant, now_us = request.runtime, request.tenant, request.runtime.clock.now_us()
    idempotent, key = None, request.idempotency_key()
    if key is not None:
        idempotent = IdempotentRequest(
            tenant, request.principal.full_name, key, await request.fingerprint(), now_us
        )
        known = await runtime.threads.read(_known_answer, runtime.engine, idempotent)
        if known is not None:  # nothing is done now, so nothing goes into the audit trail
            return Response(known.body, known.status, media_type=JSON)
    _check_new_topic(runtime, body)
    retention = Retention(body.retention_seconds, body.retention_max_bytes, body.dedup_seconds)

    def create_now(staging: Staging) -> Answer:
        topic = runtime.topics.directory.stage_create(
            staging, tenant, body.name, body.partitions, now_us, retention
        )
        return Answer(201, msgspec.json.encode(topic_response(runtime, topic)))

    def stage(staging: Staging) -> Answer:
        return (
            create_now(staging) if idempotent is None else stage_idempotent(staging, idempotent, create_now)
        )

    details = {"partitions": body.partitions}
    async with runtime.audited(request.actor(), "topic.create", f"topic/{body.name}", details):
        answer = await runtime.committer.commit(stage)
    return Response(answer.body, answer.status, media_type=JSON)


class _NotYetAnswered(Exception):
    """No answer is stored under a key."""


def _known_answer(engine: Engine, idempotent: IdempotentRequest) -> Answer | None:
    def not_answered(_: Staging) -> Answer:
        raise _NotYetAnswered

    try:
        # Only for reading: this transaction is never committed.
        return stage_idempotent(Staging(engine, {}), idempotent, not_answered)
    except _NotYetAnswered:
        return None


def _check_new_topic(runtime: Runtime, body: NewTopic) -> None:
    """Raise for an invalid topic, before it goes into the audit trail."""
    check_topic_name(body.name)
    most = runtime.settings.topics.partitions_max
    if not 1 <= body.partitions <= most:
        reason = f"A topic has 1 to {most} partitions, not {body.partitions}."
        raise RequestInvalid(reason=reason, hint="Choose a number in that range.")


async def show_topic(request: HttpRequest) -> Response:
    """One topic."""
    return json_answer(topic_response(request.runtime, request.topic()))


async def change_topic(request: HttpRequest) -> Response:
    """Change the number of partitions, the retention, or the time for dedup keys."""
    body, runtime = await request.json(_topic_change), request.runtime
    topic = request.topic()
    changed = [name for name in body.__struct_fields__ if not isinstance(getattr(body, name), UnsetType)]
    if not changed:
        hint = "Give partitions, a retention or dedupSeconds."
        raise RequestInvalid(reason="Nothing is to be changed.", hint=hint)

    def stage(staging: Staging) -> tuple[Topic, Topic]:
        before = runtime.topics.directory.get(request.tenant, topic.name)
        partitions = None if isinstance(body.partitions, UnsetType) else body.partitions
        after = runtime.topics.stage_change(staging, before, partitions, _retention(before, body))
        return before, after

    details = {name: getattr(body, name) for name in changed}
    async with runtime.audited(request.actor(), "topic.change", f"topic/{topic.name}", details):
        before, after = await runtime.committer.commit(stage)
    grown = after.partitions > before.partitions
    notice = order_notice(after.name, before.partitions, after.partitions) if grown else None
    return json_answer(TopicChangeResponse(**structs.asdict(topic_response(runtime, after)), notice=notice))


def _retention(topic: Topic, body: TopicChange) -> Retention | None:
    seconds, most_bytes, dedup_seconds = body.retention_seconds, body.retention_max_bytes, body.dedup_seconds
    if all(isinstance(value, UnsetType) for value in (seconds, most_bytes, dedup_seconds)):
        return None
    return Retention(
        topic.retention_seconds if isinstance(seconds, UnsetType) else seconds,
        topic.retention_max_bytes if isinstance(most_bytes, UnsetType) else most_bytes,
        topic.dedup_seconds if isinstance(dedup_seconds, UnsetType) else dedup_seconds,
    )


async def clear_topic(request: HttpRequest) -> Response:
    """Delete all messages of a topic; its offsets continue."""
    runtime, topic = request.runtime, request.topic()
    async with runtime.audited(request.actor(), "topic.clear", f"topic/{topic.name}"):
        cleared = await runtime.committer.commit(lambda staging: runtime.topics.stage_clear(staging, topic))
    return json_answer(ClearResponse(cleared))


async def delete_topic(request: HttpRequest) -> Response:
    """Delete a topic with its messages, groups and routes."""
    runtime, tenant, name = request.runtime, request.tenant, request.params["topic"]
    runtime.topics.directory.get(tenant, name)
    async with runtime.audited(request.actor(), "topic.delete", f"topic/{name}"):
        topic = await runtime.committer.commit(
            lambda staging: runtime.topics.stage_delete(staging, tenant, name)
        )
    return json_answer(DeleteResponse(topic.name))
