"""The door: lets a call in or refuses it, counts it, and turns every error into one shape.

Order of the steps, each cheaper than the next: request id, who calls, which endpoint, may they, is there
room, then the endpoint. Nothing of a body is read before all of that, and a call takes room only once it is
let in: nobody without a token shuts others out. One ASGI callable does it, without a framework's layers: a
single small publish costs more in those than in the write itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
import secrets
from collections.abc import MutableMapping
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any, Literal
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.errors import (
    CatalogUnavailable,
    Forbidden,
    InvariantBroken,
    MethodNotAllowed,
    NotReady,
    OriginRefused,
    RequestInvalid,
    RequestRefused,
    StorageCorrupt,
    TidegateError,
    TokenMissing,
    TokenWrong,
    TooManyGuesses,
    TooManyRequests,
)
from tidegate.model.access import check_allowed
from tidegate.server.api.routes import ROUTES, Route
from tidegate.server.http.auth import Identity, in_tenant
from tidegate.server.http.protocol import CutShort
from tidegate.server.http.request import SESSION_COOKIE, Call
from tidegate.server.http.responses import json_answer
from tidegate.server.http.router import Router
from tidegate.server.pages.pages import refusal_page, wants_page
from tidegate.server.runtime.runtime import Running
from tidegate.server.websocket.endpoint import LiveDoor, refuse_plain
from tidegate.telemetry.logs import request_context
from tidegate.telemetry.metrics import Refusal
from tidegate.telemetry.tracing import is_tracing, span

METRICS_PATH = "/metrics"
# What a busy or starting server asks callers to wait.
RETRY_SECONDS = 1
# How long a call stands in line while too many work: longer than a thousand polls need to begin to wait.
LINE_SECONDS = 1.0
# Calls without a token that run at once, on endpoints that take work from everyone: a browser that signs in
# makes one, and a stranger who holds all of them shuts out nobody who is signed in.
STRANGERS_MAX = 32
LOOPBACK_NAMES = frozenset({"127.0.0.1", "::1", "localhost"})
# What proxies add: a call that carries one does not come from this machine, whatever its address.
_PROXY_HEADERS = (b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"forwarded", b"via")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_NO_ROUTE = "(none)"
# Ids need not be secret, only different: asking the system for random bytes each time costs a request dearly.
_ID_START = secrets.token_hex(6)
_id_numbers = itertools.count(1)
_REFUSED_AS: dict[type[TidegateError], Refusal] = {
    TokenMissing: "token",
    TokenWrong: "token",
    Forbidden: "forbidden",
    TooManyRequests: "busy",
    TooManyGuesses: "guesses",
}

log = logging.getLogger(__name__)


def build_app(running: Running) -> ASGIApp:
    """Return the application for the running parts."""
    return Door(running)


class _Visit(Call):
    """A call, and among whom it is counted while it runs."""

    __slots__ = ("room",)

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, running: Running) -> None:
        super().__init__(scope, receive, running)
        self.room: Literal["running", "strangers"] | None = None


class Door:
    """The ASGI application."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._router = Router(ROUTES)
        self._open = frozenset(route.path for route in ROUTES if route.operation is None)
        self._keyed = [f"{route.method} {route.path}" for route in ROUTES if route.keyed]
        self._strangers = 0
        self._live = LiveDoor(running, self._identity, self._refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            request_context(request_id := _request_id(scope))
            await self._live(scope, receive, send, request_id)
            return
        running = self._running
        began = running.clock.monotonic_seconds()
        call = _Visit(scope, receive, running)
        call.request_id = _request_id(scope)
        request_context(call.request_id)  # for the rest of this task, so that every line has the id
        status, sent_bytes = 499, 0  # nobody is there to be answered
        try:
            answer = await self._answer(call)
            answer.raw_headers.append((b"x-request-id", call.request_id.encode("ascii")))
            status = answer.status_code
            sent_bytes = len(getattr(answer, "body", b""))
            await answer(scope, receive, send)
        except TidegateError as problem:
            # The answer had begun, so that there is no status left to say it with: the connection is cut.
            log.warning("%s %s was cut short: %s: %s", call.method, call.path, problem.code, problem)
            raise CutShort from problem
        except asyncio.CancelledError as problem:
            if not running.stopping:
                raise
            log.warning("%s %s was cut short: the server is stopping", call.method, call.path)
            raise CutShort from problem
        finally:
            if call.room is not None:
                self._leave_room(call)
            seconds = running.clock.monotonic_seconds() - began
            self._note(call, status, seconds, sent_bytes)

    async def _answer(self, call: _Visit) -> Response:
        """Return the answer of the endpoint, or the one for what went wrong."""
        try:
            return await self._let_in(call)
        except TidegateError as problem:
            return self._refuse(call, problem)
        except ClientDisconnect:
            log.info("%s %s: the caller left", call.method, call.path)
            return Response(status_code=499)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._running.stopping or task is None:
                raise
            # The grace of a stop is over: the caller is told, which takes no time.
            task.uncancel()
            return self._refuse(call, NotReady(reason="it is stopping, and this was not finished in time"))
        except Exception as problem:
            log.error("%s %s failed", call.method, call.path, exc_info=problem)
            return self._refuse(call, InvariantBroken(reason=f"{type(problem).__name__}: {problem}"))

    async def _let_in(self, call: _Visit) -> Response:
        # 1. who calls: an unknown path tells nothing to someone without a token
        if call.path not in self._open:
            call.identity = await self._identity(call)
        # 2. which endpoint
        refuse_plain(call.path)
        route, call.params = self._router.find(call.method, call.path, call.scope.get("raw_path") or b"")
        call.route = route
        # 3. may they
        if route.operation is not None and call.identity is not None:
            check_allowed(call.identity.principal, route.operation)
        if route.refuses_keys and call.raw_header(b"idempotency-key") is not None:
            raise RequestInvalid(
                reason=f"{route.method} {route.path} takes no Idempotency-Key: a repeat would be done again.",
                hint=f"Leave it out. These take one: {', '.join(self._keyed)}.",
            )
        # 4. is there room
        await self._take_room(route, call)
        # 5. the endpoint
        return await self._run(route, call)

    async def _take_room(self, route: Route, call: _Visit) -> None:
        if call.identity is not None:
            load, most = self._running.load, self._running.settings.server.requests_max
            full = load.running >= most and not route.exempt
            if full and not await load.has_room(most, LINE_SECONDS):
                raise TooManyRequests(
                    what="requests run already",
                    limit=most,
                    setting="server.requests_max",
                    retry_after_seconds=RETRY_SECONDS,
                )
            load.begin()
            call.room = "running"
        elif not route.exempt:
            if self._strangers >= STRANGERS_MAX:
                raise TooManyRequests(
                    what="requests without a token run already",
                    limit=STRANGERS_MAX,
                    retry_after_seconds=RETRY_SECONDS,
                    hint=f"Try again in {RETRY_SECONDS} s.",
                )
            self._strangers += 1
            call.room = "strangers"

    def _leave_room(self, call: _Visit) -> None:
        if call.room == "running":
            self._running.load.end()
        else:
            self._strangers -= 1

    async def _run(self, route: Route, call: Call) -> Response:
        tenant = ""
        if call.identity is not None:
            tenant = call.identity.principal.tenant
            request_context(call.request_id, tenant, call.identity.principal.user)
        if not is_tracing():
            return await route.endpoint(call)
        name, parent = f"{route.method} {route.path}", call.header("traceparent")
        with span(name, parent, tenant=tenant, method=route.method, route=route.path) as current:
            answer = await route.endpoint(call)
            current.set(status=answer.status_code)
            return answer

    async def _identity(self, call: Call) -> Identity | None:
        text, from_cookie = _token_of(call)
        if text is None:
            if call.path == METRICS_PATH and _is_local(call):
                return None
            raise TokenMissing
        identities = self._running.identities
        identity = identities.known(text) or await identities.find(text, call.address)
        if from_cookie and call.method not in ("GET", "HEAD"):
            _check_origin(call)
        tenant = call.header("x-tenant")
        if not tenant or tenant == identity.principal.tenant:
            return identity
        return in_tenant(identity, tenant, await self._running.tenant_exists(tenant))

    def _refuse(self, call: Call, problem: TidegateError) -> Response:
        if not isinstance(problem, RequestRefused):
            log.warning("%s %s: %s: %s", call.method, call.path, problem.code, problem)
        if isinstance(problem, StorageCorrupt):
            self._running.metrics.count_corrupt_frame()
        reason = next((word for kind, word in _REFUSED_AS.items() if isinstance(problem, kind)), None)
        if reason is not None:
            self._running.metrics.count_refusal(reason)
        if problem.status == 401 and wants_page(call):
            return refusal_page(problem)
        return error_answer(problem)

    def _note(self, call: Call, status: int, seconds: float, sent_bytes: int) -> None:
        template = call.route.path if call.route is not None else _NO_ROUTE
        method = call.method if call.route is not None else "OTHER"
        self._running.metrics.observe_request(
            template, method, status, seconds, call.received_bytes, sent_bytes
        )
        if seconds * 1000 > self._running.settings.log.slow_request_ms and not call.waited:
            log.warning("slow request %s %s %d %.0f ms", call.method, call.path, status, seconds * 1000)
        elif log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s %d %.3f ms", call.method, call.path, status, seconds * 1000)


def error_answer(error: TidegateError) -> Response:
    """Return the answer for an error."""
    answer = json_answer(error.to_wire(), error.status)
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, MethodNotAllowed):
        answer.headers["Allow"] = str(error.values["allowed"])
    if "retry_after_seconds" in error.values:
        answer.headers["Retry-After"] = str(math.ceil(error.values["retry_after_seconds"]))
    elif isinstance(error, (NotReady, CatalogUnavailable)):
        answer.headers["Retry-After"] = str(RETRY_SECONDS)
    return answer


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return str(value.decode("ascii"))
    return f"{_ID_START}{next(_id_numbers):08x}"


def _token_of(call: Call) -> tuple[bytes | None, bool]:
    """Return the token of a call, and whether a browser's cookie brought it."""
    given = [value for name, value in call.scope["headers"] if name == b"authorization"]
    if len(given) > 1:
        # A proxy may have looked at the other one.
        raise TokenWrong(hint="Send one Authorization header, not several.")
    if given:
        scheme, _, text = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            raise TokenWrong(hint="Send 'Authorization: Bearer <token>'.")
        return text.strip(), False
    cookies = call.header("cookie")
    if SESSION_COOKIE in cookies:
        try:
            found = SimpleCookie(cookies).get(SESSION_COOKIE)
        except CookieError as problem:
            raise TokenWrong from problem
        if found is not None:
            return found.value.encode("latin-1"), True
    return None, False


def _check_origin(call: Call) -> None:
    """Refuse what a page of another site sends with this browser's cookie."""
    origin = call.header("origin")
    if origin.partition("://")[2] != call.header("host") or not origin:
        raise OriginRefused(origin=origin[:80] or "an unknown place")


def _is_local(call: Call) -> bool:
    """Return whether a call comes from this machine itself, and not through a proxy or a browser on it."""
    if any(call.raw_header(name) is not None for name in _PROXY_HEADERS):
        return False
    try:
        # A proxy that adds no header keeps the name that was asked for, and so does a page of another site
        # whose name leads to this machine.
        asked_for = urlsplit(f"//{call.header('host')}").hostname
        return asked_for in LOOPBACK_NAMES and ip_address(call.address).is_loopback
    except ValueError:
        return False
