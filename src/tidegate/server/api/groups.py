"""Endpoints of consumer groups: acknowledge, give back, extend, reset, list, delete."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tidegate.errors import RequestInvalid
from tidegate.model.timeranges import format_time
from tidegate.query.statements.topic_messages import DELAY_MS_MAX, REASON_CHARS_MAX, lost_leases
from tidegate.server.api.consume import FromBody, by_name, start_of
from tidegate.server.api.long_poll import check_lease_ms
from tidegate.server.http.request import Call
from tidegate.server.http.responses import json_answer
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.types import AckRequest, ExtendRequest, GroupShape, NackRequest


class UptoBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A partition, and the last offset in it that is acknowledged."""

    upto_offset: int
    partition: int = 0


class AckBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of ack: either `acks` or `leases`."""

    group: str
    acks: list[UptoBody] | UnsetType = UNSET
    leases: list[str] | UnsetType = UNSET
    member: str | None = None


class NackBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of nack."""

    group: str
    leases: list[str]
    delay_ms: int = 0
    reason: str | None = None
    release: bool = False
    dead: bool = False
    member: str | None = None


class ExtendBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Body of extend; without leases it only says that the member is there."""

    group: str
    leases: list[str]
    lease_ms: int | None = None
    member: str | None = None


class ResetBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of reset."""

    group: str
    to: str | FromBody
    partition: int | None = None


_ack = msgspec.json.Decoder(AckBody)
_nack = msgspec.json.Decoder(NackBody)
_extend = msgspec.json.Decoder(ExtendBody)
_reset = msgspec.json.Decoder(ResetBody)


def _topic(call: Call) -> Topic:
    return call.running.topics.get(call.tenant, call.params["topic"])


def _seen(call: Call, topic: Topic, group: str, member: str | None) -> str:
    """Note that a member is there, and give its name."""
    name = member if member is not None else call.principal.full_name
    call.running.topic.groups.seen(topic, group, name)
    return name


def _check_leases(call: Call, leases: list[str]) -> None:
    most = call.running.settings.server.messages_max
    if len(leases) > most:
        raise RequestInvalid(reason=f"A request names up to {most} leases.", hint="Send them in parts.")


async def ack(call: Call) -> Response:
    """Messages that a member has done with; they never come again to its group."""
    topic, body = _topic(call), await call.json(_ack)
    if isinstance(body.acks, UnsetType) == isinstance(body.leases, UnsetType):
        reason = "An ack has either acks or leases."
        raise RequestInvalid(reason=reason, hint='{"acks": [{"partition": 0, "uptoOffset": 41}]}')
    leases = None if isinstance(body.leases, UnsetType) else body.leases
    upto: dict[int, int] | None = None
    if not isinstance(body.acks, UnsetType):
        upto = {one.partition: one.upto_offset for one in body.acks}
        if len(upto) < len(body.acks):
            raise RequestInvalid(reason="acks names a partition twice.", hint="Give the last offset of each.")
    _check_leases(call, leases or [])
    member = _seen(call, topic, body.group, body.member)
    groups = call.running.topic.groups
    # A lease says whose it is; a member that is named has to be its holder.
    asked = AckRequest(body.group, body.member if upto is None else member, leases, upto)
    done = await call.running.committer.commit(lambda staging: groups.stage_ack(staging, topic, asked))
    answer = {"acked": done.acked, "position": by_name(done.position)}
    _check_lost(done.lost, answer)
    return json_answer(answer)


async def nack(call: Call) -> Response:
    """Messages that come again, after a pause where one is asked for; or dead letters."""
    topic, body = _topic(call), await call.json(_nack)
    if not 0 <= body.delay_ms <= DELAY_MS_MAX:
        hint = "What should come much later belongs into a table."
        raise RequestInvalid(reason=f"delayMs is 0 to {DELAY_MS_MAX} (a week).", hint=hint)
    reason = body.reason
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        said = f"A reason has up to {REASON_CHARS_MAX} characters."
        raise RequestInvalid(reason=said, hint="Say it shorter; the log of the consumer has room.")
    if body.release and (body.dead or body.delay_ms):
        said = "What is released was not worked on: it comes again at once, and is no dead letter."
        raise RequestInvalid(reason=said, hint="Leave delayMs and dead away.")
    _check_leases(call, body.leases)
    _seen(call, topic, body.group, body.member)
    groups = call.running.topic.groups
    asked = NackRequest(body.group, body.member, body.leases, body.delay_ms, reason, body.release, body.dead)
    done = await call.running.committer.commit(lambda staging: groups.stage_nack(staging, topic, asked))
    answer = {"nacked": done.nacked, "dead": done.dead}
    _check_lost(done.lost, answer)
    return json_answer(answer)


async def extend(call: Call) -> Response:
    """Leases that end later, counted from now."""
    topic, body = _topic(call), await call.json(_extend)
    check_lease_ms(body.lease_ms, call.running.settings.topics.lease_ms_max)
    _check_leases(call, body.leases)
    _seen(call, topic, body.group, body.member)
    groups = call.running.topic.groups
    asked = ExtendRequest(body.group, body.member, body.leases, body.lease_ms)
    done = await call.running.committer.commit(lambda staging: groups.stage_extend(staging, topic, asked))
    answer = {"extended": done.extended, "expiresAt": format_time(done.expires_us)}
    _check_lost(done.lost, answer)
    return json_answer(answer)


def _check_lost(lost: list[str], answer: dict[str, Any]) -> None:
    """Refuse, once the others are done, when leases were no longer held."""
    if lost:
        raise lost_leases(lost, answer)


async def reset(call: Call) -> Response:
    """A group that goes on from another position; leases of before are lost."""
    topic, body, running = _topic(call), await call.json(_reset), call.running
    start = start_of(body.to)

    def stage(staging: Staging) -> dict[int, int]:
        return running.topic.groups.stage_reset(staging, topic, body.group, start, body.partition)

    details = {"group": body.group, "to": msgspec.to_builtins(body.to), "partition": body.partition}
    async with running.audited(call.actor(), "topic.reset", f"topic/{topic.name}", details):
        position = await running.committer.commit(stage)
    return json_answer({"position": by_name(position)})


async def list_groups(call: Call) -> Response:
    """The consumer groups of a topic: where they stand, who is in them, who holds what."""
    topic, running = _topic(call), call.running
    shapes = await running.threads.read(running.topic.groups.describe, topic)
    return json_answer({"groups": [group_answer(shape) for shape in shapes]})


async def delete_group(call: Call) -> Response:
    """A group and where it stands go; its next consume begins anew."""
    topic, running, group = _topic(call), call.running, call.params["group"]
    async with running.audited(call.actor(), "topic.reset", f"topic/{topic.name}", {"deleted": group}):
        await running.committer.commit(
            lambda staging: running.topic.groups.stage_delete(staging, topic, group)
        )
    return json_answer({"deleted": group})


def group_answer(shape: GroupShape) -> dict[str, Any]:
    """Describe a group as JSON has it."""
    return {
        "group": shape.group,
        "createdAt": format_time(shape.created_us),
        "lag": shape.lag,
        "inFlight": shape.in_flight,
        "waiting": shape.waiting,
        "missed": shape.missed,
        "members": [
            {
                "member": member.member,
                "lastSeenAt": None if member.last_seen_us is None else format_time(member.last_seen_us),
                "holds": member.holds,
                "waits": member.waits,
            }
            for member in shape.members
        ],
        "partitions": [
            {
                "partition": part.partition,
                "start": part.start,
                "end": part.end,
                "position": part.position,
                "next": part.next,
                "lag": part.lag,
                "inFlight": part.in_flight,
                "waiting": part.waiting,
                "lastDelivered": _moment(part.last_delivered_offset, part.last_delivered_us),
                "lastAcked": _moment(part.last_acked_offset, part.last_acked_us),
            }
            for part in shape.partitions
        ],
    }


def _moment(offset: int | None, at_us: int | None) -> dict[str, Any] | None:
    if offset is None or at_us is None:
        return None
    return {"offset": offset, "at": format_time(at_us)}
