"""Backup of a home of 1 GB while writers go on, beside `tar` of the same files.

Ours: `tidegate backup`, with a freeze at one point of time, SHA-256 of every file and a synced file at the
end. The peer: `tar -cf` of the same folders and a sync of its file; it is at no one point of time and checks
nothing. Writers publish single messages, each synced, over raw sockets: their p50 and p99 before and during.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa

from benchmarks.table import Row, milliseconds, print_rows
from tidegate.testing.server import RunningServer, running_server

HOME_BYTES = 1_000_000_000
TABLE_PART = 0.5
TABLE_FILES = 50
CONNECTIONS = 4
USUAL_SECONDS = 8.0
SETTLE_SECONDS = 6.0
REQUEST_MESSAGES = 1_000
PAYLOAD_BYTES = 1_000
SECONDS_TARGET = 20
RATIO_TARGET = 3


@dataclass(frozen=True, slots=True)
class Figures:
    """One run."""

    home_bytes: int
    backup_seconds: float
    tar_seconds: float
    usual_ms: np.ndarray
    during_ms: np.ndarray
    during_tar_ms: np.ndarray
    restore_seconds: float
    untar_seconds: float


def run() -> list[Row]:
    """Measure once and give the rows."""
    figures = measure()
    size = f"{figures.home_bytes / 1e9:.2f} GB"
    rows = [
        Row(
            f"backup of a home of {size} with writers going on; peer: tar of the same files, same writers",
            f"{figures.backup_seconds:.1f} s",
            f"{figures.tar_seconds:.1f} s",
            f"{figures.backup_seconds / figures.tar_seconds:.2f}",
            f"≤ {SECONDS_TARGET} s",
        )
    ]
    rows.append(
        Row(
            "restore of it, every byte checked and every file synced; peer: tar -x of the same file, sync",
            f"{figures.restore_seconds:.1f} s",
            f"{figures.untar_seconds:.1f} s",
            f"{figures.restore_seconds / figures.untar_seconds:.2f}",
            "–",
        )
    )
    cases = [
        (50, "before it", figures.usual_ms, "–"),
        (99, "before it", figures.usual_ms, f"≤ {RATIO_TARGET} ×"),
        (99, "during tar", figures.during_tar_ms, "–"),
    ]
    for percent, when, peer_ms, target in cases:
        during, peer = (float(np.percentile(part, percent)) for part in (figures.during_ms, peer_ms))
        name = f"single synced publish, {CONNECTIONS} writers, p{percent} during a backup; peer: {when}"
        ours, theirs = milliseconds(during / 1e3), milliseconds(peer / 1e3)
        rows.append(Row(name, ours, theirs, f"{during / peer:.2f}", target))
    return rows


def measure() -> Figures:
    """Fill a home, let writers go on, and make a backup of it."""
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "home") as server:
        _fill(server)
        time.sleep(SETTLE_SECONDS)  # flushes and compactions of the filling
        usual, _ = _with_writers(server, lambda: time.sleep(USUAL_SECONDS))
        file = Path(folder) / "backup.tar"
        during, seconds = _with_writers(server, lambda: _back_up(server.home, file))
        size_bytes = file.stat().st_size
        restore_seconds = _timed(lambda: _restore(file, Path(folder) / "restored"))
        untar_seconds = _timed(lambda: _untar(file, Path(folder) / "untarred"))
        file.unlink()
        during_tar, tar_seconds = _with_writers(server, lambda: _tar(server.home, file))
    return Figures(
        size_bytes, seconds, tar_seconds, usual, during, during_tar, restore_seconds, untar_seconds
    )


def _fill(server: RunningServer) -> None:
    from deltalake import write_deltalake

    rows = int(HOME_BYTES * TABLE_PART / TABLE_FILES / 8)
    for _ in range(TABLE_FILES):  # numbers that do not compress
        numbers = pa.array(np.frombuffer(os.urandom(rows * 8), np.int64))
        write_deltalake(str(server.home / "lake" / "numbers"), pa.table({"n": numbers}), mode="append")
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as http:
        for name in ("bench.filled", "bench.live"):
            http.post("/api/v1/topics", json={"name": name}).raise_for_status()
        for _ in range(int(HOME_BYTES * (1 - TABLE_PART) / REQUEST_MESSAGES / PAYLOAD_BYTES)):
            payloads = [os.urandom(PAYLOAD_BYTES // 2).hex() for _ in range(REQUEST_MESSAGES)]
            body = {"messages": [{"payload": payload} for payload in payloads]}
            http.post("/api/v1/topics/bench.filled/publish", json=body).raise_for_status()


def _with_writers(server: RunningServer, act: Callable[[], None]) -> tuple[np.ndarray, float]:
    """Run something while writers publish; give their latencies meanwhile, and how long it took."""
    stop = multiprocessing.Event()
    answers: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
    arguments = (server.url, server.token, stop, answers)
    writers = [
        multiprocessing.Process(target=_write, args=arguments, daemon=True) for _ in range(CONNECTIONS)
    ]
    for writer in writers:
        writer.start()
    time.sleep(1.0)  # every writer is at work
    begun = time.monotonic()
    act()
    ended = time.monotonic()
    stop.set()
    found = [answers.get(timeout=60) for _ in writers]
    for writer in writers:
        writer.join()
    pairs = np.array([pair for one in found for pair in one]).reshape(-1, 2)
    inside = pairs[(pairs[:, 0] >= begun) & (pairs[:, 0] <= ended)]
    return inside[:, 1] * 1e3, ended - begun


def _write(url: str, token: str, stop: Event, answers: multiprocessing.Queue[list[float]]) -> None:
    address = urlsplit(url)
    body = json.dumps({"messages": [{"payload": "x" * 100}]}).encode()
    request = (
        "POST /api/v1/topics/bench.live/publish HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    times: list[float] = []
    with socket.create_connection((str(address.hostname), address.port or 0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not stop.is_set():
            begun = time.monotonic()
            connection.sendall(request)
            _read_answer(connection)
            times += [begun, time.monotonic() - begun]
            time.sleep(0.002)  # a steady load, not the most that there can be
    answers.put(times)


def _read_answer(connection: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(received.decode())
    lines = head.lower().split(b"\r\n")
    left = next(int(line[15:]) for line in lines if line.startswith(b"content-length:")) - len(body)
    while left > 0:
        left -= len(connection.recv(left))


def _back_up(home: Path, file: Path) -> None:
    command = [sys.executable, "-m", "tidegate", "backup", str(file), "--home", str(home), "--json"]
    subprocess.run(command, check=True, capture_output=True)


def _restore(file: Path, home: Path) -> None:
    command = [sys.executable, "-m", "tidegate", "restore", str(file), "--home", str(home), "--json"]
    subprocess.run(command, check=True, capture_output=True)


def _untar(file: Path, folder: Path) -> None:
    folder.mkdir()
    subprocess.run(["tar", "-xf", str(file), "-C", str(folder)], check=True)
    subprocess.run(["sync", "-f", str(folder)], check=True)


def _timed(act: Callable[[], None]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


def _tar(home: Path, file: Path) -> None:
    # 1 is "a file changed as we read it": the writers go on.
    code = subprocess.run(
        ["tar", "-cf", str(file), "-C", str(home), "lake", "engine"], check=False
    ).returncode
    if code > 1:
        raise RuntimeError(f"tar ended with {code}")
    subprocess.run(["sync", str(file)], check=True)


if __name__ == "__main__":
    print_rows(run())
