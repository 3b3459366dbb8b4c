"""Publish over HTTP, synced: 1,000 messages of 100 bytes a request, beside Redis streams.

Ours: `tidegate serve`, one fsync before each answer, JSON over HTTP. Redis: XADD, 1,000 in a pipeline, with
a sync for every write (`appendfsync always`) and with its default (`everysec`). Both clients are raw
sockets in another process.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.table import Row, print_rows
from tidegate.testing.server import running_server

MESSAGES = 1000
PAYLOAD_BYTES = 100
SECONDS = 4.0
CONNECTIONS = 4
TARGET_PER_SECOND = 150_000


def run() -> list[Row]:
    """Measure both and give the rows."""
    ours = _ours()
    always, everysec = _redis("always"), _redis("everysec")
    target = f"≥ {TARGET_PER_SECOND:,}/s"
    return [
        _row(
            "publish 1,000 × 100 B a request, synced; peer: Redis XADD ×1,000, appendfsync always",
            ours,
            always,
            target,
        ),
        _row("the same; peer: Redis XADD ×1,000, appendfsync everysec (not synced)", ours, everysec, target),
    ]


def _row(name: str, ours: float, peer: float | None, target: str) -> Row:
    if peer is None:
        return Row(name, f"{ours:,.0f}/s", "not installed (apt-get install redis-server)", "–", target)
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
        return _rate(str(address.hostname), address.port or 0, request, _http_answer)


@contextmanager
def redis_server(folder: Path, sync: str) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--appendonly",
        "yes",
        "--appendfsync",
        sync,
        "--save",
        "",
    ]
    child = subprocess.Popen(["redis-server", *options, "--dir", str(folder)], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield port
    finally:
        child.terminate()
        child.wait()


def _redis(sync: str) -> float | None:
    if shutil.which("redis-server") is None:
        return None
    one = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nv\r\n$100\r\n" + b"x" * PAYLOAD_BYTES + b"\r\n"
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder), sync) as port:
        return _rate("127.0.0.1", port, one * MESSAGES, _redis_answer)


def _rate(host: str, port: int, request: bytes, read_answer: Callable[[socket.socket], None]) -> float:
    with multiprocessing.Pool(CONNECTIONS) as pool:
        counts = pool.starmap(_load, [(host, port, request, read_answer)] * CONNECTIONS)
    return sum(counts) * MESSAGES / SECONDS


def _load(host: str, port: int, request: bytes, read_answer: Callable[[socket.socket], None]) -> int:
    count = 0
    with socket.create_connection((host, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            connection.sendall(request)
            read_answer(connection)
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


def _redis_answer(connection: socket.socket) -> None:
    lines = 0
    while lines < 2 * MESSAGES:
        lines += connection.recv(262_144).count(b"\r\n")


if __name__ == "__main__":
    print_rows(run())
