"""Consumer groups: fetches, acks, nacks, extensions and expirations of leases, resets and descriptions.

A member fetches messages and holds each for a time, its lease; it acknowledges them, nacks them, or lets the
lease end, and then they are delivered again, perhaps to other members. What was acknowledged is never
delivered again; what was not always is, or becomes a dead letter, or was removed from the log and is reported
as missed.

Every promise is in the write batch of the change that gave it: a crash takes back nothing that a member was
answered. Methods named `stage_…` belong to the committer's thread, the others to any.

A change reads the group as the changes before it left it, computes a draft for each partition, stages dead
letters and rows, and changes memory last: one that is refused half way leaves everything as it was.

The counters are kept in memory and begin at 0 when the server starts; a message counts once its change is
durable. Only the number of missed messages is stored with the group's positions as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from tidegate.errors import OffsetOutOfRange, RequestInvalid
from tidegate.model.access import Principal
from tidegate.model.clock import Clock
from tidegate.model.quotas import check_count
from tidegate.settings import TopicSettings
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.groups import describe, leases
from tidegate.topics.groups.codec import Entry, Position
from tidegate.topics.groups.dead_letters import DeadLetters, ExhaustedRange
from tidegate.topics.groups.leases import (
    FetchIdSource,
    LeaseSet,
    LogBounds,
    MessageLease,
    Rules,
    StepResult,
    read_leases,
)
from tidegate.topics.groups.ledger import Change, Draft, Ledger
from tidegate.topics.groups.members import Members, SteadyTime
from tidegate.topics.groups.store import GroupCache, GroupState, GroupStore
from tidegate.topics.groups.types import (
    AckRequest,
    AckResult,
    ExpiryResult,
    ExtendRequest,
    ExtendResult,
    FetchEstimate,
    FetchRequest,
    FetchResult,
    GroupCounters,
    GroupDescription,
    LeasedRange,
    NackRequest,
    NackResult,
    check_group_name,
    check_member_name,
)
from tidegate.topics.log.protocol import MessageLog
from tidegate.topics.log.reader import Start, shared, start_offsets

# Of one fetch, nack or expiration: more would hold up the writes of others.
DEAD_AT_ONCE_MAX = 1000
EXPIRED_AT_ONCE_MAX = 1000


class Groups:
    """All consumer groups of all topics. Methods named `stage_…` belong to the committer's thread."""

    def __init__(
        self,
        engine: Engine,
        log: MessageLog,
        directory: TopicDirectory,
        ids: FetchIdSource,
        clock: Clock,
        limits: TopicSettings,
        notify: Callable[[Topic, str], None] = lambda _topic, _group: None,
    ) -> None:
        self._log = log
        self._directory = directory
        self._ids = ids
        self._clock = clock
        self._limits = limits
        # Called on the committer's thread after something became, or will become, due for a group.
        self._notify = notify
        self._steady = SteadyTime(clock)
        self._store = GroupStore(GroupCache(engine, ids, self._steady), limits.groups_max)
        self._lock = self._store.lock
        self._members = Members(clock, self._steady, limits.member_seconds)
        self._letters = DeadLetters(log, directory)
        # Totals over all groups since the server started, and those of each group by topic id and name.
        self.counters = GroupCounters()
        self._counters_of: dict[int, dict[str, GroupCounters]] = {}

    def stage_fetch(self, staging: Staging, topic: Topic, fetch: FetchRequest) -> FetchResult:
        """Lease messages to a member: what is due again first, then new ones, from all partitions in turn.

        The first fetch sets the group's position in the partitions that it names, also when it finds nothing
        there.
        """
        check_member_name(fetch.member)
        partitions = chosen_partitions(topic, fetch.partition)
        with self._lock:
            group = self._store.find(staging, topic, fetch.group, partitions)
            if group is None:
                self._check_quota(topic.tenant)
                group = self._store.new(topic, fetch.group, self._clock.now_us())
            rules, bounds = self._rules(topic), self._bounds(topic, partitions)
            drafts = self._begin_drafts(topic, group, fetch, partitions)
            for partition, draft in drafts.items():
                draft.settle(bounds[partition].start, rules.now_us)
            results = self._fetch_from(group, fetch, drafts, bounds, rules)
            missed = leases.report_missed(drafts)
            dead = self._stage_dead_letters(staging, topic, group, results)
            self._store.stage(staging, group, drafts)
            group.turn += 1
            self._members.record(topic.id, fetch.group, fetch.member)
            next_offsets = {partition: draft.position.next for partition, draft in drafts.items()}
        ranges = [
            LeasedRange(partition, entry.start, entry.stop, entry.fetch_id, entry.deliveries, entry.token)
            for partition, result in results.items()
            for entry in result.leased
        ]
        expired = sum(result.expired for result in results.values())
        if ranges or missed or dead or expired:
            counts = _fetch_counts(ranges, expired, dead, sum(missed.values()))
            staging.when_durable(lambda: self._count(topic, fetch.group, counts))
        return FetchResult(ranges, missed, next_offsets)

    def stage_ack(self, staging: Staging, topic: Topic, ack: AckRequest) -> AckResult:
        """Acknowledge messages of a member: they are never delivered to the group again.

        Raise Forbidden for leases of another user, and do nothing; so do `stage_nack` and `stage_extend`.
        """
        _check_ack(ack)
        sets, strange = read_leases(ack.leases or ())
        upto = ack.upto or {}
        for partition, offset in upto.items():
            self._check_offset(topic, partition, offset)
        partitions = _partitions_of(topic, sets) if ack.upto is None else sorted(upto)
        with self._lock:
            group = self._store.get(staging, topic, ack.group, partitions)
            rules, drafts = self._rules(topic), _drafts(group, partitions)
            was_full = any(one.ledger.outstanding >= self._limits.in_flight_max for one in drafts.values())
            acked_of, lost = leases.ack_leases(drafts, sets, rules, ack)
            for partition, offset in upto.items():
                if partition in drafts:
                    acked_of[partition] = leases.ack_upto(drafts[partition], ack, offset, rules.wall_us)
            self._store.stage(staging, group, drafts)
            position = {
                partition: draft.ledger.position_offset(
                    self._log.counters(topic, partition).start, rules.now_us
                )
                for partition, draft in drafts.items()
            }
            self._record_member(topic, ack.group, ack.member)
        acked = sum(acked_of.values())
        if acked:
            # Of a group that was full, waiting members may get more now.
            counts = GroupCounters(acked=acked)
            staging.when_durable(lambda: self._count(topic, ack.group, counts, notify=was_full))
        return AckResult(acked, position, strange + lost, acked_of)

    def stage_nack(self, staging: Staging, topic: Topic, nack: NackRequest) -> NackResult:
        """End leases without an ack: deliver again after a delay, release uncounted, or dead-letter."""
        _check_member(nack.member)
        sets, strange = read_leases(nack.leases)
        partitions = _partitions_of(topic, sets)
        with self._lock:
            group = self._store.get(staging, topic, nack.group, partitions)
            rules, drafts = self._rules(topic), _drafts(group, partitions)
            results = {partition: StepResult() for partition in drafts}
            bounds = self._bounds(topic, list(drafts))
            nacked, lost, exhausted_room = 0, strange, DEAD_AT_ONCE_MAX
            for one in sets:
                held = leases.find_held(drafts, one, rules, nack.member)
                leases.check_user((entry for entry, _ in held), nack.principal)
                nacked += leases.message_count(held)
                lost += leases.lost_leases(one, held)
                for entry, parts in held:
                    draft, start = drafts[one.partition], bounds[one.partition].start
                    exhausted = leases.nack_parts(draft, entry, parts, nack, rules, start, exhausted_room)
                    exhausted_room -= sum(each.entry.count for each in exhausted)
                    results[one.partition].exhausted += exhausted
            dead = self._stage_dead_letters(staging, topic, group, results)
            self._store.stage(staging, group, drafts)
            self._record_member(topic, nack.group, nack.member)
        if nacked:
            counts = GroupCounters(nacked=0 if nack.release else nacked, dead=dead)
            staging.when_durable(lambda: self._count(topic, nack.group, counts, notify=True))
        return NackResult(nacked, dead, lost)

    def stage_extend(self, staging: Staging, topic: Topic, extend: ExtendRequest) -> ExtendResult:
        """Let leases end later, counted from now; without leases, check that the group exists."""
        _check_member(extend.member)
        sets, lost = read_leases(extend.leases)
        partitions = _partitions_of(topic, sets)
        span_us = self._span_us(extend.lease_ms)
        with self._lock:
            group = self._store.get(staging, topic, extend.group, partitions)
            rules, drafts = self._rules(topic), _drafts(group, partitions)

            def to_extended(entry: Entry, start: int, stop: int) -> Entry:
                user = extend.principal.qualified_name
                return leases.as_extended(entry, start, stop, (rules.now_us, span_us), user)

            holder = (extend.member, extend.principal)
            count = _replace_held(drafts, sets, rules, holder, to_extended, lost)
            self._store.stage(staging, group, drafts)
            self._record_member(topic, extend.group, extend.member)
        return ExtendResult(count, rules.wall_us + span_us, lost)

    def stage_release(
        self, staging: Staging, topic: Topic, group: str, member: str, ranges: Sequence[LeasedRange]
    ) -> int:
        """Undo leases whose messages never reached the member, as if they had not been delivered.

        Return the number of messages.
        """
        sets = _lease_sets(ranges)
        partitions = _partitions_of(topic, sets)
        with self._lock:
            known = self._store.get(staging, topic, group, partitions)
            rules, drafts = self._rules(topic), _drafts(known, partitions)

            def to_released(entry: Entry, start: int, stop: int) -> Entry:
                return leases.as_released(entry, start, stop, rules.now_us)

            count = _replace_held(drafts, sets, rules, (member, None), to_released, [])
            self._store.stage(staging, known, drafts)
        if count:
            staging.when_durable(lambda: self._notify(topic, group))
        return count

    def stage_expire(self, staging: Staging, topic: Topic, group: str) -> ExpiryResult:
        """Set messages whose lease ended to waiting; exhausted ones become dead letters."""
        with self._lock:
            known = self._store.get(staging, topic, group, ())
            partitions = sorted(number for number in known.ledgers if number < topic.partitions)
            known = self._store.get(staging, topic, group, partitions)
            rules, bounds = self._rules(topic), self._bounds(topic, partitions)
            drafts = _drafts(known, partitions)
            results: dict[int, StepResult] = {}
            entries_room, exhausted_room = EXPIRED_AT_ONCE_MAX, DEAD_AT_ONCE_MAX
            for partition, draft in drafts.items():
                if draft.ledger.has_lapsed(rules.now_us):
                    draft.settle(bounds[partition].start, rules.now_us)
                    result = leases.expire(draft, rules, entries_room, exhausted_room)
                    entries_room = max(0, entries_room - len(draft.removed))
                    exhausted_room -= sum(one.entry.count for one in result.exhausted)
                    results[partition] = result
            dead = self._stage_dead_letters(staging, topic, known, results)
            self._store.stage(staging, known, drafts)
        expired = sum(result.expired for result in results.values())
        if any(not draft.is_empty for draft in drafts.values()):
            counts = GroupCounters(expired=expired, dead=dead)
            staging.when_durable(lambda: self._count(topic, group, counts, notify=True))
        return ExpiryResult(expired, dead)

    def stage_reset(
        self, staging: Staging, topic: Topic, group: str, start: Start, partition: int | None
    ) -> dict[int, int]:
        """Move the positions of a group, and end its leases; return the new positions."""
        if start.kind == "offsets" and partition is None:
            targets = {
                named: start_offsets(self._log, topic, start, named)[named] for named in sorted(start.offsets)
            }
        else:
            targets = start_offsets(self._log, topic, start, partition)
        with self._lock:
            known = self._store.get(staging, topic, group, list(targets))
            drafts: dict[int, Draft] = {}
            for number, offset in targets.items():
                ledger = known.ledgers.get(number)
                draft = Draft(Ledger(Position(offset)) if ledger is None else ledger)
                draft.removed = {entry.start: entry for entry in draft.ledger.entries()}
                draft.position = replace(draft.position, next=offset, missed_unreported=0)
                drafts[number] = draft
            self._store.stage(staging, known, drafts)
        staging.when_durable(lambda: self._notify(topic, group))
        return targets

    def stage_delete(self, staging: Staging, topic: Topic, group: str) -> None:
        """Remove a group with its positions and leases; its next fetch creates it again."""
        with self._lock:
            self._store.stage_delete(staging, self._store.get(staging, topic, group, ()))
        staging.when_durable(lambda: self._forget_group(topic, group))

    def stage_partitions(self, staging: Staging, topic_after: Topic, first_new: int) -> None:
        """Set the position of every group to the beginning of partitions that are added to its topic."""
        with self._lock:
            added = range(first_new, topic_after.partitions)
            self._store.stage_new_partitions(staging, topic_after, added)

    # Reads, from any thread

    def estimate_fetch(self, topic: Topic, group: str, partition: int | None) -> FetchEstimate:
        """Return what a fetch would find now, and when more becomes due; cheap."""
        with self._lock:
            known = self._store.memory.of(topic.id).get(group)
            if known is None:
                return FetchEstimate(0, missed=False, due_us=None, is_known=False)
            times_us = (self._steady.now_us(), self._steady.ahead_us())
            partitions = chosen_partitions(topic, partition)
            return describe.estimate_fetch(
                self._log, topic, known, partitions, times_us, self._limits.in_flight_max
            )

    def overdue(self, now_us: int) -> list[tuple[int, str]]:
        """Return the groups, by topic id, that hold leases which ended; `now_us` is the machine's clock."""
        with self._lock:
            steady_us = now_us - self._steady.ahead_us()
            return [
                (group.topic_id, group.name)
                for group in self._store.memory.everything()
                if any(ledger.has_lapsed(steady_us) for ledger in group.ledgers.values())
            ]

    def names(self, topic: Topic) -> list[str]:
        """Return the names of the groups of a topic."""
        with self._lock:
            return sorted(self._store.memory.of(topic.id))

    def count(self, tenant: str) -> int:
        """Return the number of groups of all topics of a tenant."""
        with self._lock:
            return sum(len(self._store.memory.of(topic.id)) for topic in self._directory.of(tenant))

    def lag(self, topic: Topic, group: str) -> int:
        """Return the number of messages that a group has not acknowledged; 0 for one that does not exist."""
        with self._lock:
            known = self._store.memory.of(topic.id).get(group)
            return 0 if known is None else describe.lag_of(self._log, topic, known, self._steady.now_us())

    def describe(self, topic: Topic) -> list[GroupDescription]:
        """Return the descriptions of the groups of a topic, by name."""
        active = self._members.of_topic(topic.id)
        found = []
        for name in self.names(topic):
            with self._lock:
                known = self._store.memory.of(topic.id).get(name)
                if known is not None:
                    members, now_us = active.get(name, {}), self._steady.now_us()
                    counters = self._counters_of.get(topic.id, {}).get(name, GroupCounters())
                    found.append(describe.describe_group(self._log, topic, known, members, counters, now_us))
        return found

    def record_activity(self, topic: Topic, group: str, member: str, waits: int = 0) -> None:
        """Record that a member is active; `waits` is 1 when a long poll of it begins, -1 when it ends."""
        check_group_name(group)
        check_member_name(member)
        self._members.record(topic.id, group, member, waits)

    def reload(self) -> None:
        """Drop the groups in memory: the engine was opened again, and may hold more or less than they say."""
        with self._lock:
            self._store.memory.clear()

    def forget(self, topic: Topic) -> None:
        """Drop what is in memory of a topic that is gone."""
        with self._lock:
            self._store.memory.forget(topic.id)
        self._members.forget(topic.id)
        self._counters_of.pop(topic.id, None)

    def _forget_group(self, topic: Topic, group: str) -> None:
        self._members.forget(topic.id, group)
        self._counters_of.get(topic.id, {}).pop(group, None)
        self._notify(topic, group)

    def _check_quota(self, tenant: str) -> None:
        """Raise QuotaReached where a tenant may have no further group.

        Memory has the groups that changes before this one in the group commit made, so that none is missed.
        """
        limit = self._directory.quotas.of_tenant(tenant).groups
        if limit:
            check_count(tenant, "groups", self.count(tenant), limit)

    def _begin_drafts(
        self, topic: Topic, group: GroupState, fetch: FetchRequest, partitions: Sequence[int]
    ) -> dict[int, Draft]:
        """Return a draft for each partition; one without a position starts where the fetch says."""
        unknown = [partition for partition in partitions if partition not in group.ledgers]
        if unknown and len(partitions) > 1 and fetch.start.kind in ("offset", "after"):
            start_offsets(self._log, topic, fetch.start, None)  # raises: an offset belongs to one partition
        begin = {partition: _begin(self._log, topic, fetch.start, partition) for partition in unknown}
        return {
            partition: Draft(
                Ledger(Position(begin[partition])) if partition in unknown else group.ledgers[partition]
            )
            for partition in partitions
        }

    def _fetch_from(
        self,
        group: GroupState,
        fetch: FetchRequest,
        drafts: Mapping[int, Draft],
        bounds: Mapping[int, LogBounds],
        rules: Rules,
    ) -> dict[int, StepResult]:
        """Share the limit among partitions, then lease from each, starting at another one every time."""
        shares = dict.fromkeys(drafts, fetch.limit)
        if len(drafts) > 1:
            found = {
                partition: leases.available(draft, bounds[partition], rules, fetch.limit)
                for partition, draft in drafts.items()
            }
            shares = shared(found, fetch.limit, group.turn)
        lease = MessageLease(*self._ids.take(), fetch.member, fetch.user, self._span_us(fetch.lease_ms))
        order = sorted(drafts)
        first, exhausted_room = group.turn % len(order), DEAD_AT_ONCE_MAX
        results: dict[int, StepResult] = {}
        for partition in order[first:] + order[:first]:
            if shares[partition] > 0:
                limits = (shares[partition], exhausted_room)
                result = leases.fetch(drafts[partition], bounds[partition], rules, lease, limits)
                exhausted_room -= sum(one.entry.count for one in result.exhausted)
                results[partition] = result
        return results

    def _stage_dead_letters(
        self, staging: Staging, topic: Topic, group: GroupState, results: Mapping[int, StepResult]
    ) -> int:
        exhausted = [
            ExhaustedRange(
                partition, one.entry.start, one.entry.stop, one.entry.member, one.entry.deliveries, one.reason
            )
            for partition, result in results.items()
            for one in result.exhausted
        ]
        return self._letters.stage(staging, topic, group.name, exhausted, self._clock.now_us())

    def _record_member(self, topic: Topic, group: str, member: str | None) -> None:
        if member is not None:
            self._members.record(topic.id, group, member)

    def _rules(self, topic: Topic) -> Rules:
        # Dead letters of dead letters would never end: they are delivered again until retention removes them.
        can_die = self._limits.dead_letters and not topic.is_dead
        return Rules(
            self._steady.now_us(),
            self._clock.now_us(),
            self._limits.deliveries_max if can_die else None,
            self._limits.in_flight_max,
        )

    def _bounds(self, topic: Topic, partitions: Sequence[int]) -> dict[int, LogBounds]:
        found = {}
        for partition in partitions:
            held = self._log.counters(topic, partition)
            found[partition] = LogBounds(held.start, held.end)
        return found

    def _span_us(self, lease_ms: int | None) -> int:
        return (self._limits.lease_ms_default if lease_ms is None else lease_ms) * 1000

    def _check_offset(self, topic: Topic, partition: int, offset: int) -> None:
        topic.check_partition(partition)
        held = self._log.counters(topic, partition)
        if offset >= held.end:
            raise OffsetOutOfRange(
                topic=topic.name,
                partition=partition,
                offset=offset,
                earliest=held.start,
                latest=held.end,
                hint="Acknowledge offsets of messages that you were given: the last is 'latest' - 1.",
            )

    def _count(self, topic: Topic, group: str, counts: GroupCounters, *, notify: bool = False) -> None:
        """Count messages of a durable change, and wake waiting members where more may be due."""
        self.counters.add(counts)
        self._counters_of.setdefault(topic.id, {}).setdefault(group, GroupCounters()).add(counts)
        if notify:
            self._notify(topic, group)


def chosen_partitions(topic: Topic, partition: int | None) -> Sequence[int]:
    """Return the one partition that is named, or all of a topic."""
    return range(topic.partitions) if partition is None else [topic.check_partition(partition)]


def _begin(log: MessageLog, topic: Topic, start: Start, partition: int) -> int:
    """Return the offset at which a group starts; one below the log counts as missed messages at once."""
    try:
        return start_offsets(log, topic, start, partition)[partition]
    except OffsetOutOfRange as refused:
        offset = int(refused.values["offset"])
        if 0 <= offset < int(refused.values["earliest"]):
            return offset
        raise


def _check_member(member: str | None) -> None:
    if member is not None:
        check_member_name(member)


def _check_ack(ack: AckRequest) -> None:
    _check_member(ack.member)
    if (ack.leases is None) == (ack.upto is None):
        raise RequestInvalid(reason="An ack has either leases or offsets.", hint="Send two requests.")
    if ack.upto is not None and ack.member is None:
        reason = "An ack up to an offset is of what one member was given."
        raise RequestInvalid(reason=reason, hint="Name the member.")


def _fetch_counts(ranges: Sequence[LeasedRange], expired: int, dead: int, missed: int) -> GroupCounters:
    return GroupCounters(
        delivered=sum(one.count for one in ranges),
        redelivered=sum(one.count for one in ranges if one.deliveries > 1),
        expired=expired,
        dead=dead,
        missed=missed,
    )


def _replace_held(
    drafts: Mapping[int, Draft],
    sets: Sequence[LeaseSet],
    rules: Rules,
    holder: tuple[str | None, Principal | None],
    change: Change,
    lost: list[str],
) -> int:
    """Change what leases hold, and add those that hold nothing to `lost`; return the number of messages.

    `holder` are the member, if one is named, and the user who asks; None is the server itself.
    """
    count, (member, principal) = 0, holder
    for one in sets:
        held = leases.find_held(drafts, one, rules, member)
        if principal is not None:
            leases.check_user((entry for entry, _ in held), principal)
        count += leases.message_count(held)
        lost += leases.lost_leases(one, held)
        for entry, parts in held:
            drafts[one.partition].replace(entry, parts, change)
    return count


def _partitions_of(topic: Topic, sets: Sequence[LeaseSet]) -> list[int]:
    """Return the partitions of leases; one that the topic does not have holds nothing."""
    return sorted({one.partition for one in sets if one.partition < topic.partitions})


def _lease_sets(ranges: Sequence[LeasedRange]) -> list[LeaseSet]:
    found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for one in ranges:
        if one.start < one.stop:
            found.setdefault((one.partition, one.fetch_id, one.token), []).append((one.start, one.stop))
    return [LeaseSet(*of_fetch, sorted(parts)) for of_fetch, parts in found.items()]


def _drafts(group: GroupState, partitions: Sequence[int]) -> dict[int, Draft]:
    return {number: Draft(group.ledgers[number]) for number in partitions if number in group.ledgers}
