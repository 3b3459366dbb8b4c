"""A session: what one live socket follows, from its first message to its last.

One task hears the client, another (only while there is something to do) opens subscriptions one after the
other, sends their snapshots, and brings those up to date that fell behind. Everyone else is served by the
feeds directly. Both stop while the client does not take what was sent: nothing gathers here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import Receive

from tidegate.errors import InvariantBroken, RequestInvalid, TableChanged, TidegateError, TooManyRequests
from tidegate.live import wire
from tidegate.live.hub import LiveHub
from tidegate.live.subscription import Subscription
from tidegate.live.wire import RowWriter, Teller
from tidegate.model.access import Operation, check_allowed
from tidegate.model.clock import Clock
from tidegate.server.http.auth import Identity
from tidegate.server.websocket.messages import (
    MessageRefused,
    Ping,
    SnapshotPages,
    Subscribe,
    Unsubscribe,
    read_message,
)
from tidegate.server.websocket.protocol import LiveProtocol
from tidegate.settings import LiveSettings
from tidegate.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from tidegate.query.live import LiveQuery, LiveSource, SnapshotReader

# Someone who lags again and again is given time to take a whole snapshot: twice as much each time.
LAG_PAUSE_SECONDS = 0.05
LAG_PAUSE_SECONDS_MAX = 1.0
# Answers to pings that a full socket may gather between two looks at it; an honest client sends one.
PONGS_BYTES_MAX = 16 * 1024
# Codes of the socket's end. Those of HTTP are 4000 and the status; the others are the protocol's own.
CODE_TRY_LATER = 1013
CODE_REFUSED = 1008
CODE_FAILED = 1011
CODE_SIGN_IN = 4401
_CODES = {401: CODE_SIGN_IN, 403: 4403, 404: 4404, 429: CODE_TRY_LATER, 503: CODE_TRY_LATER}

log = logging.getLogger(__name__)


def end_code(problem: TidegateError) -> int:
    """Return the code with which a socket ends for an error."""
    return _CODES.get(problem.status, CODE_REFUSED)


@dataclass(frozen=True)
class LiveParts:
    """What every session uses; `run` does blocking work elsewhere, a few at a time."""

    hub: LiveHub
    source: LiveSource
    settings: LiveSettings
    clock: Clock
    metrics: Metrics
    run: Callable[..., Awaitable[Any]]


@dataclass(eq=False, slots=True)
class _Watch:
    """One subscription of the client, through all its snapshots."""

    asked: Subscribe
    from_seq: int | None
    live: Subscription | None = None
    columns: list[tuple[str, str]] = field(default_factory=list)
    # How often in a row it had to begin again.
    lags: int = 0


class LiveSession:
    """Belongs to the event loop; is the sink of its subscriptions."""

    def __init__(self, parts: LiveParts, socket: LiveProtocol, identity: Identity) -> None:
        self._parts = parts
        self._socket = socket
        self._identity = identity
        self._roles = identity.principal.roles
        self._watches: dict[str, _Watch] = {}
        self._loads: deque[_Watch] = deque()
        self._behind: dict[Subscription, None] = {}
        self._worker: asyncio.Task[None] | None = None
        self._moved_seconds = parts.clock.monotonic_seconds()
        self._waiting_bytes = 0
        self._had_room = True
        self.write = socket.write
        socket.when_room(self._learn_room)

    async def run(self, receive: Receive) -> int:
        """Serve the client until either side ends the socket; give the code of the end."""
        try:
            while True:
                # Whoever does not take what was sent is not heard either.
                await self._socket.writable.wait()
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    return int(message.get("code") or 1005)
                self._hear(message.get("text"))
        finally:
            await self._leave()

    def check(self, now_seconds: float) -> None:
        """End the socket of a client whose token ended or who takes nothing; called about once a second."""
        try:
            self._identity.check(self._parts.clock)
            principal = self._identity.principal
            check_allowed(principal, Operation.LIVE_OPEN)
        except TidegateError as problem:
            self.refuse(problem)
            return
        if principal.roles != self._roles:
            self._socket.end(CODE_SIGN_IN, "the roles of this user changed: connect again")
            return
        self._check_pace(now_seconds)

    def _check_pace(self, now_seconds: float) -> None:
        waiting_bytes, was_waiting_bytes = self._socket.waiting_bytes, self._waiting_bytes
        # It took something when it had room at any moment since the last look, that moment included.
        has_moved = self._had_room or not self._socket.is_full
        self._waiting_bytes, self._had_room = waiting_bytes, not self._socket.is_full
        if has_moved or waiting_bytes < was_waiting_bytes:
            self._moved_seconds = now_seconds
        if self._socket.is_ended:
            return
        patience = self._parts.settings.send_seconds_max
        if now_seconds - self._moved_seconds > patience:
            self._parts.metrics.count_live_slow_closed()
            log.debug("a live socket took nothing for %g s", patience)
            self._socket.end(CODE_TRY_LATER, f"nothing was taken for {patience:g} s")
        elif not has_moved and waiting_bytes > was_waiting_bytes + PONGS_BYTES_MAX:
            # A full socket is written to no more, but the protocol below answers pings by itself.
            log.debug("a live socket sends pings and takes no answers")
            self._socket.end(CODE_REFUSED, "pings come faster than their answers are taken")

    def refuse(self, problem: TidegateError) -> None:
        """Say why, and end the socket."""
        self.write(wire.error(problem, None))
        self._socket.end(end_code(problem), str(problem))

    # What the feeds call.

    @property
    def is_full(self) -> bool:
        """Whether the client has not taken enough of what was sent."""
        return not self._socket.writable.is_set()

    def fell_behind(self, subscription: Subscription) -> None:
        """Bring a subscription up to date when the client takes more."""
        if self._watch_of(subscription) is not None:
            self._behind[subscription] = None
            self._begin_work()

    def lost(self, subscription: Subscription) -> None:
        """Begin a subscription again: changes it has not seen are gone."""
        watch = self._watch_of(subscription)
        if watch is not None:
            self._begin_again(watch)

    def failed(self, subscription: Subscription, problem: TidegateError) -> None:
        """Tell the client that a subscription ended."""
        watch = self._watch_of(subscription)
        if watch is not None:
            self._drop(watch, problem)

    def _watch_of(self, subscription: Subscription) -> _Watch | None:
        """Return what a subscription belongs to, unless the client or a newer snapshot was quicker."""
        watch = self._watches.get(subscription.id)
        return watch if watch is not None and watch.live is subscription else None

    # What the client asks.

    def _hear(self, text: str | None) -> None:
        try:
            message = read_message(text)
        except MessageRefused as refused:
            # An error with an id says that this subscription is not there: one that goes on is not meant.
            meant = None if refused.id in self._watches else refused.id
            self.write(wire.error(refused.problem, meant))
            return
        if isinstance(message, Subscribe):
            self._subscribe(message)
        elif isinstance(message, Unsubscribe):
            self._unsubscribe(message.id)
        elif isinstance(message, Ping):
            self.write(wire.plain("pong"))
        else:
            problem = RequestInvalid(reason="This socket is signed in already.", hint="Open another one.")
            self.write(wire.error(problem, None))

    def _subscribe(self, message: Subscribe) -> None:
        most = self._parts.settings.subscriptions_per_connection_max
        if message.id in self._watches:
            hint = "Choose another id, or unsubscribe first; the subscription that has it goes on."
            in_use = RequestInvalid(reason=f"The id '{message.id}' is in use.", hint=hint)
            self.write(wire.error(in_use, None))
            return
        if len(self._watches) >= most:
            too_many = TooManyRequests(
                what="subscriptions of one socket",
                limit=most,
                setting="live.subscriptions_per_connection_max",
                hint="Open another socket, or raise live.subscriptions_per_connection_max.",
            )
            self.write(wire.error(too_many, message.id))
            return
        watch = self._watches[message.id] = _Watch(message, message.from_seq)
        self._parts.metrics.live_subscriptions(1)
        self._loads.append(watch)
        self._begin_work()

    def _unsubscribe(self, subscription_id: str) -> None:
        watch = self._watches.get(subscription_id)
        if watch is None:
            hint = "It ended before, or there never was one."
            problem = RequestInvalid(reason=f"There is no subscription '{subscription_id[:64]}'.", hint=hint)
            self.write(wire.error(problem, subscription_id[:64]))
            return
        self._end(watch)
        self.write(wire.unsubscribed(subscription_id))

    def _drop(self, watch: _Watch, problem: TidegateError) -> None:
        if self._holds(watch):
            self._end(watch)
            self.write(wire.error(problem, watch.asked.id))

    def _end(self, watch: _Watch) -> None:
        del self._watches[watch.asked.id]
        self._parts.metrics.live_subscriptions(-1)
        self._let_go(watch)

    def _let_go(self, watch: _Watch) -> None:
        if watch.live is not None:
            self._behind.pop(watch.live, None)
            self._parts.hub.detach(watch.live)
            watch.live = None

    def _holds(self, watch: _Watch) -> bool:
        return self._watches.get(watch.asked.id) is watch

    async def _leave(self) -> None:
        for watch in list(self._watches.values()):
            self._end(watch)
        self._loads.clear()
        if self._worker is not None:
            # It ends by itself, with what it holds open; it is not broken off in the middle of that.
            await asyncio.wait([self._worker])

    # What is done for the client.

    def _learn_room(self) -> None:
        self._had_room = True
        self._begin_work()

    def _begin_work(self) -> None:
        if self._worker is None and (self._behind or self._loads):
            self._worker = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        try:
            while await self._bring_up_to_date() and self._loads:
                await self._load(self._loads.popleft())
        except Exception as problem:
            log.error("a live socket failed", exc_info=problem)
            self._socket.end(CODE_FAILED, "the server failed: its log says more")
        finally:
            self._worker = None

    async def _bring_up_to_date(self) -> bool:
        """Return everyone who is behind the changes they miss, as fast as they are taken.

        False at the end.
        """
        while True:
            await self._socket.writable.wait()
            if self._socket.is_ended:
                return False
            if not self._behind:
                return True
            subscription = next(iter(self._behind))
            if self._parts.hub.catch_up(subscription):
                self._behind.pop(subscription, None)
            # Others have their turn between two steps.
            await asyncio.sleep(0)

    async def _load(self, watch: _Watch) -> None:
        """Open a subscription, or begin it again."""
        try:
            if watch.lags > 1:
                await asyncio.sleep(min(LAG_PAUSE_SECONDS * 2**watch.lags, LAG_PAUSE_SECONDS_MAX))
            if self._holds(watch):
                await self._open(watch)
        except TableChanged:
            self._begin_again(watch)
        except TidegateError as problem:
            self._drop(watch, problem)
        except Exception as problem:
            log.error("a subscription failed", exc_info=problem)
            self._drop(watch, InvariantBroken(reason=f"{type(problem).__name__}: {problem}"))

    def _begin_again(self, watch: _Watch) -> None:
        self._let_go(watch)
        watch.lags += 1
        self._loads.append(watch)
        self._begin_work()

    async def _open(self, watch: _Watch) -> None:
        # 1. may they, and what does it ask for
        asked, principal = watch.asked, self._identity.principal
        query = await self._parts.run(self._parts.source.open, principal, asked.sql, asked.params)
        if not self._holds(watch):
            return
        self._tell_schema(watch, query)
        # 2. from where they were, if that is still known
        table = query.table
        live = Subscription(asked.id, self, table.id, query.user, Teller(query.select), table.schema_id)
        from_seq, watch.from_seq = watch.from_seq, None
        if from_seq is not None:
            if self._parts.hub.attach(live, from_seq):
                watch.live = live
                self._behind[live] = None
                return
            watch.lags += 1
        # 3. else from a snapshot
        if watch.lags:
            self._parts.metrics.count_live_lagged()
            self.write(wire.lagged(asked.id))
        reader = await self._parts.run(query.snapshot, self._parts.settings.page_rows_max)
        try:
            await self._send_snapshot(watch, live, reader)
        finally:
            await self._parts.run(reader.close)

    def _tell_schema(self, watch: _Watch, query: LiveQuery) -> None:
        """Say what the rows are made of, where that is new."""
        columns = [(name, str(kind)) for name, kind in query.select.columns]
        if columns != watch.columns:
            watch.columns = columns
            self.write(wire.schema(watch.asked.id, query.select.columns))

    async def _send_snapshot(self, watch: _Watch, live: Subscription, reader: SnapshotReader) -> None:
        hub = self._parts.hub
        if not self._holds(watch):
            return
        if not hub.attach(live, reader.seq):
            # The table was dropped or altered since, or very much happened to it.
            self._begin_again(watch)
            return
        watch.live = live
        pages = SnapshotPages(live.id, RowWriter(live.teller.select.columns), reader)
        while not pages.is_done:
            for message in await self._parts.run(pages.next_messages):
                if not await self._bring_up_to_date() or watch.live is not live:
                    return
                if hub.is_lost(live):
                    self._begin_again(watch)
                    return
                self.write(message)
        watch.lags = 0
        self._behind[live] = None
