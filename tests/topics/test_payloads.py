"""Routed payloads: binary inside, JSON outside, exact for every type both ways."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.column_values import KINDS, values_of
from tidegate.errors import InvariantBroken, StorageCorrupt
from tidegate.model.changes import Change
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Table, TableColumn, TableKind
from tidegate.model.values import from_json, to_json
from tidegate.storage.row_codec import encode_values
from tidegate.topics.payload_schemas import PayloadSchema
from tidegate.topics.payloads import (
    CODEC_DIFF,
    CODEC_FULL,
    CODEC_KEY,
    CODEC_TEXT,
    DiffEncoder,
    encode_full,
    encode_keys,
    json_batch,
    preview_texts,
)

# Names that need care in JSON, and one of a word in Python.
NAMES = ["id", "Größe", "class", 'a "b"', "back\\slash", "_x", "with space", "emoji 🌊", "x.y", "1", "old"]
EVERY_TYPE = tuple(TableColumn(f"c{place}", str(kind)) for place, kind in enumerate(KINDS))


def table_of(columns: Sequence[TableColumn], key: tuple[str, ...]) -> Table:
    return Table(7, "default", "app", "things", TableKind.SHARED, tuple(columns), key, 0)


def schema_of(table: Table) -> PayloadSchema:
    return PayloadSchema(1, table.id, 1, table.full_name, table.columns, table.primary_key, 0)


def batch_of(payloads: Sequence[bytes], first: int = 100) -> pa.RecordBatch:
    offsets = pa.array(range(first, first + len(payloads)), pa.int64())
    partitions = pa.repeat(pa.scalar(3, pa.int32()), len(payloads))
    text = pa.array(payloads, pa.binary()).view(pa.string())
    return pa.RecordBatch.from_arrays([partitions, offsets, text], names=["partition", "offset", "payload"])


def texts(payloads: Sequence[bytes], codec: int, table: Table) -> list[str]:
    given = batch_of(payloads)
    shown = json_batch(given, codec, schema_of(table), "topic 't'")
    assert shown.schema == given.schema
    assert shown.column("offset") == given.column("offset")
    shown.validate(full=True)
    return shown.column("payload").to_pylist()  # type: ignore[no-any-return]


def diffs(table: Table, changes: Sequence[Change]) -> list[bytes]:
    """Return the payloads of changes of any operations."""
    encoder, found = DiffEncoder(table), []
    for _, old, new in changes:
        if old is None or new is None:
            found += encoder.inserted([new]) if new is not None else encoder.deleted([old or ()])
        else:
            found += encoder.updated([old], [new])
    return found


def shown(value: Any, kind: ColumnType) -> Any:
    """Return what a reader of the JSON must find."""
    if value is None:
        return None
    return json.loads(value) if kind.name == "JSON" else to_json(value, kind)


def object_of(table: Table, row: Row) -> dict[str, Any]:
    return {column.name: shown(value, column.type) for column, value in zip(table.columns, row, strict=True)}


@st.composite
def tables_with_rows(draw: st.DrawFn) -> tuple[Table, list[Row]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    columns = [TableColumn(name, str(draw(st.sampled_from(KINDS)))) for name in names]
    table = table_of(columns, tuple(names[: draw(st.integers(1, len(names)))]))
    row = st.tuples(*[st.none() | values_of(column.type) for column in columns])
    # Moments are written another way when there are many.
    rows = draw(st.lists(row, min_size=1, max_size=4)) * draw(st.sampled_from([1, 1, 1, 20]))
    return table, rows


@given(tables_with_rows())
@settings(max_examples=150)
def test_full_payload_shows_every_value_as_sql_answers_do(made: tuple[Table, list[Row]]) -> None:
    """Case 16."""
    table, rows = made
    found = texts(encode_full(rows), CODEC_FULL, table)
    assert [json.loads(text) for text in found] == [object_of(table, row) for row in rows]
    assert not any("\n" in text for text in found)


@given(st.lists(st.tuples(*[values_of(column.type) for column in EVERY_TYPE]), min_size=1, max_size=40))
@settings(max_examples=40)
def test_json_of_a_payload_gives_back_the_row_that_was_written(rows: list[Row]) -> None:
    table = table_of(EVERY_TYPE, ("c0",))
    finite = [
        tuple(0.5 if isinstance(value, float) and not math.isfinite(value) else value for value in row)
        for row in rows
    ]
    for text, row in zip(texts(encode_full(finite), CODEC_FULL, table), finite, strict=True):
        values = json.loads(text)
        back = [
            json.dumps(values[column.name])
            if column.type.name == "JSON"
            else from_json(values[column.name], column.type)
            for column in table.columns
        ]
        assert encode_values(back) == encode_values(row)


def test_what_json_cannot_say_is_null_outside_and_kept_inside() -> None:
    table = table_of([TableColumn("id", "BIGINT"), TableColumn("v", "DOUBLE")], ("id",))
    rows: list[Row] = [(1, math.nan), (2, math.inf), (3, -math.inf), (4, -0.0)]
    payloads = encode_full(rows)
    assert [json.loads(text)["v"] for text in texts(payloads, CODEC_FULL, table)] == [None, None, None, 0]
    assert payloads == [encode_values(row) for row in rows]
    assert texts(payloads, CODEC_FULL, table)[3] == '{"id":4,"v":-0.0}'


def test_numbers_keep_every_digit() -> None:
    columns = [TableColumn("id", "BIGINT"), TableColumn("d", "DECIMAL(38,10)"), TableColumn("j", "JSON")]
    table = table_of(columns, ("id",))
    row: Row = (2**63 - 1, Decimal("0E-10"), '{"n": 123456789012345678901234567890.5}')
    assert texts(encode_full([row]), CODEC_FULL, table) == [
        '{"id":9223372036854775807,"d":"0.0000000000","j":{"n": 123456789012345678901234567890.5}}'
    ]


def test_document_with_line_ends_stays_one_line() -> None:
    table = table_of([TableColumn("id", "BIGINT"), TableColumn("j", "JSON")], ("id",))
    (text,) = texts(encode_full([(1, '{\n  "a": "x\\ny"\n}')]), CODEC_FULL, table)
    assert "\n" not in text
    assert json.loads(text) == {"id": 1, "j": {"a": "x\ny"}}


@given(tables_with_rows())
@settings(max_examples=60)
def test_key_payload_is_the_primary_key_and_nothing_more(made: tuple[Table, list[Row]]) -> None:
    """Case 16."""
    table, rows = made
    keys = [[row[place] for row in rows] for place in table.key_positions]
    expected = [{name: object_of(table, row)[name] for name in table.primary_key} for row in rows]
    assert [json.loads(text) for text in texts(encode_keys(keys), CODEC_KEY, table)] == expected


def test_preview_is_the_beginning_of_the_row() -> None:
    table = table_of([TableColumn("id", "BIGINT"), TableColumn("t", "TEXT")], ("id",))
    rows: list[Row] = [(1, "äöü" * 10), (2, "line\nend")]
    previews = preview_texts(table, rows, 14)
    assert previews == ['{"id":1,"t":"ä', '{"id":2,"t":"l']
    payloads = encode_keys([[1, 2]], previews)
    # Another route of the same table may send keys without: they may share a record batch.
    found = texts([*payloads, *encode_keys([[3]])], CODEC_KEY, table)
    assert [json.loads(text) for text in found] == [
        {"id": 1, "_preview": '{"id":1,"t":"ä'},
        {"id": 2, "_preview": '{"id":2,"t":"l'},
        {"id": 3},
    ]


@given(tables_with_rows(), st.randoms(use_true_random=False))
@settings(max_examples=100)
def test_diff_payload_has_key_and_what_differs(made: tuple[Table, list[Row]], random: Any) -> None:
    """Case 16."""
    table, rows = made
    changes: list[Change] = []
    for row in rows:
        # The key stays; every other column is another row's, or stays too.
        new = tuple(
            value if column.name in table.primary_key or random.random() < 0.5 else random.choice(rows)[place]
            for place, (column, value) in enumerate(zip(table.columns, row, strict=True))
        )
        changes.append(
            random.choice(
                [Change("insert", None, row), Change("delete", row, None), Change("update", row, new)]
            )
        )
    payloads = diffs(table, changes)
    for text, change in zip(texts(payloads, CODEC_DIFF, table), changes, strict=True):
        assert json.loads(text) == difference(table, change)


def difference(table: Table, change: Change) -> dict[str, Any]:
    there = change.new or change.old
    assert there is not None
    key = {name: object_of(table, there)[name] for name in table.primary_key}
    changed = {}
    for place, column in enumerate(table.columns):
        old = None if change.old is None else change.old[place]
        new = None if change.new is None else change.new[place]
        # A column that is NULL on both sides has not changed, whatever happened to the row.
        if encode_values([old]) != encode_values([new]):
            changed[column.name] = {"old": shown(old, column.type), "new": shown(new, column.type)}
    return {"key": key, "changed": changed}


def test_update_that_changes_nothing_sends_its_key() -> None:
    columns = [TableColumn("id", "BIGINT"), TableColumn("v", "DOUBLE"), TableColumn("d", "DECIMAL(5,2)")]
    table = table_of(columns, ("id",))
    same: Row = (1, math.nan, Decimal("1.50"))
    again: Row = (1, float("nan"), Decimal("1.50"))
    zero: Row = (1, 0.0, Decimal("0.00"))
    minus: Row = (1, -0.0, Decimal("0.00"))
    payloads = diffs(table, [Change("update", same, again), Change("update", zero, minus)])
    assert texts(payloads, CODEC_DIFF, table) == [
        '{"key":{"id":1},"changed":{}}',
        '{"key":{"id":1},"changed":{"v":{"old":0.0,"new":-0.0}}}',
    ]


def test_slices_of_a_batch_are_read_by_themselves() -> None:
    table = table_of([TableColumn("id", "BIGINT")], ("id",))
    whole = batch_of(encode_full([(number,) for number in range(10)]))
    part = json_batch(whole.slice(3, 4), CODEC_FULL, schema_of(table))
    assert part.column("payload").to_pylist() == ['{"id":3}', '{"id":4}', '{"id":5}', '{"id":6}']
    assert part.column("offset").to_pylist() == [103, 104, 105, 106]
    assert json_batch(whole.slice(3, 0), CODEC_FULL, schema_of(table)).num_rows == 0


def test_published_text_passes_as_it_is() -> None:
    given = batch_of([b'{"a": 1}'])
    assert json_batch(given, CODEC_TEXT, None) is given


def test_bytes_of_payloads_stay_as_they_are() -> None:
    """Topics keep what they hold for years: these bytes are read by every later version."""
    columns = [
        TableColumn("id", "BIGINT"),
        TableColumn("t", "TEXT"),
        TableColumn("d", "DECIMAL(8,3)"),
        TableColumn("at", "TIMESTAMP"),
        TableColumn("day", "DATE"),
        TableColumn("b", "BYTES"),
        TableColumn("u", "UUID"),
        TableColumn("j", "JSON"),
        TableColumn("v", "DOUBLE"),
        TableColumn("ok", "BOOLEAN"),
    ]
    table = table_of(columns, ("id", "t"))
    uuid = "019d2c3e-7f00-7abc-8def-0123456789ab"
    row: Row = (-5, "x", Decimal("1.250"), 1_800_000_000_123_456, -1, b"\0\xff", uuid, "[1]", 1.5, True)
    new: Row = (*row[:8], math.nan, None)
    full = (
        "9afba178a5312e323530cf00066517289a6240ffc40200ffd92430313964326333652d376630302d376162632d386465662d"
        "303132333435363738396162a35b315dcb3ff8000000000000c3"
    )
    assert encode_full([row])[0].hex() == full
    assert encode_keys([[-5], ["x"]], ["p"])[0].hex() == "93fba178a170"
    found = [each.hex() for each in diffs(table, [Change("update", row, new)])]
    assert found == ["9502" + "92fba178" + "920809" + "92cb3ff8000000000000c3" + "92cb7ff8000000000000c0"]
    inserted, deleted = diffs(table, [Change("insert", None, row), Change("delete", row, None)])
    assert (inserted.hex(), deleted.hex()) == ("9200" + full, "9201" + full)
    assert texts([bytes.fromhex(full)], CODEC_FULL, table) == [
        '{"id":-5,"t":"x","d":"1.250","at":"2027-01-15T08:00:00.123456Z","day":"1969-12-31","b":"AP8=",'
        '"u":"019d2c3e-7f00-7abc-8def-0123456789ab","j":[1],"v":1.5,"ok":true}'
    ]


@pytest.mark.parametrize(
    ("codec", "bad"),
    [
        (CODEC_FULL, b"\xc1"),
        (CODEC_FULL, b"\x91\x01"),
        (CODEC_FULL, b"\x93\x01\x02\x03"),
        (CODEC_FULL, b"\x92\xa1x\x02"),
        (CODEC_FULL, b"\x92\x01\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"),
        (CODEC_FULL, b"{}"),
        (CODEC_KEY, b"\x90"),
        (CODEC_KEY, b"\x93\x01\x02\x03"),
        (CODEC_DIFF, b"\x92\x07\x90"),
        (CODEC_DIFF, b"\x92\x00\x91\x01"),
        (CODEC_DIFF, b"\x95\x02\x91\x01\x91\x09\x91\x00\x91\x00"),
        (CODEC_DIFF, b"\x90"),
    ],
)
def test_damaged_payload_is_named_by_its_offset(codec: int, bad: bytes) -> None:
    table = table_of([TableColumn("id", "BIGINT"), TableColumn("at", "TIMESTAMP")], ("id",))
    row: Row = (1, 0)
    good = {
        CODEC_FULL: encode_full([row]),
        CODEC_KEY: encode_keys([[1]]),
        CODEC_DIFF: diffs(table, [Change("insert", None, row)]),
    }[codec]
    with pytest.raises(StorageCorrupt, match="topic 't', partition 3, offset 101") as caught:
        json_batch(batch_of([*good, bad, *good]), codec, schema_of(table), "topic 't'")
    assert "app.things" in str(caught.value)


def test_codec_of_a_later_version_is_refused() -> None:
    with pytest.raises(StorageCorrupt, match="payload codec 4"):
        json_batch(batch_of([b"\x90"]), 4, None, "topic 't'")
    with pytest.raises(InvariantBroken):
        json_batch(batch_of([b"\x90"]), CODEC_FULL, None, "topic 't'")
