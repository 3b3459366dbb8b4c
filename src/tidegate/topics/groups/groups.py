"""What members of groups do: takes, acks, nacks, extensions and expiry, each worked out and then staged.

A step reads the group as the changes before it left it, works out a draft for each partition, stages dead
letters and rows, and changes memory last: one that is refused half way leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegate.errors import OffsetOutOfRange, RequestInvalid
from tidegate.model.clock import Clock
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.commit import Staging
from tidegate.storage.engine import Engine
from tidegate.topics import ledger_steps
from tidegate.topics.dead_letters import DeadLetters, Lost
from tidegate.topics.definitions import Topic, TopicDirectory
from tidegate.topics.group_book import GroupBook
from tidegate.topics.group_memory import Group, GroupMemory
from tidegate.topics.group_rows import Entry, Position
from tidegate.topics.group_shapes import (
    Acked,
    Acks,
    Expired,
    Extend,
    Extended,
    Given,
    Grant,
    GroupLimits,
    Nack,
    Nacked,
    Take,
    Tallies,
    check_member_name,
)
from tidegate.topics.lease_ids import Named, read_leases
from tidegate.topics.ledger import Draft, Ledger
from tidegate.topics.ledger_steps import Lease, Rules, Took, Window
from tidegate.topics.logs import Log
from tidegate.topics.members import Members, SteadyTime
from tidegate.topics.reading import Start, shared, start_offsets

# Of one take, nack or round of expiry: more would hold up the writes of others.
DEAD_AT_ONCE_MAX = 1000
EXPIRED_AT_ONCE_MAX = 1000


class GroupWork:
    """What members ask of groups. Stages belong to the committer's thread."""

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

    def stage_take(self, staging: Staging, topic: Topic, take: Take) -> Given:
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
            missed = ledger_steps.told(drafts)
            dead = self._bury(staging, topic, group, took)
            self._book.stage(staging, group, drafts)
            group.turn += 1
            self._members.seen(topic.id, take.group, take.member)
            next_offsets = {partition: draft.position.next for partition, draft in drafts.items()}
        grants = [
            Grant(partition, entry.start, entry.stop, entry.grant, entry.deliveries)
            for partition, one in took.items()
            for entry in one.held
        ]
        expired = sum(one.expired for one in took.values())
        if grants or missed or dead or expired:
            staging.when_durable(lambda: self._count_taken(grants, expired, dead, sum(missed.values())))
        return Given(grants, missed, next_offsets)

    def stage_ack(self, staging: Staging, topic: Topic, acks: Acks) -> Acked:
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
            counts, lost = ledger_steps.ack_named(drafts, named, rules, acks.member)
            for partition, offset in upto.items():
                if partition in drafts and acks.member is not None:
                    draft = drafts[partition]
                    counts[partition] = ledger_steps.ack_upto(draft, acks.member, offset, rules.wall_us)
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
        return Acked(acked, position, strange + lost, counts)

    def stage_nack(self, staging: Staging, topic: Topic, nack: Nack) -> Nacked:
        """Give messages back: again after a pause, at once and uncounted, or never (a dead letter)."""
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
                found = ledger_steps.found(drafts, one, rules, nack.member)
                nacked += ledger_steps.count_of(found)
                lost += ledger_steps.lost_leases(one, found)
                for entry, parts in found:
                    draft, start = drafts[one.partition], windows[one.partition].start
                    doomed = ledger_steps.give_back(draft, entry, parts, nack, rules, start, dead_room)
                    dead_room -= sum(each.entry.count for each in doomed)
                    took[one.partition].doomed += doomed
            dead = self._bury(staging, topic, group, took)
            self._book.stage(staging, group, drafts)
            self._heard(topic, nack.group, nack.member)
        if nacked:
            failed = 0 if nack.release else nacked
            staging.when_durable(lambda: self._count_failed(topic, nack.group, failed, 0, dead))
        return Nacked(nacked, dead, lost)

    def stage_extend(self, staging: Staging, topic: Topic, extend: Extend) -> Extended:
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
                return ledger_steps.extended(entry, start, stop, rules.now_us, span_us)

            for one in named:
                found = ledger_steps.found(drafts, one, rules, extend.member)
                count += ledger_steps.count_of(found)
                lost += ledger_steps.lost_leases(one, found)
                for entry, parts in found:
                    drafts[one.partition].replace(entry, parts, longer)
            self._book.stage(staging, group, drafts)
            self._heard(topic, extend.group, extend.member)
        return Extended(count, rules.wall_us + span_us, lost)

    def stage_release(
        self, staging: Staging, topic: Topic, group: str, member: str, grants: Sequence[Grant]
    ) -> int:
        """Take back leases that a member was never told of, as if they had not been given."""
        named = _named(grants)
        partitions = _named_partitions(topic, named)
        count = 0
        with self._lock:
            known = self._book.get(staging, topic, group, partitions)
            rules, drafts = self._rules(topic), _drafts(known, partitions)

            def back(entry: Entry, start: int, stop: int) -> Entry:
                return ledger_steps.released(entry, start, stop, rules.now_us)

            for one in named:
                found = ledger_steps.found(drafts, one, rules, member)
                count += ledger_steps.count_of(found)
                for entry, parts in found:
                    drafts[one.partition].replace(entry, parts, back)
            self._book.stage(staging, known, drafts)
        if count:
            staging.when_durable(lambda: self._notify(topic, group))
        return count

    def stage_expire(self, staging: Staging, topic: Topic, group: str) -> Expired:
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
                    one = ledger_steps.expire(draft, rules, entries_room, dead_room)
                    entries_room = max(0, entries_room - len(draft.removed))
                    dead_room -= sum(doomed.entry.count for doomed in one.doomed)
                    took[partition] = one
            dead = self._bury(staging, topic, known, took)
            self._book.stage(staging, known, drafts)
        expired = sum(one.expired for one in took.values())
        if any(not draft.is_empty for draft in drafts.values()):
            staging.when_durable(lambda: self._count_failed(topic, group, 0, expired, dead))
        return Expired(expired, dead)

    def _begun(self, topic: Topic, group: Group, take: Take, partitions: Sequence[int]) -> dict[int, Draft]:
        """Give a draft a partition; where the group has no position yet, it begins where the take says."""
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
        take: Take,
        drafts: Mapping[int, Draft],
        windows: Mapping[int, Window],
        rules: Rules,
    ) -> dict[int, Took]:
        """Work out who gives how many, then take them, another partition first each time."""
        shares = dict.fromkeys(drafts, take.limit)
        if len(drafts) > 1:
            found = {
                partition: ledger_steps.available(draft, windows[partition], rules, take.limit)
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
                took[partition] = ledger_steps.take(
                    drafts[partition], windows[partition], rules, lease, limits
                )
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

    def _count_taken(self, grants: Sequence[Grant], expired: int, dead: int, missed: int) -> None:
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
    """Give the one partition that is named, or all of a topic."""
    return range(topic.partitions) if partition is None else [topic.check_partition(partition)]


def _begin(log: Log, topic: Topic, start: Start, partition: int) -> int:
    """Give where a group begins; one that is below the log is told at once what it missed."""
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


def _check_acks(acks: Acks) -> None:
    _check_member(acks.member)
    if (acks.leases is None) == (acks.upto is None):
        raise RequestInvalid(reason="An ack has either leases or offsets.", hint="Send two requests.")
    if acks.upto is not None and acks.member is None:
        reason = "An ack up to an offset is of what one member was given."
        raise RequestInvalid(reason=reason, hint="Name the member.")


def _named_partitions(topic: Topic, named: Sequence[Named]) -> list[int]:
    """Give the partitions of leases; one that the topic does not have holds nothing."""
    return sorted({one.partition for one in named if one.partition < topic.partitions})


def _named(grants: Sequence[Grant]) -> list[Named]:
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for one in grants:
        if one.start < one.stop:
            ranges.setdefault((one.partition, one.grant), []).append((one.start, one.stop))
    return [Named(partition, grant, sorted(parts)) for (partition, grant), parts in ranges.items()]


def _drafts(group: Group, partitions: Sequence[int]) -> dict[int, Draft]:
    return {number: Draft(group.ledgers[number]) for number in partitions if number in group.ledgers}
