"""Routes at work: every change sends what its route says."""

from __future__ import annotations

import json

import pytest

from tests.ingest.bench import Bench
from tests.tables.bench import column
from tidegate.model.tables import Row, Table

COLUMNS = (column("id"), column("text", "TEXT"), column("n", "INT"))


def replaced(bench: Bench, table: Table, *edits: tuple[Row, Row | None], user: str = "") -> None:
    assert bench.run(bench.writer.replace(table, user, edits)) == len(edits)


def test_every_operation_sends_its_message_in_commit_order(bench: Bench) -> None:
    """Cases 16 and 17."""
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, "full")
    bench.insert(table, [(1, "a", 10), (2, "b", None)])
    replaced(bench, table, ((1, "a", 10), (1, "A", 10)))
    bench.insert(table, [(2, "c", 5), (3, "d", 6)], upsert=True)
    replaced(bench, table, ((1, "A", 10), None))
    assert [(m["op"], m["key"], m["payload"]) for m in bench.messages(topic)] == [
        ("INSERT", "1", {"id": 1, "text": "a", "n": 10}),
        ("INSERT", "2", {"id": 2, "text": "b", "n": None}),
        ("UPDATE", "1", {"id": 1, "text": "A", "n": 10}),
        ("UPDATE", "2", {"id": 2, "text": "c", "n": 5}),
        ("INSERT", "3", {"id": 3, "text": "d", "n": 6}),
        ("DELETE", "1", {"id": 1, "text": "A", "n": 10}),
    ]
    first = bench.messages(topic)[0]
    assert (first["source"], first["payload_mode"], first["user"]) == ("app.things", "full", None)
    ids = [message["message_id"] for message in bench.messages(topic)]
    assert ids == sorted(set(ids))


def test_key_and_diff_say_what_they_promise(bench: Bench) -> None:
    """Case 16."""
    table = bench.table(COLUMNS)
    by_key, by_diff = bench.topic(name="app.keys"), bench.topic(name="app.diffs")
    bench.route(by_key, table, "key")
    bench.route(by_diff, table, "diff")
    bench.insert(table, [(1, "a", 10)])
    replaced(bench, table, ((1, "a", 10), (1, "a", 11)))
    replaced(bench, table, ((1, "a", 11), (1, "a", 11)))
    replaced(bench, table, ((1, "a", 11), None))
    assert bench.payloads(by_key) == [{"id": 1}] * 4
    assert [message["payload_mode"] for message in bench.messages(by_key)] == ["key"] * 4
    whole = {"id": 1, "text": "a", "n": 10}
    assert bench.payloads(by_diff) == [
        {"key": {"id": 1}, "changed": {name: {"old": None, "new": v} for name, v in whole.items()}},
        {"key": {"id": 1}, "changed": {"n": {"old": 10, "new": 11}}},
        {"key": {"id": 1}, "changed": {}},
        {
            "key": {"id": 1},
            "changed": {name: {"old": v, "new": None} for name, v in {**whole, "n": 11}.items()},
        },
    ]


def test_diff_leaves_out_what_is_null_before_and_after(bench: Bench) -> None:
    """Case 16: of a row that came or went, a column that is NULL has not changed."""
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, "diff")
    bench.insert(table, [(1, None, 10)])
    replaced(bench, table, ((1, None, 10), (1, None, None)))
    replaced(bench, table, ((1, None, None), None))
    assert [payload["changed"] for payload in bench.payloads(topic)] == [
        {"id": {"old": None, "new": 1}, "n": {"old": None, "new": 10}},
        {"n": {"old": 10, "new": None}},
        {"id": {"old": 1, "new": None}},
    ]


def test_only_the_operations_that_were_asked_for_are_sent(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, "full", ops=["insert"])
    bench.route(topic, table, "key", ops=["delete"])
    bench.insert(table, [(1, "a", 1)])
    bench.insert(table, [(1, "b", 1), (2, "c", 1)], upsert=True)
    replaced(bench, table, ((1, "b", 1), None))
    found = [(m["op"], m["payload_mode"], m["payload"]) for m in bench.messages(topic)]
    assert found == [
        ("INSERT", "full", {"id": 1, "text": "a", "n": 1}),
        ("INSERT", "full", {"id": 2, "text": "c", "n": 1}),
        ("DELETE", "key", {"id": 1}),
    ]


def test_where_is_evaluated_on_the_row_that_is_sent(bench: Bench) -> None:
    """Case 16."""
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, "full", where="n >= 10 AND text LIKE 'a%'")
    bench.insert(table, [(1, "a", 10), (2, "a", 9), (3, "b", 10), (4, "a", None)])
    replaced(bench, table, ((2, "a", 9), (2, "a", 12)), ((1, "a", 10), (1, "a", 1)))
    replaced(bench, table, ((2, "a", 12), None), ((1, "a", 1), None))
    assert [(m["op"], m["payload"]["id"]) for m in bench.messages(topic)] == [
        ("INSERT", 1),
        ("UPDATE", 2),
        ("DELETE", 2),
    ]
    assert bench.router.fault_count == 0


def test_row_that_a_where_cannot_judge_is_written_not_sent_and_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, ops=["insert"], where="CAST(text AS INT) > 1")
    bench.insert(table, [(1, "5", 0), (2, "five", 0), (3, "6", 0), (4, "six", 0)])
    assert [payload["id"] for payload in bench.payloads(topic)] == [1, 3]
    assert len(bench.rows(table)) == 4
    assert bench.router.fault_count == 2
    said = [record.getMessage() for record in caplog.records if record.name.startswith("tidegate.")]
    assert [text.split(" reason=")[0] for text in said] == [
        "the filter of a route failed, the row was not sent table=app.things"
    ]


def test_statement_without_a_match_sends_nothing(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, where="n > 100")
    bench.insert(table, [(1, "a", 1)])
    assert bench.messages(topic) == []
    assert bench.schemas.of(topic.id) == []


def test_preview_shows_the_beginning_of_the_row(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, "key", ops=["insert"], preview=16)
    bench.insert(table, [(1, "abcdef", 1)])
    assert bench.payloads(topic) == [{"id": 1, "_preview": '{"id":1,"text":"'}]


def test_nobody_is_asked_for_changes_of_a_table_without_routes(bench: Bench) -> None:
    table, other = bench.table(COLUMNS), bench.table(COLUMNS, name="others")
    bench.route(bench.topic(), other)
    assert not bench.router.wants(table)
    assert bench.router.wants(other)


def test_json_column_is_a_value_of_the_payload(bench: Bench) -> None:
    table, topic = bench.table([column("id"), column("doc", "JSON")]), bench.topic()
    bench.route(topic, table)
    document = {"a": [1, 2.5, None], "b": "x"}
    bench.insert(table, [(1, json.dumps(document)), (2, None)])
    assert [payload["doc"] for payload in bench.payloads(topic)] == [document, None]
