"""What consumer groups are asked, what they answer, and how they are described; all inert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.errors import NameInvalid
from tidegate.model.names import shorten
from tidegate.settings import TopicSettings
from tidegate.topics.log.reader import Start

NAME_CHARS_MAX = 200  # of a group or a member: a host, a program and a number fit in
NAME_RULE = f"1 to {NAME_CHARS_MAX} printable characters, no control characters."


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a group may hold and for how long, unless it says."""

    lease_ms_default: int = 30_000
    deliveries_max: int = 16
    dead_letters: bool = True
    in_flight_max: int = 100_000
    groups_max: int = 1000
    member_seconds: float = 60.0

    @classmethod
    def from_settings(cls, settings: TopicSettings) -> GroupLimits:
        """Return the limits that are set."""
        return cls(
            settings.lease_ms_default,
            settings.deliveries_max,
            settings.dead_letters,
            settings.in_flight_max,
            settings.groups_max,
            settings.member_seconds,
        )


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A member asks for messages; `start` counts only where the group has no position yet."""

    group: str
    member: str
    start: Start = Start("earliest")  # noqa: RUF009 - frozen
    partition: int | None = None
    limit: int = 100
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeasedRange:
    """Messages of one partition that were leased together: `start` ≤ offset < `stop`."""

    partition: int
    start: int
    stop: int
    grant: int
    deliveries: int

    @property
    def count(self) -> int:
        """The number of messages."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What a take leased, what the group missed since it was last told, and where its new messages go on."""

    grants: list[LeasedRange]
    missed: dict[int, int]
    next_offsets: dict[int, int]


@dataclass(frozen=True, slots=True)
class AckRequest:
    """What a member is done with: leases, or all that it was given up to an offset of a partition (in).

    Offsets need a member. Leases of another than the one that is named are lost; without a name the lease
    alone decides.
    """

    group: str
    member: str | None
    leases: Sequence[str] | None = None
    upto: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class AckResult:
    """How many messages were acknowledged, the position after it, and leases that are no longer held.

    `by_partition` says how many in each; it has the partitions of `position`.
    """

    acked: int
    position: dict[int, int]
    lost: list[str]
    by_partition: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NackRequest:
    """What a member gives back: it failed, (`release`) was not worked on, or (`dead`) never can succeed.

    Leases of another than the member that is named are lost; without a name the lease alone decides.
    """

    group: str
    member: str | None
    leases: Sequence[str]
    delay_ms: int = 0
    reason: str | None = None
    release: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class NackResult:
    """How many messages were given back, how many of them are dead letters now, and leases no longer held.

    Of very many that are to be dead letters, the rest becomes so with the next rounds of expiry.
    """

    nacked: int
    dead: int
    lost: list[str]


@dataclass(frozen=True, slots=True)
class ExtendRequest:
    """A member needs its leases for longer, counted from now; those of another than it are lost.

    Without a name the lease alone decides.
    """

    group: str
    member: str | None
    leases: Sequence[str]
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ExtendResult:
    """How many leases now end when, and those that are no longer held."""

    extended: int
    expires_us: int
    lost: list[str]


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """How many leases ran out, and how many of their messages are dead letters now."""

    expired: int
    dead: int


@dataclass(frozen=True, slots=True)
class Ready:
    """What a take would find now: about how many messages, something missed, and when there will be more.

    `is_known` is false for a group, or a partition of it, that has no position yet: a take gives it one.
    """

    count: int
    missed: bool
    due_us: int | None
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class MemberShape:
    """Who is in a group: when it was heard of last, messages it holds, long polls that wait."""

    member: str
    last_seen_us: int | None
    holds: int
    waits: int


@dataclass(frozen=True, slots=True)
class PartitionShape:
    """Where a group stands in a partition."""

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
class GroupShape:
    """A group: where it stands, who is in it, what it missed in all."""

    group: str
    created_us: int
    lag: int
    in_flight: int
    waiting: int
    missed: int
    members: list[MemberShape] = field(default_factory=list)
    partitions: list[PartitionShape] = field(default_factory=list)


@dataclass(slots=True)
class Tallies:
    """Messages that went through groups since the start, counted once they are durable."""

    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    dead: int = 0
    missed: int = 0


def check_group_name(name: str) -> str:
    """Return the name back, or raise NameInvalid."""
    return _checked(name, "group")


def check_member_name(name: str) -> str:
    """Return the name back, or raise NameInvalid."""
    return _checked(name, "member")


def _checked(name: str, noun: str) -> str:
    if 0 < len(name) <= NAME_CHARS_MAX and name.isprintable():
        return name
    reason = "it is empty" if not name else f"it has {len(name)} characters"
    if 0 < len(name) <= NAME_CHARS_MAX:
        fault = next(letter for letter in name if not letter.isprintable())
        reason = f"{fault!r} may not stand in it"
    shown = "".join(letter if letter.isprintable() else "�" for letter in shorten(name))
    raise NameInvalid(name=shown, noun=noun, reason=reason, rule=f"A {noun} name has {NAME_RULE}")
