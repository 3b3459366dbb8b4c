"""Consuming as fast as it goes, beside NATS JetStream and Redis streams: the same 100-byte messages.

Ours: through the SDK, as Arrow tables and as Python values of JSON, without a group and as its member, where
what was taken is leased and acknowledged (each with a sync). NATS: a durable pull consumer, 1,000 a fetch,
one cumulative ack for each fetch. Redis: XREADGROUP COUNT 1000, and one XACK for all of them. The peers are
read over a raw socket: a payload there is bytes, ours are values, with time, key, id and place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import pyarrow as pa

import tidegate
from benchmarks.table import Row, per_second, print_rows, times
from benchmarks.topics.brokers import PAYLOAD_BYTES, SETTINGS, Broker, Synced, connect, missing, running
from tidegate.sdk._sync.topics import TopicClient
from tidegate.testing.server import running_server

MESSAGES = 500_000
REQUEST_MESSAGES = 10_000
# A sync for every message makes them slow to store.
PEER_MESSAGES = 50_000
PEER_FETCH = 1_000
PAGE_ARROW, PAGE_JSON = 10_000, 2_000
RUNS = 3
TOPIC = "bench.consume"
TARGET_ARROW, TARGET_JSON = "≥ 500 k/s", "≥ 60 k/s"


def run() -> list[Row]:
    """Measure ours and each peer, and give the rows."""
    ours = _ours()
    peers = [(name, _peer(broker, synced)) for broker, synced, name in SETTINGS]
    return [
        _row(f"consume {what}; peer: {name}", MESSAGES / seconds, peer, target)
        for what, target, seconds in ours
        for name, peer in peers
    ]


def _row(title: str, ours: float, peer: float | str, target: str) -> Row:
    if isinstance(peer, str):
        return Row(title, per_second(ours, 1), peer, "–", target)
    return Row(title, per_second(ours, 1), per_second(peer, 1), times(ours, peer), target)


def _ours() -> list[tuple[str, str, float]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Path(folder) / "home") as server,
        tidegate.connect(server.url, token=server.token) as client,
    ):
        topic = client.topics.create(TOPIC)
        payload = f'"{"x" * (PAYLOAD_BYTES - 2)}"'
        table = pa.table({"payload": pa.array([payload] * REQUEST_MESSAGES)})
        for _ in range(MESSAGES // REQUEST_MESSAGES):
            topic.publish_arrow(table)
        ways: list[tuple[str, str, Callable[[int], int]]] = [
            ("as Arrow", TARGET_ARROW, lambda _: _pages_arrow(topic)),
            ("as Arrow in a group, acknowledged", TARGET_ARROW, lambda run: _group_arrow(topic, run)),
            ("as JSON", TARGET_JSON, lambda _: _pages_json(topic)),
            ("as JSON in a group, acknowledged", TARGET_JSON, lambda run: _group_json(topic, run)),
        ]
        return [(what, target, _best(consume)) for what, target, consume in ways]


def _best(consume: Callable[[int], int]) -> float:
    taken = []
    for run in range(RUNS):
        began = perf_counter()
        count = consume(run)
        taken.append(perf_counter() - began)
        assert count == MESSAGES, f"{count} messages of {MESSAGES}"
    return min(taken)


def _pages_arrow(topic: TopicClient) -> int:
    count, position = 0, {"0": 0}
    while count < MESSAGES:
        page = topic.consume_arrow({"offsets": position}, limit=PAGE_ARROW)
        count, position = count + page.table.num_rows, page.next_offsets
    return count


def _pages_json(topic: TopicClient) -> int:
    count, position = 0, {"0": 0}
    while count < MESSAGES:
        page = topic.consume({"offsets": position}, limit=PAGE_JSON)
        count, position = count + len(page["messages"]), page["nextOffsets"]
    return count


def _group_arrow(topic: TopicClient, run: int) -> int:
    count = 0
    with topic.consumer(f"arrow-{run}", limit=PAGE_ARROW) as consumer:
        for batch in consumer.batches():
            count += batch.num_rows
            if count >= MESSAGES:
                batch.ack()  # the others are acknowledged when the next one is asked for
                break
    return count


def _group_json(topic: TopicClient, run: int) -> int:
    count = 0
    with topic.consumer(f"json-{run}", limit=PAGE_JSON) as consumer:
        for _ in consumer:
            count += 1
            if count >= MESSAGES:
                break
    return count


def _peer(broker: Broker, synced: Synced) -> float | str:
    """Return the peer's messages a second, or why there are none."""
    reason = missing(broker, synced)
    if reason is not None:
        return reason
    with running(broker, synced) as port:
        peer = connect(broker, port)
        peer.create("all")
        for _ in range(PEER_MESSAGES // PEER_FETCH):
            peer.publish(PEER_FETCH)
        began = perf_counter()
        for _ in range(PEER_MESSAGES // PEER_FETCH):
            peer.ask(PEER_FETCH)
            peer.ack(peer.take(PEER_FETCH))
        seconds = perf_counter() - began
        peer.close()
    return PEER_MESSAGES / seconds


if __name__ == "__main__":
    print_rows(run())
