"""The client for asyncio: the same calls against a real server, many at once, and one that is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import tidegate
from tests.sdk.faults import Say, faulty_server
from tidegate.errors import RequestInvalid, ServerNotRunning, TopicNotFound
from tidegate.testing.server import RunningServer


def run(call: Callable[[tidegate.AsyncClient], Awaitable[Any]], url: str, token: str, **more: Any) -> Any:
    async def connected() -> Any:
        async with tidegate.connect_async(url, token=token, **more) as client:
            return await call(client)

    return asyncio.run(connected())


def test_topics_from_making_to_deleting(server: RunningServer) -> None:
    async def tour(client: tidegate.AsyncClient) -> None:
        topic = await client.topics.create("async.tour", partitions=2)
        places = await topic.publish([{"key": "k", "payload": {"n": 1}}, {"key": "k", "payload": None}])
        page = await topic.consume(limit=1)
        assert page["messages"][0]["messageId"] == places[0]["messageId"]
        rest = await topic.consume({"offsets": page["nextOffsets"]})
        assert [message["payload"] for message in rest["messages"]] == [None]
        assert topic.name in [list_all["name"] for list_all in await client.topics.list()]
        await client.topics.delete(topic.name)
        with pytest.raises(TopicNotFound) as caught:
            await topic.consume()
        assert caught.value.values == {"topic": "async.tour"}

    run(tour, server.url, server.token)


def test_sql_gives_rows_and_tables(server: RunningServer) -> None:
    table = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
    deltalake.write_deltalake(str(server.home / "lake" / "counted"), table)

    async def ask(client: tidegate.AsyncClient) -> None:
        answer = await client.sql("SELECT n FROM lake.counted WHERE n > ? ORDER BY n", [1])
        assert answer.to_dicts() == [{"n": 2}, {"n": 3}]
        assert (await answer.to_arrow()).to_pydict() == {"n": [2, 3]}
        assert list((await answer.to_pandas())["n"]) == [2, 3]
        assert (await client.sql_arrow("SELECT max(n) AS n FROM lake.counted")).to_pydict() == {"n": [3]}
        assert (await client.status())["version"]

    run(ask, server.url, server.token)


def test_many_calls_share_the_pool_and_a_wait_holds_up_nobody(server: RunningServer) -> None:
    async def crowd(client: tidegate.AsyncClient) -> None:
        topic = await client.topics.create("async.crowd")
        waiting = asyncio.create_task(topic.consume("latest", wait_ms=60_000))
        await asyncio.gather(*(client.topics.show("async.crowd") for _ in range(200)))
        while not waiting.done():
            await topic.publish([{"payload": "wake up"}])
        assert (await waiting)["messages"][0]["payload"] == "wake up"

    run(crowd, server.url, server.token)


def test_what_is_lost_is_tried_again_where_that_is_safe() -> None:
    async def ask(client: tidegate.AsyncClient) -> None:
        assert (await client.topics.show("x"))["name"] == "x"
        with pytest.raises(ServerNotRunning):
            await client.sql("DELETE FROM app.t")

    with faulty_server("drop", "drop", Say(content=b'{"name": "x"}'), "drop") as faulty:
        run(ask, faulty.url, "t")
        assert [seen.method for seen in faulty.seen] == ["GET", "GET", "GET", "POST"]


def test_a_producer_stores_once_and_tasks_take_turns(server: RunningServer) -> None:
    async def publish(client: tidegate.AsyncClient) -> None:
        topic = await client.topics.create("async.producer")
        producer = topic.producer("p")
        await asyncio.gather(*(producer.publish([{"payload": number}]) for number in range(20)))
        stored = [message["payload"] for message in (await topic.consume())["messages"]]
        assert stored == list(range(20))
        assert producer.sequence == 20

    with faulty_server("through", "lose", "drop", "lose", upstream=server.url) as faulty:
        run(publish, faulty.url, server.token)
        assert len(faulty.seen) == 1 + 20 + 3 + 1


def test_a_cancelled_publish_leaves_its_batch_in_doubt() -> None:
    async def publish(client: tidegate.AsyncClient) -> None:
        producer = client.topic("t").producer()
        task = asyncio.create_task(producer.publish([{"payload": "a"}]))
        while not faulty.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(RequestInvalid, match="It is unknown"):
            await producer.publish([{"payload": "b"}])
        faulty.script[:] = [Say(content=b'{"offsets": [{}]}')]
        await producer.publish([{"payload": "a"}])
        assert producer.sequence == 1

    busy = Say(503, b"", {"Retry-After": "60"})
    with faulty_server(busy) as faulty:
        run(publish, faulty.url, "t", retry_seconds=600)


def test_where_no_server_runs_connecting_says_so(server: RunningServer, tmp_path: Any) -> None:
    with pytest.raises(ServerNotRunning):
        tidegate.connect_async(home=tmp_path)

    async def ask() -> object:
        async with tidegate.connect_async(home=server.home) as client:
            return client.url

    assert asyncio.run(ask()) == server.url
