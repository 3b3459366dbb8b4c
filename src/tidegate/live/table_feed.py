"""The feed of one table: gives new changes to the groups that are up to date, and old ones to who is behind.

Every subscription is in one of these places, and moves between them on the event loop alone:

    loading      its snapshot is on its way; `seq` is where the snapshot was taken
    early        its snapshot is newer than what the groups were given so far: it waits for them
    in a group   it has seen exactly what the groups were given, `sent_seq`
    behind       its socket was full, or its snapshot is old: it goes on by itself, from its own `seq`
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidegate.errors import InvariantBroken, SqlInvalid, TidegateError
from tidegate.live.change_buffer import History, Numbered
from tidegate.live.filter_groups import Group, Scope
from tidegate.live.subscription import Subscription
from tidegate.live.wire import Teller, frames

# Changes that are told in one step, and the memory of their rows: what a step writes to a socket that has
# just become full lies there beside the rest. Between two steps others have their turn on the event loop.
STEP_CHANGES = 256
STEP_BYTES = 128 * 1024
# Filters that are evaluated in one step, each for one change; about ten milliseconds.
STEP_TESTS = 10_000
# What a filter or a projection may raise for a row that it cannot compute with.
_ROW_FAULTS = (TidegateError, ArithmeticError, ValueError, TypeError, LookupError, AttributeError)

log = logging.getLogger(__name__)


class Feed:
    """Who follows one table; belongs to the event loop, but for its history."""

    def __init__(self, history: History, count_changes: Callable[[int], None], schema_id: int = 1) -> None:
        self.history = history
        self.schema_id = schema_id
        self.subscriptions: dict[Subscription, None] = {}
        # The last change that the groups were given.
        self.sent_seq = history.last_seq
        self._count_changes = count_changes
        self._scopes: dict[str, Scope] = {}
        self._early: dict[Subscription, None] = {}

    def attach(self, subscription: Subscription, seq: int) -> None:
        """Take a subscription that has seen everything up to a change; it is behind until it catches up."""
        subscription.seq = seq
        self.subscriptions[subscription] = None

    def detach(self, subscription: Subscription) -> None:
        """Let a subscription go."""
        self.subscriptions.pop(subscription, None)
        self._early.pop(subscription, None)
        self._leave_group(subscription)

    def send(self) -> bool:
        """Return the groups the next changes; say whether there are more."""
        last_seq = self.history.last_seq
        if not self._scopes:
            self.sent_seq = last_seq
            self._admit()
            return False
        tests = sum(scope.open_count for scope in self._scopes.values())
        changes_max = max(1, min(STEP_CHANGES, STEP_TESTS // (1 + tests)))
        step = self.history.after(self.sent_seq, last_seq, changes_max, STEP_BYTES)
        if step is None:
            self._lose_groups(last_seq)
            return False
        for group, tails in self._told(step.changes).items():
            self._write(group, tails)
        self.sent_seq = step.end_seq
        self._admit()
        return self.sent_seq < self.history.last_seq

    def catch_up(self, subscription: Subscription) -> bool:
        """Return one subscription its next changes; True when it needs no more of this for now."""
        if subscription not in self.subscriptions:
            return True
        if subscription.seq > self.sent_seq:
            self._early[subscription] = None
            return True
        step = self.history.after(subscription.seq, self.sent_seq, STEP_CHANGES, STEP_BYTES)
        if step is None:
            self._lose(subscription)
            return True
        try:
            tails = _tell(subscription.teller, subscription.user, step.changes)
        except _ROW_FAULTS as problem:
            self._fail(subscription, problem)
            return True
        if tails:
            subscription.sink.write(frames(subscription.front, tails))
            self._count_changes(len(tails))
        subscription.seq = step.end_seq
        return self._join(subscription)

    def is_lost(self, subscription: Subscription) -> bool:
        """Return whether changes that a subscription has not seen are gone."""
        return subscription not in self.subscriptions or subscription.seq < self.history.floor_seq

    def fail_all(self, problem: TidegateError) -> None:
        """End every subscription."""
        for subscription in list(self.subscriptions):
            self.detach(subscription)
            subscription.sink.failed(subscription, problem)

    def lose_all(self) -> None:
        """Send every subscription back to a new snapshot."""
        for subscription in list(self.subscriptions):
            self._lose(subscription)

    def _told(self, changes: list[Numbered]) -> dict[Group, list[bytes]]:
        """Return for each group what the changes mean to it."""
        told: dict[Group, list[bytes]] = {}
        faults: dict[Group, Exception] = {}
        for seq, user, change in changes:
            scope = self._scopes.get(user)
            if scope is None:
                continue
            for group in scope.concerned(change):
                try:
                    tail = group.teller.tell(seq, change)
                except _ROW_FAULTS as problem:
                    faults.setdefault(group, problem)
                    continue
                if tail is not None:
                    told.setdefault(group, []).append(tail)
        for group, fault in faults.items():
            told.pop(group, None)
            for subscription in list(group):
                self._fail(subscription, fault)
        return told

    def _write(self, group: Group, tails: list[bytes]) -> None:
        late: list[Subscription] = []
        count = 0
        for front, members in group.members.items():
            written = frames(front, tails)
            for subscription in members:
                sink = subscription.sink
                if sink.is_full:
                    late.append(subscription)
                else:
                    sink.write(written)
                    count += 1
        self._count_changes(count * len(tails))
        for subscription in late:
            # It has seen what the groups were given before this step, and nothing of it.
            subscription.seq = self.sent_seq
            self._leave_group(subscription)
            subscription.sink.fell_behind(subscription)

    def _admit(self) -> None:
        """Let those in who waited for the groups to come this far."""
        if not self._early:
            return
        for subscription in [kept for kept in self._early if kept.seq <= self.sent_seq]:
            del self._early[subscription]
            if not self._join(subscription):
                subscription.sink.fell_behind(subscription)

    def _join(self, subscription: Subscription) -> bool:
        if subscription.seq != self.sent_seq:
            return False
        self._scopes.setdefault(subscription.user, Scope()).add(subscription)
        return True

    def _leave_group(self, subscription: Subscription) -> None:
        scope = self._scopes.get(subscription.user)
        if scope is not None:
            scope.discard(subscription)
            if not scope:
                del self._scopes[subscription.user]

    def _lose_groups(self, last_seq: int) -> None:
        """Send everyone back whose next changes are gone: more came than the history keeps."""
        for scope in list(self._scopes.values()):
            for subscription in [kept for group in scope for kept in group]:
                self._lose(subscription)
        self.sent_seq = last_seq
        self._admit()

    def _lose(self, subscription: Subscription) -> None:
        self.detach(subscription)
        subscription.sink.lost(subscription)

    def _fail(self, subscription: Subscription, problem: Exception) -> None:
        self.detach(subscription)
        subscription.sink.failed(subscription, _fault(problem))


def _tell(teller: Teller, user: str, changes: list[Numbered]) -> list[bytes]:
    told = (teller.tell(seq, change) for seq, whose, change in changes if whose == user)
    return [tail for tail in told if tail is not None]


def _fault(problem: Exception) -> TidegateError:
    """Return what a subscriber is told when its SELECT cannot be computed for a row."""
    if isinstance(problem, TidegateError):
        return problem
    if isinstance(problem, ArithmeticError | ValueError):
        return SqlInvalid(reason=f"a row cannot be computed: {problem}")
    log.error("a live SELECT failed", exc_info=problem)
    return InvariantBroken(reason=f"{type(problem).__name__}: {problem}")
