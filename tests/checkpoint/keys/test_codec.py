"""Keys as bytes: they sort as keys do, say where they end, and come back as they were."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec, StateKeyColumn
from tidegate.errors import StateInvalid, StorageCorrupt, ValueInvalid
from tidegate.state.runtime.chunks import keys_of

ARROW = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="Europe/Vienna"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(10,2)": pa.decimal128(10, 2),
    "decimal(38,6)": pa.decimal128(38, 6),
}


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def digits(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


# Zero bytes and their neighbours are where the end of a text could be mistaken.
TEXTS = st.text(st.sampled_from("\x00\x01aé\U0010ffff"), max_size=6) | st.text(max_size=40)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": whole(8),
    "smallint": whole(16),
    "int": whole(32),
    "bigint": whole(64),
    "string": TEXTS,
    "binary": st.lists(st.sampled_from([0, 1, 0xFE, 0xFF]), max_size=6).map(bytes) | st.binary(max_size=40),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(dt.UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(10,2)": digits(10, 2),
    "decimal(38,6)": digits(38, 6),
}

Keys = tuple[KeyType, list[tuple[Any, ...]]]


@st.composite
def typed_keys(draw: st.DrawFn) -> Keys:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
    rows = st.tuples(*(st.none() | VALUES[kind] for kind in kinds))
    key_type = KeyType(tuple(StateKeyColumn(f"c{number}", kind) for number, kind in enumerate(kinds)))
    return key_type, draw(st.lists(rows, min_size=1, max_size=12))


def arrays_of(key_type: KeyType, rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    """Return the columns of keys as slices of longer ones, as batches have them."""
    return [
        pa.array([None, *(row[number] for row in rows), None], ARROW[column.kind]).slice(1, len(rows))
        for number, column in enumerate(key_type.columns)
    ]


def as_key(key_type: KeyType, row: tuple[Any, ...]) -> Any:
    return row[0] if len(key_type.columns) == 1 else row


def order_of(row: tuple[Any, ...]) -> tuple[Any, ...]:
    parts = [part.encode() if isinstance(part, str) else part for part in row]
    return tuple((part is not None, part if part is not None else 0) for part in parts)


@given(typed_keys())
def test_keys_come_back_and_end_where_they_end(keys: Keys) -> None:
    key_type, rows = keys
    codec = StateKeyCodec(key_type)
    for row in rows:
        stored = codec.encode(as_key(key_type, row))
        for follower in (b"", b"\x00", b"\xff", stored):
            text = b"before" + stored + follower
            assert codec.decode(text, 6) == (as_key(key_type, row), 6 + len(stored))
            assert codec.end_of(text, 6) == 6 + len(stored)


@given(typed_keys())
def test_bytes_sort_as_keys_do_and_none_begins_another(keys: Keys) -> None:
    key_type, rows = keys
    codec = StateKeyCodec(key_type)
    stored = {row: codec.encode(as_key(key_type, row)) for row in rows}
    in_order = sorted(stored, key=order_of)
    assert [stored[row] for row in in_order] == sorted(stored.values())
    for row, one in stored.items():
        for other_row, other in stored.items():
            assert order_of(row) == order_of(other_row) or not other.startswith(one)


@given(typed_keys())
def test_whole_columns_are_encoded_as_single_keys_are(keys: Keys) -> None:
    key_type, rows = keys
    codec = StateKeyCodec(key_type)
    arrays = arrays_of(key_type, rows)
    assert codec.encode_columns(arrays) == [codec.encode(as_key(key_type, row)) for row in rows]
    assert keys_of(key_type, arrays) == [as_key(key_type, row) for row in rows]
    single = [[array.slice(number, 1) for array in arrays] for number in range(len(rows))]
    assert codec.hash_columns(arrays).tolist() == [codec.hash_columns(one)[0] for one in single]
    assert KeyType.from_arrow([f"c{n}" for n in range(len(arrays))], schema_of(key_type)) == key_type
    assert KeyType.from_json(key_type.to_json()) == key_type


def schema_of(key_type: KeyType) -> pa.Schema:
    return pa.schema([(column.name, ARROW[column.kind]) for column in key_type.columns])


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_other_forms_of_text_are_the_same_key(kind: pa.DataType) -> None:
    key_type = KeyType.from_arrow(["k"], pa.schema([("k", kind)]))
    assert key_type == KeyType.from_json([["k", "string"]])
    plain = pa.array(["a", None, "b\x00c"])
    codec = StateKeyCodec(key_type)
    assert codec.encode_columns([plain.cast(kind)]) == codec.encode_columns([plain])
    assert codec.hash_columns([plain.cast(kind)]).tolist() == codec.hash_columns([plain]).tolist()


def test_no_rows_are_no_keys() -> None:
    for kind, arrow_type in ARROW.items():
        codec = StateKeyCodec(KeyType.from_json([["k", kind], ["l", "string"]]))
        arrays = [pa.array([], arrow_type), pa.array([], pa.string())]
        assert codec.encode_columns(arrays) == []
        assert len(codec.hash_columns(arrays)) == 0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.float64(), "rounds; cast it to decimal"),
        (pa.float32(), "rounds; cast it to decimal"),
        (pa.struct([("a", pa.int64())]), "name its fields as several key columns"),
        (pa.list_(pa.int64()), "to_json"),
        (pa.map_(pa.string(), pa.int64()), "to_json"),
        (pa.uint64(), "cast it to string or bigint"),
        (pa.timestamp("ns"), "cast it"),
    ],
)
def test_what_is_no_key_is_refused_with_a_way_out(kind: pa.DataType, words: str) -> None:
    with pytest.raises(StateInvalid, match=words):
        KeyType.from_arrow(["k"], pa.schema([("k", kind)]), operator="count")


def test_a_key_without_its_column_is_refused() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(StateInvalid, match="There are: a, b"):
        KeyType.from_arrow(["c"], schema)
    with pytest.raises(StateInvalid, match="1 to 64 columns"):
        KeyType.from_arrow([], schema)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("tinyint", 128),
        ("bigint", 2**63),
        ("bigint", "1"),
        ("bigint", True),
        ("boolean", 1),
        ("string", b"a"),
        ("string", "\ud800"),
        ("binary", "a"),
        ("date", dt.datetime(2024, 1, 1)),
        ("timestamp", "2024-01-01"),
        ("timestamp_ntz", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("decimal(10,2)", Decimal("0.001")),
        ("decimal(10,2)", Decimal("100000000")),
        ("decimal(10,2)", 0.5),
    ],
)
def test_a_value_of_another_type_is_no_key(kind: str, key: Any) -> None:
    codec = StateKeyCodec(KeyType.from_json([["k", kind]]))
    with pytest.raises(ValueInvalid, match=f"k {kind.split('(', maxsplit=1)[0]}"):
        codec.encode(key)


def test_a_key_of_several_columns_is_a_tuple_of_them() -> None:
    codec = StateKeyCodec(KeyType.from_json([["a", "string"], ["b", "bigint"]]))
    for wrong in ("a", ("a",), ("a", 1, 2), None):
        with pytest.raises(ValueInvalid, match="a tuple of 2"):
            codec.encode(wrong)


@given(typed_keys(), st.binary(max_size=30))
def test_damaged_bytes_are_said_to_be_damaged(keys: Keys, junk: bytes) -> None:
    key_type, rows = keys
    codec = StateKeyCodec(key_type)
    stored = codec.encode(as_key(key_type, rows[0]))
    for cut in range(len(stored)):
        with pytest.raises(StorageCorrupt):
            codec.decode(stored[:cut])
        with pytest.raises(StorageCorrupt):
            codec.end_of(stored[:cut])
    try:
        assert codec.decode(junk)[1] == codec.end_of(junk)
    except StorageCorrupt:
        pass


def test_times_that_python_has_not_stay_numbers() -> None:
    codec = StateKeyCodec(KeyType.from_json([["k", "timestamp"]]))
    far = 2**62
    stored = codec.encode_columns([pa.array([far], pa.timestamp("us", tz="UTC"))])[0]
    assert codec.decode(stored) == (far, 9)
    assert codec.encode(far) == stored
