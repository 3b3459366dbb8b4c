"""The sink: each batch is in the topic once, whoever dies and whatever answer is lost."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from tests.paths import ROOT
from tests.pipeline.topic.topics import TopicClient, cut_wire
from tidegate import spark as tide
from tidegate.errors import RequestInvalid, TopicNotFound, TopicReplaced
from tidegate.pipeline.topic import sink
from tidegate.pipeline.topic.options import parse_options, parse_sink_options
from tidegate.pipeline.topic.range_reader import SOURCE_SCHEMA
from tidegate.pipeline.topic.sink import StoredParts, abort_parts, commit_parts, store_parts
from tidegate.pipeline.topic.source import TopicConnector, TopicReader
from tidegate.testing.server import running_server

QUERY = "8c18b11f-003b-426d-a6e3-25c55cc1f274"
# What the server below takes: a part of more is sent in halves.
BODY_BYTES_MAX = 32_768
MESSAGE_BYTES_MAX = 10_000


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicClient]:
    environ = {
        "TIDEGATE_SERVER_BODY_BYTES_MAX": str(BODY_BYTES_MAX),
        "TIDEGATE_TOPICS_MESSAGE_BYTES_MAX": str(MESSAGE_BYTES_MAX),
    }
    with running_server(tmp_path_factory.mktemp("sink") / "home", environ=environ) as server:
        yield TopicClient(server)


def options_of(client: TopicClient, topic: str, **more: str) -> dict[str, str]:
    return {"topic": topic, "url": client.server.url, "token": client.server.token} | more


def stored(client: TopicClient, topic: str, batch: int, numbers: Sequence[int], **more: str) -> StoredParts:
    """Do what one task does."""
    settings = parse_sink_options(options_of(client, topic, **more), streaming=True)
    rows = pa.RecordBatch.from_pydict({"n": list(numbers)})
    return store_parts(settings, QUERY, batch, iter([rows] if numbers else []))


def committed(client: TopicClient, topic: str, messages: Sequence[StoredParts], **more: str) -> None:
    """Do what the driver does when all tasks are through."""
    settings = parse_sink_options(options_of(client, topic, **more), streaming=True)
    commit_parts(settings, messages, lasts=True)


def numbers_in(client: TopicClient, topic: str) -> list[int]:
    return sorted(payload["n"] for payload in client.payloads(topic))


def test_task_that_ran_twice_counts_once(topics: TopicClient) -> None:
    """A task that failed after its upload, or a second attempt beside it: the driver knows one of them."""
    topics.create("sink.twice", 2)
    stored(topics, "sink.twice", 0, [1, 2])
    tasks = [stored(topics, "sink.twice", 0, [1, 2]), stored(topics, "sink.twice", 0, [3])]
    assert numbers_in(topics, "sink.twice") == []
    committed(topics, "sink.twice", tasks)
    assert numbers_in(topics, "sink.twice") == [1, 2, 3]


def test_commit_whose_answer_was_lost_is_done_once(topics: TopicClient) -> None:
    topics.create("sink.lost")
    task = stored(topics, "sink.lost", 0, [1, 2])
    with cut_wire(topics.server.url, [0, 40]) as url:
        committed(topics, "sink.lost", [task], url=url)
    committed(topics, "sink.lost", [task])
    assert numbers_in(topics, "sink.lost") == [1, 2]


def test_part_whose_answer_was_lost_counts_once(topics: TopicClient) -> None:
    topics.create("sink.part")
    with cut_wire(topics.server.url, [0, 25]) as url:
        task = stored(topics, "sink.part", 0, [1, 2], url=url)
    assert len(task.parts) == 1
    committed(topics, "sink.part", [task])
    assert numbers_in(topics, "sink.part") == [1, 2]


def test_driver_that_died_before_its_commit_leaves_nothing_behind(topics: TopicClient) -> None:
    """The batch runs again with other rows; what the first run stored is not seen."""
    topics.create("sink.died")
    stored(topics, "sink.died", 0, [1, 2])
    committed(topics, "sink.died", [stored(topics, "sink.died", 0, [7])])
    again = stored(topics, "sink.died", 0, [8, 9])
    assert again.parts == (), "the server tells that the batch is committed"
    committed(topics, "sink.died", [again])
    assert numbers_in(topics, "sink.died") == [7]


def test_parts_outlive_a_server_that_is_killed(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        client = TopicClient(server)
        client.create("sink.killed")
        task = stored(client, "sink.killed", 0, [1, 2, 3])
        server.kill()
    with running_server(tmp_path / "home") as server:
        client = TopicClient(server)
        for _ in range(2):
            committed(client, "sink.killed", [task])
        assert numbers_in(client, "sink.killed") == [1, 2, 3]


def test_topic_that_was_made_again_between_upload_and_commit_is_told(topics: TopicClient) -> None:
    topics.create("sink.again")
    first = stored(topics, "sink.again", 0, [1])
    topics.delete("sink.again")
    topics.create("sink.again")
    with pytest.raises(TopicReplaced):
        committed(topics, "sink.again", [first])
    with pytest.raises(TopicReplaced):
        committed(topics, "sink.again", [first, stored(topics, "sink.again", 0, [2])])
    assert numbers_in(topics, "sink.again") == []


def test_failed_batch_is_given_up_and_a_server_that_is_away_does_not_matter(
    topics: TopicClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics.create("sink.abort")
    task = stored(topics, "sink.abort", 0, [1])
    settings = parse_sink_options(options_of(topics, "sink.abort"), streaming=True)
    abort_parts(settings, [None, task])
    with pytest.raises(RequestInvalid, match="is not there"):
        committed(topics, "sink.abort", [task])
    monkeypatch.setattr(sink, "ABORT_RETRY_SECONDS", 0.0)
    away = parse_sink_options(options_of(topics, "sink.abort", url="http://127.0.0.1:9"), streaming=True)
    abort_parts(away, [task])
    assert "parts of a failed batch are left" in "\n".join(caplog.messages)


def test_large_rows_are_sent_in_parts_that_the_server_takes(topics: TopicClient) -> None:
    topics.create("sink.large")
    settings = parse_sink_options(options_of(topics, "sink.large"), streaming=True)
    texts = pa.RecordBatch.from_pydict({"n": list(range(40)), "text": ["x" * 2_000] * 40})
    task = store_parts(settings, QUERY, 0, iter([texts]))
    assert len(task.parts) == 4
    commit_parts(settings, [task], lasts=True)
    assert [payload["n"] for payload in topics.payloads("sink.large")] == list(range(40)), "in their order"


def test_message_that_is_too_large_or_no_json_is_refused_with_words(topics: TopicClient) -> None:
    topics.create("sink.limits")
    settings = parse_sink_options(options_of(topics, "sink.limits"), streaming=True)
    too_large = json.dumps("x" * MESSAGE_BYTES_MAX)
    for payload, words in ((too_large, f"the most is {MESSAGE_BYTES_MAX}"), ("{", "is not JSON")):
        rows = pa.RecordBatch.from_pydict({"payload": ["1", payload]})
        with pytest.raises(RequestInvalid, match=words):
            store_parts(settings, QUERY, 0, iter([rows]))


def test_empty_batches_and_a_missing_topic(topics: TopicClient) -> None:
    topics.create("sink.empty")
    committed(topics, "sink.empty", [])
    empty = stored(topics, "sink.empty", 0, [])
    assert empty == StoredParts(QUERY, 0, (), None)
    committed(topics, "sink.empty", [empty, empty])
    assert numbers_in(topics, "sink.empty") == []
    with pytest.raises(TopicNotFound):
        committed(topics, "sink.nowhere", [empty])


def test_empty_batch_after_skipped_ones_leaves_the_writer_as_it_is(topics: TopicClient) -> None:
    """A function for `foreachBatch` may write in some batches alone."""
    topics.create("sink.gaps")
    for batch, rows in ((4, []), (5, [1]), (8, []), (9, []), (12, [2]), (12, [3])):
        committed(topics, "sink.gaps", [stored(topics, "sink.gaps", batch, rows)])
    assert numbers_in(topics, "sink.gaps") == [1, 2]


@pytest.mark.parametrize(
    ("options", "streaming", "words"),
    [
        ({"topic": "a", "startingOffsets": "latest"}, True, "this query writes one"),
        ({"topic": "a", "writer": "w", "batch": "1"}, True, "for batch queries"),
        ({"topic": "a", "writer": "w"}, False, "go together"),
        ({"topic": "a", "writer": "w", "batch": "-1"}, False, "not between 0"),
    ],
)
def test_wrong_options_of_the_sink_are_refused(options: dict[str, str], streaming: bool, words: str) -> None:
    with pytest.raises(RequestInvalid, match=words):
        parse_sink_options(options, streaming=streaming)
    with pytest.raises(RequestInvalid, match="this query reads one"):
        TopicConnector({"topic": "a", "writer": "w", "batch": "1"}).reader(t.StructType())


ELSEWHERE = """
import os, pickle, sys
work, rows = pickle.load(open(sys.argv[1], "rb"))
assert not [name for name in os.environ if name.startswith("TIDEGATE")]
assert not os.listdir(os.environ["HOME"])
pickle.dump(work(rows), open(sys.argv[2], "wb"))
assert not os.listdir(os.environ["HOME"]), "nothing is made in the home"
"""


def ran_elsewhere(work: Any, rows: Any, folder: Path) -> Any:
    """Run work as an executor on another host does: no home, no settings, only what travelled."""
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    (folder / "work").write_bytes(pickle.dumps((work, rows)))
    command = [sys.executable, "-c", ELSEWHERE, str(folder / "work"), str(folder / "answer")]
    subprocess.run(command, check=True, env={"HOME": str(empty), "PATH": ""}, cwd=ROOT)
    return pickle.loads((folder / "answer").read_bytes())


def all_rows(rows: tuple[TopicReader, Any]) -> list[dict[str, Any]]:
    reader, span = rows
    return [row for batch in reader.read(span) for row in batch.to_pylist()]


def one_task(given: tuple[dict[str, str], list[int]]) -> StoredParts:
    options, numbers = given
    settings = parse_sink_options(options, streaming=True)
    return store_parts(settings, QUERY, 0, iter([pa.RecordBatch.from_pydict({"n": numbers})]))


def test_executors_on_another_host_need_only_an_address_and_a_token(
    topics: TopicClient, tmp_path: Path
) -> None:
    """Case 24: sources and sinks work through HTTP, with an empty home and no variables."""
    topics.create("sink.elsewhere")
    task = ran_elsewhere(one_task, (options_of(topics, "sink.elsewhere"), [4, 5]), tmp_path)
    committed(topics, "sink.elsewhere", [task])
    options = options_of(topics, "sink.elsewhere", columns="payload")
    reader = TopicReader(parse_options(options, SOURCE_SCHEMA.names))
    (span,) = reader.partitions()
    assert ran_elsewhere(all_rows, (reader, span), tmp_path) == [
        {"payload": '{"n":4}'},
        {"payload": '{"n":5}'},
    ]


def ran(writer: Any, checkpoint: Path) -> list[int]:
    """Run a query over what there is, and give the numbers of its batches."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return [progress["batchId"] for progress in query.recentProgress]


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Leave what a kill between the sink's commit and Spark's own leaves."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.mark.spark
def test_query_that_is_started_again_writes_each_message_once(
    spark: Any, topics: TopicClient, tmp_path: Path
) -> None:
    """Case 24: replay of a batch gives the same rows, and the sink has each exactly once."""
    topics.create("sink.source", 2)
    topics.create("sink.target", 3)
    topics.publish("sink.source", range(300))
    source = options_of(topics, "sink.source", maxMessagesPerBatch="150")
    numbers = "int(get_json_object(payload, '$.n')) AS n"

    def again() -> list[int]:
        rows = spark.readStream.format("tidegate.topic").options(**source).load().selectExpr("key", numbers)
        writer = rows.writeStream.format("tidegate.topic").options(**options_of(topics, "sink.target"))
        return ran(writer.queryName("copies"), tmp_path / "checkpoint")

    assert again() == [0, 1]
    assert numbers_in(topics, "sink.target") == list(range(300))
    forget_commit(tmp_path / "checkpoint", 1)
    assert again() == [1], "the last batch runs again"
    assert numbers_in(topics, "sink.target") == list(range(300))

    query_id = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    settings = parse_sink_options(options_of(topics, "sink.target"), streaming=True)
    store_parts(settings, query_id, 2, iter([pa.RecordBatch.from_pydict({"n": [-1]})]))
    topics.publish("sink.source", range(300, 350))
    assert again() == [2], "parts of a driver that died are there already"
    assert numbers_in(topics, "sink.target") == list(range(350))


@pytest.mark.spark
def test_update_mode_writes_what_changed_once(spark: Any, topics: TopicClient, tmp_path: Path) -> None:
    topics.create("sink.events")
    topics.create("sink.totals")
    checkpoint = tmp_path / "checkpoint"

    def again() -> list[int]:
        rows = spark.readStream.format("tidegate.topic").options(**options_of(topics, "sink.events")).load()
        parity = rows.selectExpr("int(get_json_object(payload, '$.n')) % 2 AS odd")
        counts = parity.groupBy("odd").count().selectExpr("string(odd) AS key", "odd", "count")
        into = tide.to_topic("sink.totals", url=topics.server.url, token=topics.server.token)
        return ran(counts.writeStream.outputMode("update").foreachBatch(into), checkpoint)

    def totals() -> list[tuple[int, int]]:
        return sorted((payload["odd"], payload["count"]) for payload in topics.payloads("sink.totals"))

    topics.publish("sink.events", range(10))
    assert again() == [0]
    topics.publish("sink.events", [11, 13])
    assert again() == [1]
    assert totals() == [(0, 5), (1, 5), (1, 7)], "the second batch changed one group"
    forget_commit(checkpoint, 1)
    assert again() == [1]
    assert totals() == [(0, 5), (1, 5), (1, 7)]


@pytest.mark.spark
def test_batch_write_is_whole_and_reads_back_as_columns(spark: Any, topics: TopicClient) -> None:
    topics.create("sink.batch")
    written = spark.range(100).selectExpr("id", "id / 2 AS half", "IF(id % 2 = 0, 'even', NULL) AS word")
    writer = written.write.format("tidegate.topic").options(**options_of(topics, "sink.batch"))
    for _ in range(2):
        named = writer.mode("append").option("writer", "nightly").option("batch", "20260131")
        named.save()
    load = spark.read.format("tidegate.topic").options(**options_of(topics, "sink.batch"))
    columns = load.option("payload", "columns").option("columns", "_offset")
    read = columns.option("payloadSchema", "id BIGINT, half DOUBLE, word STRING").load()
    assert read.columns == ["id", "half", "word", "_offset"]
    rows = {row.id: row for row in read.collect()}
    assert len(rows) == read.count() == 100, "what is named is written once"
    assert (rows[7].half, rows[7].word, rows[8].word) == (3.5, None, "even")
    with pytest.raises(Exception, match="nothing to overwrite"):
        writer.mode("overwrite").save()
    with pytest.raises(Exception, match="payload does not fit the columns"):
        columns.option("payloadSchema", "word BIGINT").load().count()


def test_complete_mode_is_refused() -> None:
    schema = t.StructType([t.StructField("n", t.IntegerType())])
    with pytest.raises(RequestInvalid, match="complete mode writes everything again"):
        TopicConnector({"topic": "a"}).streamWriter(schema, overwrite=True)
