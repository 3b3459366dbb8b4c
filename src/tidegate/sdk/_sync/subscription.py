"""The subscription of a live query: its changes, over as many connections as needed.

Made from _async/subscription.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from tidegate.errors import TidegateError
from tidegate.sdk._sync.sockets import Socket, open_socket
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.blocking.concurrency import StopEvent
from tidegate.sdk.live import LIVE_PATH, RowChange, SocketLost, SubscriptionProtocol, server_failure
from tidegate.sdk.requests import Request, with_hint
from tidegate.sdk.retries import FailedAttempt, FailureKind, RetryState

REQUEST = Request("GET", LIVE_PATH)


class LiveSubscription:
    """The changes of a live query, iterated by one caller; any other may close it.

    A lost connection is opened again, and resumes after the last change. Where changes were missed for good,
    there is one of kind `lagged`. An error of the server is raised, and ends the subscription.
    """

    def __init__(
        self,
        transport: Transport,
        protocol: SubscriptionProtocol,
        *,
        reconnect_seconds: float | None = None,
        on_lost: Callable[[TidegateError], object] | None = None,
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        seconds = math.inf if reconnect_seconds is None else reconnect_seconds
        self._retry_policy = replace(transport.retry_policy, seconds=seconds, attempts_max=sys.maxsize)
        self._on_lost = on_lost
        self._socket: Socket | None = None
        self._retry_state: RetryState | None = None
        self._is_established = False
        self._ended = StopEvent()
        transport.open_readers.add(self)

    @property
    def columns(self) -> list[dict[str, Any]]:
        """Name and type of each column, once the server has answered."""
        return self._protocol.columns

    @property
    def seq(self) -> int | None:
        """The number of the last change returned: `from_seq` of a subscription that resumes after it."""
        return self._protocol.seq

    def open(self) -> None:
        """Subscribe now, not at the first change: no write after this call is missed."""
        while not self._protocol.has_begun and not self._ended.is_set():
            self._step()

    def close(self) -> None:
        """End it at once; a caller that waits for a change gets none."""
        self._ended.set()
        self._transport.open_readers.discard(self)
        self._drop()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RowChange:
        while not self._ended.is_set():
            change = self._protocol.next()
            if change is not None:
                return change
            self._step()
        raise StopIteration

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _step(self) -> None:
        """Receive one message, or open a connection; after a failure pause, or raise it."""
        try:
            socket = self._socket  # another caller may close it meanwhile
            if socket is None:
                self._connect()
            else:
                self._receive(socket.receive())
        except SocketLost as problem:
            self._recover(problem.failure)

    def _connect(self) -> None:
        server, headers = self._transport.address_and_headers(REQUEST)
        url = f"{server.url.rstrip('/')}{LIVE_PATH}"
        socket = open_socket(url, headers, server.tls_context())
        if self._ended.is_set():
            socket.close()
            return
        self._socket = socket
        socket.send(self._protocol.subscribe_message())

    def _receive(self, content: bytes) -> None:
        try:
            self._protocol.receive(content)
        except TidegateError as error:
            raise SocketLost(server_failure(error)) from error
        self._is_established = True
        self._retry_state = None

    def _recover(self, failure: FailedAttempt) -> None:
        self._drop()
        if self._ended.is_set():
            return
        if self._retry_state is None:
            self._retry_state = RetryState(
                self._retry_policy if self._is_established else self._transport.retry_policy, REQUEST
            )
            # A final error of the server about the subscription is raised, and no lost connection.
            is_lost = self._is_established and failure.kind is not FailureKind.FINAL
            if is_lost and self._on_lost is not None:
                self._on_lost(failure.error)
        pause_seconds = self._retry_state.next_pause(failure)
        if pause_seconds is None:
            self.close()
            raise with_hint(failure.error) from failure.cause
        self._ended.pause(pause_seconds)
        self._transport.refresh_address()

    def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()
