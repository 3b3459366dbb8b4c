"""Requests, results and descriptions of consumer groups; all inert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.errors import NameInvalid
from tidegate.model.access import Principal
from tidegate.model.names import shorten
from tidegate.topics.log.reader import Start

NAME_CHARS_MAX = 200  # of a group or a member: a host, a program and a number fit in
NAME_RULE = f"1 to {NAME_CHARS_MAX} printable characters, no control characters."


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A fetch of one member; `start` counts only where the group has no position yet.

    `user` is whose member it is, with the tenant: what is fetched is leased to both.
    """

    group: str
    member: str
    user: str
    start: Start = Start("earliest")  # noqa: RUF009 - frozen
    partition: int | None = None
    limit: int = 100
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """Messages of one partition that one fetch leased: `start` ≤ offset < `stop`."""

    partition: int
    start: int
    stop: int
    fetch_id: int
    deliveries: int
    # The random bits of the lease ids.
    token: int

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Messages that a fetch leased, messages missed since the last report, and the next new offsets.

    `missed` and `next_offsets` are by partition.
    """

    ranges: list[LeasedRange]
    missed: dict[int, int]
    next_offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class AckRequest:
    """An acknowledgement: of leases, or of all that a member holds up to an offset of a partition (in).

    Offsets need a member. Where a member is named, leases of other members count as lost; without one the
    lease alone decides. Leases of other users are refused, unless the principal is an administrator.
    """

    group: str
    member: str | None
    principal: Principal
    leases: Sequence[str] | None = None
    upto: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class AckResult:
    """The number of acknowledged messages, the positions after it, and leases that are no longer held.

    `by_partition` is the number in each of the partitions of `position`.
    """

    acked: int
    position: dict[int, int]
    lost: list[str]
    by_partition: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NackRequest:
    """A negative acknowledgement: failed, not worked on (`release`), or never to be tried again (`dead`).

    Where a member is named, leases of other members count as lost; without one the lease alone decides.
    Leases of other users are refused, unless the principal is an administrator.
    """

    group: str
    member: str | None
    principal: Principal
    leases: Sequence[str]
    delay_ms: int = 0
    reason: str | None = None
    release: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class NackResult:
    """The numbers of nacked messages and of new dead letters among them, and leases no longer held.

    One nack makes a limited number of dead letters; the next expirations of leases make the rest.
    """

    nacked: int
    dead: int
    lost: list[str]


@dataclass(frozen=True, slots=True)
class ExtendRequest:
    """A new lease time, counted from now; where a member is named, leases of others count as lost.

    Leases of other users are refused, unless the principal is an administrator.
    """

    group: str
    member: str | None
    principal: Principal
    leases: Sequence[str]
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ExtendResult:
    """The number of extended leases, when they end now, and leases that are no longer held."""

    extended: int
    expires_us: int
    lost: list[str]


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """The number of leases that ended, and of dead letters that their messages became."""

    expired: int
    dead: int


@dataclass(frozen=True, slots=True)
class FetchEstimate:
    """An estimate of what a fetch would return now, and the time at which more becomes due.

    `count` is approximate. `missed` is true where there are missed messages to report. `is_known` is false
    for a group, or a partition of it, that has no position yet: a fetch sets one.
    """

    count: int
    missed: bool
    due_us: int | None
    is_known: bool = True


@dataclass(slots=True)
class GroupCounters:
    """Numbers of messages since the server started, each counted once it is durable.

    `delivered` includes `redelivered`. `missed` counts what was reported to members.
    """

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    dead: int = 0
    missed: int = 0

    def add(self, other: GroupCounters) -> None:
        """Add the counts of a change."""
        self.delivered += other.delivered
        self.redelivered += other.redelivered
        self.acked += other.acked
        self.nacked += other.nacked
        self.expired += other.expired
        self.dead += other.dead
        self.missed += other.missed


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group: when it was active last, messages that it holds, long polls that wait."""

    member: str
    last_seen_us: int | None
    holds: int
    waits: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The position and the lag of a group in one partition."""

    partition: int
    start: int
    end: int
    position: int
    next: int
    lag: int
    in_flight: int
    waiting: int
    last_delivered_offset: int | None = None
    last_delivered_us: int | None = None
    last_acked_offset: int | None = None
    last_acked_us: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The state of a group: lag, members and partitions; and its counters since the server started.

    `missed` is durable and counts since the group was created; what `counters` has is kept in memory.
    """

    group: str
    created_us: int
    lag: int
    in_flight: int
    waiting: int
    missed: int
    members: list[MemberDescription] = field(default_factory=list)
    partitions: list[PartitionDescription] = field(default_factory=list)
    counters: GroupCounters = field(default_factory=GroupCounters)


def check_group_name(name: str) -> str:
    """Return the name; raise NameInvalid for one that no group can have."""
    return _checked(name, "group")


def check_member_name(name: str) -> str:
    """Return the name; raise NameInvalid for one that no member can have."""
    return _checked(name, "member")


def _checked(name: str, noun: str) -> str:
    if 0 < len(name) <= NAME_CHARS_MAX and name.isprintable():
        return name
    reason = "it is empty" if not name else f"it has {len(name)} characters"
    if 0 < len(name) <= NAME_CHARS_MAX:
        fault = next(letter for letter in name if not letter.isprintable())
        reason = f"{fault!r} is not allowed in it"
    shown = "".join(letter if letter.isprintable() else "�" for letter in shorten(name))
    raise NameInvalid(name=shown, noun=noun, reason=reason, rule=f"A {noun} name has {NAME_RULE}")
