"""What must hold of groups and their reference after every step."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from tests.topics.groups.reference import Partition, Reference
from tidegate.topics.groups.groups import Groups
from tidegate.topics.groups.types import GroupDescription

if TYPE_CHECKING:
    from tests.topics.groups.world import World


def check(world: World) -> None:
    """Compare everything that can be seen."""
    shapes = {shape.group: shape for shape in world.bench.groups.describe(world.topic)}
    assert sorted(shapes) == sorted(world.known)
    for name, reference in world.known.items():
        parts = {part.partition: part for part in shapes[name].partitions}
        assert sorted(parts) == sorted(reference.partitions)
        for number, mine in reference.partitions.items():
            check_partition(world, parts[number], mine, world.log(number))
        assert shapes[name].lag == world.bench.groups.lag(world.topic, name)
        check_ready(world, name, reference)
    if world.clock.now_us() == world.steady_us:
        check_recovery(world, list(shapes.values()))


def check_partition(world: World, shown: Any, mine: Partition, log: tuple[int, int]) -> None:
    now_us, (start, end) = world.steady_us, log
    assert (shown.start, shown.end) == log
    assert shown.next == max(mine.next, start)
    assert shown.in_flight == mine.in_flight(now_us)
    assert shown.lag == mine.lag(start, end, now_us)
    assert shown.waiting == len(mine.given) - mine.in_flight(now_us) - mine.lost(start, now_us)
    assert shown.position == mine.position(start, now_us)


def check_ready(world: World, name: str, reference: Reference) -> None:
    numbers = [number for number in reference.partitions if number < world.topic.partitions]
    ready = world.bench.groups.estimate_fetch(world.topic, name, None)
    now_us = world.steady_us
    found = [reference.available(number, world.log(number), now_us) for number in numbers]
    total = sum(len(due) + new for due, new in found)
    doomed = sum(len(reference.doomed(number, now_us)) for number in numbers)
    assert (ready.count > 0) == (total > 0) or doomed
    assert ready.missed == any(
        part.untold or part.next < world.log(n)[0] or part.lost(world.log(n)[0], now_us)
        for n, part in reference.partitions.items()
    )
    later = [m.ends_us for p in reference.partitions.values() for m in p.given.values()]
    later = [ends_us for ends_us in later if ends_us > now_us]
    ahead_us = world.clock.now_us() - now_us
    assert ready.due_us == (min(later) + ahead_us if later else None)
    is_overdue = (world.topic.id, name) in world.bench.groups.overdue(world.clock.now_us())
    given = [m for p in reference.partitions.values() for m in p.given.values()]
    assert is_overdue == any(m.held and m.ends_us <= now_us for m in given)


def check_recovery(world: World, shapes: list[Any]) -> None:
    """Whoever opens the disk now finds what is in memory."""
    bench = world.bench
    fresh = Groups(bench.engine, bench.log, bench.directory, bench.groups._ids, world.clock, world.limits)
    found = fresh.describe(world.topic)
    assert [msgspec.structs.asdict(_plain(one)) for one in found] == [
        msgspec.structs.asdict(_plain(one)) for one in shapes
    ]


class _Shape(msgspec.Struct):
    group: str
    missed: int
    partitions: list[Any]


def _plain(shape: GroupDescription) -> _Shape:
    """Return what of a group is kept on the disk."""
    ordered = [part.partition for part in shape.partitions]
    assert all(first < second for first, second in pairwise(ordered))
    return _Shape(shape.group, shape.missed, shape.partitions)
