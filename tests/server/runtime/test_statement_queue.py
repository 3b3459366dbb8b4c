"""The queue of statements beside a model that looks at everybody, and what it promises to those who wait."""

from __future__ import annotations

import asyncio
import random

import pytest

from tidegate.errors import TooManyRequests
from tidegate.server.runtime.statement_queue import (
    WAITING_PER_SLOT,
    StatementOwner,
    StatementQueue,
    StatementShares,
    StatementSlot,
)
from tidegate.settings.sections import QuerySettings


def run(test: object) -> None:
    async def main() -> None:
        test()  # type: ignore[operator]

    asyncio.run(main())


class Model:
    """Every statement by its owner: those that run, and those that wait, in order of their arrival."""

    def __init__(self, shares: StatementShares) -> None:
        self.shares = shares
        self.running: list[StatementSlot] = []
        self.waiting: list[StatementSlot] = []

    def may_run(self, owner: StatementOwner) -> bool:
        total = len(self.running)
        of_tenant = sum(slot.owner.tenant == owner.tenant for slot in self.running)
        of_user = sum(slot.owner == owner for slot in self.running)
        if of_tenant >= self.shares.tenant or of_user >= self.shares.user:
            return False
        if total < self.shares.total and of_tenant < self.shares.total:
            return True
        return of_user == 0 and total < 2 * self.shares.total

    def settle(self) -> None:
        for slot in list(self.waiting):
            if slot.granted.done():
                self.waiting.remove(slot)
                self.running.append(slot)

    def check(self) -> None:
        assert len(self.running) <= 2 * self.shares.total
        tenants = {slot.owner.tenant for slot in self.running}
        for tenant in tenants:
            assert sum(slot.owner.tenant == tenant for slot in self.running) <= self.shares.tenant
        # Nobody waits who could run.
        assert not [slot.owner for slot in self.waiting if self.may_run(slot.owner)]


@pytest.mark.parametrize("seed", range(40))
def test_nobody_waits_who_could_run_and_no_share_is_passed(seed: int) -> None:
    chance = random.Random(seed)
    shares = StatementShares.of(
        QuerySettings(
            statements_max=chance.randint(1, 5),
            tenant_statements_max=chance.choice((0, 0, 1, 3)),
            user_statements_max=chance.choice((0, 0, 1, 2)),
        )
    )

    def test() -> None:
        queue, model = StatementQueue(shares), Model(shares)
        for _ in range(600):
            if chance.random() < 0.55 and len(model.waiting) < WAITING_PER_SLOT:
                owner = StatementOwner(chance.choice("ABC"), chance.choice("xyz"))
                could_run = model.may_run(owner)
                slot = queue.enter(owner)
                assert slot.granted.done() == could_run
                (model.running if could_run else model.waiting).append(slot)
            else:
                of = model.running if chance.random() < 0.8 else model.waiting
                if of:
                    slot = of.pop(chance.randrange(len(of)))
                    slot.leave()
                    slot.leave()
            model.settle()
            model.check()
        for slot in [*model.waiting, *model.running]:
            slot.leave()
        assert not queue._running
        assert not queue._waiting
        assert not queue._waiting_counts

    run(test)


def test_a_flood_never_keeps_another_tenant_or_user_from_beginning() -> None:
    def test() -> None:
        queue = StatementQueue(StatementShares.of(QuerySettings(statements_max=4)))
        flood = [queue.enter(StatementOwner("hostile", "eve")) for _ in range(40)]
        assert sum(slot.granted.done() for slot in flood) == 4
        assert queue.enter(StatementOwner("quiet", "ada")).granted.done()
        assert queue.enter(StatementOwner("hostile", "bob")).granted.done(), "a user of the same tenant"
        assert not queue.enter(StatementOwner("hostile", "cyd")).granted.done()
        assert queue.enter(StatementOwner("third", "dan")).granted.done()

    run(test)


def test_turns_go_round_by_tenant_and_then_by_user() -> None:
    def test() -> None:
        queue = StatementQueue(StatementShares(1, 1, 1))
        # Nobody may begin beside these two, which fill the room for those who run none.
        first = [queue.enter(StatementOwner(name, "x")) for name in ("one", "two")]
        assert all(slot.granted.done() for slot in first)
        waiting = [queue.enter(StatementOwner("A", "x")) for _ in range(3)]
        waiting += [queue.enter(StatementOwner("A", "y")), queue.enter(StatementOwner("B", "z"))]
        first[0].leave()
        order = []
        while any(slot.granted.done() for slot in waiting):
            slot = next(slot for slot in waiting if slot.granted.done())
            order.append(f"{slot.owner.tenant}{slot.owner.user}")
            waiting.remove(slot)
            slot.leave()
        assert order == ["Ax", "Bz", "Ay", "Ax", "Ax"]

    run(test)


@pytest.mark.parametrize(
    ("owners", "setting"),
    [
        ([("A", "x")], "query.user_statements_max"),
        ([("A", f"user {number}") for number in range(9)], "query.tenant_statements_max"),
        ([(f"tenant {number}", "x") for number in range(30)], "query.statements_max"),
    ],
)
def test_a_queue_that_is_full_says_whose(owners: list[tuple[str, str]], setting: str) -> None:
    def test() -> None:
        queue = StatementQueue(StatementShares(1, 2, 1))
        with pytest.raises(TooManyRequests) as caught:
            for number in range(WAITING_PER_SLOT * 20):
                queue.enter(StatementOwner(*owners[number % len(owners)]))
        assert caught.value.values["setting"] == setting
        assert caught.value.values["retry_after_seconds"] > 0

    run(test)
