"""The queue of statements: a share for each tenant and each user, and turns in a fair order.

`query.statements_max` statements run at the same time. Who runs none may begin one beyond that, up to twice
as many in all, and one for each tenant that has its share: so a flood of one tenant or user never keeps
another from beginning. A free slot goes to the tenant that waits longest since its last turn, and within it
to such a user: who sends a hundred statements gets as many turns as who sends one. Everything happens on the
event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.errors import TooManyRequests
from tidegate.settings.sections import QuerySettings

# Waiting statements for each that may run; more would wait longer than clients do.
WAITING_PER_SLOT = 16
# A tenant's waiting statements, and those of all tenants, as multiples of what one user may have waiting.
TENANT_FACTOR = 2
TOTAL_FACTOR = 8
# Retry-After where too many statements wait.
RETRY_SECONDS = 2


class StatementOwner(NamedTuple):
    """Whose statement it is."""

    tenant: str
    user: str


@dataclass(frozen=True, slots=True)
class StatementShares:
    """How many statements run at the same time: of all, of one tenant, of one user.

    `total` is passed by those who run none; no other limit ever is.
    """

    total: int
    tenant: int
    user: int

    @classmethod
    def of(cls, settings: QuerySettings) -> StatementShares:
        """Return the shares of the settings: by default, a tenant may pass `total` by one."""
        total = settings.statements_max
        return cls(total, settings.tenant_statements_max or total + 1, settings.user_statements_max or total)

    @property
    def most(self) -> int:
        """The statements that ever run at the same time."""
        return 2 * self.total


class StatementSlot:
    """The turn of one statement, from the moment it waits until `leave`."""

    def __init__(self, queue: StatementQueue, owner: StatementOwner) -> None:
        self._queue = queue
        self._owner = owner
        self._is_left = False
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def owner(self) -> StatementOwner:
        """Whose turn it is."""
        return self._owner

    def leave(self) -> None:
        """Leave the turn or the place in the queue; a second call does nothing."""
        if not self._is_left:
            self._is_left = True
            self._queue.left(self)


class StatementQueue:
    """Slots for statements."""

    def __init__(self, shares: StatementShares) -> None:
        self._shares = shares
        self._waiting_max = WAITING_PER_SLOT * shares.total
        self._running: Counter[str | StatementOwner | None] = Counter()
        self._waiting: OrderedDict[str, OrderedDict[str, deque[StatementSlot]]] = OrderedDict()
        self._waiting_counts: Counter[str | StatementOwner | None] = Counter()

    @property
    def running_tenant_count(self) -> int:
        """The number of tenants whose statements run."""
        return sum(isinstance(level, str) for level in list(self._running))

    @property
    def waiting_tenant_count(self) -> int:
        """The number of tenants whose statements wait."""
        return len(self._waiting)

    def enter(self, owner: StatementOwner) -> StatementSlot:
        """Return a slot, granted or waiting; raise TooManyRequests where too many wait already."""
        slot = StatementSlot(self, owner)
        if self._may_run(owner):
            self._grant(slot)
            return slot
        self._check_room(owner)
        users = self._waiting.setdefault(owner.tenant, OrderedDict())
        users.setdefault(owner.user, deque()).append(slot)
        for level in _levels(owner):
            self._waiting_counts[level] += 1
        return slot

    def left(self, slot: StatementSlot) -> None:
        """Take back a slot, and grant what it frees."""
        if slot.granted.done() and not slot.granted.cancelled():
            _subtract(self._running, slot.owner)
            self._grant_free()
            return
        users = self._waiting.get(slot.owner.tenant, OrderedDict())
        slots = users.get(slot.owner.user, deque())
        if slot in slots:
            slots.remove(slot)
            self._forget_empty(slot.owner)
            _subtract(self._waiting_counts, slot.owner)

    def _may_run(self, owner: StatementOwner) -> bool:
        shares, (total, tenant, user) = self._shares, (self._running[level] for level in _levels(owner))
        if tenant >= shares.tenant or user >= shares.user:
            return False
        if total < shares.total and tenant < shares.total:
            return True
        return user == 0 and total < shares.most

    def _check_room(self, owner: StatementOwner) -> None:
        user_max = self._waiting_max
        limits = (user_max * TOTAL_FACTOR, user_max * TENANT_FACTOR, user_max)
        whose = ("", " of this tenant", " of this user")
        settings = ("query.statements_max", "query.tenant_statements_max", "query.user_statements_max")
        for level, limit, words, setting in zip(_levels(owner), limits, whose, settings, strict=True):
            if self._waiting_counts[level] >= limit:
                raise TooManyRequests(
                    what=f"statements{words} wait already",
                    limit=limit,
                    setting=setting,
                    retry_after_seconds=RETRY_SECONDS,
                )

    def _grant_free(self) -> None:
        slot = self._next()
        while slot is not None:
            _subtract(self._waiting_counts, slot.owner)
            self._grant(slot)
            slot = self._next()

    def _next(self) -> StatementSlot | None:
        """Take the next waiting statement that may run out of the queue; its owner goes to the end."""
        for tenant, users in self._waiting.items():
            for user, slots in users.items():
                owner = StatementOwner(tenant, user)
                if self._may_run(owner):
                    slot = slots.popleft()
                    users.move_to_end(user)
                    self._waiting.move_to_end(tenant)
                    self._forget_empty(owner)
                    return slot
        return None

    def _forget_empty(self, owner: StatementOwner) -> None:
        users = self._waiting[owner.tenant]
        if not users[owner.user]:
            del users[owner.user]
        if not users:
            del self._waiting[owner.tenant]

    def _grant(self, slot: StatementSlot) -> None:
        for level in _levels(slot.owner):
            self._running[level] += 1
        slot.granted.set_result(None)


def _levels(owner: StatementOwner) -> tuple[None, str, StatementOwner]:
    return None, owner.tenant, owner


def _subtract(counts: Counter[str | StatementOwner | None], owner: StatementOwner) -> None:
    for level in _levels(owner):
        counts[level] -= 1
        if not counts[level]:
            del counts[level]
