"""Payloads as typed columns, and rows as payloads."""

from __future__ import annotations

import datetime
import json
import logging
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from tidegate.errors import RequestInvalid
from tidegate.pipeline.topic import message_encoder
from tidegate.pipeline.topic.client import ServerLocation
from tidegate.pipeline.topic.message_encoder import check_columns, message_batch, parts_of, stream_bytes
from tidegate.pipeline.topic.options import SourceOptions
from tidegate.pipeline.topic.payload_columns import JSON_MARK, PayloadColumns
from tidegate.pipeline.topic.range_reader import SOURCE_SCHEMA

UTC = datetime.UTC
OWN = ("_partition", "_offset", "_op")


def columns_of(fields: list[t.StructField], bad: Literal["fail", "null"] = "fail") -> PayloadColumns:
    own = [
        t.StructField("_partition", t.IntegerType()),
        t.StructField("_offset", t.LongType()),
        t.StructField("_op", t.StringType()),
    ]
    settings = SourceOptions("app.rows", ServerLocation(), OWN, payload="columns", bad_payload=bad)
    return PayloadColumns(settings, t.StructType([*fields, *own]))


def messages(payloads: list[str], mode: str = "full") -> pa.RecordBatch:
    count = len(payloads)
    values: dict[str, list[Any]] = {
        "partition": [0] * count,
        "offset": list(range(100, 100 + count)),
        "message_id": list(range(count)),
        "ts": [datetime.datetime(2026, 1, 1, tzinfo=UTC)] * count,
        "op": ["INSERT"] * count,
        "source": ["app.t"] * count,
        "payload_mode": [mode] * count,
        "key": [None] * count,
        "payload": payloads,
        "user": [None] * count,
    }
    return pa.RecordBatch.from_pydict(values, schema=SOURCE_SCHEMA)


EVERY_TYPE = [
    t.StructField("text", t.StringType()),
    t.StructField("yes", t.BooleanType()),
    t.StructField("small", t.IntegerType()),
    t.StructField("big", t.LongType()),
    t.StructField("real", t.DoubleType()),
    t.StructField("exact", t.DecimalType(10, 2)),
    t.StructField("raw", t.BinaryType()),
    t.StructField("any thing", t.StringType(), True, {JSON_MARK: True}),
    t.StructField("day", t.DateType()),
    t.StructField("at", t.TimestampType()),
    t.StructField("local", t.TimestampNTZType()),
    t.StructField("many", t.ArrayType(t.LongType())),
    t.StructField("named", t.MapType(t.StringType(), t.DoubleType())),
    t.StructField("inner", t.StructType([t.StructField("x y", t.DateType())])),
]


def test_every_type_is_read_as_sql_shows_it_and_missing_fields_are_null() -> None:
    full = {
        "text": "é\n",
        "yes": True,
        "small": 7,
        "big": 2**53 + 1,
        "real": 1,
        "exact": "1.50",
        "raw": "AAE=",
        "any thing": {"a": [1, "x"]},
        "day": "2026-01-31",
        "at": "2026-01-31T12:00:00.123456Z",
        "local": "2026-01-31T12:00:00",
        "many": [1, None],
        "named": {"k": 0.5},
        "inner": {"x y": "2026-02-01"},
        "not asked for": [1],
    }
    shaped = columns_of(EVERY_TYPE).decode(messages([json.dumps(full), "{}", '{"any thing": "quoted"}']))
    first, second, third = shaped.to_pylist(maps_as_pydicts="strict")
    assert json.loads(first.pop("any thing")) == {"a": [1, "x"]}
    assert first == {
        "text": "é\n",
        "yes": True,
        "small": 7,
        "big": 2**53 + 1,
        "real": 1.0,
        "exact": Decimal("1.50"),
        "raw": b"\x00\x01",
        "day": datetime.date(2026, 1, 31),
        "at": datetime.datetime(2026, 1, 31, 12, 0, 0, 123456, UTC),
        "local": datetime.datetime(2026, 1, 31, 12),
        "many": [1, None],
        "named": {"k": 0.5},
        "inner": {"x y": datetime.date(2026, 2, 1)},
        "_partition": 0,
        "_offset": 100,
        "_op": "INSERT",
    }
    assert {name for name, value in second.items() if value is not None} == set(OWN)
    assert third["any thing"] == '"quoted"', "a JSON column keeps the text of its value"


def test_text_column_takes_any_json_value_and_times_may_lack_a_zone() -> None:
    fields = [t.StructField("a", t.StringType()), t.StructField("at", t.TimestampType())]
    payloads = ['{"a": {"x": 1}, "at": "2026-01-31 12:00:00"}', '{"a": "plain"}', '{"a": null}', '{"a": 1.5}']
    shaped = columns_of(fields).decode(messages(payloads))
    assert shaped.column("a").to_pylist() == ['{"x": 1}', "plain", None, "1.5"]
    assert shaped.column("at")[0].as_py() == datetime.datetime(2026, 1, 31, 12, tzinfo=UTC)


BAD = ['{"n": "x"}', "[1]", "17", '{"n": 4000000000}', "null"]
# Of an earlier version: deeper than a recursion goes, and longer than Python reads a number.
BAD += ['{"n": 1, "more": ' + "[" * 5_000 + "]" * 5_000 + "}", '{"n": ' + "9" * 5_000 + "}"]


@pytest.mark.parametrize("bad", BAD)
def test_payload_that_does_not_fit_is_named_by_its_offset(bad: str) -> None:
    fields = [t.StructField("n", t.IntegerType())]
    payloads = ['{"n": 1}', '{"n": 2}', bad, '{"n": 3}']
    with pytest.raises(
        RequestInvalid, match=r"'app\.rows', partition 0, offset 102: the payload does not fit"
    ):
        columns_of(fields).decode(messages(payloads))


@pytest.mark.parametrize("bad", BAD)
def test_payload_that_does_not_fit_is_null_where_the_query_wants_that(
    bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    fields = [t.StructField("n", t.IntegerType())]
    with caplog.at_level(logging.WARNING):
        shaped = columns_of(fields, "null").decode(messages(['{"n": 1}', bad, '{"n": 3}']))
    assert shaped.column("n").to_pylist() == [1, None, 3]
    assert "partition=0 offset=101" in "\n".join(caplog.messages)


def test_diffs_are_refused_as_columns() -> None:
    with pytest.raises(RequestInvalid, match="payload is a diff"):
        columns_of(EVERY_TYPE).decode(messages(['{"key": {}, "changed": {}}'], "diff"))


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_without_a_payload_become_json_objects_as_sql_shows_values() -> None:
    at = datetime.datetime(2026, 1, 31, 12, 0, 0, 123000, datetime.timezone(datetime.timedelta(hours=1)))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["k", None]),
            pa.array([1, None], pa.int32()),
            pa.array([Decimal("1.50"), None]),
            pa.array([at, None], pa.timestamp("us", tz="Europe/Paris")),
            pa.array([b"\x00\x01", None]),
            pa.array([{"a": [1]}, None]),
            pa.array([[("x", 1.0)], None], pa.map_(pa.string(), pa.float64())),
            pa.array([float("nan"), None]),
        ],
        names=["key", "partition", "exact", "at", "raw", "inner", "named", "real"],
    )
    made = message_batch(batch).to_pylist()
    assert [(message["key"], message["partition"]) for message in made] == [("k", 1), (None, None)]
    assert json.loads(made[0]["payload"]) == {
        "exact": "1.50",
        "at": "2026-01-31T11:00:00.123000Z",
        "raw": "AAE=",
        "inner": {"a": [1]},
        "named": {"x": 1.0},
        "real": None,
    }
    assert set(json.loads(made[1]["payload"]).values()) == {None}


def test_payload_column_is_json_text_or_becomes_it() -> None:
    text = message_batch(rows(payload=['{"a":1}', "2"], key=[1, 2]))
    assert text.column("payload").to_pylist() == ['{"a":1}', "2"]
    assert text.column("key").to_pylist() == ["1", "2"]
    assert message_batch(rows(payload=[{"a": 1}])).column("payload").to_pylist() == ['{"a":1}']
    with pytest.raises(RequestInvalid, match="no payload"):
        message_batch(rows(payload=["1", None]))


def test_dedup_keys_are_sent_beside_the_payload_where_rows_have_them() -> None:
    made = message_batch(rows(a=[1, 2], dedupKey=[7, None]))
    assert made.column("dedupKey").to_pylist() == ["7", None]
    assert made.column("payload").to_pylist() == ['{"a":1}', '{"a":2}']
    assert "dedupKey" not in message_batch(rows(a=[1])).schema.names
    (part,) = parts_of(iter([made, made]))
    assert part.column("dedupKey").to_pylist() == ["7", None] * 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("payload string, a int", "'a', which would be lost"),
        ("dedupKey double, a int", "'dedupKey' is not text or a whole number"),
        ("payload int", "not JSON text"),
        ("key double, a int", "'key' is not text or a whole number"),
        ("partition string, a int", "'partition' is not a whole number"),
        ("key string", "no column for the payload"),
        ("a int, A int", "Two columns have one name"),
        ("a variant", "to_json"),
    ],
)
def test_rows_that_cannot_be_messages_are_refused_before_any_is_read(fields: str, words: str) -> None:
    kinds = {"string": t.StringType(), "int": t.IntegerType(), "double": t.DoubleType()}
    kinds["variant"] = t.VariantType()
    pairs = [field.split(" ") for field in fields.split(", ")]
    with pytest.raises(RequestInvalid) as raised:
        check_columns(t.StructType([t.StructField(name, kinds[kind]) for name, kind in pairs]))
    assert words in f"{raised.value} {raised.value.hint}"


def test_parts_are_neither_tiny_nor_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_encoder, "PART_ROWS", 10)
    monkeypatch.setattr(message_encoder, "PART_BYTES", 100)
    small = [message_batch(rows(payload=["1"])) for _ in range(25)]
    assert [part.num_rows for part in parts_of(iter(small))] == [10, 10, 5]
    large = message_batch(rows(payload=[json.dumps("x" * 60)] * 5))
    parts = list(parts_of(iter([large, message_batch(rows(payload=[json.dumps("y" * 500)]))])))
    assert [part.num_rows for part in parts] == [1, 1, 1, 1, 1, 1]
    whole = message_batch(rows(payload=[str(n) for n in range(10_000)]))
    slice_bytes = stream_bytes(pa.Table.from_batches([whole.slice(5, 2)]))
    assert len(slice_bytes) < 2_000, "a slice is sent without what is around it"
    with pa.ipc.open_stream(slice_bytes) as stream:
        assert stream.read_all().column("payload").to_pylist() == ["5", "6"]
