"""What groups and their reference stand on: a topic, a clock, and a disk that may fail.

Acts are gathered and committed together, so that several share one group of writes; the disk may fail under
them, or a stage raise after its work. What an act answered is noted where it was staged, so that one whose
answer was lost is known when the disk has it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tests.topics.groups.bench import ALICE, BOB, ROOT, GroupsBench, broken_disk, build
from tests.topics.groups.older_rows import as_version_1
from tests.topics.groups.reference import Partition, Reference
from tidegate.errors import Forbidden, GroupNotFound, RequestInvalid, StorageFailed, TidegateError
from tidegate.settings import TopicSettings
from tidegate.storage.group_commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic

Fault = Literal["none", "write", "sync lost", "sync kept", "raises"]
LIMITS = TopicSettings(lease_ms_default=10_000, deliveries_max=3, in_flight_max=12, groups_max=3)
# One of the members has the name of a user: that is its name where it does not choose another.
MEMBERS = ("a", "b", "alice")
USERS = (ALICE, BOB, ROOT)
GROUPS = ("g", "h")
GATE_SECONDS = 60
STALE_STEPS = 3


@dataclass
class Act:
    """Something to do to the groups, and then to the reference with the answer."""

    stage: Callable[[Staging], Any]
    mirror: Callable[[Any], None]
    # Whether it has to be refused because of its user, by what the reference knows when its turn comes.
    refused: Callable[[], bool] = lambda: False
    raises: bool = False
    answer: Any = None

    def run(self, staging: Staging) -> None:
        self.answer = self.stage(staging)
        if self.raises:
            raise RequestInvalid(reason="raised after its work", hint="")


class Ground:
    """A topic, the groups that are known of it, and acts that wait to be committed."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.limits = LIMITS
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
        self._end_fault()
        self.bench.committer.close()
        self.engine.crash()
        self.clock.set_us(self.steady_us)
        self.bench = build(self.engine, self.clock, LIMITS)
        self.topic = self.bench.directory.get("default", "app.jobs")

    def age(self) -> None:
        """Stop, and come back with entries as earlier versions wrote them: without user and token."""
        self._end_fault()
        self.bench.committer.close()
        as_version_1(self.engine)
        self.clock.set_us(self.steady_us)
        self.bench = build(self.engine, self.clock, LIMITS)
        self.topic = self.bench.directory.get("default", "app.jobs")
        for name, reference in self.known.items():
            self.leases[name] += reference.forget_users()

    def commit(self, fault: Fault = "none") -> None:
        """Do what was gathered, in one group of writes where they allow it."""
        acts, self.acts = self.acts, []
        if not acts:
            return
        self._end_fault()
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

    def _end_fault(self) -> None:
        """Let the engine open again after a failed sync: what that left is settled before the next fault."""
        if self.engine.reopen_needed:
            self.bench.commit(lambda _staging: None)

    def heal(self) -> None:
        """Do something to every group: whoever does finds that memory is not what the disk has."""
        self.stale_steps = 0
        for name in GROUPS:
            try:
                self.bench.expire(self.topic, name)
            except GroupNotFound:
                assert name not in self.known
            else:
                self._expired(name)
        self.bury()

    def _mirror(self, act: Act, future: Future[None], fault: Fault) -> None:
        problem = future.exception(GATE_SECONDS)
        is_refused = act.refused()
        if isinstance(problem, Forbidden):
            # It may be about a lease that an act before it made in the same group, whose write was lost.
            assert is_refused or fault in ("write", "sync lost"), problem
            return
        if isinstance(problem, StorageFailed):
            if fault == "sync kept":
                assert not is_refused
                act.mirror(act.answer)
            return
        if isinstance(problem, TidegateError):
            assert act.raises, problem
            return
        assert not is_refused
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

    def _expired(self, group: str) -> None:
        for number, part in self.known[group].partitions.items():
            if any(m.held and m.ends_us <= self.steady_us for m in part.given.values()):
                part.settle(self.log(number)[0], self.steady_us)
            for message in part.given.values():
                message.held = message.held and self.steady_us < message.ends_us

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

    def close(self) -> None:
        self.bench.committer.close()
