"""Batches become chunks: joined and cut, with distinct keys in stored order and times in milliseconds."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec
from tidegate.state.runtime.chunks import GROUP_COLUMN, Chunk, KeyFinder, rechunk, take_rows


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    batch = pa.record_batch(columns)
    key = [column for name, column in columns.items() if name.startswith("k")]
    codec = StateKeyCodec(
        KeyType.from_arrow([name for name in columns if name.startswith("k")], batch.schema)
    )
    return batch.append_column(GROUP_COLUMN, pa.array(codec.groups_of(key, 8)))


def found(batch: pa.RecordBatch, event_time: str | None = None) -> Chunk:
    names = [name for name in batch.schema.names if name.startswith("k")]
    return KeyFinder(KeyType.from_arrow(names, batch.schema), event_time).find(batch)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(0, 12), max_size=8), rows_max=st.integers(1, 10))
def test_joining_and_cutting_keeps_every_row_in_order(sizes: list[int], rows_max: int) -> None:
    numbers = iter(range(1_000))
    batches = [
        pa.record_batch({"n": [next(numbers) for _ in range(size)]})
        if size
        else pa.record_batch({"n": pa.array([], pa.int64())})
        for size in sizes
    ]
    pieces = list(rechunk(batches, rows_max))
    assert [row for piece in pieces for row in piece["n"].to_pylist()] == list(range(sum(sizes)))
    assert all(0 < piece.num_rows <= rows_max for piece in pieces)


COLUMNS = {
    "text": pa.array(["b", None, "a", "b", "", None, "ü"]),
    "whole": pa.array([3, None, -1, 3, 0, None, 2**40]),
    "dense": pa.array([3, -(2**63), -1, 3, 0, 2**63 - 1, 2**40]),
    "small": pa.array([3, -128, -1, 3, 0, 127, 7], pa.int8()),
    "flag": pa.array([True, None, False, True, False, None, True]),
    "raw": pa.array([b"\x00", None, b"", b"\x00", b"a\x00", None, b"\xff"]),
    "day": pa.array(
        [date(2026, 1, 1), None, date(1960, 1, 1), date(2026, 1, 1), date(2026, 1, 2), None, None]
    ),
    "time": pa.array(
        [datetime(2026, 1, 1, tzinfo=UTC), None, None, datetime(2026, 1, 1, tzinfo=UTC), None, None, None],
        pa.timestamp("us", tz="UTC"),
    ),
    "money": pa.array(
        [Decimal("1.50"), None, Decimal("-2.00"), Decimal("1.50"), None, None, None], pa.decimal128(9, 2)
    ),
    "words": pa.array(["b", None, "a", "b", "", None, "ü"]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_every_row_finds_its_key_whatever_the_type(kind: str) -> None:
    chunk = found(batch_of(k=COLUMNS[kind]))
    plain: list[Any] = COLUMNS[kind].to_pylist()
    keys = chunk.key_values()
    assert [keys[place] for place in chunk.key_index] == plain
    assert len(keys) == len(set(plain)) == len(chunk.stored)
    places = list(zip(chunk.groups, chunk.stored, strict=True))
    assert places == sorted(set(places))
    assert chunk.batch.schema.names == ["k"]


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 2), st.booleans()), min_size=1)
)
def test_keys_of_several_columns_are_told_apart(rows: list[tuple[str | None, int, bool]]) -> None:
    one, two, three = zip(*rows, strict=True)
    chunk = found(batch_of(k1=pa.array(one, pa.string()), k2=pa.array(two), k3=pa.array(three)))
    keys = chunk.key_values()
    assert [keys[place] for place in chunk.key_index] == rows
    assert sorted(map(repr, keys)) == sorted(map(repr, set(rows)))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1_500, -1_500], pa.timestamp("us", tz="UTC")), [1, -2]),
        (pa.array([1_500_000, -1], pa.timestamp("ns")), [1, -1]),
        (pa.array([2, -2], pa.timestamp("s")), [2_000, -2_000]),
        (pa.array([5, 6], pa.timestamp("ms", tz="Asia/Tokyo")), [5, 6]),
        (pa.array([5, 6], pa.int64()), [5, 6]),
        (pa.array([1, 2], pa.date32()), [86_400_000, 172_800_000]),
    ],
)
def test_event_times_are_milliseconds_rounded_down(column: pa.Array, expected: list[int]) -> None:
    chunk = found(batch_of(k=pa.array(["a", "a"]), ts=column), "ts")
    assert chunk.times_ms is not None
    assert chunk.times_ms.tolist() == expected
    assert (chunk.newest_ms(), chunk.newest_event_ms().tolist()) == (max(expected), [max(expected)])


def test_rows_without_a_time_are_known_and_count_for_nothing() -> None:
    chunk = found(batch_of(k=pa.array(["a", "b", "a"]), ts=pa.array([None, -5, None], pa.int64())), "ts")
    assert (chunk.timeless.tolist(), chunk.newest_ms()) == ([0, 2], -5)
    assert found(batch_of(k=pa.array(["a"]), ts=pa.array([None], pa.int64())), "ts").newest_ms() is None


def test_a_part_has_the_keys_of_its_rows_alone() -> None:
    chunk = found(batch_of(k=pa.array(["c", "a", "b", "a"]), ts=pa.array([1, None, 3, 4])), "ts")
    part = take_rows(chunk, np.array([1, 3]))
    assert (part.key_values(), part.key_index.tolist(), part.timeless.tolist()) == (["a"], [0, 0], [0])
    assert part.batch["ts"].to_pylist() == [None, 4]
    assert part.times_ms is not None
    assert part.times_ms.tolist()[1] == 4
