"""The subscriptions of one live socket, from its first message to its last.

One task reads the client's messages. Another, only while there is work, opens subscriptions one after the
other, sends their snapshots, and lets those catch up that fell behind. The feeds write to all other
subscriptions directly. Both tasks stop while the client does not read: nothing is buffered here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import Receive

from tidegate.errors import (
    InvariantBroken,
    RateQuotaReached,
    RequestInvalid,
    TableChanged,
    TidegateError,
    TooManyRequests,
)
from tidegate.live import wire
from tidegate.live.change_filter import ChangeFilter
from tidegate.live.hub import LiveHub
from tidegate.live.subscription import Subscription
from tidegate.live.wire import RowEncoder
from tidegate.model.access import Operation, Principal, check_allowed
from tidegate.model.clock import Clock
from tidegate.server.access.audit_notes import AuditNotes, RequestPlace
from tidegate.server.access.auth import AuthenticatedToken
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

# A client that lags repeatedly gets time to read a whole snapshot: twice as much each time.
LAG_PAUSE_SECONDS = 0.05
LAG_PAUSE_SECONDS_MAX = 1.0
# Pongs that a full socket may accumulate between two checks; a well-behaved client causes one.
PONGS_BYTES_MAX = 16 * 1024
# Close codes. Those of HTTP errors are 4000 and the status; the others are the protocol's own.
CODE_TRY_LATER = 1013
CODE_REFUSED = 1008
CODE_FAILED = 1011
CODE_SIGN_IN = 4401
_CODES = {401: CODE_SIGN_IN, 403: 4403, 404: 4404, 429: CODE_TRY_LATER, 503: CODE_TRY_LATER}

log = logging.getLogger(__name__)


def end_code(problem: TidegateError) -> int:
    """Return the close code for an error."""
    return _CODES.get(problem.status, CODE_REFUSED)


@dataclass(frozen=True)
class SessionContext:
    """What every session uses.

    `run` runs blocking work in a thread, a few at a time; `count_request` raises where a quota is used up.
    """

    hub: LiveHub
    source: LiveSource
    settings: LiveSettings
    clock: Clock
    metrics: Metrics
    run: Callable[..., Awaitable[Any]]
    notes: AuditNotes
    count_request: Callable[[Principal], None]


@dataclass(eq=False, slots=True)
class _ClientSubscription:
    """One subscription of the client, through all its snapshots."""

    message: Subscribe
    from_seq: int | None
    live: Subscription | None = None
    columns: list[tuple[str, str]] = field(default_factory=list)
    # How many times in a row it had to start again.
    lags: int = 0


class LiveSession:
    """Belongs to the event loop; is the sink of its subscriptions."""

    def __init__(
        self,
        context: SessionContext,
        socket: LiveProtocol,
        identity: AuthenticatedToken,
        place: RequestPlace,
    ) -> None:
        self._context = context
        self._place = place
        self._socket = socket
        self._identity = identity
        self._roles = identity.principal.roles
        self._watches: dict[str, _ClientSubscription] = {}
        self._has_subscribed = False
        self._loads: deque[_ClientSubscription] = deque()
        self._behind: dict[Subscription, None] = {}
        self._worker: asyncio.Task[None] | None = None
        self._moved_seconds = context.clock.monotonic_seconds()
        self._waiting_bytes = 0
        self._had_room = True
        self.write = socket.write
        socket.when_room(self._learn_room)

    async def run(self, receive: Receive) -> int:
        """Serve the client until either side closes the socket; return the close code."""
        try:
            while True:
                # A client that does not read what was sent is not read from either.
                await self._socket.writable.wait()
                message = await receive()
                if message["type"] == "websocket.disconnect":
                    return int(message.get("code") or 1005)
                self._read(message.get("text"))
        finally:
            await self._leave()

    def check(self, now_seconds: float) -> None:
        """Close the socket if the token ended or the client does not read; called about once a second."""
        try:
            self._identity.check(self._context.clock)
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
        # It has read something if there was room at any moment since the last check, that moment included.
        has_moved = self._had_room or not self._socket.is_full
        self._waiting_bytes, self._had_room = waiting_bytes, not self._socket.is_full
        if has_moved or waiting_bytes < was_waiting_bytes:
            self._moved_seconds = now_seconds
        if self._socket.is_ended:
            return
        seconds_max = self._context.settings.send_seconds_max
        if now_seconds - self._moved_seconds > seconds_max:
            self._context.metrics.live_slow_closed.inc()
            log.debug("live socket closed: client does not read seconds=%g", seconds_max)
            self._socket.end(CODE_TRY_LATER, f"nothing was taken for {seconds_max:g} s")
        elif not has_moved and waiting_bytes > was_waiting_bytes + PONGS_BYTES_MAX:
            # Nothing more is written to a full socket, but the protocol below answers pings by itself.
            log.debug("live socket closed: client sends pings and does not read pongs")
            self._socket.end(CODE_REFUSED, "pings come faster than their answers are taken")

    def refuse(self, problem: TidegateError) -> None:
        """Write the error, and close the socket."""
        self.write(wire.error(problem, None))
        self._socket.end(end_code(problem), str(problem))

    # The interface for the feeds.

    @property
    def is_full(self) -> bool:
        """True if the client has not read enough of what was sent."""
        return not self._socket.writable.is_set()

    def fell_behind(self, subscription: Subscription) -> None:
        """Let a subscription catch up when the client reads again."""
        if self._watch_of(subscription) is not None:
            self._behind[subscription] = None
            self._begin_work()

    def lost(self, subscription: Subscription) -> None:
        """Start a subscription again: changes it has not received are gone."""
        watch = self._watch_of(subscription)
        if watch is not None:
            self._restart(watch)

    def failed(self, subscription: Subscription, problem: TidegateError) -> None:
        """End a subscription with an error message."""
        watch = self._watch_of(subscription)
        if watch is not None:
            self._drop(watch, problem)

    def _watch_of(self, subscription: Subscription) -> _ClientSubscription | None:
        """Return what a subscription belongs to, unless the client or a newer snapshot was quicker."""
        watch = self._watches.get(subscription.id)
        return watch if watch is not None and watch.live is subscription else None

    # Messages of the client.

    def _read(self, text: str | None) -> None:
        try:
            message = read_message(text)
        except MessageRefused as refused:
            # An error with an id means that this subscription ended: not for one that is still there.
            subscription_id = None if refused.id in self._watches else refused.id
            self.write(wire.error(refused.problem, subscription_id))
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
        most = self._context.settings.subscriptions_per_connection_max
        if message.id in self._watches:
            hint = "Choose another id, or unsubscribe first; the subscription that has it continues."
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
        try:
            # The first is counted with the socket: at one request a second nobody could ever subscribe else.
            if self._has_subscribed:
                self._context.count_request(self._identity.principal)
        except RateQuotaReached as problem:
            self.write(wire.error(problem, message.id))
            return
        self._has_subscribed = True
        watch = self._watches[message.id] = _ClientSubscription(message, message.from_seq)
        self._context.metrics.live_subscriptions.inc()
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

    def _drop(self, watch: _ClientSubscription, problem: TidegateError) -> None:
        if self._holds(watch):
            self._end(watch)
            self.write(wire.error(problem, watch.message.id))

    def _end(self, watch: _ClientSubscription) -> None:
        del self._watches[watch.message.id]
        self._context.metrics.live_subscriptions.dec()
        self._detach(watch)

    def _detach(self, watch: _ClientSubscription) -> None:
        if watch.live is not None:
            self._behind.pop(watch.live, None)
            self._context.hub.detach(watch.live)
            watch.live = None

    def _holds(self, watch: _ClientSubscription) -> bool:
        return self._watches.get(watch.message.id) is watch

    async def _leave(self) -> None:
        for watch in list(self._watches.values()):
            self._end(watch)
        self._loads.clear()
        if self._worker is not None:
            # It ends by itself and closes what it has open; it is not cancelled in between.
            await asyncio.wait([self._worker])

    # The second task.

    def _learn_room(self) -> None:
        self._had_room = True
        self._begin_work()

    def _begin_work(self) -> None:
        if self._worker is None and (self._behind or self._loads):
            self._worker = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        try:
            while await self._catch_up() and self._loads:
                await self._load(self._loads.popleft())
        except Exception as problem:
            log.error("live socket failed", exc_info=problem)
            self._socket.end(CODE_FAILED, "the server failed: its log says more")
        finally:
            self._worker = None

    async def _catch_up(self) -> bool:
        """Send subscriptions that are behind what they missed, as fast as the client reads.

        False once the socket is closed.
        """
        while True:
            await self._socket.writable.wait()
            if self._socket.is_ended:
                return False
            if not self._behind:
                return True
            subscription = next(iter(self._behind))
            if self._context.hub.catch_up(subscription):
                self._behind.pop(subscription, None)
            # Other tasks run between two steps.
            await asyncio.sleep(0)

    async def _load(self, watch: _ClientSubscription) -> None:
        """Open a subscription, or start it again."""
        try:
            if watch.lags > 1:
                await asyncio.sleep(min(LAG_PAUSE_SECONDS * 2**watch.lags, LAG_PAUSE_SECONDS_MAX))
            if self._holds(watch):
                await self._open(watch)
        except TableChanged:
            self._restart(watch)
        except TidegateError as problem:
            self._context.notes.refused(problem, self._identity.principal, self._place)
            self._drop(watch, problem)
        except Exception as problem:
            log.error("subscription failed", exc_info=problem)
            self._drop(watch, InvariantBroken(reason=f"{type(problem).__name__}: {problem}"))

    def _restart(self, watch: _ClientSubscription) -> None:
        self._detach(watch)
        watch.lags += 1
        self._loads.append(watch)
        self._begin_work()

    async def _open(self, watch: _ClientSubscription) -> None:
        # 1. permission, and the query
        message, principal = watch.message, self._identity.principal
        query = await self._context.run(self._context.source.open, principal, message.sql, message.params)
        if query.acting_as is not None:
            self._context.notes.executed_as(principal, query.acting_as, "live", self._place)
        if not self._holds(watch):
            return
        self._send_schema(watch, query)
        # 2. from the last change that the client has, if the ones after it are still there
        table = query.table
        live = Subscription(
            message.id, self, table.id, query.user, ChangeFilter(query.select), table.schema_id
        )
        from_seq, watch.from_seq = watch.from_seq, None
        if from_seq is not None:
            if self._context.hub.attach(live, from_seq):
                watch.live = live
                self._behind[live] = None
                return
            watch.lags += 1
        # 3. else from a snapshot
        if watch.lags:
            self._context.metrics.live_lagged.inc()
            self.write(wire.lagged(message.id))
        reader = await self._context.run(query.snapshot, self._context.settings.page_rows_max)
        try:
            await self._send_snapshot(watch, live, reader)
        finally:
            await self._context.run(reader.close)

    def _send_schema(self, watch: _ClientSubscription, query: LiveQuery) -> None:
        """Send the columns of the rows, if they changed."""
        columns = [(name, str(kind)) for name, kind in query.select.columns]
        if columns != watch.columns:
            watch.columns = columns
            self.write(wire.schema(watch.message.id, query.select.columns))

    async def _send_snapshot(
        self, watch: _ClientSubscription, live: Subscription, reader: SnapshotReader
    ) -> None:
        hub = self._context.hub
        if not self._holds(watch):
            return
        if not hub.attach(live, reader.seq):
            # The table was dropped or altered since, or had very many changes.
            self._restart(watch)
            return
        watch.live = live
        pages = SnapshotPages(live.id, RowEncoder(live.change_filter.select.columns), reader)
        while not pages.is_done:
            for message in await self._context.run(pages.next_messages):
                if not await self._catch_up() or watch.live is not live:
                    return
                if hub.is_lost(live):
                    self._restart(watch)
                    return
                self.write(message)
        watch.lags = 0
        self._behind[live] = None
