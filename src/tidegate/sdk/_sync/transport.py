"""The HTTP transport of the client: sends requests, repeats them where that is safe, raises errors.

Made from _async/transport.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidegate.errors import ServerNotRunning
from tidegate.sdk._sync.connection_pool import GroupedConnectionPool
from tidegate.sdk.blocking.concurrency import sleep
from tidegate.sdk.requests import Reply, Request, check_tenant, decoded, with_hint
from tidegate.sdk.retries import (
    CONNECTION_PROBLEMS,
    FailedAttempt,
    FailureKind,
    RetryPolicy,
    RetryState,
    connection_failure,
    outcome_of,
)
from tidegate.storage.home.address import ServerEndpoint

if TYPE_CHECKING:
    from tidegate.sdk._sync.prefetch import Prefetcher
    from tidegate.sdk._sync.subscription import LiveSubscription


class Transport:
    """Connection pools to one server, which may come back at another address."""

    def __init__(
        self,
        find: Callable[[], ServerEndpoint],
        *,
        tenant: str | None = None,
        retry_policy: RetryPolicy | None = None,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._find = find
        self._tenant = check_tenant(tenant)
        self.retry_policy = retry_policy or RetryPolicy()
        self._pause = pause
        self._pools: dict[tuple[bool, str | None], GroupedConnectionPool] = {}
        # Consumers and subscriptions that are open; they are closed with the connections at the latest.
        self.open_readers: set[LiveSubscription | Prefetcher] = set()
        self._use(find())

    @property
    def url(self) -> str:
        """The server's address."""
        return self._found.url

    def call(self, request: Request) -> Any:
        """Send a request and return the decoded answer."""
        reply = self.send(request)
        return decoded(reply.content, f"{self.url}{request.path}")

    def send(
        self,
        request: Request,
        retry_state: RetryState | None = None,
        pause: Callable[[float], None] | None = None,
    ) -> Reply:
        """Send a request until it is answered or refused, or a repetition is not safe or takes too long."""
        retry_state = retry_state or self.new_retry_state(request)
        pause = pause or self._pause
        request_id = secrets.token_hex(8)
        while True:
            outcome = self._attempt(request, request_id)
            if isinstance(outcome, Reply):
                return outcome
            if retry_state.is_done(outcome):
                return Reply(200, (), b"{}")
            pause_seconds = retry_state.next_pause(outcome)
            if pause_seconds is None:
                raise with_hint(outcome.error) from outcome.cause
            pause(pause_seconds)
            if outcome.kind is not FailureKind.BUSY:
                self.refresh_address()

    def new_retry_state(self, request: Request) -> RetryState:
        """Return the retry state of a call whose caller looks at it afterwards."""
        return RetryState(self.retry_policy, request)

    def refresh_address(self) -> None:
        """Look up the address again: a server that restarts may have another port."""
        try:
            self._use(self._find())
        except ServerNotRunning:
            return  # not yet; the old address is tried meanwhile

    def address_and_headers(self, request: Request) -> tuple[ServerEndpoint, dict[str, str]]:
        """Return the server and the headers for a request that does not use the pools."""
        return self._found, request.headers(self._found.token, self._tenant, secrets.token_hex(8))

    def close(self) -> None:
        """End consumers and subscriptions, and close all connections."""
        for reader in list(self.open_readers):
            reader.close()
        for pool in self._pools.values():
            pool.close()

    def _attempt(self, request: Request, request_id: str) -> Reply | FailedAttempt:
        found = self._found
        pool = self._pools[found.is_https, found.ca_file]
        headers = request.headers(found.token, self._tenant, request_id)
        try:
            reply = pool.request(request, found.url, headers)
        except CONNECTION_PROBLEMS as problem:
            failure = connection_failure(problem, found.url)
            failure.error.request_id = request_id
            return failure
        return outcome_of(reply, found.url, request.path, request_id)

    def _use(self, found: ServerEndpoint) -> None:
        trust = (found.is_https, found.ca_file)
        if trust not in self._pools:
            self._pools[trust] = GroupedConnectionPool(found.tls_context())
        self._found = found
