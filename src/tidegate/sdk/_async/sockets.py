"""A live socket: takes an address, gives messages. Its twin, synchronous/sockets.py, is by hand as well."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tidegate.sdk.live import CLOSE_SECONDS, MESSAGE_BYTES_MAX, OPEN_SECONDS, PING_SECONDS, PONG_SECONDS, lost


class Socket:
    """An open socket; whatever breaks it is SocketLost."""

    def __init__(self, connection: ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    async def send(self, content: bytes) -> None:
        """Send a message of text."""
        try:
            await self._connection.send(content, text=True)
        except (OSError, WebSocketException) as problem:
            raise lost(problem, self._url) from problem

    async def receive(self) -> bytes:
        """Wait for the next message."""
        try:
            return await self._connection.recv(decode=False)
        except (OSError, WebSocketException) as problem:
            raise lost(problem, self._url) from problem

    async def close(self) -> None:
        """Say good-bye, and wait a moment for the answer; whoever receives is woken."""
        with contextlib.suppress(OSError):
            await self._connection.close()


async def open_socket(url: str, headers: Mapping[str, str], context: ssl.SSLContext) -> Socket:
    """Open a socket at a path of a server; what cannot be opened is SocketLost."""
    is_https = url.startswith("https://")
    try:
        connection = await connect(
            f"ws{url.removeprefix('http')}",
            ssl=context if is_https else None,
            additional_headers=headers,
            compression=None,
            proxy=None,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PONG_SECONDS,
            close_timeout=CLOSE_SECONDS,
            max_size=MESSAGE_BYTES_MAX,
        )
    except (OSError, WebSocketException) as problem:
        raise lost(problem, url) from problem
    return Socket(connection, url)
