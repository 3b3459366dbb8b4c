"""Publish over HTTP, synced: 1,000 messages of 100 bytes a request, beside NATS JetStream and Redis streams.

Ours: `tidegate serve`, one fsync before each answer, JSON over HTTP. NATS: 1,000 publishes sent at once, then
1,000 answers awaited. Redis: 1,000 XADD in a pipeline. Each with a sync for every write, and as it comes. All
clients are raw sockets in other processes.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.table import Row, print_rows
from benchmarks.topics.brokers import SETTINGS, Broker, Synced, connect, missing, running
from tidegate.testing.server import running_server

MESSAGES = 1000
PAYLOAD_BYTES = 100
SECONDS = 4.0
CONNECTIONS = 4
TARGET_PER_SECOND = 150_000
TARGET_TIMES_NATS = 10


def run() -> list[Row]:
    """Measure ours and each peer, and give the rows."""
    ours = _ours()
    return [
        _row(f"publish 1,000 × 100 B a request, synced; peer: {name}", ours, _peer(broker, synced), synced)
        for broker, synced, name in SETTINGS
    ]


def _row(name: str, ours: float, peer: float | str, synced: Synced) -> Row:
    target = f"≥ {TARGET_PER_SECOND:,}/s" if synced == "synced" else "–"
    if synced == "synced" and "NATS" in name:
        target += f" and ≥ {TARGET_TIMES_NATS} ×"
    if isinstance(peer, str):
        return Row(name, f"{ours:,.0f}/s", peer, "–", target)
    return Row(name, f"{ours:,.0f}/s", f"{peer:,.0f}/s", f"{ours / peer:.2f}", target)


def _ours() -> float:
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "home") as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        made = httpx.post(
            f"{server.url}/api/v1/topics", json={"name": "bench"}, headers=headers, trust_env=False
        )
        made.raise_for_status()
        address = urlsplit(server.url)
        payload = json.dumps("x" * (PAYLOAD_BYTES - 2))
        body = (
            '{"messages":[' + ",".join(f'{{"payload":{payload}}}' for _ in range(MESSAGES)) + "]}"
        ).encode()
        request = (
            "POST /api/v1/topics/bench/publish HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {server.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        return _rate(_load_ours, str(address.hostname), address.port or 0, request)


def _peer(broker: Broker, synced: Synced) -> float | str:
    """Return the peer's messages a second, or why there are none."""
    reason = missing(broker, synced)
    if reason is not None:
        return reason
    with running(broker, synced) as port:
        maker = connect(broker, port)
        maker.create()
        maker.close()
        return _rate(_load_peer, broker, port)


def _rate(load: Callable[..., int], *place: object) -> float:
    with multiprocessing.Pool(CONNECTIONS) as pool:
        counts = pool.starmap(load, [place] * CONNECTIONS)
    return sum(counts) * MESSAGES / SECONDS


def _load_ours(host: str, port: int, request: bytes) -> int:
    with socket.create_connection((host, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def publish() -> None:
            connection.sendall(request)
            _http_answer(connection)

        return _repeated(publish)


def _load_peer(broker: Broker, port: int) -> int:
    peer = connect(broker, port)
    return _repeated(lambda: peer.publish(MESSAGES))


def _repeated(publish: Callable[[], None]) -> int:
    count, deadline = 0, time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        publish()
        count += 1
    return count


def _http_answer(connection: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(head.decode())
    length = next(
        int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    left = length - len(body)
    while left > 0:
        left -= len(connection.recv(min(left, 262_144)))


if __name__ == "__main__":
    print_rows(run())
