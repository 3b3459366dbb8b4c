"""Consumer groups: takes what members ask for, gives leases on messages, keeps who has what until it is done.

A member takes messages and has each for a time, its lease; it acknowledges them, gives them back, or lets the
lease run out, and then they are given again, also to others. What was acknowledged never comes again; what
was not always does, or becomes a dead letter, or was removed from the log and is told as missed.

Everything that is promised is in the write batch that promised it: a crash takes back nothing that a member
was told. Methods named `stage_…` belong to the committer's thread, the others to any.

    group_rows     what is written, and where      ledger        who has what in one partition
    group_memory   groups that were read           ledger_steps  what one step changes in a ledger
    group_book     changes, in step with the disk  group_work    what members do
    members        who is there                    group_view    looking at groups

What members of groups do: takes, acks, nacks, extensions and expiry, each worked out and then staged.

A step reads the group as the changes before it left it, works out a draft for each partition, stages dead
letters and rows, and changes memory last: one that is refused half way leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from tidegate.errors import OffsetOutOfRange, RequestInvalid
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.engine import Engine
from tidegate.storage.group_commit import Staging
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.groups import describe, leases
from tidegate.topics.groups.codec import Entry, Position
from tidegate.topics.groups.dead_letters import DeadLetters, Lost
from tidegate.topics.groups.leases import Lease, Named, Rules, Took, Window, read_leases
from tidegate.topics.groups.ledger import Draft, Ledger
from tidegate.topics.groups.members import Members, SteadyTime
from tidegate.topics.groups.store import Group, GroupBook, GroupMemory
from tidegate.topics.groups.types import (
    AckRequest,
    AckResult,
    ExpiryResult,
    ExtendRequest,
    ExtendResult,
    FetchRequest,
    FetchResult,
    GroupLimits,
    GroupShape,
    LeasedRange,
    NackRequest,
    NackResult,
    Ready,
    Tallies,
    check_group_name,
    check_member_name,
)
from tidegate.topics.log.protocol import Log
from tidegate.topics.log.reader import Start, shared, start_offsets

# Of one take, nack or round of expiry: more would hold up the writes of others.
DEAD_AT_ONCE_MAX = 1000
EXPIRED_AT_ONCE_MAX = 1000


class Groups:
    """All consumer groups of all topics. Methods named `stage_…` belong to the committer's thread."""

    def __init__(
        self,
        engine: Engine,
        log: Log,
        directory: TopicDirectory,
        ids: SnowflakeSource,
        clock: Clock,
        limits: GroupLimits,
        notify: Callable[[Topic, str], None] = lambda _topic, _group: None,
    ) -> None:
        self._log = log
        self._ids = ids
        self._clock = clock
        self._limits = limits
        # Called on the committer's thread after something became, or will become, due for a group.
        self._notify = notify
        self._steady = SteadyTime(clock)
        self._book = GroupBook(GroupMemory(engine, ids, self._steady), limits.groups_max)
        self._lock = self._book.lock
        self._members = Members(clock, self._steady, limits.member_seconds)
        self._letters = DeadLetters(log, directory)
        self.tallies = Tallies()

    def stage_take(self, staging: Staging, topic: Topic, take: FetchRequest) -> FetchResult:
        """Lease messages to a member: what is due again first, then new ones, from all partitions in turn.

        The first take fixes where the group begins in the partitions that it names, also when it finds
        nothing there.
        """
        check_member_name(take.member)
        partitions = chosen_partitions(topic, take.partition)
        with self._lock:
            group = self._book.find(staging, topic, take.group, partitions)
            if group is None:
                group = self._book.new(topic, take.group, self._clock.now_us())
            rules, windows = self._rules(topic), self._windows(topic, partitions)
            drafts = self._begun(topic, group, take, partitions)
            for partition, draft in drafts.items():
                draft.settle(windows[partition].start, rules.now_us)
            took = self._taken(group, take, drafts, windows, rules)
            missed = leases.told(drafts)
            dead = self._bury(staging, topic, group, took)
            self._book.stage(staging, group, drafts)
            group.turn += 1
            self._members.seen(topic.id, take.group, take.member)
            next_offsets = {partition: draft.position.next for partition, draft in drafts.items()}
        grants = [
            LeasedRange(partition, entry.start, entry.stop, entry.grant, entry.deliveries)
            for partition, one in took.items()
            for entry in one.held
        ]
        expired = sum(one.expired for one in took.values())
        if grants or missed or dead or expired:
            staging.when_durable(lambda: self._count_taken(grants, expired, dead, sum(missed.values())))
        return FetchResult(grants, missed, next_offsets)

    def stage_ack(self, staging: Staging, topic: Topic, acks: AckRequest) -> AckResult:
        """Note what a member is done with; it never comes again to the group."""
        _check_acks(acks)
        named, strange = read_leases(acks.leases or ())
        upto = acks.upto or {}
        for partition, offset in upto.items():
            self._check_offset(topic, partition, offset)
        partitions = _named_partitions(topic, named) if acks.upto is None else sorted(upto)
        with self._lock:
            group = self._book.get(staging, topic, acks.group, partitions)
            rules, drafts = self._rules(topic), _drafts(group, partitions)
            was_full = any(one.ledger.outstanding >= self._limits.in_flight_max for one in drafts.values())
            counts, lost = leases.ack_named(drafts, named, rules, acks.member)
            for partition, offset in upto.items():
                if partition in drafts and acks.member is not None:
                    draft = drafts[partition]
                    counts[partition] = leases.ack_upto(draft, acks.member, offset, rules.wall_us)
            self._book.stage(staging, group, drafts)
            position = {
                partition: draft.ledger.position_offset(
                    self._log.counters(topic, partition).start, rules.now_us
                )
                for partition, draft in drafts.items()
            }
            self._heard(topic, acks.group, acks.member)
        acked = sum(counts.values())
        if acked:
            staging.when_durable(lambda: self._count_acked(topic, acks.group, acked, was_full))
        return AckResult(acked, position, strange + lost, counts)

    def stage_nack(self, staging: Staging, topic: Topic, nack: NackRequest) -> NackResult:
        """Return messages back: again after a pause, at once and uncounted, or never (a dead letter)."""
        _check_member(nack.member)
        named, strange = read_leases(nack.leases)
        partitions = _named_partitions(topic, named)
        with self._lock:
            group = self._book.get(staging, topic, nack.group, partitions)
            rules, drafts = self._rules(topic), _drafts(group, partitions)
            took = {partition: Took() for partition in drafts}
            windows = self._windows(topic, list(drafts))
            nacked, lost, dead_room = 0, strange, DEAD_AT_ONCE_MAX
            for one in named:
                found = leases.found(drafts, one, rules, nack.member)
                nacked += leases.count_of(found)
                lost += leases.lost_leases(one, found)
                for entry, parts in found:
                    draft, start = drafts[one.partition], windows[one.partition].start
                    doomed = leases.give_back(draft, entry, parts, nack, rules, start, dead_room)
                    dead_room -= sum(each.entry.count for each in doomed)
                    took[one.partition].doomed += doomed
            dead = self._bury(staging, topic, group, took)
            self._book.stage(staging, group, drafts)
            self._heard(topic, nack.group, nack.member)
        if nacked:
            failed = 0 if nack.release else nacked
            staging.when_durable(lambda: self._count_failed(topic, nack.group, failed, 0, dead))
        return NackResult(nacked, dead, lost)

    def stage_extend(self, staging: Staging, topic: Topic, extend: ExtendRequest) -> ExtendResult:
        """Let leases end later, counted from now; without leases only the group is looked for."""
        _check_member(extend.member)
        named, lost = read_leases(extend.leases)
        partitions = _named_partitions(topic, named)
        span_us = self._span_us(extend.lease_ms)
        with self._lock:
            group = self._book.get(staging, topic, extend.group, partitions)
            rules, drafts = self._rules(topic), _drafts(group, partitions)
            count = 0

            def longer(entry: Entry, start: int, stop: int) -> Entry:
                return leases.extended(entry, start, stop, rules.now_us, span_us)

            for one in named:
                found = leases.found(drafts, one, rules, extend.member)
                count += leases.count_of(found)
                lost += leases.lost_leases(one, found)
                for entry, parts in found:
                    drafts[one.partition].replace(entry, parts, longer)
            self._book.stage(staging, group, drafts)
            self._heard(topic, extend.group, extend.member)
        return ExtendResult(count, rules.wall_us + span_us, lost)

    def stage_release(
        self, staging: Staging, topic: Topic, group: str, member: str, grants: Sequence[LeasedRange]
    ) -> int:
        """Take back leases that a member was never told of, as if they had not been given."""
        named = _named(grants)
        partitions = _named_partitions(topic, named)
        count = 0
        with self._lock:
            known = self._book.get(staging, topic, group, partitions)
            rules, drafts = self._rules(topic), _drafts(known, partitions)

            def back(entry: Entry, start: int, stop: int) -> Entry:
                return leases.released(entry, start, stop, rules.now_us)

            for one in named:
                found = leases.found(drafts, one, rules, member)
                count += leases.count_of(found)
                for entry, parts in found:
                    drafts[one.partition].replace(entry, parts, back)
            self._book.stage(staging, known, drafts)
        if count:
            staging.when_durable(lambda: self._notify(topic, group))
        return count

    def stage_expire(self, staging: Staging, topic: Topic, group: str) -> ExpiryResult:
        """Let messages wait to be given again whose lease ran out; those that failed too often are dead."""
        with self._lock:
            known = self._book.get(staging, topic, group, ())
            partitions = sorted(number for number in known.ledgers if number < topic.partitions)
            known = self._book.get(staging, topic, group, partitions)
            rules, windows = self._rules(topic), self._windows(topic, partitions)
            drafts = _drafts(known, partitions)
            took: dict[int, Took] = {}
            entries_room, dead_room = EXPIRED_AT_ONCE_MAX, DEAD_AT_ONCE_MAX
            for partition, draft in drafts.items():
                if draft.ledger.has_lapsed(rules.now_us):
                    draft.settle(windows[partition].start, rules.now_us)
                    one = leases.expire(draft, rules, entries_room, dead_room)
                    entries_room = max(0, entries_room - len(draft.removed))
                    dead_room -= sum(doomed.entry.count for doomed in one.doomed)
                    took[partition] = one
            dead = self._bury(staging, topic, known, took)
            self._book.stage(staging, known, drafts)
        expired = sum(one.expired for one in took.values())
        if any(not draft.is_empty for draft in drafts.values()):
            staging.when_durable(lambda: self._count_failed(topic, group, 0, expired, dead))
        return ExpiryResult(expired, dead)

    def stage_reset(
        self, staging: Staging, topic: Topic, group: str, start: Start, partition: int | None
    ) -> dict[int, int]:
        """Let a group go on from another place; leases of before are lost. Gives the new positions."""
        if start.kind == "offsets" and partition is None:
            targets = {
                named: start_offsets(self._log, topic, start, named)[named] for named in sorted(start.offsets)
            }
        else:
            targets = start_offsets(self._log, topic, start, partition)
        with self._lock:
            known = self._book.get(staging, topic, group, list(targets))
            drafts: dict[int, Draft] = {}
            for number, offset in targets.items():
                ledger = known.ledgers.get(number)
                draft = Draft(Ledger(Position(offset)) if ledger is None else ledger)
                draft.removed = {entry.start: entry for entry in draft.ledger.entries()}
                draft.position = replace(draft.position, next=offset, missed_untold=0)
                drafts[number] = draft
            self._book.stage(staging, known, drafts)
        staging.when_durable(lambda: self._notify(topic, group))
        return targets

    def stage_delete(self, staging: Staging, topic: Topic, group: str) -> None:
        """Remove a group and where it stands; its next take begins anew."""
        with self._lock:
            self._book.stage_delete(staging, self._book.get(staging, topic, group, ()))
        staging.when_durable(lambda: self._gone(topic, group))

    def stage_partitions(self, staging: Staging, topic_after: Topic, first_new: int) -> None:
        """Let every group begin at the beginning of partitions that are added to its topic."""
        with self._lock:
            added = range(first_new, topic_after.partitions)
            self._book.stage_new_partitions(staging, topic_after, added)

    # Looking, from any thread

    def ready(self, topic: Topic, group: str, partition: int | None) -> Ready:
        """Return whether a take would find something now, and when it may be worth to look again; cheap."""
        with self._lock:
            known = self._book.memory.of(topic.id).get(group)
            if known is None:
                return Ready(0, missed=False, due_us=None, is_known=False)
            times_us = (self._steady.now_us(), self._steady.ahead_us())
            partitions = chosen_partitions(topic, partition)
            return describe.ready_of(
                self._log, topic, known, partitions, times_us, self._limits.in_flight_max
            )

    def overdue(self, now_us: int) -> list[tuple[int, str]]:
        """List the groups, by topic id, that hold leases which ran out; `now_us` is the clock's."""
        with self._lock:
            steady_us = now_us - self._steady.ahead_us()
            return [
                (group.topic_id, group.name)
                for group in self._book.memory.everything()
                if any(ledger.has_lapsed(steady_us) for ledger in group.ledgers.values())
            ]

    def names(self, topic: Topic) -> list[str]:
        """List the groups of a topic."""
        with self._lock:
            return sorted(self._book.memory.of(topic.id))

    def lag(self, topic: Topic, group: str) -> int:
        """Count the messages that a group has not acknowledged; 0 for one that is not there."""
        with self._lock:
            known = self._book.memory.of(topic.id).get(group)
            return 0 if known is None else describe.lag_of(self._log, topic, known, self._steady.now_us())

    def describe(self, topic: Topic) -> list[GroupShape]:
        """Describe the groups of a topic, by name."""
        seen = self._members.of_topic(topic.id)
        shapes = []
        for name in self.names(topic):
            with self._lock:
                known = self._book.memory.of(topic.id).get(name)
                if known is not None:
                    members, now_us = seen.get(name, {}), self._steady.now_us()
                    shapes.append(describe.shape_of(self._log, topic, known, members, now_us))
        return shapes

    def seen(self, topic: Topic, group: str, member: str, waits: int = 0) -> None:
        """Note a sign of life of a member; `waits` is 1 when a long poll of it begins, -1 when it ends."""
        check_group_name(group)
        check_member_name(member)
        self._members.seen(topic.id, group, member, waits)

    def reload(self) -> None:
        """Drop what is remembered: the engine was opened again, and may hold more or less than we think."""
        with self._lock:
            self._book.memory.clear()

    def forget(self, topic: Topic) -> None:
        """Drop what is remembered of a topic that is gone."""
        with self._lock:
            self._book.memory.forget(topic.id)
        self._members.forget(topic.id)

    def _gone(self, topic: Topic, group: str) -> None:
        self._members.forget(topic.id, group)
        self._notify(topic, group)

    def _begun(
        self, topic: Topic, group: Group, take: FetchRequest, partitions: Sequence[int]
    ) -> dict[int, Draft]:
        """Return a draft a partition; where the group has no position yet, it begins where the take says."""
        unknown = [partition for partition in partitions if partition not in group.ledgers]
        if unknown and len(partitions) > 1 and take.start.kind in ("offset", "after"):
            start_offsets(self._log, topic, take.start, None)  # says that an offset belongs to one partition
        begin = {partition: _begin(self._log, topic, take.start, partition) for partition in unknown}
        return {
            partition: Draft(
                Ledger(Position(begin[partition])) if partition in unknown else group.ledgers[partition]
            )
            for partition in partitions
        }

    def _taken(
        self,
        group: Group,
        take: FetchRequest,
        drafts: Mapping[int, Draft],
        windows: Mapping[int, Window],
        rules: Rules,
    ) -> dict[int, Took]:
        """Work out who gives how many, then take them, another partition first each time."""
        shares = dict.fromkeys(drafts, take.limit)
        if len(drafts) > 1:
            found = {
                partition: leases.available(draft, windows[partition], rules, take.limit)
                for partition, draft in drafts.items()
            }
            shares = shared(found, take.limit, group.turn)
        lease = Lease(self._ids.take(), take.member, self._span_us(take.lease_ms))
        order = sorted(drafts)
        first, dead_room = group.turn % len(order), DEAD_AT_ONCE_MAX
        took: dict[int, Took] = {}
        for partition in order[first:] + order[:first]:
            if shares[partition] > 0:
                limits = (shares[partition], dead_room)
                took[partition] = leases.take(drafts[partition], windows[partition], rules, lease, limits)
                dead_room -= sum(doomed.entry.count for doomed in took[partition].doomed)
        return took

    def _bury(self, staging: Staging, topic: Topic, group: Group, took: Mapping[int, Took]) -> int:
        lost = [
            Lost(
                partition, one.entry.start, one.entry.stop, one.entry.member, one.entry.deliveries, one.reason
            )
            for partition, found in took.items()
            for one in found.doomed
        ]
        return self._letters.stage(staging, topic, group.name, lost, self._clock.now_us())

    def _heard(self, topic: Topic, group: str, member: str | None) -> None:
        if member is not None:
            self._members.seen(topic.id, group, member)

    def _rules(self, topic: Topic) -> Rules:
        # Dead letters of dead letters would never end: those are given again for as long as they are kept.
        can_die = self._limits.dead_letters and not topic.is_dead
        return Rules(
            self._steady.now_us(),
            self._clock.now_us(),
            self._limits.deliveries_max if can_die else None,
            self._limits.in_flight_max,
        )

    def _windows(self, topic: Topic, partitions: Sequence[int]) -> dict[int, Window]:
        found = {}
        for partition in partitions:
            held = self._log.counters(topic, partition)
            found[partition] = Window(held.start, held.end)
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

    def _count_taken(self, grants: Sequence[LeasedRange], expired: int, dead: int, missed: int) -> None:
        tallies = self.tallies
        tallies.delivered += sum(grant.count for grant in grants)
        tallies.redelivered += sum(grant.count for grant in grants if grant.deliveries > 1)
        tallies.expired += expired
        tallies.dead += dead
        tallies.missed += missed

    def _count_acked(self, topic: Topic, group: str, acked: int, was_full: bool) -> None:
        self.tallies.acked += acked
        if was_full:
            # The group may hold more again.
            self._notify(topic, group)

    def _count_failed(self, topic: Topic, group: str, nacked: int, expired: int, dead: int) -> None:
        self.tallies.nacked += nacked
        self.tallies.expired += expired
        self.tallies.dead += dead
        self._notify(topic, group)


def chosen_partitions(topic: Topic, partition: int | None) -> Sequence[int]:
    """Return the one partition that is named, or all of a topic."""
    return range(topic.partitions) if partition is None else [topic.check_partition(partition)]


def _begin(log: Log, topic: Topic, start: Start, partition: int) -> int:
    """Return where a group begins; one that is below the log is told at once what it missed."""
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


def _check_acks(acks: AckRequest) -> None:
    _check_member(acks.member)
    if (acks.leases is None) == (acks.upto is None):
        raise RequestInvalid(reason="An ack has either leases or offsets.", hint="Send two requests.")
    if acks.upto is not None and acks.member is None:
        reason = "An ack up to an offset is of what one member was given."
        raise RequestInvalid(reason=reason, hint="Name the member.")


def _named_partitions(topic: Topic, named: Sequence[Named]) -> list[int]:
    """Return the partitions of leases; one that the topic does not have holds nothing."""
    return sorted({one.partition for one in named if one.partition < topic.partitions})


def _named(grants: Sequence[LeasedRange]) -> list[Named]:
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for one in grants:
        if one.start < one.stop:
            ranges.setdefault((one.partition, one.grant), []).append((one.start, one.stop))
    return [Named(partition, grant, sorted(parts)) for (partition, grant), parts in ranges.items()]


def _drafts(group: Group, partitions: Sequence[int]) -> dict[int, Draft]:
    return {number: Draft(group.ledgers[number]) for number in partitions if number in group.ledgers}
