"""The channel between the server and a child process: frames over a Unix stream socket.

A frame is a length (u32, little-endian), a kind (u8) and the content. A file descriptor may travel with a
frame: it is attached to its first byte. Both ends are of one version and one machine, so a frame has no
version of its own. Whoever reads slowly makes the other end wait in `send`: this is the back pressure.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from dataclasses import dataclass

from tidegate.errors import InvariantBroken

_HEADER = struct.Struct("<IB")
_FD_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)
FRAME_BYTES_MAX = 1 << 30
# What one end may send ahead of the other; the default of the kernel is a fifth of it.
SOCKET_BYTES = 1024 * 1024


class ChannelClosed(Exception):
    """The other end is gone."""


@dataclass(frozen=True, slots=True)
class ChannelFrame:
    """One frame; who receives `fd` closes it."""

    kind: int
    content: bytearray
    fd: int | None = None


class Channel:
    """One end of a connection; one thread uses it at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)

    def send(self, kind: int, content: bytes | bytearray | memoryview, fd: int | None = None) -> None:
        """Send a frame; blocks while the other end does not read. Raises ChannelClosed."""
        body = memoryview(content).cast("B")
        if len(body) > FRAME_BYTES_MAX:
            raise InvariantBroken(reason=f"a frame of {len(body)} bytes")
        header = _HEADER.pack(len(body), kind)
        rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            sent = self._connection.sendmsg([header, body], rights)
            if sent < len(header):
                self._connection.sendall(header[sent:])
                sent = len(header)
            if sent < len(header) + len(body):
                self._connection.sendall(body[sent - len(header) :])
        except OSError as error:
            raise ChannelClosed from error

    def receive(self) -> ChannelFrame:
        """Return the next frame; blocks until it is here. Raises ChannelClosed."""
        header = bytearray(_HEADER.size)
        fd: int | None = None
        filled = 0
        try:
            while filled < len(header):
                count, fds, _, _ = self._connection.recvmsg_into([memoryview(header)[filled:]], _FD_BYTES)
                if count == 0:
                    raise ChannelClosed
                filled += count
                fd = _received_fd(fds) or fd
            length, kind = _HEADER.unpack(header)
            if length > FRAME_BYTES_MAX:
                raise ChannelClosed
            return ChannelFrame(kind, self._read(length), fd)
        except OSError as error:
            raise ChannelClosed from error

    def close(self) -> None:
        """Close this end; the other end's calls raise ChannelClosed. A second call does nothing."""
        self._connection.close()

    def _read(self, length: int) -> bytearray:
        content = bytearray(length)
        view, filled = memoryview(content), 0
        while filled < length:
            count = self._connection.recv_into(view[filled:])
            if count == 0:
                raise ChannelClosed
            filled += count
        return content


def _received_fd(messages: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, content in messages:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds = array.array("i")
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
            for extra in fds[1:]:
                os.close(extra)
            return fds[0] if fds else None
    return None
