"""Looks at groups: takes a group and its logs, gives what is ready, how far it is behind, who is in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.topics.definitions import Topic
from tidegate.topics.groups.ledger import Ledger
from tidegate.topics.groups.members import Seen
from tidegate.topics.groups.store import Group
from tidegate.topics.groups.types import GroupShape, MemberShape, PartitionShape, Ready
from tidegate.topics.log.protocol import Log

# Messages that are due again are counted up to about this many: who asks wants to know whether, not how many.
DUE_COUNTED_MAX = 1000


def ready_of(
    log: Log,
    topic: Topic,
    group: Group,
    partitions: Sequence[int],
    times_us: tuple[int, int],
    in_flight_max: int,
) -> Ready:
    """Return what a take from partitions would find; `times_us` are now, and how far the clock is ahead."""
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
        missed = missed or lost > 0 or position.missed_untold > 0 or position.next < held.start
        due_us = ledger.due_later_us(now_us)
        if due_us is not None:
            later_us = due_us if later_us is None else min(later_us, due_us)
    return Ready(count, missed, None if later_us is None else later_us + ahead_us, is_known)


def lag_of(log: Log, topic: Topic, group: Group, now_us: int) -> int:
    """Count the messages that a group has not acknowledged."""
    total = 0
    for partition, ledger in group.ledgers.items():
        if partition < topic.partitions:
            held = log.counters(topic, partition)
            total += ledger.lag(held.start, held.end, now_us)
    return total


def shape_of(log: Log, topic: Topic, group: Group, seen: Mapping[str, Seen], now_us: int) -> GroupShape:
    """Describe a group."""
    holds: dict[str, int] = {}
    heard: dict[str, int | None] = {name: one.wall_us for name, one in seen.items()}
    parts: list[PartitionShape] = []
    missed = 0
    for partition, ledger in sorted(group.ledgers.items()):
        if partition >= topic.partitions:
            continue
        shape = _partition_shape(log, topic, partition, ledger, now_us)
        parts.append(shape)
        missed += ledger.position.missed_total
        missed += max(0, shape.start - ledger.position.next) + ledger.lost_count(shape.start, now_us)
        for entry in ledger.entries():
            if ledger.is_held(entry, now_us):
                holds[entry.member] = holds.get(entry.member, 0) + entry.count
                if entry.member not in seen:
                    heard[entry.member] = max(heard.get(entry.member) or 0, entry.delivered_us)
    members = [
        MemberShape(name, at_us, holds.get(name, 0), seen[name].waits if name in seen else 0)
        for name, at_us in sorted(heard.items())
    ]
    return GroupShape(
        group.name,
        group.created_us,
        sum(part.lag for part in parts),
        sum(part.in_flight for part in parts),
        sum(part.waiting for part in parts),
        missed,
        members,
        parts,
    )


def _partition_shape(log: Log, topic: Topic, partition: int, ledger: Ledger, now_us: int) -> PartitionShape:
    held, position = log.counters(topic, partition), ledger.position
    in_flight = sum(entry.count for entry in ledger.entries() if ledger.is_held(entry, now_us))
    waiting = ledger.outstanding - in_flight - ledger.lost_count(held.start, now_us)
    is_given, is_acked = position.delivered_offset >= 0, position.acked_offset >= 0
    return PartitionShape(
        partition,
        held.start,
        held.end,
        ledger.position_offset(held.start, now_us),
        max(position.next, held.start),
        ledger.lag(held.start, held.end, now_us),
        in_flight,
        waiting,
        position.delivered_offset if is_given else None,
        position.delivered_us if is_given else None,
        position.acked_offset if is_acked else None,
        position.acked_us if is_acked else None,
    )
