"""Leases of messages: what one request changes in a ledger, and the text of a lease id.

The functions on a `Draft` compute what a fetch, an ack, a nack, an extension or an expiration changes.
Messages whose deliveries are exhausted are returned (`ExhaustedEntry`); the caller writes them as dead
letters in the same write batch.

The id of a lease is the text that a consumer holds:

    <partition>.<fetch id in hex><token in hex>.<offset>        0.1f3c9a0b2c4d1000c2ef3a919be0d7f5.17

A fetch id is never used twice, so it fences: a consumer that comes back late cannot touch what was leased to
another one since. The token is random, so that nobody finds a lease id by trying. Ids of earlier versions
have no token; they are good until their leases end.

A lease belongs to the user who fetched. Who was not stored before entries had version 2: such a lease is good
for whoever has its id, and belongs to the first one who extends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from tidegate.errors import InvariantBroken
from tidegate.model.access import Operation, Principal, check_allowed, is_allowed
from tidegate.model.ids import SnowflakeSource
from tidegate.topics.groups.codec import HELD, WAITING, Entry
from tidegate.topics.groups.ledger import Draft
from tidegate.topics.groups.types import AckRequest, NackRequest

REASON_CHARS_MAX = 2_000  # of a nack: a line or two of an exception, not its traceback
REASON_EXPIRED = "the lease ran out"
REASON_NACKED = "given back without a reason"

ECHO_CHARS_MAX = 200  # of a text that is no lease, where an error repeats it
TOKEN_BYTES = 8
_FETCH_ID_CHARS = 16
_LEASE = r"(?:0|[1-9][0-9]{0,9})\.(?:[0-9a-f]{32}|[0-9a-f]{16})\.(?:0|[1-9][0-9]{0,18})"
# A token of zeros is none: an id that has one was never issued.
_ZEROS = "0" * 2 * TOKEN_BYTES + "."
_OTHERS_HINT = (
    "These messages are leased to another user: a lease belongs to the user who fetched. "
    "Use a token of that user, or give each user's members names of their own."
)
_ONE = re.compile(rf"(?![0-9]+\.[0-9a-f]{{16}}0{{16}}\.){_LEASE}")
# One match for all of them: thousands of leases come in one request.
_ALL = re.compile(rf"(?:{_LEASE}\n)*")


def lease_prefix(partition: int, fetch_id: int, token: int) -> str:
    """Return the prefix of the lease ids of one fetch; the offset follows. Token 0 is none."""
    return f"{partition}.{fetch_id:016x}{token:016x}." if token else f"{partition}.{fetch_id:016x}."


def lease_id(partition: int, fetch_id: int, token: int, offset: int) -> str:
    """Return the id of one lease."""
    return f"{lease_prefix(partition, fetch_id, token)}{offset}"


class FetchIdSource:
    """A source of fetch ids, each greater than the one before, with random tokens.

    `random_bytes(n)` returns n bytes that nobody can guess (`secrets.token_bytes` at the doors).
    """

    def __init__(self, ids: SnowflakeSource, random_bytes: Callable[[int], bytes]) -> None:
        self._ids = ids
        self._random_bytes = random_bytes

    def take(self) -> tuple[int, int]:
        """Return the next fetch id and its token, which is not 0."""
        random = self._random_bytes(TOKEN_BYTES)
        if len(random) != TOKEN_BYTES:
            raise InvariantBroken(reason=f"the random source gave {len(random)} bytes")
        return self._ids.take(), int.from_bytes(random, "big") or 1

    def advance_past(self, fetch_id: int) -> None:
        """Make every later fetch id greater than this one."""
        self._ids.advance_past(fetch_id)


@dataclass(frozen=True, slots=True)
class LeaseSet:
    """Leases of one fetch in one partition: half-open ranges of offsets that rise and do not touch."""

    partition: int
    fetch_id: int
    token: int
    ranges: list[tuple[int, int]]

    @property
    def count(self) -> int:
        """The number of leases."""
        return sum(stop - start for start, stop in self.ranges)


def read_leases(leases: Sequence[str]) -> tuple[list[LeaseSet], list[str]]:
    """Return leases by fetch, and texts that are no lease ids; a lease that is named twice counts once."""
    strange: list[str] = []
    if not _are_all(leases):
        wrong = dict.fromkeys(text for text in leases if not _ONE.fullmatch(text))
        strange = [text[:ECHO_CHARS_MAX] for text in wrong]
        leases = [text for text in leases if text not in wrong]
    return _by_fetch(leases), strange


def _are_all(leases: Sequence[str]) -> bool:
    text = "\n".join(leases)
    # A line break inside a text would pass as two leases.
    is_counted = text.count("\n") == max(0, len(leases) - 1)
    is_one_each = is_counted and _ALL.fullmatch(text + "\n" if leases else "") is not None
    # Zeros may also be a fetch id without a token: such texts are looked at one by one.
    return is_one_each and _ZEROS not in text


def _by_fetch(leases: Sequence[str]) -> list[LeaseSet]:
    offsets_of: dict[str, list[int]] = {}
    for text in leases:
        head, _, offset = text.rpartition(".")
        offsets_of.setdefault(head, []).append(int(offset))
    sets = []
    for head, offsets in offsets_of.items():
        partition, _, digits = head.partition(".")
        fetch_id, token = digits[:_FETCH_ID_CHARS], digits[_FETCH_ID_CHARS:]
        ranges = _ranges(sorted(set(offsets)))
        sets.append(LeaseSet(int(partition), int(fetch_id, 16), int(token or "0", 16), ranges))
    return sets


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


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets in the log of a partition: `start` ≤ offset < `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Rules:
    """The time of one step, and its limits; without `deliveries_max` no message is ever exhausted."""

    now_us: int
    wall_us: int
    deliveries_max: int | None
    in_flight_max: int


@dataclass(frozen=True, slots=True)
class MessageLease:
    """The lease of the messages of one fetch: its id, whose it is, and how long it lasts."""

    fetch_id: int
    token: int
    member: str
    user: str
    span_us: int


@dataclass(frozen=True, slots=True)
class ExhaustedEntry:
    """Messages of one entry that are not delivered again, and why."""

    entry: Entry
    reason: str


@dataclass(slots=True)
class StepResult:
    """What a step did in one partition: entries leased, entries exhausted, and the leases that ended."""

    leased: list[Entry] = field(default_factory=list)
    exhausted: list[ExhaustedEntry] = field(default_factory=list)
    expired: int = 0


def available(draft: Draft, bounds: LogBounds, rules: Rules, limit: int) -> int:
    """Return the number of messages that a fetch would find in a settled draft, up to about a limit."""
    count = _new_count(draft, bounds, rules)
    for entry in draft.ledger.due(rules.now_us):
        if count >= limit:
            break
        left = draft.current(entry)
        count += left.count if left is not None else 0
    return count


def _new_count(draft: Draft, bounds: LogBounds, rules: Rules) -> int:
    room = rules.in_flight_max - draft.outstanding
    return max(0, min(room, bounds.end - max(draft.position.next, bounds.start)))


def fetch(
    draft: Draft, bounds: LogBounds, rules: Rules, lease: MessageLease, limits: tuple[int, int]
) -> StepResult:
    """Lease what is due again, lowest first, then new messages.

    `limits` are those of leased and of exhausted messages.
    """
    room, exhausted_room = limits
    new = _new_count(draft, bounds, rules)
    result = StepResult()
    for listed in draft.ledger.due(rules.now_us):
        if not room:
            break
        entry = draft.current(listed)
        if entry is None:
            continue
        if rules.deliveries_max is not None and entry.deliveries >= rules.deliveries_max:
            exhausted_room -= _exhaust(draft, entry, result, exhausted_room)
            continue
        stop = min(entry.stop, entry.start + room)
        draft.replace(entry, [(entry.start, stop)])
        room -= stop - entry.start
        if entry.kind == HELD:
            result.expired += stop - entry.start
        _lease(result, entry.start, stop, entry.deliveries + 1, lease, rules)
    start = max(draft.position.next, bounds.start)
    count = min(room, new)
    if count:
        draft.position = replace(draft.position, next=start + count)
        _lease(result, start, start + count, 1, lease, rules)
    if result.leased:
        draft.put.update((entry.start, entry) for entry in result.leased)
        draft.position = replace(
            draft.position,
            last_fetch_id=lease.fetch_id,
            delivered_offset=result.leased[-1].stop - 1,
            delivered_us=rules.wall_us,
        )
    return result


def _lease(
    result: StepResult, start: int, stop: int, deliveries: int, lease: MessageLease, rules: Rules
) -> None:
    last = result.leased[-1] if result.leased else None
    if last is not None and last.stop == start and last.deliveries == deliveries:
        start = result.leased.pop().start
    ends_us = rules.now_us + lease.span_us
    times_us, member = (ends_us, lease.span_us, rules.wall_us), lease.member
    counts = (HELD, deliveries, lease.fetch_id)
    result.leased.append(Entry(start, stop, *counts, *times_us, member, "", lease.user, lease.token))


def _exhaust(draft: Draft, entry: Entry, result: StepResult, room: int) -> int:
    """Remove the first messages of an entry as exhausted, as many as allowed; return their number."""
    stop = min(entry.stop, entry.start + room)
    if stop == entry.start:
        return 0
    draft.replace(entry, [(entry.start, stop)])
    if entry.kind == HELD and not entry.reason:
        result.expired += stop - entry.start
    reason = entry.reason or (REASON_EXPIRED if entry.kind == HELD else REASON_NACKED)
    result.exhausted.append(ExhaustedEntry(entry.part(entry.start, stop), reason))
    return stop - entry.start


def expire(draft: Draft, rules: Rules, entries_max: int, exhausted_max: int) -> StepResult:
    """Set entries whose lease ended to waiting, or exhaust them; a long list takes several calls."""
    result = StepResult()
    for listed in draft.ledger.due(rules.now_us):
        if not entries_max or (rules.deliveries_max is not None and not exhausted_max):
            break
        entry = draft.current(listed)
        if entry is None or entry.kind != HELD:
            continue
        entries_max -= 1
        if rules.deliveries_max is not None and entry.deliveries >= rules.deliveries_max:
            exhausted_max -= _exhaust(draft, entry, result, exhausted_max)
            continue
        draft.replace(entry, [(entry.start, entry.stop)], _as_expired)
        result.expired += entry.count
    return result


def _as_expired(entry: Entry, start: int, stop: int) -> Entry:
    # The member stays: it may acknowledge this by offset until the message is delivered to another one.
    return _as_waiting(entry, start, stop, (entry.ends_us, 0), (entry.member, entry.user), REASON_EXPIRED)


def _as_waiting(
    entry: Entry, start: int, stop: int, times_us: tuple[int, int], holder: tuple[str, str], reason: str
) -> Entry:
    """Return part of a held entry as one that waits.

    `times_us` are when it is due, and how long that is; `holder` is the last member, and its user.
    """
    (due_us, delay_us), (member, user) = times_us, holder
    counts = (WAITING, entry.deliveries, entry.fetch_id)
    return Entry(start, stop, *counts, due_us, delay_us, entry.delivered_us, member, reason, user)


def as_released(entry: Entry, start: int, stop: int, now_us: int) -> Entry:
    """Return part of a held entry as it was before its delivery: due at once, that delivery not counted."""
    count = max(0, entry.deliveries - 1)
    return Entry(start, stop, WAITING, count, entry.fetch_id, now_us, 0, entry.delivered_us, "")


def as_extended(entry: Entry, start: int, stop: int, times_us: tuple[int, int], user: str) -> Entry:
    """Return part of a held entry with a lease that is counted from now; `user` is for one without a user.

    `times_us` are the time now, and how long the lease lasts.
    """
    (now_us, span_us), counts = times_us, (HELD, entry.deliveries, entry.fetch_id)
    times = (now_us + span_us, span_us, entry.delivered_us)
    return Entry(start, stop, *counts, *times, entry.member, "", entry.user or user, entry.token)


def as_exhausted(entry: Entry, now_us: int, deliveries_max: int, reason: str) -> Entry:
    """Return a held entry as one whose lease ended and whose deliveries are exhausted.

    The next expiration makes dead letters of it. It has no member and no user: nobody may acknowledge by
    offset what was nacked.
    """
    deliveries = max(entry.deliveries, deliveries_max)
    return replace(entry, deliveries=deliveries, ends_us=now_us, span_us=0, member="", user="", reason=reason)


# Entries, each with the ranges of offsets of it that leases hold.
HeldParts = list[tuple[Entry, list[tuple[int, int]]]]


def find_held(drafts: Mapping[int, Draft], leases: LeaseSet, rules: Rules, member: str | None) -> HeldParts:
    """Return the parts of entries that leases of one fetch still hold, of a member where one is named."""
    draft = drafts.get(leases.partition)
    if draft is None:
        return []
    return [
        (entry, parts)
        for entry, parts in draft.ledger.clipped(leases.ranges)
        if entry.fetch_id == leases.fetch_id
        and entry.token == leases.token
        and member in (None, entry.member)
        and draft.ledger.is_held(entry, rules.now_us)
    ]


def check_user(entries: Iterable[Entry], principal: Principal) -> None:
    """Raise Forbidden for entries of another user; an administrator may act on those of all."""
    name = principal.qualified_name
    if any(entry.user not in ("", name) for entry in entries):
        check_allowed(principal, Operation.TOPIC_ACK_OTHERS, _OTHERS_HINT)


def message_count(held: HeldParts) -> int:
    """Return the number of messages of parts."""
    return sum(stop - start for _, parts in held for start, stop in parts)


def lost_leases(leases: LeaseSet, held: HeldParts) -> list[str]:
    """Return the ids of the leases that are in none of the held parts."""
    if message_count(held) == leases.count:
        return []
    parts = [part for _, ranges in held for part in ranges]
    lost, at = [], 0
    for first, last in leases.ranges:
        for offset in range(first, last):
            while at < len(parts) and parts[at][1] <= offset:
                at += 1
            if at == len(parts) or offset < parts[at][0]:
                lost.append(lease_id(leases.partition, leases.fetch_id, leases.token, offset))
    return lost


def ack_leases(
    drafts: Mapping[int, Draft], sets: Sequence[LeaseSet], rules: Rules, ack: AckRequest
) -> tuple[dict[int, int], list[str]]:
    """Remove the messages that leases hold.

    Return the number of messages in each partition, and the leases that hold nothing.
    """
    acked, lost = dict.fromkeys(drafts, 0), []
    for leases in sets:
        held = find_held(drafts, leases, rules, ack.member)
        check_user((entry for entry, _ in held), ack.principal)
        lost += lost_leases(leases, held)
        draft = drafts.get(leases.partition)
        if draft is None or not held:
            continue
        for entry, parts in held:
            draft.replace(entry, parts)
        acked[leases.partition] += message_count(held)
        _note_acked(draft, held[-1][1][-1][1] - 1, rules.wall_us)
    return acked, lost


def ack_upto(draft: Draft, ack: AckRequest, offset: int, wall_us: int) -> int:
    """Remove the messages that a member got last, up to an offset (in); return their number.

    A name may be that of members of several users: only those of the caller count, and those of all for an
    administrator. Raise Forbidden where there are only those of others.
    """
    named = [entry for entry in draft.ledger.below(offset + 1) if entry.member == ack.member]
    mine = [entry for entry in named if _is_own(entry, ack.principal)]
    if not mine:
        check_user(named, ack.principal)
    parts = [(entry, min(entry.stop, offset + 1)) for entry in mine]
    for entry, stop in parts:
        draft.replace(entry, [(entry.start, stop)])
    if parts:
        _note_acked(draft, parts[-1][1] - 1, wall_us)
    return sum(stop - entry.start for entry, stop in parts)


def _is_own(entry: Entry, principal: Principal) -> bool:
    """True for what a user may acknowledge by the name of the member alone.

    Where the user was not stored, the name has to be the one that a member has by default: the user's.
    """
    if is_allowed(principal, Operation.TOPIC_ACK_OTHERS):
        return True
    if not entry.user:
        return entry.member == principal.full_name
    return entry.user == principal.qualified_name


def _note_acked(draft: Draft, offset: int, wall_us: int) -> None:
    draft.position = replace(draft.position, acked_offset=offset, acked_us=wall_us)


def nack_parts(
    draft: Draft,
    entry: Entry,
    parts: Sequence[tuple[int, int]],
    nack: NackRequest,
    rules: Rules,
    log_start: int,
    exhausted_max: int,
) -> list[ExhaustedEntry]:
    """Set parts of an entry to waiting, or exhaust up to a number of messages and return them."""
    most, reason = rules.deliveries_max, (nack.reason or REASON_NACKED)[:REASON_CHARS_MAX]
    if most is not None and not nack.release and (nack.dead or entry.deliveries >= most):
        later = as_exhausted(entry, rules.now_us, most, reason)
        return _exhaust_parts(draft, entry, parts, (log_start, exhausted_max), later)
    delay_us = nack.delay_ms * 1000

    def to_waiting(held: Entry, start: int, stop: int) -> Entry:
        if nack.release:
            return as_released(held, start, stop, rules.now_us)
        return _as_waiting(held, start, stop, (rules.now_us + delay_us, delay_us), ("", ""), reason)

    draft.replace(entry, parts, to_waiting)
    return []


def _exhaust_parts(
    draft: Draft,
    entry: Entry,
    parts: Sequence[tuple[int, int]],
    limits: tuple[int, int],
    later: Entry,
) -> list[ExhaustedEntry]:
    """Exhaust parts of an entry, as many messages as allowed; `later` replaces the others.

    What is not in the log any more counts as missed.
    """
    log_start, room = limits
    cuts: list[tuple[int, int]] = []
    exhausted: list[ExhaustedEntry] = []
    put: set[int] = set()
    for start, stop in parts:
        first = min(max(start, log_start), stop)
        cut = min(first + room, stop)
        room -= cut - first
        draft.miss(first - start)
        if first < cut:
            exhausted.append(ExhaustedEntry(entry.part(first, cut), later.reason))
        if start < cut:
            cuts.append((start, cut))
        if cut < stop:
            cuts.append((cut, stop))
            put.add(cut)
    draft.replace(entry, cuts, lambda _held, start, stop: later.part(start, stop) if start in put else None)
    return exhausted


def report_missed(drafts: Mapping[int, Draft]) -> dict[int, int]:
    """Return the missed messages of each partition that were not reported yet, and mark them as reported."""
    missed = {
        partition: draft.position.missed_unreported
        for partition, draft in drafts.items()
        if draft.position.missed_unreported
    }
    for partition in missed:
        drafts[partition].mark_reported()
    return missed
