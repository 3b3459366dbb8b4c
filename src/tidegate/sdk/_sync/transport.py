"""The wire under the client: sends requests, tries again where that is safe, raises the server's errors.

Made from _async/transport.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

from tidegate.errors import RequestInvalid, ServerNotRunning
from tidegate.sdk._sync.connection_pool import GroupedConnectionPool
from tidegate.sdk.blocking.concurrency import sleep
from tidegate.sdk.requests import Reply, Request, checked_tenant, decoded, noted
from tidegate.sdk.retries import FailedAttempt, FailureKind, RetryPolicy, RetryState, outcome_of, setback_of
from tidegate.storage.home.address import Found

if TYPE_CHECKING:
    from tidegate.sdk._sync.prefetch import Prefetcher
    from tidegate.sdk._sync.subscription import LiveSubscription


class Transport:
    """Connection pools to one server, which may come back at another address."""

    def __init__(
        self,
        find: Callable[[], Found],
        *,
        tenant: str | None = None,
        retrying: RetryPolicy | None = None,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._find = find
        self._tenant = checked_tenant(tenant)
        self.retrying = retrying or RetryPolicy()
        self._pause = pause
        self._pools: dict[tuple[bool, str | None], GroupedConnectionPool] = {}
        # What goes on until it is closed, and ends with the connections at the latest.
        self.standing: set[LiveSubscription | Prefetcher] = set()
        self._use(find())

    @property
    def url(self) -> str:
        """The server's address."""
        return self._found.url

    def call(self, request: Request) -> Any:
        """Send a request, give the decoded answer."""
        reply = self.send(request)
        return decoded(reply.content, f"{self.url}{request.path}")

    def send(
        self,
        request: Request,
        course: RetryState | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> Reply:
        """Send a request until it is answered or refused, or trying again is not safe or takes too long."""
        course = course or self.course_of(request)
        pause = pause or self._pause
        request_id = secrets.token_hex(8)
        while True:
            outcome = self._attempt(request, request_id)
            if isinstance(outcome, Reply):
                return outcome
            if course.is_done(outcome):
                return Reply(b"{}", {})
            pause_seconds = course.next_pause(outcome)
            if pause_seconds is None:
                raise noted(outcome.error) from outcome.cause
            pause(pause_seconds)
            if outcome.fate is not FailureKind.BUSY:
                self.find_again()

    def course_of(self, request: Request) -> RetryState:
        """Begin the course of a call, for a caller who asks afterwards what became of it."""
        return RetryState(self.retrying, request)

    def find_again(self) -> None:
        """Look up the address anew: a server that starts again may have another port."""
        try:
            self._use(self._find())
        except ServerNotRunning:
            return  # not yet; the old address is tried meanwhile

    def reach(self, request: Request) -> tuple[Found, dict[str, str]]:
        """Return the server and the headers for a request that takes another way than the pools."""
        return self._found, request.headers(self._found.token, self._tenant, secrets.token_hex(8))

    def close(self) -> None:
        """Let the connections go, and end what stands on them."""
        for one in list(self.standing):
            one.close()
        for pool in self._pools.values():
            pool.close()

    def _attempt(self, request: Request, request_id: str) -> Reply | FailedAttempt:
        found = self._found
        pool = self._pools[found.is_https, found.ca_file]
        headers = request.headers(found.token, self._tenant, request_id)
        try:
            answer = pool.request(request, found.url, headers)
        except httpx.TransportError as problem:
            lost = setback_of(problem, found.url)
            lost.error.request_id = request_id
            return lost
        except httpx.InvalidURL as problem:
            reason = f"'{found.url}' is not an address of a server: {problem}."
            raise RequestInvalid(reason=reason, hint="Write it like http://127.0.0.1:8787.") from problem
        return outcome_of(answer, found.url, request_id)

    def _use(self, found: Found) -> None:
        trust = (found.is_https, found.ca_file)
        if trust not in self._pools:
            self._pools[trust] = GroupedConnectionPool(found.tls_context())
        self._found = found
