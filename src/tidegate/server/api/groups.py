"""Endpoints of consumer groups: ack, nack, extend, reset, list, delete."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tidegate.errors import RequestInvalid
from tidegate.model.times import format_time
from tidegate.model.wire.groups import (
    AckResponse,
    ExtendResponse,
    GroupList,
    GroupMember,
    GroupPartition,
    GroupResponse,
    NackResponse,
    OffsetTime,
    ResetResponse,
)
from tidegate.model.wire.struct import DeleteResponse, WireStruct
from tidegate.query.statements.topic_messages import DELAY_MS_MAX, REASON_CHARS_MAX, lost_leases
from tidegate.server.api.consume import FromBody, parse_start
from tidegate.server.api.long_poll import check_lease_ms
from tidegate.server.http.request import HttpRequest, format_optional_time
from tidegate.server.http.responses import json_answer
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.types import AckRequest, ExtendRequest, GroupDescription, NackRequest


class UptoBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A partition, and the last acknowledged offset in it."""

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
    """Body of extend; without leases it is a heartbeat of the member."""

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


def _record_member(request: HttpRequest, topic: Topic, group: str, member: str | None) -> str:
    """Record that a member is active; return its name."""
    name = member if member is not None else request.principal.full_name
    request.runtime.topics.groups.record_activity(topic, group, name)
    return name


def _check_leases(request: HttpRequest, leases: list[str]) -> None:
    most = request.runtime.settings.server.messages_max
    if len(leases) > most:
        raise RequestInvalid(reason=f"A request names up to {most} leases.", hint="Send them in parts.")


async def ack(request: HttpRequest) -> Response:
    """Acknowledge messages: they are not delivered to the group again."""
    topic, body = request.topic(), await request.json(_ack)
    if isinstance(body.acks, UnsetType) == isinstance(body.leases, UnsetType):
        reason = "An ack has either acks or leases."
        raise RequestInvalid(reason=reason, hint='{"acks": [{"partition": 0, "uptoOffset": 41}]}')
    leases = None if isinstance(body.leases, UnsetType) else body.leases
    upto: dict[int, int] | None = None
    if not isinstance(body.acks, UnsetType):
        upto = {one.partition: one.upto_offset for one in body.acks}
        if len(upto) < len(body.acks):
            raise RequestInvalid(reason="acks names a partition twice.", hint="Give the last offset of each.")
    _check_leases(request, leases or [])
    member = _record_member(request, topic, body.group, body.member)
    groups = request.runtime.topics.groups
    # A lease identifies its member; a member that is named has to be that one.
    named = body.member if upto is None else member
    ack_request = AckRequest(body.group, named, request.principal, leases, upto)
    done = await request.runtime.committer.commit(
        lambda staging: groups.stage_ack(staging, topic, ack_request)
    )
    return _answer(AckResponse(done.acked, done.position), done.lost)


async def nack(request: HttpRequest) -> Response:
    """Return messages, to be delivered again at once or after a delay, or to become dead letters."""
    topic, body = request.topic(), await request.json(_nack)
    if not 0 <= body.delay_ms <= DELAY_MS_MAX:
        hint = "What should come much later belongs into a table."
        raise RequestInvalid(reason=f"delayMs is 0 to {DELAY_MS_MAX} (a week).", hint=hint)
    reason = body.reason
    if reason is not None and len(reason) > REASON_CHARS_MAX:
        problem = f"A reason has up to {REASON_CHARS_MAX} characters."
        raise RequestInvalid(reason=problem, hint="Say it shorter; the log of the consumer has room.")
    if body.release and (body.dead or body.delay_ms):
        problem = "What is released was not worked on: it is redelivered at once, and is no dead letter."
        raise RequestInvalid(reason=problem, hint="Leave delayMs and dead away.")
    _check_leases(request, body.leases)
    _record_member(request, topic, body.group, body.member)
    groups = request.runtime.topics.groups
    nack_request = NackRequest(
        body.group,
        body.member,
        request.principal,
        body.leases,
        body.delay_ms,
        reason,
        body.release,
        body.dead,
    )
    done = await request.runtime.committer.commit(
        lambda staging: groups.stage_nack(staging, topic, nack_request)
    )
    return _answer(NackResponse(done.nacked, done.dead), done.lost)


async def extend(request: HttpRequest) -> Response:
    """Extend leases, counted from now."""
    topic, body = request.topic(), await request.json(_extend)
    check_lease_ms(body.lease_ms, request.runtime.settings.topics.lease_ms_max)
    _check_leases(request, body.leases)
    _record_member(request, topic, body.group, body.member)
    groups = request.runtime.topics.groups
    extend_request = ExtendRequest(body.group, body.member, request.principal, body.leases, body.lease_ms)
    done = await request.runtime.committer.commit(
        lambda staging: groups.stage_extend(staging, topic, extend_request)
    )
    return _answer(ExtendResponse(done.extended, format_time(done.expires_us)), done.lost)


def _answer(answer: WireStruct, lost: list[str]) -> Response:
    """Return the answer; raise LeaseLost, once the other leases are done, when some were no longer held."""
    if lost:
        raise lost_leases(lost, msgspec.to_builtins(answer, str_keys=True))
    return json_answer(answer)


async def reset(request: HttpRequest) -> Response:
    """Move a group to another position; its leases end."""
    topic, body, runtime = request.topic(), await request.json(_reset), request.runtime
    start = parse_start(body.to)

    def stage(staging: Staging) -> dict[int, int]:
        return runtime.topics.groups.stage_reset(staging, topic, body.group, start, body.partition)

    details = {"group": body.group, "to": msgspec.to_builtins(body.to), "partition": body.partition}
    async with runtime.audited(request.actor(), "topic.reset", f"topic/{topic.name}", details):
        position = await runtime.committer.commit(stage)
    return json_answer(ResetResponse(position))


async def list_groups(request: HttpRequest) -> Response:
    """The consumer groups of a topic: lag, counters, members and their leases."""
    topic, runtime = request.topic(), request.runtime
    shapes = await runtime.threads.read(runtime.topics.groups.describe, topic)
    return json_answer(GroupList([group_response(shape) for shape in shapes]))


async def delete_group(request: HttpRequest) -> Response:
    """Delete a group and its position; its next consume starts again."""
    topic, runtime, group = request.topic(), request.runtime, request.params["group"]
    async with runtime.audited(request.actor(), "topic.reset", f"topic/{topic.name}", {"deleted": group}):
        await runtime.committer.commit(
            lambda staging: runtime.topics.groups.stage_delete(staging, topic, group)
        )
    return json_answer(DeleteResponse(group))


def group_response(shape: GroupDescription) -> GroupResponse:
    """Return the description of a group."""
    return GroupResponse(
        group=shape.group,
        created_at=format_time(shape.created_us),
        lag=shape.lag,
        in_flight=shape.in_flight,
        waiting=shape.waiting,
        missed=shape.missed,
        delivered=shape.counters.delivered,
        redelivered=shape.counters.redelivered,
        acked=shape.counters.acked,
        nacked=shape.counters.nacked,
        members=[
            GroupMember(member.member, format_optional_time(member.last_seen_us), member.holds, member.waits)
            for member in shape.members
        ],
        partitions=[
            GroupPartition(
                partition=part.partition,
                start=part.start,
                end=part.end,
                position=part.position,
                next=part.next,
                lag=part.lag,
                in_flight=part.in_flight,
                waiting=part.waiting,
                last_delivered=_offset_time(part.last_delivered_offset, part.last_delivered_us),
                last_acked=_offset_time(part.last_acked_offset, part.last_acked_us),
            )
            for part in shape.partitions
        ],
    )


def _offset_time(offset: int | None, at_us: int | None) -> OffsetTime | None:
    return None if offset is None or at_us is None else OffsetTime(offset, format_time(at_us))
