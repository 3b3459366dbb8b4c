"""The WebSocket of a live query.

Made from _async/sockets.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

from tidegate.sdk.live import (
    CLOSE_SECONDS,
    MESSAGE_BYTES_MAX,
    OPEN_SECONDS,
    PING_SECONDS,
    PONG_SECONDS,
    socket_lost,
)


class Socket:
    """An open socket; every failure of it is SocketLost."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    def send(self, content: bytes) -> None:
        """Send a text message."""
        try:
            self._connection.send(content, text=True)
        except (OSError, WebSocketException) as problem:
            raise socket_lost(problem, self._url) from problem

    def receive(self) -> bytes:
        """Return the next message, waiting for it."""
        try:
            return self._connection.recv(decode=False)
        except (OSError, WebSocketException) as problem:
            raise socket_lost(problem, self._url) from problem

    def close(self) -> None:
        """Close it, waiting a moment for the other side; a call of `receive` ends."""
        with contextlib.suppress(OSError):
            self._connection.close()


def open_socket(url: str, headers: Mapping[str, str], context: ssl.SSLContext) -> Socket:
    """Return an open socket at an address; SocketLost where it cannot be opened."""
    is_https = url.startswith("https://")
    try:
        connection = connect(
            f"ws{url.removeprefix('http')}",
            ssl=context if is_https else None,
            additional_headers=headers,
            compression=None,
            proxy=None,
            legacy=True,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PONG_SECONDS,
            close_timeout=CLOSE_SECONDS,
            max_size=MESSAGE_BYTES_MAX,
        )
    except (OSError, WebSocketException) as problem:
        raise socket_lost(problem, url) from problem
    return Socket(connection, url)
