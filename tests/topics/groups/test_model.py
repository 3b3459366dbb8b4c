"""Groups against a simple reference: any acts in any order, with crashes and failing disks in between."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.topics.groups.bench import ROOT
from tests.topics.groups.failing_disk import GROUPS, MEMBERS, USERS
from tests.topics.groups.world import World
from tidegate.model.access import Principal

GROUP, MEMBER = st.sampled_from(GROUPS), st.sampled_from(MEMBERS)
# Who says that it is the holder, mostly nobody: the lease alone decides then.
NAMED = st.sampled_from([None, None, *MEMBERS])
# Who asks: mostly an administrator, who may act on everything.
USER, CALLER = st.sampled_from(USERS), st.sampled_from([ROOT, *USERS])
NUMBER = st.integers(0, 3)
# Most acts go well: a fault in every second commit would leave little to fail.
FAULT = st.sampled_from(["none"] * 6 + ["write", "sync lost", "sync kept", "raises"])
STEPS = 40


class GroupsMachine(RuleBasedStateMachine):
    """Case 18: at least once, no loss, and nobody acknowledges what another was given."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(number=NUMBER, count=st.integers(1, 9))
    def publish(self, number: int, count: int) -> None:
        self.world.publish(number, count)

    @rule(
        group=GROUP,
        member=MEMBER,
        limit=st.integers(1, 9),
        number=st.none() | NUMBER,
        start=st.sampled_from(["earliest", "latest", "offsets"]),
        user=USER,
    )
    def take(
        self, group: str, member: str, limit: int, number: int | None, start: str, user: Principal
    ) -> None:
        self.world.take(group, member, limit, number, start, user)

    @rule(group=GROUP, member=MEMBER, limit=st.integers(1, 9), user=USER)
    def take_now(self, group: str, member: str, limit: int, user: Principal) -> None:
        self.world.take(group, member, limit, None, "earliest", user)
        self.world.commit()

    @rule(member=MEMBER, seconds=st.sampled_from([0, 11]))
    def fail(self, member: str, seconds: float) -> None:
        self.world.commit()
        self.world.take("g", member, 4, None, "earliest")
        self.world.commit()
        self.world.pass_time(seconds)

    @rule(group=GROUP, pick=st.data(), member=NAMED, user=CALLER)
    def ack(self, group: str, pick: Any, member: str | None, user: Principal) -> None:
        self.world.ack(group, self.chosen(group, pick), member, user)

    @rule(group=GROUP, member=MEMBER, number=NUMBER, part=st.floats(0, 1), user=CALLER)
    def upto(self, group: str, member: str, number: int, part: float, user: Principal) -> None:
        self.world.upto(group, member, number, part, user)

    @rule(
        group=GROUP,
        pick=st.data(),
        delay_ms=st.sampled_from([0, 3000, 20_000]),
        kind=st.sampled_from(["", "", "release", "dead"]),
        member=NAMED,
        user=CALLER,
    )
    def nack(
        self, group: str, pick: Any, delay_ms: int, kind: str, member: str | None, user: Principal
    ) -> None:
        self.world.nack(group, self.chosen(group, pick), delay_ms, kind, member, user)

    @rule(group=GROUP, pick=st.data(), lease_ms=st.sampled_from([1000, 25_000]), member=NAMED, user=CALLER)
    def extend(self, group: str, pick: Any, lease_ms: int, member: str | None, user: Principal) -> None:
        self.world.extend(group, self.chosen(group, pick), lease_ms, member, user)

    @rule(group=GROUP)
    def expire(self, group: str) -> None:
        self.world.expire(group)

    @rule(fault=FAULT)
    def commit(self, fault: Any) -> None:
        self.world.commit(fault)

    @rule(seconds=st.sampled_from([0.5, 5, 10, 30]))
    def pass_time(self, seconds: float) -> None:
        self.world.commit()
        self.world.pass_time(seconds)

    @rule(seconds=st.sampled_from([-3600, 60]))
    def set_clock(self, seconds: float) -> None:
        self.world.set_clock(seconds)

    @rule()
    def crash(self) -> None:
        self.world.commit()
        self.world.crash()

    @rule()
    def age(self) -> None:
        self.world.commit()
        self.world.age()

    @rule(number=NUMBER, part=st.sampled_from([0.3, 0.7, 1.0]))
    def trim(self, number: int, part: float) -> None:
        self.world.trim(number, part)

    @rule(group=GROUP, to=st.sampled_from(["earliest", "latest"]), number=st.none() | NUMBER)
    def reset(self, group: str, to: str, number: int | None) -> None:
        self.world.reset(group, to, number)

    @precondition(lambda self: self.world.topic.partitions < 4)
    @rule()
    def add_partition(self) -> None:
        self.world.add_partition()

    @rule(group=GROUP)
    def delete(self, group: str) -> None:
        self.world.delete(group)

    @invariant()
    def agrees(self) -> None:
        if not self.world.acts:
            self.world.check()

    def teardown(self) -> None:
        try:
            self.world.drain()
        finally:
            self.world.close()

    def chosen(self, group: str, pick: Any) -> list[str]:
        """Pick some of the leases that were ever given out, mostly of the newest."""
        known = self.world.leases[group]
        if not known:
            return []
        recent = st.lists(st.sampled_from([*known[-12:], "no lease"]), max_size=8)
        return list(pick.draw(recent | st.lists(st.sampled_from(known), max_size=4)))


TestGroups = GroupsMachine.TestCase
TestGroups.settings = settings(max_examples=25, stateful_step_count=STEPS, deadline=None)
