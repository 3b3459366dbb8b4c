"""A pool of connections to one server: takes a request, gives the answer, keeps connections for a moment."""

from __future__ import annotations

import ssl

import httpx

from tidegate.sdk.groups import GROUP_CONNECTIONS_MAX, Groups
from tidegate.sdk.requests import Request

# Longer than any statement runs by default; a wait that the caller asks for comes on top.
TIMEOUT_SECONDS = 120.0
CONNECT_SECONDS = 5.0
# Below the five seconds after which the server closes an idle connection: else a request may meet its end.
IDLE_SECONDS_MAX = 4.0


class Pool:
    """Connections in groups; each group is opened when it is first needed."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._groups = Groups()
        self._opened: dict[int, httpx.AsyncClient] = {}

    async def request(self, request: Request, url: str, headers: dict[str, str]) -> httpx.Response:
        """Send a request to a server and give its whole answer."""
        number = self._groups.take()
        try:
            return await self._group(number).request(
                request.method,
                f"{url.rstrip('/')}{request.path}",
                content=request.content,
                headers=headers,
                timeout=httpx.Timeout(TIMEOUT_SECONDS + request.wait_seconds, connect=CONNECT_SECONDS),
            )
        finally:
            self._groups.give_back(number)

    async def close(self) -> None:
        """Let the connections go."""
        for group in self._opened.values():
            await group.aclose()

    def _group(self, number: int) -> httpx.AsyncClient:
        group = self._opened.get(number)
        if group is None:
            limits = httpx.Limits(max_connections=GROUP_CONNECTIONS_MAX, keepalive_expiry=IDLE_SECONDS_MAX)
            group = httpx.AsyncClient(verify=self._context, limits=limits, trust_env=False)
            # Two threads may come here at once: one of the two groups is used by both.
            group = self._opened.setdefault(number, group)
        return group
