"""The hub: takes the changes of every table from any thread, gives them to feeds on the event loop.

Nothing is kept for a table that nobody watches, and `watches` lets writers skip making changes for it. A
table is watched from `begin` on, and for `live.history_seconds` after its last subscription went, so that
whoever reconnects soon goes on where it was. Numbers rise over all tables together; each hub begins above
those of the one before it (`first_seq`), so a number from before a restart is never taken for a newer one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from tidegate.errors import TableChanged, TidegateError
from tidegate.live.change_buffer import History
from tidegate.live.subscription import Subscription
from tidegate.live.table_feed import Feed
from tidegate.model.changes import Changes
from tidegate.model.clock import Clock
from tidegate.settings import LiveSettings

# JSON numbers are whole up to here in every language.
SEQ_MAX = 2**53 - 1
# Changes are remembered for this long at least: a snapshot that has begun has its subscriber in a moment.
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
        self._feeds: dict[int, Feed] = {}
        # Since when a table is seen to have no subscriptions.
        self._idle_since: dict[int, float] = {}
        # Tables with changes that the loop has not seen, and whether it is called already.
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
        """Keep the changes of a table from now on; give the number behind which they are kept.

        Called where no write of the table can be half done: a snapshot taken there and the changes behind
        the number are together everything, and nothing twice. TableChanged where the table has other columns
        by now; who follows the columns of before is sent back.
        """
        known = self._feeds.get(table_id)
        if known is not None and known.schema_id != schema_id:
            problem = TableChanged(table=f"number {table_id}")
            if known.schema_id > schema_id:
                raise problem
            self.forget(table_id, problem)
        with self._lock:
            if table_id not in self._feeds:
                # Nobody counted the changes before this: a number from then must not look like the newest.
                self._seq += 1
                limits = self._settings
                history = History(self._seq, limits.history_changes_max, limits.history_bytes_max)
                self._feeds[table_id] = Feed(history, self._count_changes, schema_id)
            self._idle_since.pop(table_id, None)
            return self._seq

    def publish(self, changes: Changes) -> None:
        """Tell what a statement changed, once it is durable; for one table in the order of the commits."""
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
            feed.history.append(changes, first_seq)
            self._woken[changes.table.id] = None
            self._call_loop()

    def forget(self, table_id: int, problem: TidegateError) -> None:
        """Drop what is known of a table that was dropped or altered; called before it can change again.

        TableChanged sends its subscriptions back to a new schema and snapshot; any other error ends them.
        """
        with self._lock:
            feed = self._feeds.pop(table_id, None)
            self._idle_since.pop(table_id, None)
            self._woken.pop(table_id, None)
        if feed is not None and not self._is_closed:
            self._loop.call_soon_threadsafe(_forget, feed, problem)

    def forget_all(self) -> None:
        """Send every subscription back to a new snapshot: the engine may hold what nobody was told of."""
        with self._lock:
            tables = list(self._feeds)
        for table_id in tables:
            self.forget(table_id, TableChanged(table=f"number {table_id}"))

    # From here on: for the loop's thread alone.

    def when_sent(self, count: Callable[[int], None]) -> None:
        """Have a function called with the number of changes that were sent."""
        self._on_sent = count

    def attach(self, subscription: Subscription, seq: int) -> bool:
        """Take a subscription that has seen all up to a number; False when some behind it are not kept."""
        with self._lock:
            feed = self._feeds.get(subscription.table_id)
            if feed is None or feed.schema_id != subscription.schema_id:
                return False
            if not feed.history.floor_seq <= seq <= self._seq:
                return False
        feed.attach(subscription, seq)
        return True

    def detach(self, subscription: Subscription) -> None:
        """Let a subscription go, wherever it is."""
        feed = self._feeds.get(subscription.table_id)
        if feed is not None:
            feed.detach(subscription)

    def catch_up(self, subscription: Subscription) -> bool:
        """Write the next changes to the sink of a subscription that is behind.

        True when there is nothing more to do: it is up to date, or its sink learnt that it lost or failed.
        """
        feed = self._feeds.get(subscription.table_id)
        return True if feed is None else feed.catch_up(subscription)

    def is_lost(self, subscription: Subscription) -> bool:
        """Return whether a subscription that loads needs another snapshot anyway."""
        feed = self._feeds.get(subscription.table_id)
        return feed is None or feed.is_lost(subscription)

    def sweep(self) -> None:
        """Forget the changes of tables that nobody followed for a while; called about once a second."""
        now = self._clock.monotonic_seconds()
        patience = max(self._settings.history_seconds, IDLE_SECONDS_MIN)
        with self._lock:
            for table_id, feed in list(self._feeds.items()):
                if feed.subscriptions:
                    self._idle_since.pop(table_id, None)
                elif now - self._idle_since.setdefault(table_id, now) > patience:
                    del self._feeds[table_id], self._idle_since[table_id]

    def close(self) -> None:
        """Take no more changes."""
        with self._lock:
            self._is_closed = True
            self._feeds.clear()
            self._idle_since.clear()

    def _count_changes(self, count: int) -> None:
        self._on_sent(count)

    def _call_loop(self) -> None:
        """Have the loop send; one call for all that comes until then. Under the lock."""
        if not self._is_called and not self._is_closed:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        """Give every table with new changes one step."""
        with self._lock:
            self._is_called = False
            woken = list(self._woken)
            self._woken.clear()
            feeds = [(table_id, self._feeds.get(table_id)) for table_id in woken]
        more = [table_id for table_id, feed in feeds if feed is not None and _sent(feed)]
        if more:
            with self._lock:
                self._woken.update(dict.fromkeys(more))
                self._call_loop()


def _sent(feed: Feed) -> bool:
    """Return a table's groups one step; say whether there is more."""
    try:
        return feed.send()
    except Exception as problem:
        # A feed that stood still would keep changes back in silence: everyone begins anew instead.
        log.error("a feed failed", exc_info=problem)
        feed.lose_all()
        return False


def _forget(feed: Feed, problem: TidegateError) -> None:
    if isinstance(problem, TableChanged):
        feed.lose_all()
    else:
        feed.fail_all(problem)
