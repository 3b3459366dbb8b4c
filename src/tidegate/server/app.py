"""The application: puts authorisation around the endpoints and turns every error into one shape."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from tidegate.errors import (
    EndpointNotFound,
    InvariantBroken,
    MethodNotAllowed,
    RequestRefused,
    TidegateError,
    TokenMissing,
    TokenWrong,
)
from tidegate.server.bodies import json_answer
from tidegate.server.routes import ROUTES, Route
from tidegate.server.running import Running

log = logging.getLogger(__name__)


class BearerGate:
    """Lets a request through when its path is open or its token is right, before anything of it is read."""

    def __init__(self, app: ASGIApp, running: Running) -> None:
        self._app = app
        self._open = frozenset(route.path for route in ROUTES if route.open)
        self._expected = f"Bearer {running.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in self._open:
            refusal = self._refusal(scope)
            if refusal is not None:
                await error_answer(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> TidegateError | None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        if given is None:
            return TokenMissing()
        return None if hmac.compare_digest(given, self._expected) else TokenWrong()


def build_app(running: Running) -> ASGIApp:
    """Give the application for the running parts."""
    by_path: dict[str, list[Route]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, []).append(route)
    app = Starlette(
        routes=[
            StarletteRoute(path, _dispatch(routes, running), methods=[route.method for route in routes])
            for path, routes in by_path.items()
        ],
        exception_handlers={
            TidegateError: _answer_ours,
            HTTPException: _answer_framework,
            ClientDisconnect: _answer_nobody,
            Exception: _answer_bug,
        },
    )
    app.router.redirect_slashes = False
    return BearerGate(app, running)


def _dispatch(routes: list[Route], running: Running) -> Callable[[Request], Awaitable[Response]]:
    by_method = {route.method: route.endpoint for route in routes}
    # Starlette answers HEAD where there is a GET.
    if "GET" in by_method:
        by_method["HEAD"] = by_method["GET"]

    async def endpoint(request: Request) -> Response:
        return await by_method[request.method](request, running)

    return endpoint


def error_answer(error: TidegateError) -> Response:
    """Give the answer for an error."""
    answer = json_answer(error.to_wire(), error.status)
    if error.status == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


async def _answer_ours(request: Request, error: Exception) -> Response:
    if not isinstance(error, TidegateError):
        return await _answer_bug(request, error)
    if not isinstance(error, RequestRefused):
        log.warning("%s %s: %s: %s", request.method, request.url.path, error.code, error)
    return error_answer(error)


async def _answer_framework(request: Request, error: Exception) -> Response:
    path = request.url.path
    if isinstance(error, HTTPException) and error.status_code == 404:
        return error_answer(EndpointNotFound(path=path))
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        answer = error_answer(MethodNotAllowed(path=path, method=request.method, allowed=allowed))
        answer.headers["Allow"] = allowed
        return answer
    return await _answer_bug(request, error)


async def _answer_nobody(request: Request, _error: Exception) -> Response:
    log.info("%s %s: the caller left before the request was whole", request.method, request.url.path)
    return Response(status_code=499)


async def _answer_bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_answer(InvariantBroken(reason=f"{type(error).__name__}: {error}"))
