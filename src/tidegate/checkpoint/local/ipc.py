"""Lines between the workers of one machine: takes messages of plain values, gives them to the other end.

A message is a row of None, numbers, texts, bytes, lists and dicts, as MessagePack behind its length; tuples
arrive as lists. Sockets lie in Linux's abstract names, which need no file and go with their worker; elsewhere
there are no lines. Both ends make sure that the other one belongs to the same user.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Any

from msgspec import DecodeError, msgpack

_LENGTH = struct.Struct(">Q")
_PEER = struct.Struct("3i")
_WAITING_MAX = 64
# Larger ones have fewer turns between the two ends.
_BUFFER_BYTES = 1024 * 1024


class LineLost(Exception):
    """The other end is gone, or does not answer in time."""


class Line:
    """One connection; used by one thread at each end."""

    def __init__(self, connection: socket.socket, *, wait_seconds_max: float | None) -> None:
        self._connection = connection
        connection.settimeout(wait_seconds_max)
        for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, side, _BUFFER_BYTES)

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message; LineLost when it cannot be."""
        content = msgpack.encode(message)
        try:
            self._connection.sendall(_LENGTH.pack(len(content)))
            self._connection.sendall(content)
        except OSError as problem:
            raise LineLost(str(problem)) from problem

    def receive(self) -> list[Any]:
        """Return the next message; LineLost when there is none to come."""
        length = _LENGTH.unpack(self._read(_LENGTH.size))[0]
        try:
            return msgpack.decode(self._read(length), type=list[Any])
        except DecodeError as problem:
            raise LineLost(f"the other end speaks another language: {problem}") from problem

    def close(self) -> None:
        """End the line; the other end finds it lost."""
        self._connection.close()

    def _read(self, size: int) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        try:
            while rest:
                count = self._connection.recv_into(rest)
                if not count:
                    raise LineLost("the other end closed it")
                rest = rest[count:]
        except OSError as problem:
            raise LineLost(str(problem)) from problem
        return content


def listen() -> socket.socket | None:
    """Return a socket that others of this machine can connect to; None where there are no abstract names."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(b"")  # Linux finds a name that is free
        listening.listen(_WAITING_MAX)
    except OSError:
        listening.close()
        return None
    listening.setblocking(False)
    return listening


def address_of(listening: socket.socket) -> bytes:
    """Return by what others connect to a socket."""
    name = listening.getsockname()
    return name if isinstance(name, bytes) else os.fsencode(name)


def connect(address: bytes, *, wait_seconds_max: float) -> Line | None:
    """Connect to a worker; None when nobody of this user listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(wait_seconds_max)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        return None
    return _own(connection, wait_seconds_max)


def accept(listening: socket.socket) -> Line | None:
    """Return the line to one who connects; None when there is none after all, or it is another user."""
    try:
        connection, _ = listening.accept()
    except OSError:
        return None
    return _own(connection, None)


def _own(connection: socket.socket, wait_seconds_max: float | None) -> Line | None:
    """Return a line to a process of the same user; others are hung up on."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(peer)[1] == os.geteuid():
        return Line(connection, wait_seconds_max=wait_seconds_max)
    connection.close()
    return None
