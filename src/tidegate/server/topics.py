"""Endpoints of topics: make, list, show, delete."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from tidegate.catalog.pages import Page
from tidegate.ingest.answers import Answer, Once, stage_once
from tidegate.model.timeranges import format_time
from tidegate.server.bodies import json_answer
from tidegate.server.call import JSON, Call
from tidegate.server.lists import list_page
from tidegate.server.running import Running
from tidegate.storage.commit import Staging
from tidegate.topics.definitions import Topic


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST topics."""

    name: str
    partitions: int = 1


_new_topic = msgspec.json.Decoder(NewTopic)


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


async def list_topics(call: Call) -> Response:
    """The topics of the tenant, by name, a page at a time."""
    page, running = list_page(call), call.running
    shown, following = page_of(running.topics.of(call.tenant), page)
    return json_answer({"topics": [topic_answer(running, topic) for topic in shown], "next": following})


def page_of(topics: list[Topic], page: Page) -> tuple[list[Topic], str | None]:
    """Give the topics of a page, and the name after which the next one begins."""
    later = [topic for topic in topics if page.after is None or topic.name > page.after]
    shown = later[: page.limit]
    return shown, shown[-1].name if len(later) > len(shown) else None


async def create_topic(call: Call) -> Response:
    """A new topic, durable on return."""
    body = await call.json(_new_topic)
    running, tenant, now_us = call.running, call.tenant, call.running.clock.now_us()

    def deed(staging: Staging) -> Answer:
        topic = running.topics.stage_create(staging, tenant, body.name, body.partitions, now_us)
        return Answer(201, msgspec.json.encode(topic_answer(running, topic)))

    key = call.idempotency_key()
    details = {"partitions": body.partitions}
    async with running.audited(call.actor(), "topic.create", f"topic/{body.name}", details):
        if key is None:
            answer = await running.committer.commit(deed)
        else:
            once = Once(tenant, call.principal.full_name, key, await call.fingerprint(), now_us)
            answer = await running.committer.commit(lambda staging: stage_once(staging, once, deed))
    return Response(answer.body, answer.status, media_type=JSON)


async def show_topic(call: Call) -> Response:
    """One topic."""
    return json_answer(topic_answer(call.running, call.running.topics.get(call.tenant, call.params["topic"])))


async def delete_topic(call: Call) -> Response:
    """A topic and all of its messages go."""
    running, tenant, name = call.running, call.tenant, call.params["topic"]
    running.topics.get(tenant, name)
    async with running.audited(call.actor(), "topic.delete", f"topic/{name}"):
        topic = await running.committer.commit(
            lambda staging: running.topics.stage_delete(staging, tenant, name)
        )
    running.log.forget(topic)
    running.arrivals.wake(topic)
    return json_answer({"deleted": topic.name})
