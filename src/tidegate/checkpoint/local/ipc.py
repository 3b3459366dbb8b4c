"""Connections between the workers of one machine: messages of plain values over a Unix socket.

A message is a row of None, numbers, texts, bytes, lists and dicts:

    length u64, big-endian | MessagePack array

Tuples arrive as lists. The sockets have names in Linux's abstract namespace, which need no file and go with
their process; elsewhere there are no connections. Both ends check that the peer belongs to the same user.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from msgspec import DecodeError, msgpack

_LENGTH = struct.Struct(">Q")
_PEER = struct.Struct("3i")
_BACKLOG_MAX = 64
# With larger buffers the two ends take turns less often.
_BUFFER_BYTES = 1024 * 1024


class ConnectionLost(Exception):
    """The peer is gone, or does not answer in time."""


class Connection:
    """One connection; used by one thread at each end."""

    def __init__(self, connected: socket.socket, *, wait_seconds_max: float | None) -> None:
        self._socket = connected
        connected.settimeout(wait_seconds_max)
        for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connected.setsockopt(socket.SOL_SOCKET, side, _BUFFER_BYTES)

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message; ConnectionLost when it cannot be sent."""
        content = msgpack.encode(message)
        try:
            self._socket.sendall(_LENGTH.pack(len(content)))
            self._socket.sendall(content)
        except OSError as problem:
            raise ConnectionLost(str(problem)) from problem

    def receive(self) -> list[Any]:
        """Return the next message; ConnectionLost when none comes."""
        length = _LENGTH.unpack(self._read(_LENGTH.size))[0]
        try:
            return msgpack.decode(self._read(length), type=list[Any])
        except DecodeError as problem:
            raise ConnectionLost(f"message not decodable: {problem}") from problem

    def close(self) -> None:
        """Close the connection; the peer finds it lost."""
        self._socket.close()

    def _read(self, size: int) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        try:
            while rest:
                count = self._socket.recv_into(rest)
                if not count:
                    raise ConnectionLost("closed by the peer")
                rest = rest[count:]
        except OSError as problem:
            raise ConnectionLost(str(problem)) from problem
        return content


def listen() -> socket.socket | None:
    """Return a socket that others of this machine can connect to; None without an abstract namespace."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(b"")  # Linux finds a name that is free
        listening.listen(_BACKLOG_MAX)
    except OSError:
        listening.close()
        return None
    listening.setblocking(False)
    return listening


def address_of(listening: socket.socket) -> bytes:
    """Return the address of a listening socket."""
    name = listening.getsockname()
    return name if isinstance(name, bytes) else os.fsencode(name)


def connect(address: bytes, *, wait_seconds_max: float) -> Connection | None:
    """Connect to a worker; None when no process of this user listens there."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.settimeout(wait_seconds_max)
    try:
        connecting.connect(address)
    except OSError:
        connecting.close()
        return None
    return _check_peer(connecting, wait_seconds_max)


def accept(listening: socket.socket) -> Connection | None:
    """Return the connection of a waiting peer; None when there is none after all, or it is another user's."""
    try:
        connected, _ = listening.accept()
    except OSError:
        return None
    return _check_peer(connected, None)


def _check_peer(connected: socket.socket, wait_seconds_max: float | None) -> Connection | None:
    """Return a connection to a process of the same user; one of another user is closed."""
    peer = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(peer)[1] == os.geteuid():
        return Connection(connected, wait_seconds_max=wait_seconds_max)
    connected.close()
    return None
