"""What the source does when messages are gone, when it begins at a time, and when partitions are added."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.pipeline.topic.topics import TopicClient
from tidegate.errors import OffsetOutOfRange
from tidegate.pipeline.topic.offsets import OffsetRange
from tidegate.pipeline.topic.options import parse_options
from tidegate.pipeline.topic.range_reader import SOURCE_SCHEMA
from tidegate.pipeline.topic.source import TopicReader, TopicStreamReader
from tidegate.testing.server import running_server


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicClient]:
    with running_server(tmp_path_factory.mktemp("loss") / "home") as server:
        yield TopicClient(server)


def options_of(client: TopicClient, topic: str, **more: str) -> dict[str, str]:
    return {"topic": topic, "url": client.server.url, "token": client.server.token} | more


def stream_of(client: TopicClient, topic: str, **more: str) -> TopicStreamReader:
    return TopicStreamReader(parse_options(options_of(client, topic, **more), SOURCE_SCHEMA.names))


def numbers_read(stream: TopicStreamReader | TopicReader, ranges: list[OffsetRange]) -> list[int]:
    batches = [batch for span in ranges for batch in stream.read(span)]
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_lost_messages_stop_a_query_with_words_that_name_them(topics: TopicClient) -> None:
    """Case 24: a query that retention or CLEAR overtook fails, unless it was told to go on."""
    topics.create("loss.stops")
    topics.publish("loss.stops", range(10))
    stream = stream_of(topics, "loss.stops")
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    topics.clear("loss.stops")
    topics.publish("loss.stops", range(10, 15))
    with pytest.raises(OffsetOutOfRange) as planned:
        stream.latestOffset(start, stream.getDefaultReadLimit())
    with pytest.raises(OffsetOutOfRange) as read:
        numbers_read(stream, stream.partitions(start, end))
    for raised in (planned, read):
        said = "".join(raised.value.__notes__)
        assert "The messages 0 to 9 are gone" in said
        assert "failOnDataLoss" in said


def test_query_that_may_lose_messages_goes_on_at_the_earliest_and_says_how_many(
    topics: TopicClient, caplog: pytest.LogCaptureFixture
) -> None:
    topics.create("loss.goes", 2)
    topics.publish("loss.goes", range(10), 0)
    topics.publish("loss.goes", range(4), 1)
    stream = stream_of(topics, "loss.goes", failOnDataLoss="false")
    start = stream.initialOffset()
    planned = stream.latestOffset(start, stream.getDefaultReadLimit())
    ranges = stream.partitions(start, planned)
    topics.clear("loss.goes")
    with caplog.at_level(logging.WARNING):
        assert numbers_read(stream, ranges) == [], "planned before the loss, read after it"
    said = "\n".join(caplog.messages)
    assert "partition=0 first=0 last=9 count=10" in said
    assert "partition=1 first=0 last=3 count=4" in said

    topics.publish("loss.goes", range(10, 13), 0)
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {"topic": start["topic"], "0": 13, "1": 4}
    assert numbers_read(stream, stream.partitions(start, end)) == [10, 11, 12]
    assert numbers_read(stream, stream.partitions(start, planned)) == [], "the old batch, run again"


def test_batch_query_over_lost_offsets(topics: TopicClient) -> None:
    topics.create("loss.batch")
    topics.publish("loss.batch", range(5))
    topics.clear("loss.batch")
    topics.publish("loss.batch", range(5, 8))
    named = {"startingOffsets": '{"0": 2}'}
    strict = TopicReader(parse_options(options_of(topics, "loss.batch", **named), SOURCE_SCHEMA.names))
    with pytest.raises(OffsetOutOfRange):
        numbers_read(strict, strict.partitions())
    options = options_of(topics, "loss.batch", failOnDataLoss="false", **named)
    lenient = TopicReader(parse_options(options, SOURCE_SCHEMA.names))
    assert numbers_read(lenient, lenient.partitions()) == [5, 6, 7]


def test_offset_beyond_the_end_is_never_taken_for_a_loss(topics: TopicClient) -> None:
    topics.create("loss.ahead")
    stream = stream_of(topics, "loss.ahead", failOnDataLoss="false")
    with pytest.raises(OffsetOutOfRange):
        stream.latestOffset({**stream.initialOffset(), "0": 3}, stream.getDefaultReadLimit())


def test_starting_timestamp_finds_the_first_message_at_or_after_it(topics: TopicClient) -> None:
    topics.create("loss.times", 2)
    for number in range(3):
        topics.publish("loss.times", [number], 0)
    topics.publish("loss.times", [9], 1)
    body = {"from": "earliest", "partition": 0}
    times = [
        message["ts"] for message in topics.wire.post_json("topics/loss.times/consume", body)["messages"]
    ]
    assert len(set(times)) == 3
    first = stream_of(topics, "loss.times", startingTimestamp=times[1]).initialOffset()
    assert (first["0"], first["1"]) == (1, 0)
    latest = stream_of(topics, "loss.times", startingTimestamp="2199-01-01").initialOffset()
    assert (latest["0"], latest["1"]) == (3, 1)
    earliest = stream_of(topics, "loss.times", startingTimestamp="2001-01-01").initialOffset()
    assert (earliest["0"], earliest["1"]) == (0, 0)


def test_partitions_that_are_added_are_read_from_their_first_message(topics: TopicClient) -> None:
    topics.create("loss.wider")
    topics.publish("loss.wider", range(3))
    stream = stream_of(topics, "loss.wider", startingOffsets="latest")
    start = stream.initialOffset()
    topics.widen("loss.wider", 2)
    topics.publish("loss.wider", range(5), 1)
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {"topic": start["topic"], "0": 3, "1": 5}
    assert numbers_read(stream, stream.partitions(start, end)) == [0, 1, 2, 3, 4]

    once = stream_of(topics, "loss.wider")
    once.prepareForTriggerAvailableNow()
    topics.widen("loss.wider", 3)
    topics.publish("loss.wider", range(7), 2)
    assert once.latestOffset(end, once.getDefaultReadLimit()) == end, "what came later is for the next run"
