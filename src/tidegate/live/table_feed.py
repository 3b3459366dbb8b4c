"""The feed of one table: sends new changes to filter groups, and old ones to subscriptions that are behind.

Every subscription is in one of these states, which change on the event loop alone:

    loading      its snapshot is being sent; `seq` is where the snapshot was taken
    early        its snapshot is newer than what the groups were sent: it waits for them
    in a group   it has seen exactly what the groups were sent, `sent_seq`
    behind       its socket was full, or its snapshot is old: it is sent changes separately, from its `seq`

A row that a filter cannot compute does not match, and is counted by the filter itself; see
`sql.expressions.compile`. A filter that raises all the same is a bug: it ends the subscriptions of its group,
and no others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidegate.errors import InvariantBroken, TidegateError
from tidegate.live.change_buffer import ChangeBuffer, NumberedChange
from tidegate.live.filter_groups import FilterGroup, Scope
from tidegate.live.subscription import Subscription
from tidegate.live.wire import frames

# Changes that are sent in one step, and the memory of their rows: what a step writes to a socket that has
# just become full is added to what waits there. Between two steps others have their turn on the event loop.
STEP_CHANGES = 256
STEP_BYTES = 128 * 1024
# Filters that are evaluated in one step, each for one change; about ten milliseconds.
STEP_TESTS = 10_000

log = logging.getLogger(__name__)


class TableFeed:
    """The subscriptions to one table; belongs to the event loop, but for its buffer."""

    def __init__(
        self, buffer: ChangeBuffer, count_changes: Callable[[int], None], schema_id: int = 1
    ) -> None:
        self.buffer = buffer
        self.schema_id = schema_id
        self.subscriptions: dict[Subscription, None] = {}
        # The last change that the groups were sent.
        self.sent_seq = buffer.last_seq
        self._count_changes = count_changes
        self._scopes: dict[str, Scope] = {}
        self._early: dict[Subscription, None] = {}

    def attach(self, subscription: Subscription, seq: int) -> None:
        """Add a subscription that has seen everything up to a change; it is behind until it catches up."""
        subscription.seq = seq
        self.subscriptions[subscription] = None

    def detach(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        self.subscriptions.pop(subscription, None)
        self._early.pop(subscription, None)
        self._leave_group(subscription)

    def send(self) -> bool:
        """Send the next changes to the groups; return whether there are more."""
        last_seq = self.buffer.last_seq
        if not self._scopes:
            self.sent_seq = last_seq
            self._admit()
            return False
        tests = sum(scope.open_count for scope in self._scopes.values())
        changes_max = max(1, min(STEP_CHANGES, STEP_TESTS // (1 + tests)))
        step = self.buffer.after(self.sent_seq, last_seq, changes_max, STEP_BYTES)
        if step is None:
            self._lose_groups(last_seq)
            return False
        for group, tails in self._messages_of(step.changes).items():
            self._write(group, tails)
        self.sent_seq = step.end_seq
        self._admit()
        return self.sent_seq < self.buffer.last_seq

    def catch_up(self, subscription: Subscription) -> bool:
        """Send one subscription its next changes; True when it needs no more of this for now."""
        if subscription not in self.subscriptions:
            return True
        if subscription.seq > self.sent_seq:
            self._early[subscription] = None
            return True
        step = self.buffer.after(subscription.seq, self.sent_seq, STEP_CHANGES, STEP_BYTES)
        if step is None:
            self._lose(subscription)
            return True
        try:
            tails = _messages(subscription, step.changes)
        except Exception as problem:
            log.error("live filter failed table=%d", subscription.table_id, exc_info=problem)
            self._fail(subscription, problem)
            return True
        if tails:
            subscription.sink.write(frames(subscription.front, tails))
            self._count_changes(len(tails))
        subscription.seq = step.end_seq
        return self._join(subscription)

    def is_lost(self, subscription: Subscription) -> bool:
        """Return whether changes that a subscription has not seen are gone."""
        return subscription not in self.subscriptions or subscription.seq < self.buffer.floor_seq

    def fail_all(self, problem: TidegateError) -> None:
        """End every subscription with an error."""
        for subscription in list(self.subscriptions):
            self.detach(subscription)
            subscription.sink.failed(subscription, problem)

    def lose_all(self) -> None:
        """Make every subscription take a new snapshot."""
        for subscription in list(self.subscriptions):
            self._lose(subscription)

    def _messages_of(self, changes: list[NumberedChange]) -> dict[FilterGroup, list[bytes]]:
        """Return for each group its messages about some changes, without their fronts."""
        found: dict[FilterGroup, list[bytes]] = {}
        broken: dict[FilterGroup, Exception] = {}
        for seq, user, change in changes:
            scope = self._scopes.get(user)
            if scope is None:
                continue
            for group in scope.concerned(change):
                if group in broken:
                    continue
                try:
                    tail = group.change_filter.apply(seq, change)
                except Exception as problem:
                    log.error("live filter failed seq=%d", seq, exc_info=problem)
                    broken[group] = problem
                    continue
                if tail is not None:
                    found.setdefault(group, []).append(tail)
        for group, failure in broken.items():
            found.pop(group, None)
            for subscription in list(group):
                self._fail(subscription, failure)
        return found

    def _write(self, group: FilterGroup, tails: list[bytes]) -> None:
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
            # It has seen what the groups were sent before this step, and nothing of it.
            subscription.seq = self.sent_seq
            self._leave_group(subscription)
            subscription.sink.fell_behind(subscription)

    def _admit(self) -> None:
        """Move subscriptions that waited for the groups to come this far into them."""
        if not self._early:
            return
        for subscription in [one for one in self._early if one.seq <= self.sent_seq]:
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
        """Make the groups take new snapshots: their next changes are gone from the buffer."""
        for scope in list(self._scopes.values()):
            for subscription in [one for group in scope for one in group]:
                self._lose(subscription)
        self.sent_seq = last_seq
        self._admit()

    def _lose(self, subscription: Subscription) -> None:
        self.detach(subscription)
        subscription.sink.lost(subscription)

    def _fail(self, subscription: Subscription, problem: Exception) -> None:
        """End a subscription whose filter broke its promise to take any row; it must not stop the others."""
        self.detach(subscription)
        reason = f"a live filter failed: {type(problem).__name__}: {problem}"
        subscription.sink.failed(subscription, InvariantBroken(reason=reason))


def _messages(subscription: Subscription, changes: list[NumberedChange]) -> list[bytes]:
    """Return the messages to one subscription about some changes, without their fronts."""
    apply, own = subscription.change_filter.apply, subscription.user
    tails = (apply(seq, change) for seq, user, change in changes if user == own)
    return [tail for tail in tails if tail is not None]
