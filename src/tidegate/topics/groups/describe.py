"""Descriptions of consumer groups: what a fetch would find, lag, members, partitions and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidegate.topics.definitions import Topic
from tidegate.topics.groups.ledger import Ledger
from tidegate.topics.groups.members import MemberActivity
from tidegate.topics.groups.store import GroupState
from tidegate.topics.groups.types import (
    FetchEstimate,
    GroupCounters,
    GroupDescription,
    MemberDescription,
    PartitionDescription,
)
from tidegate.topics.log.protocol import MessageLog

# Messages that are due for redelivery are counted up to about this many: callers only need to know whether
# there are any.
DUE_COUNTED_MAX = 1000


def estimate_fetch(
    log: MessageLog,
    topic: Topic,
    group: GroupState,
    partitions: Sequence[int],
    times_us: tuple[int, int],
    in_flight_max: int,
) -> FetchEstimate:
    """Return what a fetch from partitions would find.

    `times_us` are the steady time now, and how far the machine's clock is ahead of it.
    """
    now_us, ahead_us = times_us
    count, missed, is_known = 0, False, True
    later_us: int | None = None
    for partition in partitions:
        ledger = group.ledgers.get(partition)
        if ledger is None:
            is_known = False
            continue
        held = log.counters(topic, partition)
        new = held.end - max(ledger.position.next, held.start)
        lost = ledger.lost_count(held.start, now_us)
        count += max(0, min(new, in_flight_max - ledger.outstanding + lost))
        for entry in ledger.due(now_us):
            if count >= DUE_COUNTED_MAX:
                break
            count += max(0, entry.stop - max(entry.start, held.start))
        position = ledger.position
        missed = missed or lost > 0 or position.missed_unreported > 0 or position.next < held.start
        due_us = ledger.due_later_us(now_us)
        if due_us is not None:
            later_us = due_us if later_us is None else min(later_us, due_us)
    return FetchEstimate(count, missed, None if later_us is None else later_us + ahead_us, is_known)


def lag_of(log: MessageLog, topic: Topic, group: GroupState, now_us: int) -> int:
    """Return the number of messages that a group has not acknowledged."""
    total = 0
    for partition, ledger in group.ledgers.items():
        if partition < topic.partitions:
            held = log.counters(topic, partition)
            total += ledger.lag(held.start, held.end, now_us)
    return total


def describe_group(
    log: MessageLog,
    topic: Topic,
    group: GroupState,
    active: Mapping[str, MemberActivity],
    counters: GroupCounters,
    now_us: int,
) -> GroupDescription:
    """Return the description of a group, with a copy of its counters."""
    holds: dict[str, int] = {}
    last_seen_us: dict[str, int | None] = {name: one.wall_us for name, one in active.items()}
    parts: list[PartitionDescription] = []
    missed = 0
    for partition, ledger in sorted(group.ledgers.items()):
        if partition >= topic.partitions:
            continue
        part = _describe_partition(log, topic, partition, ledger, now_us)
        parts.append(part)
        missed += ledger.position.missed_total
        missed += max(0, part.start - ledger.position.next) + ledger.lost_count(part.start, now_us)
        for entry in ledger.entries():
            if ledger.is_held(entry, now_us):
                holds[entry.member] = holds.get(entry.member, 0) + entry.count
                if entry.member not in active:
                    delivered_us = max(last_seen_us.get(entry.member) or 0, entry.delivered_us)
                    last_seen_us[entry.member] = delivered_us
    members = [
        MemberDescription(name, at_us, holds.get(name, 0), active[name].waits if name in active else 0)
        for name, at_us in sorted(last_seen_us.items())
    ]
    return GroupDescription(
        group.name,
        group.created_us,
        sum(part.lag for part in parts),
        sum(part.in_flight for part in parts),
        sum(part.waiting for part in parts),
        missed,
        members,
        parts,
        replace(counters),
    )


def _describe_partition(
    log: MessageLog, topic: Topic, partition: int, ledger: Ledger, now_us: int
) -> PartitionDescription:
    held, position = log.counters(topic, partition), ledger.position
    in_flight = sum(entry.count for entry in ledger.entries() if ledger.is_held(entry, now_us))
    waiting = ledger.outstanding - in_flight - ledger.lost_count(held.start, now_us)
    is_delivered, is_acked = position.delivered_offset >= 0, position.acked_offset >= 0
    return PartitionDescription(
        partition,
        held.start,
        held.end,
        ledger.position_offset(held.start, now_us),
        max(position.next, held.start),
        ledger.lag(held.start, held.end, now_us),
        in_flight,
        waiting,
        position.delivered_offset if is_delivered else None,
        position.delivered_us if is_delivered else None,
        position.acked_offset if is_acked else None,
        position.acked_us if is_acked else None,
    )
