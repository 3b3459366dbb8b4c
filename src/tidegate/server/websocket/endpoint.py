"""The endpoint of live WebSockets: authentication, the number of connections, and their end.

A client connects with a token in the Authorization header or in a browser's cookie; without either, the token
is its first message. An error before the WebSocket is open is answered in plain HTTP, a later one by a
message of the type `error` and a close code. Belongs to the event loop.
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
from tidegate.model.access import Operation, Principal, check_allowed
from tidegate.server.access.auth import AuthenticatedToken, in_tenant
from tidegate.server.http.request import HttpRequest
from tidegate.server.runtime.runtime import Runtime
from tidegate.server.websocket.messages import Auth, MessageRefused, read_message
from tidegate.server.websocket.protocol import SOCKET, LiveProtocol
from tidegate.server.websocket.session import LiveSession, SessionContext, end_code
from tidegate.telemetry.logs import set_request_context

LIVE_PATH = "/api/v1/live"
# Time in which a client without a token in its headers must send it.
AUTH_SECONDS = 5.0
# Sockets that are not authenticated yet: whoever opens all of them shuts out nobody with a token in a header.
ANONYMOUS_MAX = 256
# Subscriptions that are opened, and pages of snapshots that are read, at the same time; other requests use
# the same threads.
LOADS_MAX = 4
# Interval of the check of all sockets and feeds.
SWEEP_SECONDS = 1.0
RETRY_SECONDS = 1

Identify = Callable[[HttpRequest], Awaitable[AuthenticatedToken | None]]
Refuse = Callable[[HttpRequest, TidegateError], Response]

log = logging.getLogger(__name__)


class LiveEndpoint:
    """All live sockets of a server."""

    def __init__(self, runtime: Runtime, identify: Identify, refuse: Refuse) -> None:
        """`identify` authenticates a request, `refuse` turns an error into an answer: as for plain HTTP."""
        self._runtime = runtime
        self._identify = identify
        self._refuse = refuse
        self._turns = asyncio.Semaphore(LOADS_MAX)
        runtime.tables.hub.when_sent(runtime.metrics.live_changes.inc)
        self._context = SessionContext(
            hub=runtime.tables.hub,
            source=runtime.tables.live,
            settings=runtime.settings.live,
            clock=runtime.clock,
            metrics=runtime.metrics,
            run=self._run,
            notes=runtime.audit_notes,
            count_request=self._count_request,
        )
        self._sessions: set[LiveSession] = set()
        self._by_user: Counter[tuple[str, str]] = Counter()
        self._anonymous = 0
        self._sweeper: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        """Serve one socket, from its handshake to its end."""
        scope["method"] = "WEBSOCKET"  # not GET: with a cookie the Origin header is checked
        request = HttpRequest(scope, receive, self._runtime)
        request.id = request_id
        await receive()
        try:
            socket = _socket_of(scope)
            identity = await self._accept(request)
        except TidegateError as problem:
            await _answer(self._refuse(request, problem), request.id, send)
            return
        accept: dict[str, Any] = {"type": "websocket.accept"}
        accept["headers"] = [(b"x-request-id", request.id.encode("ascii"))]
        await send(accept)
        try:
            if identity is None:
                identity = await self._first_message(request, receive, socket)
            with self._connection_slot(identity):
                await self._serve(request, receive, socket, identity)
        except _Disconnected:
            log.debug("live socket closed before authentication address=%s", request.address)
        except TidegateError as problem:
            self._refuse(request, problem)  # counts and logs it; the answer itself is a message here
            socket.write(wire.error(problem, None))
            socket.end(end_code(problem), str(problem))

    async def _accept(self, request: HttpRequest) -> AuthenticatedToken | None:
        """Return the token of the headers; None if the first message has it."""
        try:
            identity = await self._identify(request)
        except TokenMissing:
            if request.path != LIVE_PATH:
                raise
            identity = None
        if request.path != LIVE_PATH:
            raise EndpointNotFound(path=request.path[:200])
        if self._runtime.stopping:
            raise NotReady(reason="it is stopping")
        if identity is not None:
            self._check_room(identity)
            self._count_request(identity.principal)
        elif self._anonymous >= ANONYMOUS_MAX:
            raise TooManyRequests(
                what="sockets without a token are open already",
                limit=ANONYMOUS_MAX,
                retry_after_seconds=RETRY_SECONDS,
                hint="Send the token in the Authorization header.",
            )
        return identity

    async def _first_message(
        self, request: HttpRequest, receive: Receive, socket: LiveProtocol
    ) -> AuthenticatedToken:
        """Return the token of the first message."""
        self._anonymous += 1
        try:
            async with asyncio.timeout(AUTH_SECONDS):
                first = await receive()
                if first["type"] == "websocket.disconnect":
                    raise _Disconnected
                message = read_message(first.get("text"))
                if not isinstance(message, Auth):
                    raise TokenMissing(hint='The first message is {"type": "auth", "token": …}.')
                token = message.token.encode()
                tokens = self._runtime.tokens
                identity = tokens.cached(token) or await tokens.find(token, request.address)
                identity.check_sent(as_cookie=False)
        except TimeoutError as problem:
            raise TokenMissing(hint=f"The first message is auth, within {AUTH_SECONDS:g} s.") from problem
        except MessageRefused as refused:
            raise refused.problem from refused
        finally:
            self._anonymous -= 1
        tenant = message.tenant or request.header("x-tenant")
        if tenant and tenant != identity.principal.tenant:
            identity = in_tenant(identity, tenant, await self._runtime.tenant_exists(tenant))
            self._runtime.audit_notes.entered(identity.principal, request.place)
        self._check_room(identity)
        self._count_request(identity.principal)
        socket.write(wire.plain("ready"))
        return identity

    def _count_request(self, principal: Principal) -> None:
        """Count a socket or a subscription as a request; raise RateQuotaReached beyond the quota."""
        if self._runtime.quotas.limits_requests:
            self._runtime.quotas.take_request(principal)

    def _check_room(self, identity: AuthenticatedToken) -> None:
        """Raise if the role does not allow live sockets, or if there are too many."""
        principal, limits = identity.principal, self._runtime.settings.live
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
    def _connection_slot(self, identity: AuthenticatedToken) -> Iterator[None]:
        """Count a socket of a user while it is open."""
        self._check_room(identity)  # others connected during the handshake
        key = identity.principal.tenant, identity.principal.user
        self._by_user[key] += 1
        self._runtime.metrics.live_connections.inc()
        try:
            yield
        finally:
            self._runtime.metrics.live_connections.dec()
            self._by_user[key] -= 1
            if not self._by_user[key]:
                del self._by_user[key]

    async def _serve(
        self, request: HttpRequest, receive: Receive, socket: LiveProtocol, identity: AuthenticatedToken
    ) -> None:
        principal = identity.principal
        set_request_context(request.id, principal.tenant, principal.user)
        log.debug("live socket opened address=%s", request.address)
        session = LiveSession(self._context, socket, identity, request.place)
        self._sessions.add(session)
        self._begin_sweeps()
        began, code = self._runtime.clock.monotonic_seconds(), 0
        try:
            code = await session.run(receive)
        finally:
            self._sessions.discard(session)
            seconds = self._runtime.clock.monotonic_seconds() - began
            log.debug(
                "live socket closed address=%s seconds=%.1f close_code=%d", request.address, seconds, code
            )

    async def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run blocking work of a session in a thread, a few at a time."""
        async with self._turns:
            return await self._runtime.threads.read(work, *arguments)

    def _begin_sweeps(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.ensure_future(self._sweep())

    async def _sweep(self) -> None:
        """Check sockets and feeds periodically, while there are any."""
        settings, hub = self._runtime.settings, self._context.hub
        pause = min(SWEEP_SECONDS, settings.auth.refresh_seconds, settings.live.send_seconds_max / 4)
        while self._sessions or len(hub):
            await asyncio.sleep(pause)
            now = self._runtime.clock.monotonic_seconds()
            try:
                for session in list(self._sessions):
                    session.check(now)
                hub.sweep()
            except Exception as problem:
                # Without these checks tokens that ended would stay valid: try again.
                log.error("check of live sockets failed", exc_info=problem)
        self._sweeper = None


def refuse_plain_http(path: str) -> None:
    """Raise RequestInvalid for a plain HTTP request to the path of the live socket."""
    if path == LIVE_PATH:
        raise RequestInvalid(
            reason=f"{LIVE_PATH} is a WebSocket, and this request asks for no upgrade.",
            hint="Open it with a WebSocket client; docs/guide/live.md shows how.",
        )


class _Disconnected(Exception):
    """The client disconnected before it authenticated."""


def _socket_of(scope: Scope) -> LiveProtocol:
    socket = (scope.get("extensions") or {}).get(SOCKET)
    if not isinstance(socket, LiveProtocol):
        raise InvariantBroken(reason="the server below does not provide live sockets")
    return socket


async def _answer(answer: Response, request_id: str, send: Send) -> None:
    """Answer a handshake with plain HTTP."""
    headers = [*answer.raw_headers, (b"x-request-id", request_id.encode("ascii"))]
    start = {"type": "websocket.http.response.start", "status": answer.status_code, "headers": headers}
    await send(start)
    await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
