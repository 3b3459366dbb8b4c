"""Single synced messages over HTTP: 64 connections, one message a request, beside NATS, Redis, a bare server.

The load is one process with raw sockets and epoll, so that the client costs little. The peers get one message
at a time on each of 64 connections as well, with a sync for every write and as they come. The CPU of the
server process a request is measured too, for a publish and for the same request with a wrong role, which ends
right behind the door: that is the cost of being let in.
"""

from __future__ import annotations

import json
import selectors
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from benchmarks.table import Row, print_rows
from benchmarks.topics.brokers import (
    SETTINGS,
    Broker,
    Synced,
    connect,
    missing,
    nats_greet,
    nats_is_stored,
    nats_message,
    redis_message,
    running,
)
from tidegate.testing.server import RunningServer, running_server

CONNECTIONS = 64
SECONDS = 5.0
WARM_SECONDS = 1.0
PAYLOAD_BYTES = 100
TARGET_PER_SECOND = 6_000
TARGET_CPU_MS = 0.3


@dataclass(frozen=True)
class Load:
    """What a load did."""

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


def run() -> list[Row]:
    """Measure and give the rows."""
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "home") as server:
        _call(server, "POST", "/api/v1/topics", {"name": "bench"})
        child = psutil.Process(server.child.pid)
        address = urlsplit(server.url)
        place = (str(address.hostname), address.port or 0)
        body = json.dumps({"messages": [{"payload": "x" * (PAYLOAD_BYTES - 2)}]}).encode()
        published = load(place, request("/api/v1/topics/bench/publish", server.token, body), b"200", child)
        reader = _reader_token(server)
        behind = load(place, request("/api/v1/topics/bench/publish", reader, body), b"403", child)
        open_door = load(place, request("/health", "", b"", "GET"), b"200", child)
    entry_ms = max(0.0, behind.cpu_ms - open_door.cpu_ms)
    return [
        *(_row(name, published, _peer(broker, synced)) for broker, synced, name in SETTINGS),
        Row(
            "CPU of being let in (token, role, limits), a request; peer: the open /health",
            f"{entry_ms:.3f} ms",
            f"{open_door.cpu_ms:.3f} ms",
            f"{behind.cpu_ms / open_door.cpu_ms:.2f}",
            f"≤ {TARGET_CPU_MS} ms",
        ),
    ]


def request(path: str, token: str, body: bytes, method: str = "POST") -> bytes:
    """Return the bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n"
    if token:
        head += f"Authorization: Bearer {token}\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n".encode() + body


def load(place: tuple[str, int], content: bytes, status: bytes, child: psutil.Process | None) -> Load:
    """Send one request after the other on every connection, and measure."""
    return drive(place, content, lambda answer: http_is_whole(answer, status), child)


def http_is_whole(answer: bytes, status: bytes) -> bool:
    """Return whether an answer is here; refuse one with another status."""
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    if not head.startswith(b"HTTP/1.1 " + status):
        raise RuntimeError(answer.decode(errors="replace"))
    at = head.lower().find(b"content-length:")
    return len(body) >= int(head[at + 15 :].split(b"\r\n", 1)[0])


def drive(
    place: tuple[str, int],
    content: bytes,
    is_whole: Callable[[bytes], bool],
    child: psutil.Process | None,
    connections: int = CONNECTIONS,
    greet: Callable[[socket.socket], bytes] | None = None,
    seconds: float = SECONDS,
) -> Load:
    """Keep one request on the way on each connection until the time is over.

    `greet` opens a connection to a server that wants a word first, and gives the content for it.
    """
    contents: dict[socket.socket, bytes] = {}
    chosen = selectors.DefaultSelector()
    sent_at: dict[socket.socket, float] = {}
    parts: dict[socket.socket, bytes] = {}
    for _ in range(connections):
        connection = socket.create_connection(place)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        contents[connection] = content if greet is None else greet(connection)
        chosen.register(connection, selectors.EVENT_READ)
        parts[connection] = b""
        sent_at[connection] = time.perf_counter()
        connection.sendall(contents[connection])
    begin = time.perf_counter() + WARM_SECONDS
    end = begin + seconds
    cpu_before, latencies = -1.0, []
    while (now := time.perf_counter()) < end:
        if cpu_before < 0 and now >= begin:
            cpu_before = _cpu_seconds(child)
        for key, _ in chosen.select(0.1):
            connection = key.fileobj  # type: ignore[assignment]
            parts[connection] += connection.recv(65_536)
            if not is_whole(parts[connection]):
                continue
            now = time.perf_counter()
            if now >= begin:
                latencies.append(now - sent_at[connection])
            parts[connection], sent_at[connection] = b"", now
            connection.sendall(contents[connection])
    cpu_seconds = _cpu_seconds(child) - cpu_before
    for connection in parts:
        connection.close()
    latencies.sort()
    return Load(
        len(latencies) / seconds,
        latencies[len(latencies) // 2] * 1e3,
        latencies[len(latencies) * 99 // 100] * 1e3,
        cpu_seconds / len(latencies) * 1e3,
    )


def _cpu_seconds(child: psutil.Process | None) -> float:
    if child is None:
        return 0.0
    times = child.cpu_times()
    return float(times.user + times.system)


def _call(server: RunningServer, method: str, path: str, body: object) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {server.token}"}
    answer = httpx.request(method, f"{server.url}{path}", json=body, headers=headers, trust_env=False)
    answer.raise_for_status()
    return dict(answer.json())


def _reader_token(server: RunningServer) -> str:
    _call(server, "POST", "/api/v1/users", {"name": "eve", "roles": ["reader"]})
    return _call(server, "POST", "/api/v1/users/eve/tokens", {})["token"]


def _row(name: str, ours: Load, peer: Load | str) -> Row:
    return Row(
        f"single synced publishes, {CONNECTIONS} connections; peer: {name}",
        f"{ours.per_second:,.0f}/s (p50 {ours.p50_ms:.1f} ms, p99 {ours.p99_ms:.1f} ms)",
        peer if isinstance(peer, str) else f"{peer.per_second:,.0f}/s (p50 {peer.p50_ms:.1f} ms)",
        "–" if isinstance(peer, str) else f"{ours.per_second / peer.per_second:.2f}",
        f"≥ {TARGET_PER_SECOND:,}/s",
    )


def _peer(broker: Broker, synced: Synced) -> Load | str:
    """Return what the peer did, or why it did nothing."""
    reason = missing(broker, synced)
    if reason is not None:
        return reason
    with running(broker, synced) as port:
        place = ("127.0.0.1", port)
        if broker == "Redis":
            return drive(place, redis_message(), lambda answer: answer.count(b"\r\n") >= 2, None)
        maker = connect(broker, port)
        maker.create()
        maker.close()
        return drive(
            place, b"", nats_is_stored, None, greet=lambda connection: nats_message(nats_greet(connection))
        )


if __name__ == "__main__":
    print_rows(run())
