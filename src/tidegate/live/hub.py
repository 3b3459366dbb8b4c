"""The hub of live subscriptions: publishes the changes of every table to their feeds on the event loop.

Nothing is kept for a table that nobody watches, and `watches` lets writers skip making changes for it. A
table is watched from `begin` on, and for `live.history_seconds` after its last subscription went, so that a
client that reconnects soon continues where it was. Numbers rise over all tables together; each hub begins
above those of the one before it (`first_seq`), so a number from before a restart is never taken for a newer
one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from tidegate.errors import TableChanged, TidegateError
from tidegate.live.change_buffer import ChangeBuffer
from tidegate.live.subscription import Subscription
from tidegate.live.table_feed import TableFeed
from tidegate.model.changes import Changes
from tidegate.model.clock import Clock
from tidegate.settings import LiveSettings

# JSON numbers are whole up to here in every language.
SEQ_MAX = 2**53 - 1
# Changes are kept for this long at least: a snapshot that has begun has its subscriber in a moment.
IDLE_SECONDS_MIN = 5.0

log = logging.getLogger(__name__)


def _uncounted(count: int) -> None:
    """Count nothing."""


class LiveHub:
    """All feeds of a server. `watches`, `publish`, `begin` and `forget` may be called from any thread."""

    def __init__(
        self,
        settings: LiveSettings,
        clock: Clock,
        first_seq: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._loop = loop
        self._on_sent: Callable[[int], None] = _uncounted
        self._lock = threading.Lock()
        self._seq = first_seq
        self._feeds: dict[int, TableFeed] = {}
        # When a table was first seen without subscriptions.
        self._idle_since: dict[int, float] = {}
        # Tables with changes that the loop has not sent, and whether it is called already.
        self._woken: dict[int, None] = {}
        self._is_called = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._feeds)

    @property
    def seq(self) -> int:
        """The number of the newest change."""
        return self._seq

    def watches(self, table_id: int) -> bool:
        """Return whether anybody needs the changes of a table; costs a look-up."""
        return table_id in self._feeds

    def begin(self, table_id: int, schema_id: int = 1) -> int:
        """Keep the changes of a table from now on; return the number behind which they are kept.

        Called where no write of the table can be half done: a snapshot taken there and the changes behind
        the number are together everything, and nothing twice. TableChanged where the table has other columns
        by now; subscriptions with the columns of before need a new snapshot.
        """
        known = self._feeds.get(table_id)
        if known is not None and known.schema_id != schema_id:
            problem = TableChanged(table=f"number {table_id}")
            if known.schema_id > schema_id:
                raise problem
            self.forget(table_id, problem)
        with self._lock:
            if table_id not in self._feeds:
                # Changes before this were not counted: a number from then must not look like the newest.
                self._seq += 1
                limits = self._settings
                buffer = ChangeBuffer(self._seq, limits.history_changes_max, limits.history_bytes_max)
                self._feeds[table_id] = TableFeed(buffer, self._count_changes, schema_id)
            self._idle_since.pop(table_id, None)
            return self._seq

    def publish(self, changes: Changes) -> None:
        """Send what a statement changed, once it is durable; for one table in the order of the commits."""
        if not changes.rows:
            return
        feed = self._feeds.get(changes.table.id)
        if feed is not None and feed.schema_id != changes.table.schema_id:
            # An append that was planned before an ALTER: its rows have other columns than the feed's.
            self.forget(changes.table.id, TableChanged(table=changes.table.full_name))
            return
        with self._lock:
            feed = self._feeds.get(changes.table.id)
            if feed is None:
                return
            first_seq = self._seq + 1
            self._seq += len(changes.rows)
            feed.buffer.append(changes, first_seq)
            self._woken[changes.table.id] = None
            self._call_loop()

    def forget(self, table_id: int, problem: TidegateError) -> None:
        """Drop the feed of a table that was dropped or altered; called before it can change again.

        TableChanged makes its subscriptions begin again with a new schema; any other error ends them.
        """
        with self._lock:
            feed = self._feeds.pop(table_id, None)
            self._idle_since.pop(table_id, None)
            self._woken.pop(table_id, None)
        if feed is not None and not self._is_closed:
            self._loop.call_soon_threadsafe(_forget, feed, problem)

    def forget_all(self) -> None:
        """Make every subscription take a new snapshot: there may be changes that were not published."""
        with self._lock:
            tables = list(self._feeds)
        for table_id in tables:
            self.forget(table_id, TableChanged(table=f"number {table_id}"))

    # The methods below are for the loop's thread alone.

    def when_sent(self, count: Callable[[int], None]) -> None:
        """Set the function that is called with the number of changes that were sent."""
        self._on_sent = count

    def attach(self, subscription: Subscription, seq: int) -> bool:
        """Add a subscription that has seen all up to a number; False if some behind it are gone."""
        with self._lock:
            feed = self._feeds.get(subscription.table_id)
            if feed is None or feed.schema_id != subscription.schema_id:
                return False
            if not feed.buffer.floor_seq <= seq <= self._seq:
                return False
        feed.attach(subscription, seq)
        return True

    def detach(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        feed = self._feeds.get(subscription.table_id)
        if feed is not None:
            feed.detach(subscription)

    def catch_up(self, subscription: Subscription) -> bool:
        """Write the next changes to the sink of a subscription that is behind.

        True when there is nothing more to do: it is up to date, or its sink was notified of loss or failure.
        """
        feed = self._feeds.get(subscription.table_id)
        return True if feed is None else feed.catch_up(subscription)

    def is_lost(self, subscription: Subscription) -> bool:
        """Return whether a subscription that loads needs another snapshot."""
        feed = self._feeds.get(subscription.table_id)
        return feed is None or feed.is_lost(subscription)

    def sweep(self) -> None:
        """Drop the feeds of tables that nobody followed for a while; called about once a second."""
        now = self._clock.monotonic_seconds()
        idle_seconds_max = max(self._settings.history_seconds, IDLE_SECONDS_MIN)
        with self._lock:
            for table_id, feed in list(self._feeds.items()):
                if feed.subscriptions:
                    self._idle_since.pop(table_id, None)
                elif now - self._idle_since.setdefault(table_id, now) > idle_seconds_max:
                    del self._feeds[table_id], self._idle_since[table_id]

    def close(self) -> None:
        """Drop all feeds, and take no more changes."""
        with self._lock:
            self._is_closed = True
            self._feeds.clear()
            self._idle_since.clear()

    def _count_changes(self, count: int) -> None:
        self._on_sent(count)

    def _call_loop(self) -> None:
        """Call the loop to send, once for all that comes until then; under the lock."""
        if not self._is_called and not self._is_closed:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        """Send one step of every table with new changes."""
        with self._lock:
            self._is_called = False
            woken = list(self._woken)
            self._woken.clear()
            feeds = [(table_id, self._feeds.get(table_id)) for table_id in woken]
        more = [table_id for table_id, feed in feeds if feed is not None and _send_step(feed)]
        if more:
            with self._lock:
                self._woken.update(dict.fromkeys(more))
                self._call_loop()


def _send_step(feed: TableFeed) -> bool:
    """Send one step of a table; return whether there is more."""
    try:
        return feed.send()
    except Exception as problem:
        # A feed that stopped would hold changes back without notice: everyone takes a new snapshot instead.
        log.error("table feed failed", exc_info=problem)
        feed.lose_all()
        return False


def _forget(feed: TableFeed, problem: TidegateError) -> None:
    if isinstance(problem, TableChanged):
        feed.lose_all()
    else:
        feed.fail_all(problem)
