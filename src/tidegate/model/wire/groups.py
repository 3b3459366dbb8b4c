"""Consumer groups on the wire: acknowledgements, leases, and the description of a group."""

from __future__ import annotations

from tidegate.model.wire.struct import WireStruct


class AckResponse(WireStruct):
    """The number of messages that were acknowledged, and the lowest offset that is not, by partition."""

    acked: int
    position: dict[int, int]


class NackResponse(WireStruct):
    """The number of messages that will be redelivered or became dead letters, and of those dead letters."""

    nacked: int
    dead: int


class ExtendResponse(WireStruct):
    """The number of leases that were extended, and when they end."""

    extended: int
    expires_at: str


class ResetResponse(WireStruct):
    """The new position of a group, by partition."""

    position: dict[int, int]


class GroupMember(WireStruct):
    """A member of a group: the messages it holds, and its long polls; only leases are known of some."""

    member: str
    last_seen_at: str | None
    holds: int
    waits: int


class OffsetTime(WireStruct):
    """The offset of a message, and when something happened to it."""

    offset: int
    at: str


class GroupPartition(WireStruct):
    """The position of a group in a partition; the lag counts what is not acknowledged."""

    partition: int
    start: int
    end: int
    position: int
    next: int
    lag: int
    in_flight: int
    waiting: int
    last_delivered: OffsetTime | None
    last_acked: OffsetTime | None


class GroupResponse(WireStruct):
    """A consumer group: its lag, its members and partitions, and its counters.

    `missed` counts since the group was created, `delivered` to `nacked` since the server started. `delivered`
    includes `redelivered`.
    """

    group: str
    created_at: str
    lag: int
    in_flight: int
    waiting: int
    missed: int
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    members: list[GroupMember]
    partitions: list[GroupPartition]


class GroupList(WireStruct):
    """The consumer groups of a topic, by name."""

    groups: list[GroupResponse]
