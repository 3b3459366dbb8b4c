"""The door of live sockets: who may open one, how many there are, and when they end.

A socket is opened with a token in the Authorization header or a browser's cookie; where there is neither, the
first message says who connects. What is wrong before the socket is open is answered as plain HTTP, later by
a message of the type `error` and a close code. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidegate.errors import (
    EndpointNotFound,
    InvariantBroken,
    NotReady,
    RequestInvalid,
    TidegateError,
    TokenMissing,
    TooManyRequests,
)
from tidegate.live import wire
from tidegate.model.access import Operation, check_allowed
from tidegate.server.http.auth import Identity, in_tenant
from tidegate.server.http.request import Call
from tidegate.server.runtime.runtime import Running
from tidegate.server.websocket.messages import Auth, MessageRefused, read_message
from tidegate.server.websocket.protocol import SOCKET, LiveProtocol
from tidegate.server.websocket.session import LiveParts, LiveSession, end_code
from tidegate.telemetry.logs import request_context

LIVE_PATH = "/api/v1/live"
# Time that a socket without a token in its headers gets to send it.
AUTH_SECONDS = 5.0
# Sockets that have not said who they are: a stranger who opens all of them shuts out nobody with a header.
STRANGERS_MAX = 256
# Subscriptions that are opened, and pages of snapshots that are read, at the same time; the threads that do
# it serve other requests, too.
LOADS_MAX = 4
# Time between two looks at all sockets and feeds.
SWEEP_SECONDS = 1.0
RETRY_SECONDS = 1

Identify = Callable[[Call], Awaitable[Identity | None]]
Refuse = Callable[[Call, TidegateError], Response]

log = logging.getLogger(__name__)


class LiveDoor:
    """All live sockets of a server."""

    def __init__(self, running: Running, identify: Identify, refuse: Refuse) -> None:
        """Take the running parts, and how the other door finds out who calls and says no."""
        self._running = running
        self._identify = identify
        self._refuse = refuse
        self._turns = asyncio.Semaphore(LOADS_MAX)
        running.live_hub.when_sent(running.metrics.count_live_changes)
        self._parts = LiveParts(
            hub=running.live_hub,
            source=running.live_source,
            settings=running.settings.live,
            clock=running.clock,
            metrics=running.metrics,
            run=self._run,
        )
        self._sessions: set[LiveSession] = set()
        self._by_user: Counter[tuple[str, str]] = Counter()
        self._strangers = 0
        self._sweeper: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        """Serve one socket, from its handshake to its end."""
        scope["method"] = "WEBSOCKET"  # counts as a call that changes something: a cookie needs its origin
        call = Call(scope, receive, self._running)
        call.request_id = request_id
        await receive()
        try:
            socket = _socket_of(scope)
            identity = await self._let_in(call)
        except TidegateError as problem:
            await _answer(self._refuse(call, problem), call.request_id, send)
            return
        accept: dict[str, Any] = {"type": "websocket.accept"}
        accept["headers"] = [(b"x-request-id", call.request_id.encode("ascii"))]
        await send(accept)
        try:
            if identity is None:
                identity = await self._introduced(call, receive, socket)
            with self._place(identity):
                await self._serve(call, receive, socket, identity)
        except _Left:
            log.debug("a socket from %s was closed before it said who it is", call.address)
        except TidegateError as problem:
            self._refuse(call, problem)  # counts and notes it; the answer itself is a message here
            socket.write(wire.error(problem, None))
            socket.end(end_code(problem), str(problem))

    async def _let_in(self, call: Call) -> Identity | None:
        """Return who connects; None when the first message is to say it."""
        try:
            identity = await self._identify(call)
        except TokenMissing:
            if call.path != LIVE_PATH:
                raise
            identity = None
        if call.path != LIVE_PATH:
            raise EndpointNotFound(path=call.path[:200])
        if self._running.stopping:
            raise NotReady(reason="it is stopping")
        if identity is not None:
            self._check_room(identity)
        elif self._strangers >= STRANGERS_MAX:
            raise TooManyRequests(
                what="sockets without a token are open already",
                limit=STRANGERS_MAX,
                retry_after_seconds=RETRY_SECONDS,
                hint="Send the token in the Authorization header.",
            )
        return identity

    async def _introduced(self, call: Call, receive: Receive, socket: LiveProtocol) -> Identity:
        """Wait for the message that says who connects."""
        self._strangers += 1
        try:
            async with asyncio.timeout(AUTH_SECONDS):
                first = await receive()
                if first["type"] == "websocket.disconnect":
                    raise _Left
                message = read_message(first.get("text"))
                if not isinstance(message, Auth):
                    raise TokenMissing(hint='The first message is {"type": "auth", "token": …}.')
                token = message.token.encode()
                identities = self._running.identities
                identity = identities.known(token) or await identities.find(token, call.address)
        except TimeoutError as problem:
            raise TokenMissing(hint=f"The first message is auth, within {AUTH_SECONDS:g} s.") from problem
        except MessageRefused as refused:
            raise refused.problem from refused
        finally:
            self._strangers -= 1
        tenant = message.tenant or call.header("x-tenant")
        if tenant and tenant != identity.principal.tenant:
            identity = in_tenant(identity, tenant, await self._running.tenant_exists(tenant))
        self._check_room(identity)
        socket.write(wire.plain("ready"))
        return identity

    def _check_room(self, identity: Identity) -> None:
        """Refuse whom the role does not let in, and one socket too many."""
        principal, limits = identity.principal, self._running.settings.live
        check_allowed(principal, Operation.LIVE_OPEN)
        if len(self._sessions) >= limits.connections_max:
            most, setting = limits.connections_max, "live.connections_max"
        elif self._by_user[principal.tenant, principal.user] >= limits.connections_per_user_max:
            most, setting = limits.connections_per_user_max, "live.connections_per_user_max"
        else:
            return
        raise TooManyRequests(
            what="live sockets are open already",
            limit=most,
            setting=setting,
            retry_after_seconds=RETRY_SECONDS,
        )

    @contextlib.contextmanager
    def _place(self, identity: Identity) -> Iterator[None]:
        """Count a socket of someone while it is open."""
        self._check_room(identity)  # others came while the handshake went on
        key = identity.principal.tenant, identity.principal.user
        self._by_user[key] += 1
        self._running.metrics.live_connections(1)
        try:
            yield
        finally:
            self._running.metrics.live_connections(-1)
            self._by_user[key] -= 1
            if not self._by_user[key]:
                del self._by_user[key]

    async def _serve(self, call: Call, receive: Receive, socket: LiveProtocol, identity: Identity) -> None:
        principal = identity.principal
        request_context(call.request_id, principal.tenant, principal.user)
        log.debug("a live socket opens from %s", call.address)
        session = LiveSession(self._parts, socket, identity)
        self._sessions.add(session)
        self._begin_sweeps()
        began, code = self._running.clock.monotonic_seconds(), 0
        try:
            code = await session.run(receive)
        finally:
            self._sessions.discard(session)
            seconds = self._running.clock.monotonic_seconds() - began
            log.debug("a live socket from %s ends after %.1f s, code %d", call.address, seconds, code)

    async def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do blocking work for a session when its turn has come."""
        async with self._turns:
            return await self._running.threads.read(work, *arguments)

    def _begin_sweeps(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.ensure_future(self._sweep())

    async def _sweep(self) -> None:
        """Look after sockets and feeds while there are any."""
        settings, hub = self._running.settings, self._parts.hub
        pause = min(SWEEP_SECONDS, settings.auth.refresh_seconds, settings.live.send_seconds_max / 4)
        while self._sessions or len(hub):
            await asyncio.sleep(pause)
            now = self._running.clock.monotonic_seconds()
            try:
                for session in list(self._sessions):
                    session.check(now)
                hub.sweep()
            except Exception as problem:
                # To look no more would let tokens live on: it is said, and tried again.
                log.error("looking after live sockets failed", exc_info=problem)
        self._sweeper = None


def refuse_plain(path: str) -> None:
    """Raise RequestInvalid for a plain request to the place of the live socket."""
    if path == LIVE_PATH:
        raise RequestInvalid(
            reason=f"{LIVE_PATH} is a WebSocket, and this request asks for no upgrade.",
            hint="Open it with a WebSocket client; docs/guide/live.md shows how.",
        )


class _Left(Exception):
    """The peer went before it said who it is."""


def _socket_of(scope: Scope) -> LiveProtocol:
    socket = (scope.get("extensions") or {}).get(SOCKET)
    if not isinstance(socket, LiveProtocol):
        raise InvariantBroken(reason="the server below does not give live sockets")
    return socket


async def _answer(answer: Response, request_id: str, send: Send) -> None:
    """Answer a handshake with plain HTTP."""
    headers = [*answer.raw_headers, (b"x-request-id", request_id.encode("ascii"))]
    start = {"type": "websocket.http.response.start", "status": answer.status_code, "headers": headers}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
