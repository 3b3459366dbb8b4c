"""Routes through failures and changes: a row and its messages are one write, and stay readable."""

from __future__ import annotations

import pytest

from tests.ingest.bench import Bench, build
from tests.tables.bench import column
from tidegate.errors import (
    RowExists,
    SqlUnsupported,
    StorageCorrupt,
    StorageFailed,
)
from tidegate.ingest import change_feed
from tidegate.model.tables import TableColumn
from tidegate.storage.group_commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.routes import Route

COLUMNS = (column("id"), column("text", "TEXT"), column("n", "INT"))


def dropped(bench: Bench, topic: Topic) -> None:
    bench.run(lambda staging: bench.topics.stage_delete(staging, "default", topic.name))


def test_statement_whose_message_cannot_be_staged_writes_nothing(bench: Bench) -> None:
    """Cases 10 and 15."""
    table = bench.table(COLUMNS)
    good, bad = bench.topic(name="app.good"), bench.topic(name="app.bad")
    bench.route(good, table, ops=["insert"])
    bench.route(bad, table, ops=["insert"])
    bench.run(lambda staging: staging.put(keys.counter_key(bad.id, 0), b"damaged"))
    answers = bench.run_together(
        bench.writer.insert(table, "", [(1, "a", 1)], upsert=False),
        lambda staging: bench.log.stage_append(staging, good, 0, ["k"], [b"{}"], Origin()),
    )
    assert isinstance(answers[0], StorageCorrupt)
    assert bench.rows(table) == []
    assert [(m["op"], m["offset"]) for m in bench.messages(good)] == [("PUBLISH", 0)]


@pytest.mark.parametrize("survives", [False, True])
def test_row_and_message_share_the_fate_of_a_sync_that_failed(survives: bool) -> None:
    """Case 15."""
    engine = MemoryEngine()
    bench = build(engine)
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table)
    engine.fail_next_sync(StorageFailed(path="memory", reason="the disk is gone"), survives=survives)
    with pytest.raises(StorageFailed):
        bench.insert(table, [(1, "a", 1)])
    bench.insert(table, [(2, "b", 1)])
    expected = [1, 2] if survives else [2]
    assert [row[0] for row in bench.rows(table)] == expected
    assert [payload["id"] for payload in bench.payloads(topic)] == expected
    assert [message["offset"] for message in bench.messages(topic)] == list(range(len(expected)))
    assert [schema.number for schema in bench.schemas.of(topic.id)] == [1]
    bench.close()


def test_refused_statement_sends_nothing(bench: Bench) -> None:
    """Case 10."""
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table)
    bench.insert(table, [(2, "a", 1)])
    with pytest.raises(RowExists):
        bench.insert(table, [(1, "a", 1), (2, "b", 1)])
    assert [payload["id"] for payload in bench.payloads(topic)] == [2]
    assert bench.log.counters(topic, 0).end == 1


def test_statements_of_one_group_and_publishes_share_the_log(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, "key")
    bench.run_together(
        bench.writer.insert(table, "", [(1, "a", 1)], upsert=False),
        lambda staging: bench.log.stage_append(staging, topic, 0, ["k"], [b'"said"'], Origin()),
        bench.writer.insert(table, "", [(1, "b", 1)], upsert=True),
        bench.writer.insert(table, "", [(2, "c", 1)], upsert=False),
    )
    assert [(m["offset"], m["op"], m["payload"]) for m in bench.messages(topic)] == [
        (0, "INSERT", {"id": 1}),
        (1, "PUBLISH", "said"),
        (2, "UPDATE", {"id": 1}),
        (3, "INSERT", {"id": 2}),
    ]


def test_route_whose_topic_is_gone_fails_no_insert(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table)
    other = bench.topic(name="app.other")
    bench.route(other, table, ops=["insert"])
    bench.insert(table, [(1, "a", 1)])
    dropped(bench, topic)
    bench.insert(table, [(2, "a", 1)])
    assert [payload["id"] for payload in bench.payloads(other)] == [1, 2]
    again = bench.topic()
    bench.insert(table, [(3, "a", 1)])
    assert bench.messages(again) == []


def test_topic_that_goes_in_the_same_group_fails_no_insert(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table)

    def drop(staging: Staging) -> None:
        bench.topics.stage_delete(staging, "default", topic.name)
        bench.routes.stage_drop_topic(staging, topic)

    answers = bench.run_together(
        bench.writer.insert(table, "", [(1, "a", 1)], upsert=False),
        drop,
        bench.writer.insert(table, "", [(2, "a", 1)], upsert=False),
    )
    assert answers == [1, None, 1]
    assert not bench.router.wants(table)
    reopened = build(bench.engine)
    assert len(reopened.routes) == 0
    assert reopened.schemas.of(topic.id) == []
    reopened.close()


def test_where_that_cannot_be_compiled_any_more_is_named(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    route = Route(topic.id, table.id, "insert", "gone(n) > 1")
    bench.run(lambda staging: bench.routes.stage_add(staging, topic, table, route))
    bench.router.prepare(bench.tables)
    assert any("writes will be refused table=app.things" in text for text in caplog.messages)
    with pytest.raises(SqlUnsupported, match=r"feeds a topic by WHERE gone\(n\) > 1"):
        bench.insert(table, [(1, "a", 1)])
    assert bench.rows(table) == []


def test_prepared_routes_are_not_compiled_by_a_writer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, where="n > 1")
    reopened = build(bench.engine)
    reopened.router.prepare(reopened.tables)
    monkeypatch.delattr(change_feed, "compile_filter")
    reopened.insert(table, [(1, "a", 1), (2, "b", 2)])
    assert [payload["id"] for payload in reopened.payloads(topic)] == [2]
    reopened.close()


def test_route_counts_from_its_answer_on(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.insert(table, [(1, "before", 1)])
    bench.route(topic, table, ops=["insert"])
    bench.insert(table, [(2, "during", 1)])
    bench.run(lambda staging: bench.routes.stage_drop(staging, topic, table))
    bench.insert(table, [(3, "after", 1)])
    assert [payload["text"] for payload in bench.payloads(topic)] == ["during"]


def test_messages_stay_readable_through_alter_drop_and_restart(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, "full", where="n > 0")
    bench.insert(table, [(1, "a", 1)])
    wider = bench.run(
        lambda staging: bench.tables.stage_add_column(
            staging, table, TableColumn("more", "TEXT", missing="none")
        )
    )
    bench.insert(wider, [(1, "b", 1, "x"), (2, "c", 1, None)], upsert=True)
    bench.insert(wider, [(3, "d", 1, "y")])
    bench.run(lambda staging: bench.routes.stage_drop_table(staging, wider))
    bench.run(lambda staging: bench.tables.stage_drop(staging, wider))
    expected = [
        {"id": 1, "text": "a", "n": 1},
        {"id": 1, "text": "b", "n": 1, "more": "x"},
        {"id": 2, "text": "c", "n": 1, "more": None},
        {"id": 3, "text": "d", "n": 1, "more": "y"},
    ]
    assert bench.payloads(topic) == expected
    reopened = build(bench.engine)
    assert reopened.payloads(topic) == expected
    assert [len(schema.columns) for schema in reopened.schemas.of(topic.id)] == [3, 4]
    reopened.close()


def test_old_row_of_an_altered_table_has_all_its_columns(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.insert(table, [(1, "a", 1)])
    wider = bench.run(
        lambda staging: bench.tables.stage_add_column(
            staging, table, TableColumn("more", "TEXT", missing="none")
        )
    )
    bench.route(topic, wider, "diff")
    bench.insert(wider, [(1, "a", 1, "x")], upsert=True)
    assert bench.payloads(topic) == [{"key": {"id": 1}, "changed": {"more": {"old": "none", "new": "x"}}}]
