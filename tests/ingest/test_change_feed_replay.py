"""Replay: the messages of a table, read partition by partition, make the table again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ingest.bench import Bench, build
from tests.tables.bench import column
from tidegate.errors import RowExists
from tidegate.model.tables import Row, Table, TableKind
from tidegate.model.values import to_json
from tidegate.storage.memory import MemoryEngine
from tidegate.storage.row_codec import encode_values
from tidegate.topics.definitions import Topic
from tidegate.topics.payloads import DELETED, INSERTED, UPDATED
from tidegate.topics.routes import Payload

COLUMNS = (
    column("g", "TEXT"),
    column("v", "DOUBLE"),
    column("id"),
    column("d", "DECIMAL(6,2)"),
    column("j", "JSON"),
    column("b", "BYTES"),
)
NAMES = [each.name for each in COLUMNS]
KEY = ("id", "g")
USERS = {TableKind.SHARED: [""], TableKind.USER: ["ada", "bob"]}

# Few keys, so that statements meet; values that are equal and not the same, or have no form in JSON.
rows = st.tuples(
    st.sampled_from(["", "a", "ä"]),
    st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, math.inf]),
    st.integers(0, 3),
    st.sampled_from([None, Decimal("0.00"), Decimal("1.20")]),
    st.sampled_from([None, "null", '{"a": 1}', "[1, 2]"]),
    st.sampled_from([None, b"", b"\0\xff"]),
)
statements = st.lists(
    st.tuples(
        st.sampled_from(["insert", "upsert", "update", "move", "delete", "edit key", "delete key"]),
        st.integers(0, 1),
        st.lists(rows, min_size=1, max_size=5),
    ),
    max_size=12,
)
Key = tuple[str, int, str]


def run(bench: Bench, table: Table, user: str, verb: str, given_rows: list[Row]) -> None:
    there = bench.rows(table, user)
    chosen = there[: len(given_rows)]
    if verb in ("insert", "upsert"):
        with suppress(RowExists):
            bench.insert(table, given_rows, user, upsert=verb == "upsert")
    elif verb == "edit key":
        keys = list(dict.fromkeys((row[2], row[0]) for row in given_rows))
        edit = bench.writer.edit_keys(table, user, keys, lambda row: _with_values(row, given_rows[0]))
        bench.run(edit)
    elif verb == "delete key":
        keys = list(dict.fromkeys((row[2], row[0]) for row in given_rows))
        bench.run(bench.writer.delete_keys(table, user, keys, lambda row: row[1] is not None))
    else:
        edits: list[tuple[Row, Row | None]] = []
        for old, given_row in zip(chosen, given_rows, strict=False):
            new = {"update": _with_values(old, given_row), "move": given_row, "delete": None}[verb]
            edits.append((old, new))
        with suppress(RowExists):
            bench.run(bench.writer.replace(table, user, edits))


def _with_values(row: Row, other: Row) -> Row:
    """Return the row with its own key and another's values."""
    return (row[0], other[1], row[2], *other[3:])


def shown(row: Row) -> dict[str, Any]:
    """Return a row as JSON shows it."""
    found = {}
    for each, value in zip(COLUMNS, row, strict=True):
        is_document = each.type.name == "JSON" and isinstance(value, str)
        found[each.name] = json.loads(str(value)) if is_document else to_json(value, each.type)
    return found


def of_table(bench: Bench, table: Table, give: Callable[[Row], Any]) -> dict[Key, Any]:
    return {
        (user, int(str(row[2])), str(row[0])): give(row)
        for user in USERS[table.kind]
        for row in bench.rows(table, user)
    }


def by_json(bench: Bench, topic: Topic, payload: Payload) -> dict[Key, Any]:
    """Make the table again as a reader of JSON does."""
    found: dict[Key, Any] = {}
    for message in bench.messages(topic):
        said = message["payload"]
        key_of = said["key"] if payload == "diff" else said
        key = (message["user"] or "", key_of["id"], key_of["g"])
        if message["op"] == "DELETE":
            del found[key]
        elif payload == "full":
            assert (key in found) == (message["op"] == "UPDATE")
            found[key] = said
        else:
            changed = {name: both["new"] for name, both in said["changed"].items()}
            assert all(found.get(key, {}).get(name) == said["changed"][name]["old"] for name in changed)
            assert message["op"] == "UPDATE" or key not in found
            # A column that was never told is NULL.
            found[key] = {**found.get(key, dict.fromkeys(NAMES)), **changed}
    return found


def by_bytes(bench: Bench, topic: Topic, payload: Payload) -> dict[Key, bytes]:
    """Make the table again from what is stored, to the last bit."""
    found: dict[Key, list[Any]] = {}
    for user, body in stored_payloads(bench, topic):
        kind, rest = (UPDATED, [body]) if payload == "full" else (body[0], body[1:])
        if payload == "full":
            found[user, body[2], body[0]] = body
        elif kind == INSERTED:
            found[user, rest[0][2], rest[0][0]] = rest[0]
        elif kind == DELETED:
            del found[user, rest[0][2], rest[0][0]]
        else:
            (number, group), places, _, new = rest
            for place, value in zip(places, new, strict=True):
                found[user, number, group][place] = value
    return {key: encode_values(row) for key, row in found.items()}


def stored_payloads(bench: Bench, topic: Topic) -> Iterator[tuple[str, list[Any]]]:
    for partition in range(topic.partitions):
        held = bench.log.counters(topic, partition)
        for stored in bench.log.read(topic, partition, held.start, held.end):
            batch = stored.arrow()
            bodies = batch.column("payload").view(pa.binary()).to_pylist()
            for user, body in zip(batch.column("user").to_pylist(), bodies, strict=True):
                yield user or "", msgspec.msgpack.decode(body)


@pytest.mark.parametrize("payload", ["full", "diff"])
@given(given=statements, kind=st.sampled_from([TableKind.SHARED, TableKind.USER]))
@settings(max_examples=60)
def test_replay_makes_the_table_again(
    payload: Payload, given: list[tuple[str, int, list[Row]]], kind: TableKind
) -> None:
    """Cases 15, 16 and 17."""
    bench = build(MemoryEngine())
    try:
        table, topic = bench.table(COLUMNS, KEY, kind), bench.topic(partitions=3)
        bench.route(topic, table, payload)
        users = USERS[kind]
        for verb, user, given_rows in given:
            run(bench, table, users[user % len(users)], verb, given_rows)
        assert by_json(bench, topic, payload) == of_table(bench, table, shown)
        if payload == "diff":
            assert by_bytes(bench, topic, payload) == of_table(bench, table, encode_values)
        else:
            exact = of_table(bench, table, encode_values)
            replayed = by_bytes(bench, topic, payload)
            assert {key: replayed[key] for key in exact} == exact
    finally:
        bench.close()
