"""Many live sockets in one process, as cheap as they can be: raw sockets, epoll, frames read without JSON.

`python -m benchmarks.tables.live_clients` takes its task as JSON on standard input, says `ready` when every
subscription has its snapshot, and gives the latencies in milliseconds when it is told to stop. A change
carries the moment at which its insert was sent, in a column `sent`: nanoseconds of the clock that all
processes of a machine share.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field

_SENT = re.compile(rb'"row":\[\d+,\d+,(\d+)')
OPENING_AT_ONCE = 50
OPENING_SECONDS_MAX = 120.0


@dataclass
class Client:
    """One socket."""

    plain: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    is_ready: bool = False


def handshake(host: str, token: str) -> bytes:
    """Return the bytes that ask for a live socket."""
    return (
        f"GET /api/v1/live HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    ).encode()


def masked(text: str) -> bytes:
    """Return a client's frame; a mask of zeros is a mask."""
    payload = text.encode()
    length = len(payload)
    head = bytes((0x81, 0x80 | length)) if length < 126 else bytes((0x81, 0xFE)) + length.to_bytes(2, "big")
    return head + bytes(4) + payload


def take_frames(buffer: bytearray) -> list[bytes]:
    """Take the whole messages out of a buffer."""
    found: list[bytes] = []
    at, end = 0, len(buffer)
    while end - at >= 2:
        length, start = buffer[at + 1], at + 2
        if length == 126:
            length, start = int.from_bytes(buffer[at + 2 : at + 4], "big"), at + 4
        elif length == 127:
            length, start = int.from_bytes(buffer[at + 2 : at + 10], "big"), at + 10
        if end - start < length:
            break
        if buffer[at] == 0x81:
            found.append(bytes(buffer[start : start + length]))
        at = start + length
    del buffer[:at]
    return found


class Crowd:
    """All clients of this process."""

    def __init__(self, place: tuple[str, int], token: str, statements: list[str]) -> None:
        self._place = place
        self._token = token
        self._waiting = list(statements)
        self._watched = selectors.DefaultSelector()
        self._clients: list[Client] = []
        self._ready = 0
        # One for all: to make room for each read would cost more than the read.
        self._room = memoryview(bytearray(256 * 1024))
        self.latencies_ms: list[float] = []
        self.lagged = 0

    def open_all(self) -> None:
        """Open every socket, a few at a time, and wait for its snapshot."""
        wanted = len(self._waiting)
        deadline = time.monotonic() + OPENING_SECONDS_MAX
        while self._ready < wanted:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._ready} of {wanted} sockets are ready")
            while self._waiting and len(self._clients) - self._ready < OPENING_AT_ONCE:
                self._open(self._waiting.pop())
            self.turn(0.1)

    def _open(self, statement: str) -> None:
        plain = socket.create_connection(self._place)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, port = self._place
        plain.sendall(handshake(f"{host}:{port}", self._token))
        client = Client(plain)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            part = plain.recv(1)
            if not part:
                raise RuntimeError(f"refused: {answer!r}")
            answer += part
        if b" 101 " not in answer:
            raise RuntimeError(f"refused: {answer!r}")
        plain.sendall(masked(json.dumps({"type": "subscribe", "id": "a", "sql": statement})))
        plain.setblocking(False)
        self._clients.append(client)
        self._watched.register(plain, selectors.EVENT_READ, client)

    def turn(self, seconds: float) -> bool:
        """Take what came, or wait for it; True when standard input says something."""
        is_told = False
        for key, _ in self._watched.select(seconds):
            if key.data is None:
                is_told = True
                continue
            client: Client = key.data
            count = client.plain.recv_into(self._room)
            if not count:
                raise RuntimeError("the server closed a socket")
            now_ns = time.monotonic_ns()
            client.buffer += self._room[:count]
            for message in take_frames(client.buffer):
                self._take(client, message, now_ns)
        return is_told

    def _take(self, client: Client, message: bytes, now_ns: int) -> None:
        if message.startswith(b'{"type":"change"'):
            found = _SENT.search(message)
            if found:
                self.latencies_ms.append((now_ns - int(found.group(1))) / 1e6)
        elif message.startswith(b'{"type":"snapshot"'):
            if b'"last":true' in message and not client.is_ready:
                client.is_ready = True
                self._ready += 1
        elif message.startswith(b'{"type":"lagged"'):
            self.lagged += 1
        elif message.startswith(b'{"type":"error"'):
            raise RuntimeError(message.decode())

    def follow(self) -> None:
        """Take changes until standard input says to stop."""
        self._watched.register(sys.stdin, selectors.EVENT_READ, None)
        while not self.turn(1.0):
            pass


def main() -> None:
    """Do the task on standard input."""
    task = json.loads(sys.stdin.readline())
    crowd = Crowd((task["host"], task["port"]), task["token"], task["statements"])
    crowd.open_all()
    print("ready", flush=True)
    crowd.follow()
    print(json.dumps({"latencies_ms": crowd.latencies_ms, "lagged": crowd.lagged}), flush=True)


if __name__ == "__main__":
    main()
