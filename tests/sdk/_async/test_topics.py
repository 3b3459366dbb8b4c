"""The calls of topics and groups one by one: what is sent, what comes back, what is told as an error."""

from __future__ import annotations

import asyncio
import json

import pytest

import tidegate
from tests.sdk.consuming import group_of
from tests.sdk.faults import Say, faulty_server
from tidegate.errors import GroupNotFound, LeaseLost, OffsetOutOfRange, TopicExists
from tidegate.sdk.types import MessagePageDict
from tidegate.testing.server import RunningServer


def leases(page: MessagePageDict) -> list[str]:
    return [str(message["lease"]) for message in page["messages"]]


def test_a_topic_is_made_with_a_retention_changed_and_cleared(client: tidegate.Client) -> None:
    topic = client.topics.create("calls.kept", 2, retention_seconds=60, retention_max_bytes=10_000)
    shown = client.topics.show("calls.kept")
    assert (shown["retentionSeconds"], shown["retentionMaxBytes"]) == (60, 10_000)
    changed = client.topics.change("calls.kept", partitions=3, retention_seconds=None)
    assert len(changed["partitions"]) == 3
    assert (changed["retentionSeconds"], changed["retentionMaxBytes"]) == (None, 10_000)
    assert changed["notice"]
    assert client.topics.change("calls.kept", retention_max_bytes=None)["notice"] is None
    topic.publish([{"payload": n, "partition": 0} for n in range(5)])
    assert client.topics.clear("calls.kept") == 5
    assert client.topics.show("calls.kept")["partitions"][0]["start"] == 5


def test_messages_of_a_group_are_leased_acknowledged_and_given_back(client: tidegate.Client) -> None:
    topic = client.topics.create("calls.leased")
    topic.publish([{"payload": n} for n in range(6)])
    page = topic.consume(group="g", member="a", limit=4, lease_ms=60_000)
    assert [message["deliveries"] for message in page["messages"]] == [1] * 4
    held = leases(page)
    assert topic.extend("g", held, member="a", lease_ms=90_000)["extended"] == 4
    assert topic.extend("g", member="b")["extended"] == 0
    assert topic.ack("g", held[:1], member="a") == {"acked": 1, "position": {"0": 1}}
    with pytest.raises(LeaseLost) as caught:
        topic.ack("g", held[:2], member="a")
    assert caught.value.values["leases"] == held[:1]
    assert topic.nack("g", held[2:3], reason="later", delay_ms=3_600_000) == {"nacked": 1, "dead": 0}
    assert topic.nack("g", held[3:], release=True) == {"nacked": 1, "dead": 0}
    rest = topic.consume(group="g", member="b")
    assert [(message["offset"], message["deliveries"]) for message in rest["messages"]] == [
        *((3, 1), (4, 1), (5, 1))
    ]
    assert topic.nack("g", leases(rest)[:1], member="b", dead=True, reason="no")["dead"] == 1
    assert topic.ack("g", upto={0: 5}, member="b")["acked"] == 2
    with pytest.raises(OffsetOutOfRange):
        topic.ack("g", upto={0: 6}, member="b")
    assert group_of(client, "calls.leased")["lag"] == 1


def test_a_group_is_shown_reset_and_deleted(client: tidegate.Client) -> None:
    topic = client.topics.create("calls.reset", 2)
    topic.publish([{"payload": n, "partition": n % 2} for n in range(6)])
    topic.ack("g", leases(topic.consume(group="g")))
    assert group_of(client, "calls.reset")["lag"] == 0
    assert topic.reset("g", "earliest") == {"0": 0, "1": 0}
    assert topic.reset("g", {"offset": 2}, partition=1) == {"1": 2}
    assert group_of(client, "calls.reset")["lag"] == 4
    assert topic.reset("g", "latest") == {"0": 3, "1": 3}
    topic.delete_group("g")
    assert topic.groups() == []
    with pytest.raises(GroupNotFound):
        topic.reset("g", "earliest")


def test_arrow_pages_of_a_group_have_leases_and_can_be_published_again(client: tidegate.Client) -> None:
    topic = client.topics.create("calls.arrow")
    topic.publish([{"payload": {"n": n}, "key": "k"} for n in range(3)])
    page = topic.consume_arrow(group="g", member="a", lease_ms=60_000)
    assert page.table.column("deliveries").to_pylist() == [1, 1, 1]
    assert page.missed == {}
    assert topic.ack("g", page.table.column("lease").to_pylist(), member="a")["acked"] == 3
    assert len(topic.publish_arrow(page.table)) == 3


def test_the_same_calls_with_asyncio(server: RunningServer) -> None:
    async def tour() -> None:
        async with tidegate.connect_async(server.url, token=server.token) as client:
            topic = await client.topics.create("calls.tour", retention_seconds=60)
            await topic.publish([{"payload": n} for n in range(3)])
            held = leases(await topic.consume(group="g", member="a"))
            await topic.extend("g", held)
            await topic.ack("g", held[:1])
            await topic.nack("g", held[1:])
            assert (await topic.reset("g", "latest")) == {"0": 3}
            assert [shown["group"] for shown in await topic.groups()] == ["g"]
            await topic.delete_group("g")
            await client.topics.change("calls.tour", partitions=2)
            assert await client.topics.clear("calls.tour") == 3

    asyncio.run(tour())


def test_a_topic_that_is_there_is_taken_as_it_is_where_that_is_asked_for(
    client: tidegate.Client, server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def again() -> None:
        async with tidegate.connect_async(server.url, token=server.token) as other:
            topic = await other.topics.create("calls.once", 3, retention_seconds=9, if_not_exists=True)
            await topic.publish([{"payload": 1}])

    made = client.topics.create("calls.once", 2, retention_seconds=60, if_not_exists=True)
    with pytest.raises(TopicExists):
        client.topics.create("calls.once", 2)
    client.topics.create("calls.once", if_not_exists=True)
    client.topics.create("calls.once", 2, retention_seconds=60, if_not_exists=True)
    assert [record for record in caplog.records if record.name.startswith("tidegate")] == []
    asyncio.run(again())
    assert "partitions is 2, not 3, retentionSeconds is 60, not 9" in caplog.text
    assert len(made.consume()["messages"]) == 1
    assert len(client.topics.show("calls.once")["partitions"]) == 2


def test_only_what_is_given_is_sent() -> None:
    with (
        faulty_server(Say(), Say(), Say(), Say()) as faulty,
        tidegate.connect(faulty.url, token="t") as client,
    ):
        topic = client.topic("t")
        topic.consume()
        topic.nack("g", ["l"])
        topic.ack("g", upto={1: 2})
        client.topics.change("t", retention_seconds=None)
        sent = [json.loads(seen.body) for seen in faulty.seen]
    assert sent == [
        {"from": "earliest", "limit": 100, "waitMs": 0},
        {"group": "g", "leases": ["l"], "delayMs": 0},
        {"group": "g", "acks": [{"partition": 1, "uptoOffset": 2}]},
        {"retentionSeconds": None},
    ]
