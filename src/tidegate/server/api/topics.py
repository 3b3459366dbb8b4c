"""Endpoints of topics: make, list, show, change, clear, delete."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tidegate.catalog.paging import Page
from tidegate.errors import RequestInvalid
from tidegate.ingest.idempotency import Answer, Once, stage_once
from tidegate.model.names import check_topic_name
from tidegate.model.timeranges import format_time
from tidegate.server.http.request import Call, list_page
from tidegate.server.http.responses import JSON, json_answer
from tidegate.server.runtime.runtime import Running
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
    """Body of PATCH topics/{topic}: what is left out stays; null takes a limit away."""

    partitions: int | UnsetType = UNSET
    retention_seconds: int | UnsetType | None = UNSET
    retention_max_bytes: int | UnsetType | None = UNSET
    dedup_seconds: int | UnsetType | None = UNSET


_new_topic = msgspec.json.Decoder(NewTopic)
_topic_change = msgspec.json.Decoder(TopicChange)


def topic_answer(running: Running, topic: Topic) -> dict[str, Any]:
    """Describe a topic: its shape, what each partition holds, what feeds it, and the columns of that."""
    counters = [running.log.counters(topic, number) for number in range(topic.partitions)]
    return {
        "name": topic.name,
        "createdAt": format_time(topic.created_us),
        "partitions": [
            {"partition": number, "start": held.start, "end": held.end, "bytes": held.stored_bytes}
            for number, held in enumerate(counters)
        ],
        "messages": sum(held.end - held.start for held in counters),
        "bytes": sum(held.stored_bytes for held in counters),
        "retentionSeconds": topic.retention_seconds,
        "retentionMaxBytes": topic.retention_max_bytes,
        "dedupSeconds": topic.dedup_seconds,
        "duplicates": running.topic.dedup.dropped(topic),
        "sources": _sources(running, topic),
        "schemas": [
            {
                "number": schema.number,
                "source": schema.source,
                "columns": [{"name": column.name, "type": str(column.type)} for column in schema.columns],
            }
            for schema in running.topic.schemas.of(topic.id)
        ],
    }


def _sources(running: Running, topic: Topic) -> list[dict[str, Any]]:
    found = []
    for route in running.topic.routes.of_topic(topic.id):
        table = running.tables.directory.by_id(route.table_id)
        if table is not None:  # else dropped this very moment
            found.append(
                {
                    "table": table.full_name,
                    "op": route.op.upper(),
                    "where": route.where,
                    "partitionBy": list(route.partition_by),
                    "payload": route.payload,
                    "preview": route.preview_chars,
                }
            )
    return found


async def list_topics(call: Call) -> Response:
    """The topics of the tenant, by name, a page at a time."""
    page, running = list_page(call), call.running
    shown, following = page_of(running.topics.of(call.tenant), page)
    return json_answer({"topics": [topic_answer(running, topic) for topic in shown], "next": following})


def page_of(topics: list[Topic], page: Page) -> tuple[list[Topic], str | None]:
    """Return the topics of a page, and the name after which the next one begins."""
    later = [topic for topic in topics if page.after is None or topic.name > page.after]
    shown = later[: page.limit]
    return shown, shown[-1].name if len(later) > len(shown) else None


async def create_topic(call: Call) -> Response:
    """A new topic, durable on return."""
    body = await call.json(_new_topic)
    running, tenant, now_us = call.running, call.tenant, call.running.clock.now_us()
    once, key = None, call.idempotency_key()
    if key is not None:
        once = Once(tenant, call.principal.full_name, key, await call.fingerprint(), now_us)
        known = await running.threads.read(_known_answer, running.engine, once)
        if known is not None:  # nothing is done now, so nothing is written down
            return Response(known.body, known.status, media_type=JSON)
    _check_shape(running, body)
    retention = Retention(body.retention_seconds, body.retention_max_bytes, body.dedup_seconds)

    def deed(staging: Staging) -> Answer:
        topic = running.topics.stage_create(staging, tenant, body.name, body.partitions, now_us, retention)
        return Answer(201, msgspec.json.encode(topic_answer(running, topic)))

    def stage(staging: Staging) -> Answer:
        return deed(staging) if once is None else stage_once(staging, once, deed)

    details = {"partitions": body.partitions}
    async with running.audited(call.actor(), "topic.create", f"topic/{body.name}", details):
        answer = await running.committer.commit(stage)
    return Response(answer.body, answer.status, media_type=JSON)


class _NotYetAnswered(Exception):
    """Nothing is kept under a key."""


def _known_answer(engine: Engine, once: Once) -> Answer | None:
    def deed(_: Staging) -> Answer:
        raise _NotYetAnswered

    try:
        # Nobody commits this staging: it only reads.
        return stage_once(Staging(engine, {}), once, deed)
    except _NotYetAnswered:
        return None


def _check_shape(running: Running, body: NewTopic) -> None:
    """Refuse a topic that cannot be, before anything of it is written down."""
    check_topic_name(body.name)
    most = running.settings.topics.partitions_max
    if not 1 <= body.partitions <= most:
        reason = f"A topic has 1 to {most} partitions, not {body.partitions}."
        raise RequestInvalid(reason=reason, hint="Choose a number in that range.")


async def show_topic(call: Call) -> Response:
    """One topic."""
    return json_answer(topic_answer(call.running, call.running.topics.get(call.tenant, call.params["topic"])))


async def change_topic(call: Call) -> Response:
    """More partitions, another retention, or another time for dedup keys."""
    body, running = await call.json(_topic_change), call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    said = [name for name in body.__struct_fields__ if not isinstance(getattr(body, name), UnsetType)]
    if not said:
        hint = "Give partitions, a retention or dedupSeconds."
        raise RequestInvalid(reason="Nothing is to be changed.", hint=hint)

    def stage(staging: Staging) -> tuple[Topic, Topic]:
        before = running.topics.get(call.tenant, topic.name)
        partitions = None if isinstance(body.partitions, UnsetType) else body.partitions
        after = running.topic.stage_change(staging, before, partitions, _retention(before, body))
        return before, after

    details = {name: getattr(body, name) for name in said}
    async with running.audited(call.actor(), "topic.change", f"topic/{topic.name}", details):
        before, after = await running.committer.commit(stage)
    grown = after.partitions > before.partitions
    notice = order_notice(after.name, before.partitions, after.partitions) if grown else None
    return json_answer({**topic_answer(running, after), "notice": notice})


def _retention(topic: Topic, body: TopicChange) -> Retention | None:
    seconds, most_bytes, dedup_seconds = body.retention_seconds, body.retention_max_bytes, body.dedup_seconds
    if all(isinstance(said, UnsetType) for said in (seconds, most_bytes, dedup_seconds)):
        return None
    return Retention(
        topic.retention_seconds if isinstance(seconds, UnsetType) else seconds,
        topic.retention_max_bytes if isinstance(most_bytes, UnsetType) else most_bytes,
        topic.dedup_seconds if isinstance(dedup_seconds, UnsetType) else dedup_seconds,
    )


async def clear_topic(call: Call) -> Response:
    """All messages of a topic go; its offsets go on where they are."""
    running = call.running
    topic = running.topics.get(call.tenant, call.params["topic"])
    async with running.audited(call.actor(), "topic.clear", f"topic/{topic.name}"):
        cleared = await running.committer.commit(lambda staging: running.topic.stage_clear(staging, topic))
    return json_answer({"cleared": cleared})


async def delete_topic(call: Call) -> Response:
    """A topic and all of its messages go, with its groups and its routes."""
    running, tenant, name = call.running, call.tenant, call.params["topic"]
    running.topics.get(tenant, name)
    async with running.audited(call.actor(), "topic.delete", f"topic/{name}"):
        topic = await running.committer.commit(
            lambda staging: running.topic.stage_delete(staging, tenant, name)
        )
    return json_answer({"deleted": topic.name})
