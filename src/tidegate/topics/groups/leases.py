"""Steps on a ledger: takes what a member asks for, works out in a draft what changes, keeps nothing.

Each step says what to do with the messages that are beyond help (`Doomed`); who calls moves them to the dead
letters in the same write.

Lease ids: takes a partition, a grant and an offset, gives the text that a consumer holds, and back.

    <partition>.<grant in hex>.<offset>        0.1f3c9a0b2c4d1000.17

A grant is one take: its number is never given out twice, so that a consumer that comes back late cannot touch
what was leased to another since.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tidegate.topics.groups.codec import HELD, WAITING, Entry
from tidegate.topics.groups.ledger import Draft
from tidegate.topics.groups.types import NackRequest

REASON_CHARS_MAX = 2_000  # of a nack: a line or two of an exception, not its traceback
RAN_OUT = "the lease ran out"
GIVEN_BACK = "given back without a reason"


@dataclass(frozen=True, slots=True)
class Window:
    """What the log of a partition holds: `start` ≤ offset < `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for one step: the time, and when a message is beyond help (never, where it is None)."""

    now_us: int
    wall_us: int
    deliveries_max: int | None
    in_flight_max: int


@dataclass(frozen=True, slots=True)
class Lease:
    """What a take gives its messages."""

    grant: int
    member: str
    span_us: int


@dataclass(frozen=True, slots=True)
class Doomed:
    """Messages of one entry that are given no more, and why."""

    entry: Entry
    reason: str


@dataclass(slots=True)
class Took:
    """What a take found in one partition."""

    held: list[Entry] = field(default_factory=list)
    doomed: list[Doomed] = field(default_factory=list)
    expired: int = 0


def available(draft: Draft, window: Window, rules: Rules, limit: int) -> int:
    """Count what a take would find in a settled draft, up to a limit or a little more."""
    count = _new_count(draft, window, rules)
    for entry in draft.ledger.due(rules.now_us):
        if count >= limit:
            break
        left = draft.current(entry)
        count += left.count if left is not None else 0
    return count


def _new_count(draft: Draft, window: Window, rules: Rules) -> int:
    room = rules.in_flight_max - draft.outstanding
    return max(0, min(room, window.end - max(draft.position.next, window.start)))


def take(draft: Draft, window: Window, rules: Rules, lease: Lease, limits: tuple[int, int]) -> Took:
    """Lease what is due again, lowest first, then new messages; `limits` are those given and those doomed."""
    room, doomed_room = limits
    new = _new_count(draft, window, rules)
    took = Took()
    for listed in draft.ledger.due(rules.now_us):
        if not room:
            break
        entry = draft.current(listed)
        if entry is None:
            continue
        if rules.deliveries_max is not None and entry.deliveries >= rules.deliveries_max:
            doomed_room -= _doom(draft, entry, took, doomed_room)
            continue
        stop = min(entry.stop, entry.start + room)
        draft.replace(entry, [(entry.start, stop)])
        room -= stop - entry.start
        if entry.kind == HELD:
            took.expired += stop - entry.start
        _hold(took, entry.start, stop, entry.deliveries + 1, lease, rules)
    start = max(draft.position.next, window.start)
    count = min(room, new)
    if count:
        draft.position = replace(draft.position, next=start + count)
        _hold(took, start, start + count, 1, lease, rules)
    if took.held:
        draft.put.update((entry.start, entry) for entry in took.held)
        draft.position = replace(
            draft.position,
            last_grant=lease.grant,
            delivered_offset=took.held[-1].stop - 1,
            delivered_us=rules.wall_us,
        )
    return took


def _hold(took: Took, start: int, stop: int, deliveries: int, lease: Lease, rules: Rules) -> None:
    if took.held and took.held[-1].stop == start and took.held[-1].deliveries == deliveries:
        start = took.held.pop().start
    ends_us = rules.now_us + lease.span_us
    took.held.append(
        Entry(start, stop, HELD, deliveries, lease.grant, ends_us, lease.span_us, rules.wall_us, lease.member)
    )


def _doom(draft: Draft, entry: Entry, took: Took, room: int) -> int:
    stop = min(entry.stop, entry.start + room)
    if stop == entry.start:
        return 0
    draft.replace(entry, [(entry.start, stop)])
    if entry.kind == HELD and not entry.reason:
        took.expired += stop - entry.start
    took.doomed.append(Doomed(entry.part(entry.start, stop), _why(entry)))
    return stop - entry.start


def _why(entry: Entry) -> str:
    return entry.reason or (RAN_OUT if entry.kind == HELD else GIVEN_BACK)


def expire(draft: Draft, rules: Rules, entries_max: int, doomed_max: int) -> Took:
    """Let messages wait whose lease ran out, or doom them; a long list is done in parts."""
    took = Took()
    for listed in draft.ledger.due(rules.now_us):
        if not entries_max or (rules.deliveries_max is not None and not doomed_max):
            break
        entry = draft.current(listed)
        if entry is None or entry.kind != HELD:
            continue
        entries_max -= 1
        if rules.deliveries_max is not None and entry.deliveries >= rules.deliveries_max:
            doomed_max -= _doom(draft, entry, took, doomed_max)
            continue
        draft.replace(entry, [(entry.start, entry.stop)], _lapsed)
        took.expired += entry.count
    return took


def _lapsed(entry: Entry, start: int, stop: int) -> Entry:
    # The member stays: it may acknowledge this by offset until somebody else is given it.
    return Entry(
        start,
        stop,
        WAITING,
        entry.deliveries,
        entry.grant,
        entry.ends_us,
        0,
        entry.delivered_us,
        entry.member,
        RAN_OUT,
    )


Found = list[tuple[Entry, list[tuple[int, int]]]]


def held_parts(draft: Draft, named: Named, now_us: int, member: str | None) -> Found:
    """Return the parts of entries that leases of one grant still hold, of a member where one is named."""
    return [
        (entry, parts)
        for entry, parts in draft.ledger.clipped(named.ranges)
        if entry.grant == named.grant
        and member in (None, entry.member)
        and draft.ledger.is_held(entry, now_us)
    ]


def count_of(found: Found) -> int:
    """Count the messages of parts."""
    return sum(stop - start for _, parts in found for start, stop in parts)


def lost_leases(named: Named, found: Found) -> list[str]:
    """Return the leases that are in none of the parts found."""
    if count_of(found) == named.count:
        return []
    kept = [part for _, parts in found for part in parts]
    lost, at = [], 0
    for first, last in named.ranges:
        for offset in range(first, last):
            while at < len(kept) and kept[at][1] <= offset:
                at += 1
            if at == len(kept) or offset < kept[at][0]:
                lost.append(lease_id(named.partition, named.grant, offset))
    return lost


def ack_upto(draft: Draft, member: str, offset: int, wall_us: int) -> int:
    """Take out what a member was given last, up to an offset (in); give the number of messages."""
    parts = [
        (entry, min(entry.stop, offset + 1))
        for entry in draft.ledger.below(offset + 1)
        if entry.member == member
    ]
    for entry, stop in parts:
        draft.replace(entry, [(entry.start, stop)])
    if parts:
        note_acked(draft, parts[-1][1] - 1, wall_us)
    return sum(stop - entry.start for entry, stop in parts)


def note_acked(draft: Draft, offset: int, wall_us: int) -> None:
    """Remember the last offset that was acknowledged, and when."""
    draft.position = replace(draft.position, acked_offset=offset, acked_us=wall_us)


def waiting(entry: Entry, start: int, stop: int, due_us: int, delay_us: int, reason: str) -> Entry:
    """Return part of a held entry as one that was given back and waits."""
    return Entry(
        start,
        stop,
        WAITING,
        entry.deliveries,
        entry.grant,
        due_us,
        delay_us,
        entry.delivered_us,
        "",
        reason[:REASON_CHARS_MAX],
    )


def released(entry: Entry, start: int, stop: int, now_us: int) -> Entry:
    """Return part of a held entry as it was before it was given: due at once, that delivery not counted."""
    count = max(0, entry.deliveries - 1)
    return Entry(start, stop, WAITING, count, entry.grant, now_us, 0, entry.delivered_us, "")


def extended(entry: Entry, start: int, stop: int, now_us: int, span_us: int) -> Entry:
    """Return part of a held entry with a lease that is counted from now."""
    return Entry(
        start,
        stop,
        HELD,
        entry.deliveries,
        entry.grant,
        now_us + span_us,
        span_us,
        entry.delivered_us,
        entry.member,
    )


def found(drafts: Mapping[int, Draft], named: Named, rules: Rules, member: str | None) -> Found:
    """Return the parts of entries that leases of one grant still hold, of any partition, as `held_parts`."""
    draft = drafts.get(named.partition)
    return [] if draft is None else held_parts(draft, named, rules.now_us, member)


def ack_named(
    drafts: Mapping[int, Draft], named: Sequence[Named], rules: Rules, member: str | None
) -> tuple[dict[int, int], list[str]]:
    """Take out what leases hold; give the messages in each partition, and the leases that hold nothing."""
    acked, lost = dict.fromkeys(drafts, 0), []
    for one in named:
        mine = found(drafts, one, rules, member)
        lost += lost_leases(one, mine)
        for entry, parts in mine:
            drafts[one.partition].replace(entry, parts)
        if mine:
            acked[one.partition] += count_of(mine)
            last = mine[-1][1][-1][1] - 1
            note_acked(drafts[one.partition], last, rules.wall_us)
    return acked, lost


def give_back(
    draft: Draft,
    entry: Entry,
    parts: Sequence[tuple[int, int]],
    nack: NackRequest,
    rules: Rules,
    log_start: int,
    doomed_max: int,
) -> list[Doomed]:
    """Let parts of an entry wait to be given again; give those that never are, up to a number of messages."""
    most, reason = rules.deliveries_max, (nack.reason or GIVEN_BACK)[:REASON_CHARS_MAX]
    if most is not None and not nack.release and (nack.dead or entry.deliveries >= most):
        return _give_up(
            draft, entry, parts, (log_start, doomed_max), given_up(entry, rules.now_us, most, reason)
        )

    def back(held: Entry, start: int, stop: int) -> Entry:
        if nack.release:
            return released(held, start, stop, rules.now_us)
        delay_us = nack.delay_ms * 1000
        return waiting(held, start, stop, rules.now_us + delay_us, delay_us, reason)

    draft.replace(entry, parts, back)
    return []


def given_up(entry: Entry, now_us: int, deliveries_max: int, reason: str) -> Entry:
    """Return a held entry as one whose lease ended and that failed too often: expiry makes it dead letters.

    It has no member: nobody may acknowledge by offset what was given back.
    """
    deliveries = max(entry.deliveries, deliveries_max)
    return replace(entry, deliveries=deliveries, ends_us=now_us, span_us=0, member="", reason=reason)


def _give_up(
    draft: Draft,
    entry: Entry,
    parts: Sequence[tuple[int, int]],
    limits: tuple[int, int],
    later: Entry,
) -> list[Doomed]:
    """Doom parts of an entry, as many as allowed; `later` stands for the others. What is gone is missed."""
    log_start, room = limits
    cuts: list[tuple[int, int]] = []
    doomed: list[Doomed] = []
    put: set[int] = set()
    for start, stop in parts:
        kept = min(max(start, log_start), stop)
        cut = min(kept + room, stop)
        room -= cut - kept
        draft.miss(kept - start)
        if kept < cut:
            doomed.append(Doomed(entry.part(kept, cut), later.reason))
        if start < cut:
            cuts.append((start, cut))
        if cut < stop:
            cuts.append((cut, stop))
            put.add(cut)
    draft.replace(entry, cuts, lambda _held, start, stop: later.part(start, stop) if start in put else None)
    return doomed


def told(drafts: Mapping[int, Draft]) -> dict[int, int]:
    """Return what the group missed in each partition, from now on told."""
    missed = {
        partition: draft.position.missed_untold
        for partition, draft in drafts.items()
        if draft.position.missed_untold
    }
    for partition in missed:
        drafts[partition].tell()
    return missed


LEASE_CHARS_MAX = 48  # partition, grant and offset at their longest, and two dots
ECHO_CHARS_MAX = 200  # of a text that is no lease, when it is named to whoever sent it
_LEASE = r"(?:0|[1-9][0-9]{0,9})\.[0-9a-f]{16}\.(?:0|[1-9][0-9]{0,18})"
_ONE = re.compile(_LEASE)
# One match for all of them: thousands of leases come in one request.
_ALL = re.compile(rf"(?:{_LEASE}\n)*")


def lease_prefix(partition: int, grant: int) -> str:
    """Return what the leases of one grant begin with; the offset follows."""
    return f"{partition}.{grant:016x}."


def lease_id(partition: int, grant: int, offset: int) -> str:
    """Return the text of one lease."""
    return f"{partition}.{grant:016x}.{offset}"


@dataclass(frozen=True, slots=True)
class Named:
    """Leases of one grant, named together: half-open ranges of offsets that rise and do not touch."""

    partition: int
    grant: int
    ranges: list[tuple[int, int]]

    @property
    def count(self) -> int:
        """The number of leases."""
        return sum(stop - start for start, stop in self.ranges)


def read_leases(leases: Sequence[str]) -> tuple[list[Named], list[str]]:
    """Return what leases name, by grant, and the texts that are none. One that is there twice counts once."""
    strange: list[str] = []
    if not _are_all(leases):
        wrong = dict.fromkeys(text for text in leases if not _ONE.fullmatch(text))
        strange = [text[:ECHO_CHARS_MAX] for text in wrong]
        leases = [text for text in leases if text not in wrong]
    return _by_grant(leases), strange


def _by_grant(leases: Sequence[str]) -> list[Named]:
    offsets_of: dict[str, list[int]] = {}
    for text in leases:
        head, _, offset = text.rpartition(".")
        offsets_of.setdefault(head, []).append(int(offset))
    named = []
    for head, offsets in offsets_of.items():
        partition, _, grant = head.partition(".")
        named.append(Named(int(partition), int(grant, 16), _ranges(sorted(set(offsets)))))
    return named


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        return [(offsets[0], offsets[-1] + 1)]
    found: list[tuple[int, int]] = []
    start = stop = offsets[0]
    for offset in offsets:
        if offset != stop:
            found.append((start, stop))
            start = offset
        stop = offset + 1
    found.append((start, stop))
    return found


def _are_all(leases: Sequence[str]) -> bool:
    text = "\n".join(leases)
    # A line break inside a text would pass as two leases.
    is_counted = text.count("\n") == max(0, len(leases) - 1)
    return is_counted and _ALL.fullmatch(text + "\n" if leases else "") is not None
