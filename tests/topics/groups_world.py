"""Groups beside their reference: each act is done to both, and they must agree.

Acts are gathered and committed together, so that several share one group of writes; the disk may fail under
them, or a stage raise after its work. What an act answered is noted where it was staged, so that one whose
answer was lost is known when the disk has it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec

from tests.topics.groups_bench import GroupsBench, broken_disk, build, leases, offsets
from tests.topics.groups_reference import Message, Partition, Reference
from tidegate.errors import GroupNotFound, RequestInvalid, StorageFailed, TidegateError
from tidegate.storage.commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic
from tidegate.topics.groups import Acks, Extend, Given, GroupLimits, Groups, Nack, Take
from tidegate.topics.lease_ids import lease_id, read_leases
from tidegate.topics.reading import Start

Fault = Literal["none", "write", "sync lost", "sync kept", "raises"]
LIMITS = GroupLimits(lease_ms_default=10_000, deliveries_max=3, in_flight_max=12, groups_max=3)
MEMBERS = ("a", "b", "c")
GROUPS = ("g", "h")
GATE_SECONDS = 20
STALE_STEPS = 3
DRAIN_ROUNDS_MAX = 40


@dataclass
class Act:
    """Something to do to the groups, and then to the reference with the answer."""

    stage: Callable[[Staging], Any]
    mirror: Callable[[Any], None]
    raises: bool = False
    answer: Any = None

    def run(self, staging: Staging) -> None:
        self.answer = self.stage(staging)
        if self.raises:
            raise RequestInvalid(reason="raised after its work", hint="")


class World:
    """A topic with groups, and what the reference knows of them."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.clock = ManualClock()
        self.bench: GroupsBench = build(self.engine, self.clock, LIMITS)
        self.topic: Topic = self.bench.create("app.jobs", 2)
        self.bench.publish(self.topic, 7, 0)
        self.bench.publish(self.topic, 3, 1)
        self.known: dict[str, Reference] = {}
        # Every lease that was ever given out, by group.
        self.leases: dict[str, list[str]] = {name: [] for name in GROUPS}
        self.acts: list[Act] = []
        self.buried: dict[int, int] = {}
        # Steps for which memory may be ahead of the disk, after a fault.
        self.stale_steps = 0
        # Whether what is being committed has a reset: messages may die before it and be given anew after it.
        self.was_reset = False
        self.steady_us = self.clock.now_us()

    # Time and faults

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.steady_us += round(seconds * 1_000_000)

    def set_clock(self, seconds: float) -> None:
        self.clock.set_us(self.clock.now_us() + int(seconds * 1_000_000))

    def crash(self) -> None:
        """Lose the power, and come back with a clock that is right."""
        self.bench.committer.close()
        self.engine.crash()
        self.clock.set_us(self.steady_us)
        self.bench = build(self.engine, self.clock, LIMITS)
        self.topic = self.bench.directory.get("default", "app.jobs")

    def commit(self, fault: Fault = "none") -> None:
        """Do what was gathered, in one group of writes where they allow it."""
        acts, self.acts = self.acts, []
        if fault == "raises" and acts:
            acts[len(acts) // 2].raises = True
        gate = threading.Event()

        def wait(_staging: Staging) -> None:
            # The acts are queued while this holds the committer, so that they share its group.
            gate.wait(GATE_SECONDS)

        blocker = self.bench.committer.submit(wait)
        futures = [self.bench.committer.submit(act.run) for act in acts]
        if fault == "write":
            self.engine.fail_next_write(broken_disk())
        elif fault in ("sync lost", "sync kept"):
            self.engine.fail_next_sync(broken_disk(), survives=fault == "sync kept")
        gate.set()
        blocker.exception(GATE_SECONDS)
        for act, future in zip(acts, futures, strict=True):
            self._mirror(act, future, fault)
        self.engine._write_error = self.engine._sync_error = None
        if fault != "none":
            self.stale_steps = STALE_STEPS
        self.bury()
        self.was_reset = False

    def heal(self) -> None:
        """Do something to every group: whoever does finds that memory is not what the disk has."""
        self.stale_steps = 0
        for name in GROUPS:
            topic = self.topic
            done = self.bench.committer.submit(lambda s, n=name: self.bench.groups.stage_expire(s, topic, n))
            problem = done.exception(GATE_SECONDS)
            if problem is None:
                self._expired(name)
            else:
                assert isinstance(problem, GroupNotFound)
                assert name not in self.known
        self.bury()

    def _mirror(self, act: Act, future: Future[None], fault: Fault) -> None:
        problem = future.exception(GATE_SECONDS)
        if isinstance(problem, StorageFailed):
            if fault == "sync kept":
                act.mirror(act.answer)
            return
        if isinstance(problem, TidegateError):
            assert act.raises, problem
            return
        act.mirror(act.answer)

    # Acts on the log, each committed by itself

    def publish(self, number: int, count: int) -> None:
        self.commit()
        self.bench.publish(self.topic, count, number % self.topic.partitions)

    def trim(self, number: int, part: float) -> None:
        self.commit()
        number %= self.topic.partitions
        start, end = self.log(number)
        self.bench.trim(self.topic, start + int((end - start) * part), number)

    def add_partition(self) -> None:
        self.commit()
        if self.topic.partitions < 4:
            first = self.topic.partitions
            self.topic = self.bench.add_partitions(self.topic, first + 1)
            for reference in self.known.values():
                reference.partitions[first] = Partition(0)

    def log(self, number: int) -> tuple[int, int]:
        held = self.bench.log.counters(self.topic, number)
        return held.start, held.end

    # Acts on groups, gathered

    def take(self, group: str, member: str, limit: int, number: int | None, start: str) -> None:
        topic = self.topic
        if number is not None:
            number %= topic.partitions
        kind: Any = start
        asked = Take(group, member, Start(kind), number, limit)
        chosen = range(topic.partitions) if number is None else [number]
        self.acts.append(
            Act(
                lambda s: self.bench.groups.stage_take(s, topic, asked),
                lambda given: self._took(asked, chosen, given),
            )
        )

    def _took(self, asked: Take, chosen: Any, given: Given) -> None:
        reference = self.known.setdefault(asked.group, Reference(LIMITS.deliveries_max, LIMITS.in_flight_max))
        now_us, logs = self.steady_us, {number: self.log(number) for number in chosen}
        for number in chosen:
            begin = logs[number][asked.start.kind == "latest"]
            part = reference.partitions.setdefault(number, Partition(begin))
            part.settle(logs[number][0], now_us)
        missed = {n: reference.partitions[n].untold for n in chosen if reference.partitions[n].untold}
        assert given.missed == missed
        found = {number: reference.available(number, logs[number], now_us) for number in chosen}
        doomed = sum(len(reference.doomed(number, now_us)) for number in chosen)
        total = sum(len(due) + new for due, new in found.values())
        count = len(offsets(given))
        assert count <= asked.limit
        assert count == min(asked.limit, total) or (doomed and count < min(asked.limit, total))
        for number in chosen:
            part = reference.partitions[number]
            part.untold = 0
            mine = [grant for grant in given.grants if grant.partition == number]
            got = [offset for grant in mine for offset in range(grant.start, grant.stop)]
            due, new = found[number]
            again = [offset for offset in got if offset < part.next]
            assert again == due[: len(again)], "what is due again comes first, lowest first"
            fresh = got[len(again) :]
            assert fresh == list(range(part.next, part.next + len(fresh)))
            assert len(fresh) <= new
            assert not fresh or len(again) == len(due)
            part.next += len(fresh)
            assert given.next_offsets[number] == part.next
            for grant in mine:
                for offset in range(grant.start, grant.stop):
                    before = part.given.get(offset)
                    assert grant.deliveries == (before.deliveries if before else 0) + 1
                    text = lease_id(number, grant.grant, offset)
                    ends_us = now_us + LIMITS.lease_ms_default * 1000
                    part.given[offset] = Message(grant.deliveries, text, ends_us, True, asked.member)
        self.leases[asked.group] += leases(given)

    def ack(self, group: str, texts: list[str]) -> None:
        if group not in self.known:
            return
        topic, asked = self.topic, Acks(group, "a", texts)

        def mirror(done: Any) -> None:
            held = self._held(group, texts)
            for number, offset in held.values():
                part = self.known[group].partitions[number]
                del part.given[offset]
                part.acked.add(offset)
            assert done.acked == len(held)
            assert sorted(done.lost) == sorted(set(texts) - held.keys())
            for number, at in done.position.items():
                part = self.known[group].partitions[number]
                assert at == part.position(self.log(number)[0], self.steady_us)

        self.acts.append(Act(lambda s: self.bench.groups.stage_ack(s, topic, asked), mirror))

    def upto(self, group: str, member: str, number: int, part: float) -> None:
        number %= self.topic.partitions
        if group not in self.known or not self.log(number)[1]:
            return
        topic, offset = self.topic, int((self.log(number)[1] - 1) * part)
        asked = Acks(group, member, upto={number: offset})

        def mirror(done: Any) -> None:
            mine = self.known[group].partitions.get(number)
            if mine is None:
                assert done.acked == 0
                return
            acked = [o for o, m in mine.given.items() if o <= offset and m.member == member]
            for one in acked:
                del mine.given[one]
                mine.acked.add(one)
            assert done.acked == len(acked)

        self.acts.append(Act(lambda s: self.bench.groups.stage_ack(s, topic, asked), mirror))

    def nack(self, group: str, texts: list[str], delay_ms: int, kind: str) -> None:
        if group not in self.known:
            return
        topic = self.topic
        asked = Nack(group, "a", texts, delay_ms, "it broke", kind == "release", kind == "dead")

        def mirror(done: Any) -> None:
            held = self._held(group, texts)
            dead = 0
            for number, offset in held.values():
                part = self.known[group].partitions[number]
                message = part.given[offset]
                message.held, message.member = False, None
                if kind == "release":
                    message.deliveries -= 1
                    message.ends_us = self.steady_us
                elif kind == "dead" or message.deliveries >= LIMITS.deliveries_max:
                    del part.given[offset]
                    if offset < self.log(number)[0]:
                        part.untold += 1
                        part.missed += 1
                    else:
                        part.dead[offset] += 1
                        dead += 1
                else:
                    message.ends_us = self.steady_us + delay_ms * 1000
            assert (done.nacked, done.dead) == (len(held), dead)
            assert sorted(done.lost) == sorted(set(texts) - held.keys())

        self.acts.append(Act(lambda s: self.bench.groups.stage_nack(s, topic, asked), mirror))

    def extend(self, group: str, texts: list[str], lease_ms: int) -> None:
        if group not in self.known:
            return
        topic, asked = self.topic, Extend(group, "a", texts, lease_ms)

        def mirror(done: Any) -> None:
            held = self._held(group, texts)
            for number, offset in held.values():
                message = self.known[group].partitions[number].given[offset]
                message.ends_us = self.steady_us + lease_ms * 1000
            assert done.extended == len(held)
            assert sorted(done.lost) == sorted(set(texts) - held.keys())

        self.acts.append(Act(lambda s: self.bench.groups.stage_extend(s, topic, asked), mirror))

    def expire(self, group: str) -> None:
        if group in self.known:
            topic = self.topic
            self.acts.append(
                Act(lambda s: self.bench.groups.stage_expire(s, topic, group), lambda _: self._expired(group))
            )

    def _expired(self, group: str) -> None:
        for number, part in self.known[group].partitions.items():
            if any(m.held and m.ends_us <= self.steady_us for m in part.given.values()):
                part.settle(self.log(number)[0], self.steady_us)
            for message in part.given.values():
                message.held = message.held and self.steady_us < message.ends_us

    def reset(self, group: str, to: str, number: int | None) -> None:
        if group not in self.known:
            return
        topic, kind = self.topic, to
        if number is not None:
            number %= topic.partitions
        start: Any = Start(kind)  # type: ignore[arg-type]

        def mirror(targets: dict[int, int]) -> None:
            self.was_reset = True
            for at, offset in targets.items():
                assert offset == self.log(at)[kind == "latest"]
                part = self.known[group].partitions.setdefault(at, Partition(offset))
                part.next, part.untold = offset, 0
                part.given.clear()
                part.acked.clear()

        self.acts.append(Act(lambda s: self.bench.groups.stage_reset(s, topic, group, start, number), mirror))

    def delete(self, group: str) -> None:
        self.commit()
        if group in self.known:
            self.bench.delete_group(self.topic, group)
            del self.known[group]

    def _held(self, group: str, texts: list[str]) -> dict[str, tuple[int, int]]:
        """Give the leases that still hold something, with partition and offset."""
        held = {}
        for text in texts:
            (named,) = read_leases([text])
            offset = named.ranges[0][0]
            if self.known[group].holder(named.partition, offset, text, self.steady_us):
                held[text] = (named.partition, offset)
        return held

    # What must hold after every step

    def check(self) -> None:
        if self.stale_steps > 1:
            self.stale_steps -= 1
            return
        if self.stale_steps:
            self.heal()
        shapes = {shape.group: shape for shape in self.bench.groups.describe(self.topic)}
        assert sorted(shapes) == sorted(self.known)
        for name, reference in self.known.items():
            parts = {part.partition: part for part in shapes[name].partitions}
            assert sorted(parts) == sorted(reference.partitions)
            for number, mine in reference.partitions.items():
                self.check_partition(parts[number], mine, self.log(number))
            assert shapes[name].lag == self.bench.groups.lag(self.topic, name)
            self.check_ready(name, reference)
        if self.clock.now_us() == self.steady_us:
            self.check_recovery(list(shapes.values()))

    def check_partition(self, shown: Any, mine: Partition, log: tuple[int, int]) -> None:
        now_us, (start, end) = self.steady_us, log
        assert (shown.start, shown.end) == log
        assert shown.next == max(mine.next, start)
        assert shown.in_flight == mine.in_flight(now_us)
        assert shown.lag == mine.lag(start, end, now_us)
        assert shown.waiting == len(mine.given) - mine.in_flight(now_us) - mine.lost(start, now_us)
        assert shown.position == mine.position(start, now_us)

    def check_ready(self, name: str, reference: Reference) -> None:
        numbers = [number for number in reference.partitions if number < self.topic.partitions]
        ready = self.bench.groups.ready(self.topic, name, None)
        now_us = self.steady_us
        found = [reference.available(number, self.log(number), now_us) for number in numbers]
        total = sum(len(due) + new for due, new in found)
        doomed = sum(len(reference.doomed(number, now_us)) for number in numbers)
        assert (ready.count > 0) == (total > 0) or doomed
        assert ready.missed == any(
            part.untold or part.next < self.log(n)[0] or part.lost(self.log(n)[0], now_us)
            for n, part in reference.partitions.items()
        )
        later = [m.ends_us for p in reference.partitions.values() for m in p.given.values()]
        later = [ends_us for ends_us in later if ends_us > now_us]
        ahead_us = self.clock.now_us() - now_us
        assert ready.due_us == (min(later) + ahead_us if later else None)
        is_overdue = (self.topic.id, name) in self.bench.groups.overdue(self.clock.now_us())
        given = [m for p in reference.partitions.values() for m in p.given.values()]
        assert is_overdue == any(m.held and m.ends_us <= now_us for m in given)

    def check_recovery(self, shapes: list[Any]) -> None:
        """Whoever opens the disk now finds what is in memory."""
        bench = self.bench
        fresh = Groups(bench.engine, bench.log, bench.directory, bench.log._ids, self.clock, LIMITS)
        found = fresh.describe(self.topic)
        assert [msgspec.structs.asdict(_plain(one)) for one in found] == [
            msgspec.structs.asdict(_plain(one)) for one in shapes
        ]

    def bury(self) -> None:
        """Take new dead letters: each failed too often, and is one of no other kind."""
        names = {topic.name for topic in self.bench.directory}
        if self.topic.dead_name not in names:
            return
        dead = self.bench.directory.get("default", self.topic.dead_name)
        for number in range(dead.partitions):
            texts = self.bench.payloads(dead, number)
            for text in texts[self.buried.get(number, 0) :]:
                letter = msgspec.json.decode(text)
                origin = letter["origin"]
                assert letter["payload"] == {"n": origin["offset"]}
                self._buried(origin)
            self.buried[number] = len(texts)

    def _buried(self, origin: dict[str, Any]) -> None:
        reference = self.known.get(origin["group"])
        part = reference.partitions.get(origin["partition"]) if reference else None
        if part is None:
            return
        offset = origin["offset"]
        if part.dead[offset]:
            part.dead[offset] -= 1
            return
        message = part.given.get(offset)
        if self.was_reset and (message is None or message.deliveries < LIMITS.deliveries_max):
            return
        assert message is not None
        assert message.ends_us <= self.steady_us
        assert message.deliveries >= LIMITS.deliveries_max
        del part.given[offset]

    def drain(self) -> None:
        """Take and acknowledge everything: each message that is not done with comes, and no other."""
        self.commit()
        self.heal()
        for name in list(self.known):
            for _ in range(DRAIN_ROUNDS_MAX):
                self.expire(name)
                self.take(name, "a", 20, None, "earliest")
                self.commit()
                self.check()
                reference = self.known[name]
                fresh = [m.lease for p in reference.partitions.values() for m in p.given.values() if m.held]
                self.ack(name, fresh)
                self.commit()
                self.check()
                if not self.bench.groups.lag(self.topic, name):
                    break
                self.pass_time(LIMITS.lease_ms_default / 1000)
            for number in range(self.topic.partitions):
                part = reference.partitions[number]
                assert not part.given
                assert part.next == self.log(number)[1]
            assert self.bench.groups.lag(self.topic, name) == 0

    def close(self) -> None:
        self.bench.committer.close()


class _Shape(msgspec.Struct):
    group: str
    missed: int
    partitions: list[Any]


def _plain(shape: Any) -> _Shape:
    """Give what of a group is kept on the disk."""
    ordered = [part.partition for part in shape.partitions]
    assert all(first < second for first, second in pairwise(ordered))
    return _Shape(shape.group, shape.missed, shape.partitions)
