"""The ASGI application: admits a request or refuses it, counts it, and turns every error into one shape.

Order of the steps, each cheaper than the next: request id, token, endpoint, permission, admission, then the
endpoint's function. Nothing of a body is read before all of that, and a request counts as running only once
it is admitted: nobody without a token can shut others out. One ASGI callable does it, without a framework's
layers: a single small publish costs more in those than in the write itself.
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
from starlette.types import Receive, Scope, Send

from tidegate.errors import (
    CatalogUnavailable,
    Forbidden,
    InvariantBroken,
    MethodNotAllowed,
    NotReady,
    QuotaReached,
    RateQuotaReached,
    RequestInvalid,
    RequestRefused,
    SessionInsufficient,
    StorageCorrupt,
    TidegateError,
    TokenMissing,
    TokenWrong,
    TooManyGuesses,
    TooManyRequests,
)
from tidegate.model.access import check_allowed
from tidegate.server.access.auth import AuthenticatedToken, in_tenant
from tidegate.server.access.origin import check_origin
from tidegate.server.http.protocol import AnswerAborted
from tidegate.server.http.request import SESSION_COOKIE, Endpoint, HttpRequest
from tidegate.server.http.responses import json_answer
from tidegate.server.http.router import Router
from tidegate.server.pages.pages import refusal_page, wants_page
from tidegate.server.routes import ROUTES
from tidegate.server.runtime.runtime import Runtime
from tidegate.server.websocket.endpoint import LiveEndpoint, refuse_plain_http
from tidegate.telemetry.logs import set_request_context
from tidegate.telemetry.metrics import Refusal
from tidegate.telemetry.tracing import is_tracing, span

METRICS_PATH = "/metrics"
# Retry-After of a busy or starting server.
RETRY_SECONDS = 1
# How long a request queues while too many run: longer than a thousand polls need to begin to wait.
QUEUE_SECONDS = 1.0
# Requests without a token that run at once, on endpoints that are open to everyone: a browser that signs in
# makes one, and whoever holds all of them shuts out nobody who has a token.
ANONYMOUS_MAX = 32
LOOPBACK_NAMES = frozenset({"127.0.0.1", "::1", "localhost"})
# Headers that proxies add: a request with one does not come from this machine, whatever its address.
_PROXY_HEADERS = (b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"forwarded", b"via")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_NO_ROUTE = "(none)"
# Ids need not be secret, only unique: random bytes from the system for each request would be too expensive.
_ID_START = secrets.token_hex(6)
_id_numbers = itertools.count(1)
_REFUSED_AS: dict[type[TidegateError], Refusal] = {
    TokenMissing: "token",
    TokenWrong: "token",
    Forbidden: "forbidden",
    TooManyRequests: "busy",
    TooManyGuesses: "guesses",
    RateQuotaReached: "quota",
    QuotaReached: "quota",
}

log = logging.getLogger(__name__)


class _AdmittedRequest(HttpRequest):
    """A request, and the limit under which it counts while it runs."""

    __slots__ = ("counted_as",)

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, runtime: Runtime) -> None:
        super().__init__(scope, receive, runtime)
        self.counted_as: Literal["running", "anonymous"] | None = None


class HttpApp:
    """The ASGI application."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._router = Router(ROUTES)
        self._open = frozenset(endpoint.path for endpoint in ROUTES if endpoint.operation is None)
        self._keyed = [f"{endpoint.method} {endpoint.path}" for endpoint in ROUTES if endpoint.keyed]
        self._anonymous = 0
        self._live = LiveEndpoint(runtime, self._authenticate, self._refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            set_request_context(request_id := _request_id(scope))
            await self._live(scope, receive, send, request_id)
            return
        runtime = self._runtime
        began = runtime.clock.monotonic_seconds()
        request = _AdmittedRequest(scope, receive, runtime)
        request.id = _request_id(scope)
        set_request_context(request.id)  # for the rest of this task, so that every log line has the id
        status, sent_bytes = 499, 0  # the client has disconnected
        try:
            answer = await self._answer(request)
            answer.raw_headers.append((b"x-request-id", request.id.encode("ascii")))
            status = answer.status_code
            sent_bytes = len(getattr(answer, "body", b""))
            await answer(scope, receive, send)
        except TidegateError as problem:
            # The answer had begun, so its status cannot change any more: the connection is closed.
            log.warning(
                "answer aborted method=%s path=%s error_code=%s error=%r",
                request.method,
                request.path,
                problem.code,
                str(problem),
            )
            raise AnswerAborted from problem
        except asyncio.CancelledError as problem:
            if not runtime.stopping:
                raise
            log.warning("answer aborted by stop method=%s path=%s", request.method, request.path)
            raise AnswerAborted from problem
        finally:
            if request.counted_as is not None:
                self._leave(request)
            seconds = runtime.clock.monotonic_seconds() - began
            self._observe(request, status, seconds, sent_bytes)

    async def _answer(self, request: _AdmittedRequest) -> Response:
        """Return the answer of the endpoint, or the one for its error."""
        try:
            return await self._dispatch(request)
        except TidegateError as problem:
            return self._refuse(request, problem)
        except ClientDisconnect:
            log.info("client disconnected method=%s path=%s", request.method, request.path)
            return Response(status_code=499)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._runtime.stopping or task is None:
                raise
            # The grace period has ended: telling the client takes no time.
            task.uncancel()
            return self._refuse(request, NotReady(reason="it is stopping, and this was not finished in time"))
        except Exception as problem:
            log.error("request failed method=%s path=%s", request.method, request.path, exc_info=problem)
            return self._refuse(request, InvariantBroken(reason=f"{type(problem).__name__}: {problem}"))

    async def _dispatch(self, request: _AdmittedRequest) -> Response:
        if self._runtime.has_ended:
            raise NotReady(reason="it is stopping")
        # 1. token: without one, not even the existence of a path is revealed
        if request.path not in self._open:
            request.identity = await self._authenticate(request)
        # 2. endpoint
        refuse_plain_http(request.path)
        raw_path = request.scope.get("raw_path") or b""
        endpoint, request.params = self._router.find(request.method, request.path, raw_path)
        request.endpoint = endpoint
        # 3. permission
        if endpoint.operation is not None and request.identity is not None:
            check_allowed(request.identity.principal, endpoint.operation)
            if endpoint.bearer_only and request.identity.principal.is_session:
                raise SessionInsufficient(operation=str(endpoint.operation))
        if endpoint.refuses_keys and request.raw_header(b"idempotency-key") is not None:
            name = f"{endpoint.method} {endpoint.path}"
            raise RequestInvalid(
                reason=f"{name} takes no Idempotency-Key: a repeat would be done again.",
                hint=f"Leave it out. These take one: {', '.join(self._keyed)}.",
            )
        # 4. admission
        await self._admit(endpoint, request)
        # 5. the endpoint's function
        return await self._run(endpoint, request)

    async def _admit(self, endpoint: Endpoint, request: _AdmittedRequest) -> None:
        if request.identity is not None:
            if self._runtime.quotas.limits_requests and not endpoint.exempt:
                self._runtime.quotas.take_request(request.identity.principal)
            admission, most = self._runtime.admission, self._runtime.settings.server.requests_max
            is_full = admission.running >= most and not endpoint.exempt
            if is_full and not await admission.wait_room(most, QUEUE_SECONDS):
                raise TooManyRequests(
                    what="requests run already",
                    limit=most,
                    setting="server.requests_max",
                    retry_after_seconds=RETRY_SECONDS,
                )
            admission.begin()
            request.counted_as = "running"
        elif not endpoint.exempt:
            if self._anonymous >= ANONYMOUS_MAX:
                raise TooManyRequests(
                    what="requests without a token run already",
                    limit=ANONYMOUS_MAX,
                    retry_after_seconds=RETRY_SECONDS,
                    hint=f"Try again in {RETRY_SECONDS} s.",
                )
            self._anonymous += 1
            request.counted_as = "anonymous"

    def _leave(self, request: _AdmittedRequest) -> None:
        if request.counted_as == "running":
            self._runtime.admission.end()
        else:
            self._anonymous -= 1

    async def _run(self, endpoint: Endpoint, request: HttpRequest) -> Response:
        tenant = ""
        if request.identity is not None:
            tenant = request.identity.principal.tenant
            set_request_context(request.id, tenant, request.identity.principal.user)
        if not is_tracing():
            return await endpoint.function(request)
        name, parent = f"{endpoint.method} {endpoint.path}", request.header("traceparent")
        with span(name, parent, tenant=tenant, method=endpoint.method, route=endpoint.path) as current:
            answer = await endpoint.function(request)
            current.set(status=answer.status_code)
            return answer

    async def _authenticate(self, request: HttpRequest) -> AuthenticatedToken | None:
        text, is_cookie = _token_of(request)
        if text is None:
            if request.path == METRICS_PATH and _is_local(request):
                return None
            raise TokenMissing
        tokens = self._runtime.tokens
        identity = tokens.cached(text) or await tokens.find(text, request.address)
        identity.check_sent(as_cookie=is_cookie)
        if is_cookie and request.method not in ("GET", "HEAD"):
            check_origin(request.header("origin"), request.header("host"), self._runtime.settings.server)
        tenant = request.header("x-tenant")
        if not tenant or tenant == identity.principal.tenant:
            return identity
        acting = in_tenant(identity, tenant, await self._runtime.tenant_exists(tenant))
        self._runtime.audit_notes.entered(acting.principal, request.place)
        return acting

    def _refuse(self, request: HttpRequest, problem: TidegateError) -> Response:
        principal = None if request.identity is None else request.identity.principal
        self._runtime.audit_notes.refused(problem, principal, request.place)
        if not isinstance(problem, RequestRefused):
            log.warning(
                "request failed method=%s path=%s error_code=%s error=%r",
                request.method,
                request.path,
                problem.code,
                str(problem),
            )
        if isinstance(problem, StorageCorrupt):
            self._runtime.metrics.corrupt_frames.inc()
        reason = next((word for kind, word in _REFUSED_AS.items() if isinstance(problem, kind)), None)
        if reason is not None:
            self._runtime.metrics.count_refusal(reason)
        if problem.status == 401 and wants_page(request):
            return refusal_page(problem)
        return error_answer(problem)

    def _observe(self, request: HttpRequest, status: int, seconds: float, sent_bytes: int) -> None:
        endpoint = request.endpoint
        template = endpoint.path if endpoint is not None else _NO_ROUTE
        method = request.method if endpoint is not None else "OTHER"
        self._runtime.metrics.observe_request(
            template, method, status, seconds, request.received_bytes, sent_bytes
        )
        milliseconds = seconds * 1000
        if milliseconds > self._runtime.settings.log.slow_request_ms and not request.has_waited:
            log.warning(
                "slow request method=%s path=%s status=%d milliseconds=%.0f",
                request.method,
                request.path,
                status,
                milliseconds,
            )
        elif log.isEnabledFor(logging.DEBUG):
            log.debug(
                "request answered method=%s path=%s status=%d milliseconds=%.3f",
                request.method,
                request.path,
                status,
                milliseconds,
            )


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


def _token_of(request: HttpRequest) -> tuple[bytes | None, bool]:
    """Return the token of a request, and whether it came as a cookie."""
    authorizations = [value for name, value in request.scope["headers"] if name == b"authorization"]
    if len(authorizations) > 1:
        # A proxy may have checked the other one.
        raise TokenWrong(hint="Send one Authorization header, not several.")
    if authorizations:
        scheme, _, text = authorizations[0].partition(b" ")
        if scheme.lower() != b"bearer":
            raise TokenWrong(hint="Send 'Authorization: Bearer <token>'.")
        return text.strip(), False
    cookies = request.header("cookie")
    if SESSION_COOKIE in cookies:
        try:
            found = SimpleCookie(cookies).get(SESSION_COOKIE)
        except CookieError as problem:
            raise TokenWrong from problem
        if found is not None:
            return found.value.encode("latin-1"), True
    return None, False


def _is_local(request: HttpRequest) -> bool:
    """True if a request comes from this machine itself, and not through a proxy or a browser on it."""
    if any(request.raw_header(name) is not None for name in _PROXY_HEADERS):
        return False
    try:
        # A proxy that adds no header keeps the Host header, and so does a page of another site whose name
        # resolves to this machine.
        host = urlsplit(f"//{request.header('host')}").hostname
        return host in LOOPBACK_NAMES and ip_address(request.address).is_loopback
    except ValueError:
        return False
