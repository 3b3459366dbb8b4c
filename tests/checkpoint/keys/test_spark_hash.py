"""Hashes of keys: Spark's own are the measure."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from tidegate.checkpoint.keys import spark_hash
from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec

COLUMNS = {
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "whole": "int",
    "big": "bigint",
    "text": "string",
    "raw": "binary",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "price": "decimal(10,2)",
    "edge": "decimal(18,0)",
    "wide": "decimal(38,6)",
}
LOW = (
    False, -128, -(2**15), -(2**31), -(2**63), "", b"", dt.date(1, 1, 1),
    dt.datetime(1, 1, 2, tzinfo=dt.UTC), dt.datetime(1, 1, 1),
    Decimal("-99999999.99"), Decimal(-(10**18) + 1), Decimal(-(10**32) + 1),
)  # fmt: skip
HIGH = (
    True, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1, "ünïcode, longer than thirty-two bytes 𝄞", b"\x00\xff" * 40,
    dt.date(9999, 12, 31), dt.datetime(9999, 12, 30, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    Decimal("99999999.99"), Decimal(10**18 - 1), Decimal(10**32 - 1),
)  # fmt: skip
SOME = (
    True, -1, 7, -70000, 1, "user-1", b"\x00", dt.date(2024, 2, 29),
    dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
    Decimal("0.01"), Decimal(-1), Decimal("-0.000001"),
)  # fmt: skip
ZERO = (
    False, 0, 0, 0, 0, "a\x00b", b"abcdefgh", dt.date(1970, 1, 1),
    dt.datetime(1970, 1, 1, tzinfo=dt.UTC), dt.datetime(1970, 1, 1), Decimal(0), Decimal(0), Decimal(0),
)  # fmt: skip
NULLS = (None,) * len(COLUMNS)
MIXED = tuple(value if number % 2 else None for number, value in enumerate(SOME))

SETS = [
    *([name] for name in COLUMNS),
    ["text", "big"],
    ["big", "text", "day"],
    ["wide", "flag", "raw"],
    list(COLUMNS),
]


@pytest.mark.spark
def test_every_kind_of_key_is_hashed_as_spark_hashes_it(spark: Any) -> None:
    ddl = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    frame = spark.createDataFrame([LOW, HIGH, SOME, ZERO, NULLS, MIXED], ddl)
    hashes = [f"xxhash64({', '.join(names)}) as h{number}" for number, names in enumerate(SETS)]
    groups = [f"pmod(xxhash64({', '.join(names)}), 128) as g{number}" for number, names in enumerate(SETS)]
    found = frame.selectExpr("*", *hashes, *groups).toArrow()
    key_type = KeyType.from_arrow(COLUMNS, found.schema)
    assert {column.name: column.kind for column in key_type.columns} == COLUMNS
    for number, names in enumerate(SETS):
        codec = StateKeyCodec(KeyType.from_arrow(names, found.schema))
        arrays = [found.column(name) for name in names]
        expected = found.column(f"h{number}").to_pylist()
        assert codec.hash_columns(arrays).view(np.int64).tolist() == expected, names
        expected_groups = found.column(f"g{number}").to_pylist()
        assert codec.groups_of(arrays, 128).tolist() == expected_groups


def test_known_hashes_stay_what_they_are() -> None:
    """These were computed by Spark 4.2; a key whose hash changed would be looked for in another key group."""
    text = StateKeyCodec(KeyType.from_json([["k", "string"]]))
    hashes = text.hash_columns([pa.array(["Spark", None])])
    assert hashes.view(np.int64).tolist() == [-4294468057691064905, 42]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20), st.integers(0, 2**64 - 1))
def test_numbers_are_hashed_as_their_bytes(values: list[int], seed: int) -> None:
    seeds = np.full(len(values), seed, np.uint64)
    longs = [xxh64_intdigest(value.to_bytes(8, "little", signed=True), seed) for value in values]
    assert spark_hash.hash_longs(np.array(values), seeds).tolist() == longs
    short = [value >> 32 for value in values]
    ints = [xxh64_intdigest(value.to_bytes(4, "little", signed=True), seed) for value in short]
    assert spark_hash.hash_ints(np.array(short), seeds).tolist() == ints


@given(st.integers(-(10**38), 10**38))
def test_digits_are_as_few_bytes_as_java_makes_of_them(number: int) -> None:
    content = spark_hash.wide_bytes(number)
    assert int.from_bytes(content, "big", signed=True) == number
    if len(content) > 1:
        with pytest.raises(OverflowError):
            number.to_bytes(len(content) - 1, "big", signed=True)


def test_slices_and_chunks_hash_like_the_whole() -> None:
    values = pa.array([None, "a", "b\x00", None, "ccc", ""])
    codec = StateKeyCodec(KeyType.from_json([["k", "string"]]))
    whole = codec.hash_columns([values]).tolist()
    assert codec.hash_columns([values.slice(2, 3)]).tolist() == whole[2:5]
    chunks = pa.chunked_array([values.slice(0, 1), values.slice(1)])
    assert codec.hash_columns([chunks]).tolist() == whole
    assert codec.hash_columns([values.dictionary_encode()]).tolist() == whole
