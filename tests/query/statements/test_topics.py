"""Plans of statements about topics: what they ask for, what they are counted as, and who comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.query.bench import Bench
from tests.query.statements.topic_bench import TopicBench
from tidegate.errors import (
    NameInvalid,
    RequestInvalid,
    RouteNotFound,
    SqlInvalid,
    SqlUnsupported,
    TopicNotFound,
)
from tidegate.model.access import Operation
from tidegate.model.messages import MESSAGE_SCHEMA
from tidegate.model.tables import TableKind
from tidegate.query.runner import kind_of
from tidegate.query.statements.topics import CONSUMED, consumed_result
from tidegate.query.step import ConsumeRequest
from tidegate.sql.parser.parse import parse
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import I64_MAX
from tidegate.topics.definitions import RETENTION_SECONDS_MAX, Retention
from tidegate.topics.groups.types import FetchRequest
from tidegate.topics.log.reader import Start


@pytest.fixture
def topics(bench: Bench) -> Iterator[TopicBench]:
    made = TopicBench(bench)
    made.run("CREATE TOPIC app.t PARTITIONS 2")
    yield made
    made.close()


def test_consume_asks_for_what_the_statement_says(topics: TopicBench) -> None:
    step = topics.step("CONSUME FROM app.t")
    topic = topics.topics.directory.get("default", "app.t")
    assert (step.kind, step.work, step.change) == ("consume", None, None)
    assert step.consume == ConsumeRequest(topic)
    text = "CONSUME FROM app.t GROUP ? PARTITION ? FROM AFTER ? LIMIT ? WAIT ? LEASE '2 min'"
    ask = topics.step(text, "g", 1, 7, 10, "1.5 s").consume
    assert ask == ConsumeRequest(topic, "g", "root", Start("after", 7), 1, 10, 1_500, 120_000)
    ask = topics.step("CONSUME FROM app.t GROUP 'g' MEMBER 'm' FROM TIMESTAMP ?", "1970-01-01").consume
    assert ask == ConsumeRequest(topic, "g", "m", Start("timestamp", 0))


def test_after_the_offset_before_the_first_is_from_the_first_on(topics: TopicBench) -> None:
    topics.run("PUBLISH INTO app.t PARTITION 0 VALUES ('1'), ('2')")
    for text, params in (("AFTER -1", []), ("AFTER ?", [-1])):
        ask = topics.step(f"CONSUME FROM app.t PARTITION 0 FROM {text}", *params).consume
        assert ask is not None
        assert ask.start == Start("after", -1)
    with pytest.raises(SqlInvalid, match="AFTER is a whole number of -1 or more, not -2"):
        topics.step("CONSUME FROM app.t PARTITION 0 FROM AFTER ?", -2)
    with pytest.raises(SqlUnsupported, match="has 2 partitions: an offset is of one"):
        topics.run("RESET CONSUMER GROUP 'g' ON app.t TO AFTER -1")


@pytest.mark.parametrize(("text", "params"), [("LIMIT 10000000", []), ("LIMIT ?", [10_000_000])])
def test_a_number_out_of_its_bounds_says_what_to_write(
    topics: TopicBench, text: str, params: list[Any]
) -> None:
    with pytest.raises(SqlInvalid, match=r"LIMIT is a whole number from 1 to .*, not 10000000") as caught:
        topics.step(f"CONSUME FROM app.t {text}", *params)
    assert caught.value.hint.startswith("Write or bind a whole number from 1 to ")


@pytest.mark.parametrize("text", ["WITH (retention_seconds = {})", "WITH (retention_max_bytes = {})"])
def test_retention_has_the_limits_that_a_topic_has(topics: TopicBench, text: str) -> None:
    most = RETENTION_SECONDS_MAX if "seconds" in text else I64_MAX
    topics.run(f"CREATE TOPIC app.most {text.format(most)}")
    kept = topics.topics.directory.get("default", "app.most").retention
    assert most in (kept.seconds, kept.max_bytes)
    with pytest.raises(RequestInvalid, match=f"1 to {most}"):
        topics.run(f"CREATE TOPIC app.more {text.format(most + 1)}")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SHOW TOPICS", "show"),
        ("DESCRIBE TOPIC a", "show"),
        ("SHOW CONSUMER GROUPS ON a", "show"),
        ("CONSUME FROM a", "consume"),
        ("PUBLISH INTO a VALUES ('1')", "publish"),
        ("ACK a GROUP 'g' UPTO OFFSET 1", "ack"),
        ("NACK a GROUP 'g' LEASES ('x')", "ack"),
        ("EXTEND a GROUP 'g' LEASES ('x')", "ack"),
        ("CREATE TOPIC a", "ddl"),
        ("CLEAR TOPIC a", "ddl"),
        ("RESET CONSUMER GROUP 'g' ON a TO LATEST", "ddl"),
    ],
)
def test_a_statement_is_counted_as_what_it_is(text: str, kind: str) -> None:
    assert kind_of(parse(text)[0]) == kind


def test_definitions_are_audited_and_messages_are_not(topics: TopicBench) -> None:
    assert topics.step("DROP TOPIC app.t").audit == (Operation.TOPIC_DELETE, "topic/app.t")
    assert topics.step("CLEAR TOPIC app.t").audit == (Operation.TOPIC_CLEAR, "topic/app.t")
    reset = topics.step("RESET CONSUMER GROUP 'g' ON app.t TO LATEST")
    assert reset.audit == (Operation.TOPIC_RESET, "topic/app.t")
    assert topics.step("PUBLISH INTO app.t VALUES ('1')").audit is None
    audit = topics.step(f"DROP TOPIC {'x' * 100_000}").audit
    assert audit is not None
    assert len(audit[1]) < 1000
    with pytest.raises(NameInvalid):
        topics.step(f"CREATE TOPIC {'x' * 100_000}")


def in_one_group(
    topics: TopicBench, monkeypatch: pytest.MonkeyPatch, works: list[Callable[[], object]]
) -> list[Future[object]]:
    """Run several pieces of work whose changes all wait in the committer's queue, in this order."""
    committer = topics.bench.committer
    submit, queued, open_gate = committer.submit, threading.Semaphore(0), threading.Event()

    def counted(change: Callable[[Staging], Any]) -> Future[Any]:
        future = submit(change)
        queued.release()
        return future

    submit(lambda _staging: open_gate.wait(60))
    monkeypatch.setattr(committer, "submit", counted)
    done = []
    with ThreadPoolExecutor(len(works)) as threads:
        for work in works:
            done.append(threads.submit(work))
            queued.acquire()
        open_gate.set()
    return done


def test_partitions_that_are_added_at_once_are_all_there(
    topics: TopicBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [topics.step("ALTER TOPIC app.t ADD PARTITIONS 1") for _ in range(4)]
    in_one_group(topics, monkeypatch, [step.work for step in steps if step.work is not None])
    assert topics.topics.directory.get("default", "app.t").partitions == 6


def test_limits_that_are_set_at_once_are_all_kept(
    topics: TopicBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("(seconds = 5)", "(max_bytes = 7)")
    steps = [topics.step(f"ALTER TOPIC app.t SET RETENTION {text}") for text in texts]
    in_one_group(topics, monkeypatch, [step.work for step in steps if step.work is not None])
    assert topics.topics.directory.get("default", "app.t").retention == Retention(5, 7)


def test_a_source_of_a_topic_that_is_deleted_at_once_is_refused(
    topics: TopicBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.bench.create("shop.orders", TableKind.SHARED, {"id": "INT"}, ["id"])
    steps = [
        topics.step("DROP TOPIC app.t"),
        topics.step("ALTER TOPIC app.t ADD SOURCE shop.orders ON INSERT"),
    ]
    done = in_one_group(topics, monkeypatch, [step.work for step in steps if step.work is not None])
    assert isinstance(done[1].exception(), TopicNotFound)
    assert len(topics.topics.routes) == 0


def test_published_messages_are_told_once(topics: TopicBench) -> None:
    text = "PUBLISH INTO app.t PARTITION 0 PRODUCER 'p' SEQUENCE 0 VALUES ('1'), ('2')"
    assert topics.rows(text) == topics.rows(text)
    assert topics.published == [("default", 2), ("default", 0)]


def test_several_partitions_are_acknowledged_in_one_statement(topics: TopicBench) -> None:
    topics.run("PUBLISH INTO app.t PARTITION 0 VALUES ('1'), ('2'), ('3')")
    topics.run("PUBLISH INTO app.t PARTITION 1 VALUES ('4'), ('5')")
    parts = topics.topics
    topic = parts.directory.get("default", "app.t")
    take = FetchRequest("g", "root", "default/root")
    given = topics.bench.commit(lambda staging: parts.groups.stage_fetch(staging, topic, take))
    assert sum(grant.count for grant in given.ranges) == 5
    ack = "ACK app.t GROUP 'g' UPTO (PARTITION 1 OFFSET 0, PARTITION 0 OFFSET 1)"
    assert topics.rows(ack) == [[0, 2, 2], [1, 1, 1]]
    assert topics.rows(ack) == [[0, 0, 2], [1, 0, 1]]
    assert topics.rows("SELECT sum(lag) FROM system.topic_offsets") == [[2]]


def test_a_dropped_source_is_named_as_it_was_added(topics: TopicBench) -> None:
    topics.bench.create("shop.orders", TableKind.USER, {"id": "INT", "Total": "DOUBLE"}, ["id"])
    topics.run("ALTER TOPIC app.t ADD SOURCE shop.orders ON INSERT OR DELETE PARTITION BY (_user, TOTAL)")
    routes = topics.topics.routes.of_topic(topics.topics.directory.get("default", "app.t").id)
    assert [(route.op, route.partition_by) for route in routes] == [
        ("insert", ("_user", "Total")),
        ("delete", ("_user", "Total")),
    ]
    topics.run("ALTER TOPIC app.t DROP SOURCE shop.orders ON INSERT")
    with pytest.raises(RouteNotFound):
        topics.run("ALTER TOPIC app.t DROP SOURCE shop.orders ON INSERT, DELETE")
    (warning,) = topics.run("DROP TABLE shop.orders").warnings
    assert warning == "Topic 'app.t' has no source 'shop.orders' any more (DELETE); its messages stay."


def test_the_columns_of_consume_are_there_without_a_group_and_without_messages() -> None:
    outcome = consumed_result(MESSAGE_SCHEMA.empty_table(), {}, "app.t")
    assert [column["name"] for column in outcome.columns] == list(CONSUMED)
    assert (outcome.row_count, list(outcome.json_rows()), list(outcome.warnings)) == (0, [], [])


def test_what_was_missed_is_told_by_partition() -> None:
    leased = MESSAGE_SCHEMA.append(pa.field("lease", pa.string())).append(pa.field("deliveries", pa.int32()))
    outcome = consumed_result(leased.empty_table(), {1: 7, 0: 2, 2: 0}, "app.t")
    assert [warning.split(" are ")[0] for warning in outcome.warnings] == [
        "Partition 0: 2 messages",
        "Partition 1: 7 messages",
    ]


def test_system_tables_of_topics_are_described(topics: TopicBench) -> None:
    for name in ("topics", "topic_groups", "topic_offsets", "topic_sources"):
        columns = [row[0] for row in topics.rows(f"DESCRIBE system.{name}")]
        outcome = topics.run(f"SELECT * FROM system.{name}")
        assert [column["name"] for column in outcome.columns] == columns
        assert columns[0] == "topic"
    other = topics.rows("SELECT topic FROM system.topics", tenant="other")
    assert (other, topics.rows("SHOW TOPICS", tenant="other")) == ([], [])
