"""A live query: gives rows and what happens to them, over as many connections as it takes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from tidegate.errors import TidegateError
from tidegate.sdk._async.concurrency import StopEvent
from tidegate.sdk._async.sockets import Socket, open_socket
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.live import LIVE_PATH, RowChange, SocketLost, SubscriptionProtocol, refused
from tidegate.sdk.requests import Request, noted
from tidegate.sdk.retries import FailedAttempt, FailureKind, RetryState

REQUEST = Request("GET", LIVE_PATH)


class LiveSubscription:
    """The changes of a live query, to be iterated by one task; any task may close it.

    A lost connection is opened again, and goes on behind the last change. What cannot be made up for is told
    as a change of kind `lagged`. An error that the server tells is raised, and ends it.
    """

    def __init__(
        self,
        transport: Transport,
        feed: SubscriptionProtocol,
        *,
        reconnect_seconds: float | None = None,
        on_lost: Callable[[TidegateError], object] | None = None,
    ) -> None:
        self._transport = transport
        self._feed = feed
        seconds = math.inf if reconnect_seconds is None else reconnect_seconds
        self._patience = replace(transport.retrying, seconds=seconds, attempts_max=sys.maxsize)
        self._on_lost = on_lost
        self._socket: Socket | None = None
        self._course: RetryState | None = None
        self._established = False
        self._ended = StopEvent()
        transport.standing.add(self)

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Name and type of each column, once the server has answered."""
        return self._feed.columns

    @property
    def seq(self) -> int | None:
        """The number of the last change that was given: `from_seq` of a subscription that goes on here."""
        return self._feed.seq

    async def open(self) -> None:
        """Subscribe now, not at the first change: nothing that is written after this is missed."""
        while not self._feed.has_begun and not self._ended.is_set():
            await self._step()

    async def close(self) -> None:
        """End it at once; whoever waits for a change gets no more."""
        self._ended.set()
        self._transport.standing.discard(self)
        await self._drop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RowChange:
        while not self._ended.is_set():
            change = self._feed.next()
            if change is not None:
                return change
            await self._step()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _step(self) -> None:
        """Take one message, or open a connection; what went wrong is waited out or raised."""
        try:
            socket = self._socket  # another may close it meanwhile
            if socket is None:
                await self._connect()
            else:
                self._hear(await socket.receive())
        except SocketLost as problem:
            await self._recover(problem.setback)

    async def _connect(self) -> None:
        found, headers = self._transport.reach(REQUEST)
        url = f"{found.url.rstrip('/')}{LIVE_PATH}"
        socket = await open_socket(url, headers, found.tls_context())
        if self._ended.is_set():
            await socket.close()
            return
        self._socket = socket
        await socket.send(self._feed.question())

    def _hear(self, content: bytes) -> None:
        try:
            self._feed.take(content)
        except TidegateError as error:
            raise SocketLost(refused(error)) from error
        self._established = True
        self._course = None

    async def _recover(self, setback: FailedAttempt) -> None:
        await self._drop()
        if self._ended.is_set():
            return
        if self._course is None:
            self._course = RetryState(
                self._patience if self._established else self._transport.retrying, REQUEST
            )
            # What the server says for good about the subscription is raised, and no lost connection.
            is_lost = self._established and setback.fate is not FailureKind.FINAL
            if is_lost and self._on_lost is not None:
                self._on_lost(setback.error)
        pause_seconds = self._course.next_pause(setback)
        if pause_seconds is None:
            await self.close()
            raise noted(setback.error) from setback.cause
        await self._ended.pause(pause_seconds)
        self._transport.find_again()

    async def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
