"""Arrow in and out of topics: tables go in as messages, messages come out as tables."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import tidegate
from tests.sdk.faults import Say, faulty_server
from tidegate.errors import RequestInvalid
from tidegate.testing.server import RunningServer


def messages(*payloads: str) -> pa.Table:
    return pa.table({"key": ["k"] * len(payloads), "payload": list(payloads)})


def test_a_table_goes_in_and_comes_out(client: tidegate.Client) -> None:
    topic = client.topics.create("arrow.tour", partitions=3)
    placed = topic.publish_arrow(messages('{"n": 1}', "2", "null"))
    assert [place["offset"] for place in placed] == [0, 1, 2]
    page = topic.consume_arrow(limit=2)
    assert page.table.column("payload").to_pylist() == ['{"n": 1}', "2"]
    assert page.table.column("key").to_pylist() == ["k", "k"]
    rest = topic.consume_arrow({"offsets": page.next_offsets})
    assert rest.table.column("payload").to_pylist() == ["null"]
    empty = topic.consume_arrow({"offsets": rest.next_offsets})
    assert empty.table.num_rows == 0
    assert empty.next_offsets == rest.next_offsets
    assert [message["payload"] for message in topic.consume()["messages"]] == [{"n": 1}, 2, None]


def test_a_consumed_table_is_published_as_it_is(client: tidegate.Client) -> None:
    source = client.topics.create("arrow.source", partitions=2)
    source.publish([{"key": f"k{number}", "payload": number} for number in range(10)])
    copy = client.topics.create("arrow.copy", partitions=2)
    copy.publish_arrow(source.consume_arrow().table)
    columns = ["partition", "offset", "key", "payload"]
    assert copy.consume_arrow().table.select(columns).equals(source.consume_arrow().table.select(columns))


def test_what_is_no_table_of_messages_is_refused(client: tidegate.Client) -> None:
    topic = client.topics.create("arrow.refused")
    for wrong in (pa.table({"volts": [1.0]}), messages("not json"), messages().append_column("x", [[]])):
        with pytest.raises(RequestInvalid):
            topic.publish_arrow(wrong)
    with pytest.raises(RequestInvalid, match="list is not an Arrow table"):
        topic.publish_arrow([1])
    topic.publish_arrow(messages("1").to_batches()[0])
    assert topic.consume_arrow().table.num_rows == 1


def test_a_producer_stores_tables_once(client: tidegate.Client, server: RunningServer) -> None:
    client.topics.create("arrow.producer")
    with (
        faulty_server("lose", "drop", "lose", upstream=server.url) as faulty,
        tidegate.connect(faulty.url, token=server.token) as through,
    ):
        producer = through.topic("arrow.producer").producer("loader & co")
        producer.publish_arrow(messages("0", "1"))
        producer.publish([{"payload": 2}])
        producer.publish_arrow(messages("3"))
    page = client.topic("arrow.producer").consume_arrow()
    assert page.table.column("payload").to_pylist() == ["0", "1", "2", "3"]
    assert producer.sequence == 4


def test_the_client_for_asyncio_does_the_same(server: RunningServer) -> None:
    async def tour() -> None:
        async with tidegate.connect_async(server.url, token=server.token) as client:
            topic = await client.topics.create("arrow.waiting")
            await topic.publish_arrow(messages("1"))
            await topic.producer().publish_arrow(messages("2"))
            page = await topic.consume_arrow()
            assert page.table.column("payload").to_pylist() == ["1", "2"]

    asyncio.run(tour())


def test_an_answer_that_is_no_arrow_is_our_error() -> None:
    with (
        faulty_server(Say(content=b"{}"), Say(content=b"")) as faulty,
        tidegate.connect(faulty.url, token="t") as client,
    ):
        for _ in range(2):
            with pytest.raises(tidegate.TidegateError, match="not Arrow"):
                client.topic("x").consume_arrow()
