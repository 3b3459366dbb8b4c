"""Consumer groups beside NATS JetStream and Redis streams, with a sync for every write and as they come.

One at a time    take one message and acknowledge it; ours through the SDK, theirs over a raw socket
Waiting          from sending a publish to the message at a poll that waits for it, all over raw sockets
Memory           what 1,000 polls that wait cost the server, each on a connection of its own

Everything of ours is synced: the message, the lease that says who has it, and the acknowledgement.
"""

from __future__ import annotations

import json
import select
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil

import tidegate
from benchmarks.table import Row, milliseconds, print_rows
from benchmarks.topics.brokers import (
    PAYLOAD_BYTES,
    SETTINGS,
    Broker,
    Nats,
    Redis,
    Synced,
    broker_process,
    connect,
    missing,
    running,
)
from benchmarks.topics.single_publish import http_is_whole, request
from tidegate.sdk._sync.topics import TopicClient
from tidegate.testing.server import RunningServer, running_server

ROUNDS = 1_000
WARM_ROUNDS = 100
WAKES = 500
# A poll is on the way for this long before the message comes: it waits by then.
POLL_SECONDS = 0.003
WAITERS = 1_000
SETTLE_SECONDS = 2.0
TOPIC = "bench.groups"
BODY = {"messages": [{"payload": "x" * (PAYLOAD_BYTES - 2)}]}
TARGET_ONE_MS, TARGET_WAKE_MS, TARGET_MEMORY_MB = 3, 5, 100


@dataclass(frozen=True)
class Figures:
    """What one server did."""

    one_seconds: list[float]
    wake_seconds: list[float]
    memory_bytes: int


def run() -> list[Row]:
    """Measure ours and every peer, and give the rows."""
    ours = _ours()
    found = [(name, _peer(broker, synced)) for broker, synced, name in SETTINGS]
    rows = [
        _time_row("take one message and acknowledge it", name, ours.one_seconds, peer, TARGET_ONE_MS)
        for name, peer in found
    ]
    rows += [
        _time_row("publish to a poll that waits", name, ours.wake_seconds, peer, TARGET_WAKE_MS)
        for name, peer in found
    ]
    return rows + [_memory_row(name, ours.memory_bytes, peer) for name, peer in found]


def _time_row(what: str, name: str, ours: list[float], peer: Figures | str, target_ms: int) -> Row:
    taken = f"p50 {milliseconds(statistics.median(ours))}, p99 {milliseconds(_p99(ours))}"
    title, target = f"{what}; peer: {name}", f"p50 ≤ {target_ms} ms"
    if isinstance(peer, str):
        return Row(title, taken, peer, "–", target)
    theirs = peer.one_seconds if target_ms == TARGET_ONE_MS else peer.wake_seconds
    shown = f"p50 {milliseconds(statistics.median(theirs))}, p99 {milliseconds(_p99(theirs))}"
    ratio = f"{statistics.median(ours) / statistics.median(theirs):.1f} ×"
    return Row(title, taken, shown, ratio, target)


def _memory_row(name: str, ours: int, peer: Figures | str) -> Row:
    title, target = f"memory of {WAITERS:,} polls that wait; peer: {name}", f"≤ {TARGET_MEMORY_MB} MB"
    taken = f"{ours / 1e6:.1f} MB"
    if isinstance(peer, str):
        return Row(title, taken, peer, "–", target)
    return Row(title, taken, f"{peer.memory_bytes / 1e6:.1f} MB", f"{ours / peer.memory_bytes:.1f} ×", target)


def _p99(taken: list[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100]


def _timed(act: Callable[[], None]) -> list[float]:
    taken = []
    for _ in range(WARM_ROUNDS + ROUNDS):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return taken[WARM_ROUNDS:]


def _memory_of(child: psutil.Process, open_all: Callable[[], list[socket.socket]]) -> int:
    before = child.memory_info().rss
    opened = open_all()
    time.sleep(SETTLE_SECONDS)
    after = child.memory_info().rss
    readable, _, _ = select.select(opened, [], [], 0)
    # NATS asks now and then whether anybody is there; that is no answer.
    answers = [answer for one in readable if (answer := one.recv(1000)) != b"PING\r\n"]
    if answers:
        raise RuntimeError(f"{len(answers)} polls do not wait: {answers[0]!r}")
    for one in opened:
        one.close()
    return int(after - before)


def _wakes(poll: Callable[[], None], publish: Callable[[], None], arrive: Callable[[], None]) -> list[float]:
    """Poll, publish and read the poll's answer; give the time from sending the publish to that."""
    taken = []
    for _ in range(WARM_ROUNDS + WAKES):
        poll()
        time.sleep(POLL_SECONDS)
        began = time.perf_counter()
        publish()
        arrive()
        taken.append(time.perf_counter() - began)
    return taken[WARM_ROUNDS:]


# Ours


def _ours() -> Figures:
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "home") as server:
        with tidegate.connect(server.url, token=server.token) as client:
            topic = client.topics.create(TOPIC)
            one = _ours_one(topic)
        wake = _ours_wakes(server)
        memory = _memory_of(psutil.Process(server.child.pid), lambda: _ours_waiting(server))
    return Figures(one, wake, memory)


def _ours_one(topic: TopicClient) -> list[float]:
    topic.publish(BODY["messages"] * (WARM_ROUNDS + ROUNDS))

    def one() -> None:
        (message,) = topic.consume(group="one", limit=1)["messages"]
        topic.ack("one", leases=[str(message["lease"])])

    return _timed(one)


def _ours_wakes(server: RunningServer) -> list[float]:
    """Publish on one connection while another waits; what came is acknowledged in between."""
    sender, waiter = _opened(server), _opened(server)
    path = f"/api/v1/topics/{TOPIC}"
    asked = json.dumps({"group": "wake", "from": "latest", "limit": 1, "waitMs": 20_000}).encode()
    content = request(f"{path}/publish", server.token, json.dumps(BODY).encode())
    poll = request(f"{path}/consume", server.token, asked)
    came: list[bytes] = []

    def waits() -> None:
        if came:
            leases = [message["lease"] for message in json.loads(came.pop())["messages"]]
            body = json.dumps({"group": "wake", "leases": leases}).encode()
            waiter.sendall(request(f"{path}/ack", server.token, body))
            _answer(waiter)
        waiter.sendall(poll)

    taken = _wakes(waits, lambda: sender.sendall(content), lambda: came.append(_answer(waiter)))
    # Nobody reads the sender's answers: they fit into the socket's buffer.
    sender.close()
    waiter.close()
    return taken


def _ours_waiting(server: RunningServer) -> list[socket.socket]:
    asked = {"group": "many", "from": "latest", "limit": 1, "waitMs": 20_000}
    opened = []
    for number in range(WAITERS):
        body = json.dumps({**asked, "member": f"m{number}"}).encode()
        opened.append(_opened(server))
        opened[-1].sendall(request(f"/api/v1/topics/{TOPIC}/consume", server.token, body))
    return opened


def _opened(server: RunningServer) -> socket.socket:
    address = urlsplit(server.url)
    connection = socket.create_connection((str(address.hostname), address.port or 0), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _answer(connection: socket.socket) -> bytes:
    answer = b""
    while not http_is_whole(answer, b"200"):
        part = connection.recv(65_536)
        if not part:
            raise RuntimeError("the server closed the connection")
        answer += part
    return answer.partition(b"\r\n\r\n")[2]


# Theirs


def _peer(broker: Broker, synced: Synced) -> Figures | str:
    """Return what the peer did, or why it did nothing."""
    reason = missing(broker, synced)
    if reason is not None:
        return reason
    with running(broker, synced) as port:
        sender, waiter = connect(broker, port), connect(broker, port)
        waiter.create()
        sender.publish(WARM_ROUNDS + ROUNDS)

        def one() -> None:
            waiter.ask(1)
            waiter.ack(waiter.take(1))

        figures = Figures(
            _timed(one),
            _peer_wakes(sender, waiter),
            _memory_of(broker_process(port), lambda: _peer_waiting(broker, port)),
        )
        sender.close()
        waiter.close()
    return figures


def _peer_wakes(sender: Nats | Redis, waiter: Nats | Redis) -> list[float]:
    came: list[list[tuple[bytes, bytes]]] = []

    def waits() -> None:
        if came:
            waiter.ack(came.pop())
        waiter.ask(1)

    return _wakes(waits, lambda: sender.send(1), lambda: came.append(waiter.take(1)))


def _peer_waiting(broker: Broker, port: int) -> list[socket.socket]:
    opened = []
    for _ in range(WAITERS):
        peer = connect(broker, port)
        peer.ask(1)
        opened.append(peer.socket)
    return opened


if __name__ == "__main__":
    print_rows(run())
