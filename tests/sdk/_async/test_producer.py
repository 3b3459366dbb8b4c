"""A producer stores each message exactly once: lost answers, batches in doubt, a new start."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import tidegate
from tests.sdk.faults import Fault, FaultyServer, Say, faulty_server
from tidegate.errors import RequestInvalid, ServerNotRunning, StorageFailed, TooManyRequests, TopicNotFound
from tidegate.testing.server import RunningServer

STORAGE_FAILED = Say(500, b'{"error": {"code": "STORAGE_FAILED", "details": {"path": "p", "reason": "r"}}}')
BUSY = Say(429, b'{"error": {"code": "TOO_MANY_REQUESTS"}}', {"Retry-After": "3600"})


@contextmanager
def lossy(
    server: RunningServer, *script: Fault, retry_seconds: float = 10.0
) -> Iterator[tuple[FaultyServer, tidegate.Client]]:
    with (
        faulty_server(*script, upstream=server.url) as faulty,
        tidegate.connect(faulty.url, token=server.token, retry_seconds=retry_seconds) as client,
    ):
        yield faulty, client


def payloads(client: tidegate.Client, topic: str) -> list[object]:
    return [message["payload"] for message in client.topic(topic).consume(limit=1000)["messages"]]


def test_lost_answers_store_nothing_twice(client: tidegate.Client, server: RunningServer) -> None:
    client.topics.create("producer.lossy")
    with lossy(server, "lose", "drop", "lose", "through", "lose") as (faulty, through):
        producer = through.topic("producer.lossy").producer()
        first = producer.publish([{"payload": 0}, {"payload": 1}])
        producer.publish([{"payload": 2}])
        assert len(faulty.seen) == 6
    assert [place["offset"] for place in first] == [0, 1]
    assert producer.sequence == 3
    assert payloads(client, "producer.lossy") == [0, 1, 2]


def test_messages_are_numbered_one_by_one_under_one_name() -> None:
    placed = Say(200, b'{"offsets": [{}, {}]}')
    with faulty_server(placed, placed) as faulty, tidegate.connect(faulty.url, token="t") as client:
        producer = client.topic("t").producer("loader-7", sequence=40)
        producer.publish({"payload": number} for number in range(2))
        producer.publish([{"payload": 2}, {"payload": 3}])
        sent = [json.loads(seen.body) for seen in faulty.seen]
        assert client.topic("t").producer().producer_id != client.topic("t").producer().producer_id
    assert [(body["producerId"], body["sequence"]) for body in sent] == [("loader-7", 40), ("loader-7", 42)]
    assert [message["payload"] for message in sent[0]["messages"]] == [0, 1]


@pytest.mark.parametrize("failure", ["lose", STORAGE_FAILED])
def test_other_messages_are_refused_while_a_batch_is_in_doubt(
    failure: Fault, client: tidegate.Client, server: RunningServer
) -> None:
    topic = f"producer.doubt_{'lost' if failure == 'lose' else 'failed'}"
    client.topics.create(topic)
    with lossy(server, failure, retry_seconds=0) as (_, through):
        producer = through.topic(topic).producer()
        with pytest.raises((ServerNotRunning, StorageFailed)):
            producer.publish([{"payload": "a"}])
        with pytest.raises(RequestInvalid, match="from number 0 on"):
            producer.publish([{"payload": "b"}])
        producer.publish([{"payload": "a"}])
        producer.publish([{"payload": "b"}])
    assert payloads(client, topic) == ["a", "b"]


def test_a_refusal_after_a_lost_attempt_leaves_the_batch_in_doubt(
    client: tidegate.Client, server: RunningServer
) -> None:
    client.topics.create("producer.refused_late")
    with lossy(server, "lose", BUSY) as (_, through):
        producer = through.topic("producer.refused_late").producer()
        with pytest.raises(TooManyRequests):
            producer.publish([{"payload": "a"}])
        with pytest.raises(RequestInvalid):
            producer.publish([{"payload": "b"}])
        producer.publish([{"payload": "a"}])
    assert payloads(client, "producer.refused_late") == ["a"]


def test_a_refused_batch_keeps_its_number_for_the_next_one(
    client: tidegate.Client, server: RunningServer
) -> None:
    producer = client.topic("producer.later").producer()
    with pytest.raises(TopicNotFound):
        producer.publish([{"payload": "a"}])
    client.topics.create("producer.later")
    producer.publish([{"payload": "b"}])
    assert payloads(client, "producer.later") == ["b"]
    with lossy(server, BUSY) as (_, through):
        busy = through.topic("producer.later").producer()
        with pytest.raises(TooManyRequests):
            busy.publish([{"payload": "c"}])
        busy.publish([{"payload": "d"}])
    assert payloads(client, "producer.later") == ["b", "d"]


def test_a_program_that_starts_again_goes_on_under_its_name(client: tidegate.Client) -> None:
    topic = client.topics.create("producer.again")
    first = topic.producer("loader")
    first.publish([{"payload": 0}, {"payload": 1}])
    again = topic.producer("loader", sequence=first.sequence)
    again.publish([{"payload": 2}])
    repeated = topic.producer("loader", sequence=2)
    repeated.publish([{"payload": 2}])
    assert payloads(client, "producer.again") == [0, 1, 2]


def test_threads_take_turns(client: tidegate.Client) -> None:
    topic = client.topics.create("producer.shared")
    producer = topic.producer()

    def publish(start: int) -> None:
        for number in range(start, start + 20):
            producer.publish([{"payload": number}])

    threads = [threading.Thread(target=publish, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = payloads(client, "producer.shared")
    assert len(stored) == len(set(map(str, stored))) == producer.sequence == 60
