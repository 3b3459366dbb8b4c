"""The source: exact ranges, the same rows again, clear words when something is wrong."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.topic.topics import TopicClient, cut_wire
from tidegate.errors import (
    InvariantBroken,
    OffsetOutOfRange,
    RequestInvalid,
    ServerNotRunning,
    TopicNotFound,
    TopicReplaced,
)
from tidegate.pipeline.topic.offsets import SPLIT_MESSAGES_MIN, OffsetRange, split_ranges
from tidegate.pipeline.topic.options import parse_options
from tidegate.pipeline.topic.range_reader import SOURCE_SCHEMA, checked_next
from tidegate.pipeline.topic.source import TopicConnector, TopicReader, TopicStreamReader
from tidegate.testing.server import running_server

COUNT = 50_000
# Ids of the two topics of the fixture: a new home counts from 1.
ONE, THREE = 1, 2


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicClient]:
    """A server with a topic of one partition and one of three."""
    with running_server(tmp_path_factory.mktemp("source") / "home") as server:
        client = TopicClient(server)
        client.create("app.one")
        client.publish("app.one", range(COUNT))
        client.create("app.three", 3)
        for partition in range(3):
            client.publish("app.three", range(partition * 100, partition * 100 + 100), partition)
        yield client


def options_for(client: TopicClient, topic: str, **more: str) -> dict[str, str]:
    return {"topic": topic, "url": client.server.url, "token": client.server.token} | more


def reader_for(client: TopicClient, topic: str, **more: str) -> TopicReader:
    return TopicReader(parse_options(options_for(client, topic, **more), SOURCE_SCHEMA.names))


def offsets_in(batches: list[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


offsets_by_partition = st.dictionaries(
    st.integers(0, 5).map(str), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=4
)


@given(offsets_by_partition, st.integers(1, 8))
def test_split_ranges_cover_every_offset_once(spans: dict[str, tuple[int, int]], partitions_min: int) -> None:
    start = {partition: begin for partition, (begin, _) in spans.items()}
    stop = {"topic": ONE, **{partition: begin + length for partition, (begin, length) in spans.items()}}
    ranges = split_ranges(start, stop, partitions_min)
    for partition, (begin, length) in spans.items():
        mine = sorted((r.start, r.stop) for r in ranges if r.partition == int(partition))
        edges = [begin, *[end for _, end in mine]]
        assert [first for first, _ in mine] == edges[:-1]
        assert edges[-1] == begin + length
        assert all(first < end for first, end in mine)


def test_big_ranges_are_split_for_all_cores_and_small_ones_are_not() -> None:
    assert len(split_ranges({"0": 0}, {"topic": ONE, "0": 10 * SPLIT_MESSAGES_MIN}, 4)) == 4
    assert len(split_ranges({"0": 0}, {"topic": ONE, "0": SPLIT_MESSAGES_MIN}, 4)) == 1
    assert split_ranges({"0": 7}, {"topic": ONE, "0": 7}, 4) == []


def test_reader_gives_each_message_of_a_range_once_and_in_order(topics: TopicClient) -> None:
    reader = reader_for(topics, "app.one", minPartitions="2")
    ranges = reader.partitions()
    assert len(ranges) == 2
    found = offsets_in([batch for one in ranges for batch in reader.read(one)])
    assert found == list(range(COUNT))


def test_reading_a_range_again_gives_the_same_rows(topics: TopicClient) -> None:
    reader = reader_for(topics, "app.one")
    span = OffsetRange(ONE, 0, 777, 20_001)
    first, second = (pa.Table.from_batches(list(reader.read(span))) for _ in range(2))
    assert first.equals(second)
    assert first.num_rows == 20_001 - 777
    assert first.schema.equals(SOURCE_SCHEMA)


@pytest.mark.parametrize("cuts", [[500], [3_000, 200_000, 10], [1_000_000]])
def test_read_goes_on_where_the_connection_broke(topics: TopicClient, cuts: list[int]) -> None:
    with cut_wire(topics.server.url, cuts) as url:
        options = options_for(topics, "app.one", url=url)
        reader = TopicReader(parse_options(options, SOURCE_SCHEMA.names))
        found = offsets_in(list(reader.read(OffsetRange(ONE, 0, 5, COUNT))))
    assert found == list(range(5, COUNT))


def test_read_past_the_end_is_an_error_and_not_a_short_answer(topics: TopicClient) -> None:
    reader = reader_for(topics, "app.one")
    with pytest.raises(OffsetOutOfRange):
        list(reader.read(OffsetRange(ONE, 0, COUNT - 10, COUNT + 1)))


@pytest.mark.parametrize("offsets", [[4, 5], [6, 7], [5, 7], [5, 6, 7, 8, 9, 10]])
def test_rows_that_are_not_the_next_ones_are_an_error(offsets: list[int]) -> None:
    batch = pa.record_batch({"partition": pa.array([0] * len(offsets), pa.int32()), "offset": offsets})
    with pytest.raises(InvariantBroken, match="offset 5 is next"):
        checked_next(batch, OffsetRange(ONE, 0, 0, 10), 5)


def test_absent_server_fails_after_the_patience_asked_for(tmp_path: Path) -> None:
    given_options = {"topic": "a", "url": "http://127.0.0.1:9", "token": "t", "retrySeconds": "0.2"}
    reader = TopicReader(parse_options(given_options, SOURCE_SCHEMA.names))
    with pytest.raises(ServerNotRunning):
        reader.partitions()


def test_unknown_topic_fails_at_once_with_the_servers_words(topics: TopicClient) -> None:
    with pytest.raises(TopicNotFound) as raised:
        reader_for(topics, "no.such", retrySeconds="3600").partitions()
    assert "topic create no.such" in "".join(raised.value.__notes__)


def test_stream_offsets_are_limited_and_compare_as_text(topics: TopicClient) -> None:
    options = options_for(topics, "app.three", maxMessagesPerBatch="150")
    stream = TopicStreamReader(parse_options(options, SOURCE_SCHEMA.names))
    start = stream.initialOffset()
    assert json.dumps(start) == '{"topic": 2, "0": 0, "1": 0, "2": 0}'
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert 0 < sum(end.values()) - THREE <= 150
    while end != start:
        start, end = end, stream.latestOffset(end, stream.getDefaultReadLimit())
    assert json.dumps(end) == '{"topic": 2, "0": 100, "1": 100, "2": 100}'
    assert stream.reportLatestOffset() == end


@pytest.mark.parametrize(
    ("starting", "first"),
    [
        ("earliest", {"0": 0, "1": 0, "2": 0}),
        ("latest", {"0": 100, "1": 100, "2": 100}),
        ('{"1": 42}', {"0": 0, "1": 42, "2": 0}),
    ],
)
def test_starting_offsets(topics: TopicClient, starting: str, first: dict[str, int]) -> None:
    options = options_for(topics, "app.three", startingOffsets=starting)
    assert TopicStreamReader(parse_options(options, SOURCE_SCHEMA.names)).initialOffset() == {
        "topic": THREE,
        **first,
    }


def test_a_topic_that_was_deleted_and_made_again_is_not_read_on(topics: TopicClient) -> None:
    topics.create("app.again")
    topics.publish("app.again", range(10))
    stream = TopicStreamReader(parse_options(options_for(topics, "app.again"), SOURCE_SCHEMA.names))
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    (span,) = stream.partitions(stream.initialOffset(), end)
    topics.delete("app.again")
    topics.create("app.again")
    topics.publish("app.again", range(100))
    with pytest.raises(TopicReplaced):
        stream.latestOffset(end, stream.getDefaultReadLimit())
    with pytest.raises(TopicReplaced):
        list(stream.read(span))


def test_starting_offset_of_a_missing_partition_is_refused(topics: TopicClient) -> None:
    with pytest.raises(RequestInvalid, match="partition 3"):
        reader_for(topics, "app.three", startingOffsets='{"3": 0}').partitions()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option 'topic'"),
        ({"topic": "a", "topik": "b"}, "no option 'topik'; did you mean 'topic'?"),
        ({"topic": "a", "maxmessagesperbach": "5"}, "did you mean 'maxMessagesPerBatch'?"),
        ({"topic": "a", "maxMessagesPerBatch": "0"}, "not between 1 and"),
        ({"topic": "a", "minPartitions": "two"}, "'two' is not a number"),
        ({"topic": "a", "startingOffsets": "soon"}, "'soon' is not JSON"),
        ({"topic": "a", "startingOffsets": '{"0": -1}'}, "not a partition and an offset"),
        ({"topic": "a", "columns": "offset,payloat"}, "no column 'payloat'"),
        ({"topic": "a b"}, "not a valid topic name"),
        ({"topic": "a", "failOnDataLoss": "maybe"}, "'maybe' is not true or false"),
        ({"topic": "a", "payload": "rows"}, "'rows' is not text or columns"),
        ({"topic": "a", "payloadSchema": "a INT"}, "payloadSchema is for payload 'columns'"),
        ({"topic": "a", "payload": "columns", "columns": "offset"}, "no column 'offset'"),
        ({"topic": "a", "startingTimestamp": "soon"}, "not an ISO 8601 time"),
        (
            {"topic": "a", "startingTimestamp": "2026-01-01", "startingOffsets": "latest"},
            "both say where to begin",
        ),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(RequestInvalid) as raised:
        TopicConnector(options)
    assert words in str(raised.value)


def test_ranges_travel_and_show_no_token() -> None:
    span = pickle.loads(pickle.dumps(OffsetRange(ONE, 3, 10, 20)))
    assert repr(span) == "OffsetRange(partition=3, start=10, stop=20)"
    settings = parse_options({"topic": "a", "token": "hush-hush", "caFile": "ca.pem"}, SOURCE_SCHEMA.names)
    assert settings.location.ca_file == "ca.pem"
    assert "hush-hush" not in repr(settings)


@pytest.mark.spark
def test_batch_query_reads_all_columns(spark: Any, topics: TopicClient) -> None:
    rows = spark.read.format("tidegate.topic").options(**options_for(topics, "app.three")).load()
    assert rows.columns == SOURCE_SCHEMA.names
    found = rows.selectExpr(
        "partition", "offset", "get_json_object(payload, '$.n') AS n", "key", "ts"
    ).collect()
    assert sorted(int(row.n) for row in found) == list(range(300))
    assert all(int(row.n) == row.partition * 100 + row.offset and row.key == f"k{row.n}" for row in found)
    assert all(row.ts is not None for row in found)


@pytest.mark.spark
def test_fewer_columns_and_an_empty_range(spark: Any, topics: TopicClient) -> None:
    load = spark.read.format("tidegate.topic").options(**options_for(topics, "app.three"))
    assert load.option("columns", "payload, offset").load().columns == ["payload", "offset"]
    assert load.option("startingOffsets", "latest").load().count() == 0


@pytest.mark.spark
def test_routed_rows_come_as_columns_of_their_table(spark: Any, topics: TopicClient) -> None:
    """Case 24: columns typed by the payload schema of the topic; JSON stays JSON text."""
    topics.create("app.changes")
    with pytest.raises(RequestInvalid, match="no payload schema"):
        TopicConnector(options_for(topics, "app.changes", payload="columns")).schema()
    topics.sql("CREATE NAMESPACE app")
    topics.sql(
        "CREATE USER TABLE app.orders (id BIGINT PRIMARY KEY, amount DECIMAL(10,2), doc JSON, at TIMESTAMP)"
    )
    topics.sql("ALTER TOPIC app.changes ADD SOURCE app.orders ON INSERT, DELETE WITH (payload = 'full')")
    topics.sql(
        "INSERT INTO app.orders VALUES (1, 1.5, '\"text\"', '2026-01-01T00:00:00.5Z'), (2, NULL, NULL, NULL)"
    )
    topics.sql("DELETE FROM app.orders WHERE id = 1")
    load = spark.read.format("tidegate.topic").options(**options_for(topics, "app.changes"))
    read = load.option("payload", "columns").option("columns", "_offset, _op, _user").load()
    kinds = [("id", "bigint"), ("amount", "decimal(10,2)"), ("doc", "string"), ("at", "timestamp")]
    assert read.dtypes == [*kinds, ("_offset", "bigint"), ("_op", "string"), ("_user", "string")]
    found = [
        tuple(row) for row in read.selectExpr("* EXCEPT (at)", "string(at)").orderBy("_offset").collect()
    ]
    first = (Decimal("1.50"), '"text"')
    assert found == [
        (1, *first, 0, "INSERT", "admin", "2026-01-01 00:00:00.5"),
        (2, None, None, 1, "INSERT", "admin", None),
        (1, *first, 2, "DELETE", "admin", "2026-01-01 00:00:00.5"),
    ]


@pytest.mark.spark
def test_errors_keep_their_words_and_hint_through_spark(spark: Any, topics: TopicClient) -> None:
    options = options_for(topics, "no.such")
    with pytest.raises(Exception, match=r"There is no topic 'no\.such'\.") as raised:
        spark.read.format("tidegate.topic").options(**options).load().count()
    assert "Hint: Create it with 'tidegate topic create no.such'" in str(raised.value)
    assert topics.server.token not in str(raised.value)


def run_to_the_end(
    spark: Any, options: dict[str, str], table: Path, checkpoint: Path
) -> list[tuple[int, int]]:
    rows = spark.readStream.format("tidegate.topic").options(**options).load()
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(table))
    query.awaitTermination()
    return [(progress["batchId"], progress["numInputRows"]) for progress in query.recentProgress]


@pytest.mark.spark
def test_batch_that_ran_but_was_not_committed_is_not_written_twice(
    spark: Any, topics: TopicClient, tmp_path: Path
) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    options = options_for(topics, "app.three", maxMessagesPerBatch="150")
    assert run_to_the_end(spark, options, table, checkpoint) == [(0, 150), (1, 150)]
    versions = sorted(path.name for path in (table / "_delta_log").glob("*.json"))

    # What a kill between the commit of the table and the commit of the batch leaves behind.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    again = run_to_the_end(spark, options, table, checkpoint)
    assert [batch for batch, _ in again] == [1], "the last batch runs again"
    assert (checkpoint / "commits" / "1").exists()
    written = spark.read.format("delta").load(str(table)).select("partition", "offset").collect()
    assert len(written) == 300
    assert len(set(written)) == 300
    assert sorted(path.name for path in (table / "_delta_log").glob("*.json")) == versions
