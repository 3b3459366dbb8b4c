"""What a change means to a SELECT, and how it is written."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from tests.live.follower import COLUMNS, Where, above, read_frames
from tidegate.live.change_filter import ChangeFilter
from tidegate.live.wire import PAGE_BYTES, RowEncoder, frame, snapshot_messages
from tidegate.model.changes import Change
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row, Value


def told(change: Change) -> dict[str, object] | None:
    tail = ChangeFilter(above(5)).apply(9, change)
    if tail is None:
        return None
    return dict(json.loads(b'{"op":"' + tail))


LOW: Row = (1, "r", 5)
HIGH: Row = (1, "r", 6)
HIGHER: Row = (1, "r", 7)


@pytest.mark.parametrize(
    ("old", "new", "meaning"),
    [
        (None, LOW, None),
        (None, HIGH, {"op": "insert", "row": [1, "r", 6], "seq": 9}),
        (LOW, HIGH, {"op": "insert", "row": [1, "r", 6], "seq": 9}),
        (HIGH, HIGHER, {"op": "update", "row": [1, "r", 7], "old": [1, "r", 6], "seq": 9}),
        (HIGH, HIGH, {"op": "update", "row": [1, "r", 6], "old": [1, "r", 6], "seq": 9}),
        (HIGH, LOW, {"op": "delete", "row": [1, "r", 6], "seq": 9}),
        (HIGH, None, {"op": "delete", "row": [1, "r", 6], "seq": 9}),
        (LOW, None, None),
        (LOW, LOW, None),
    ],
)
def test_a_row_that_enters_the_filter_is_an_insert_and_one_that_leaves_it_a_delete(
    old: Row | None, new: Row | None, meaning: dict[str, object] | None
) -> None:
    op = "insert" if old is None else "delete" if new is None else "update"
    assert told(Change(op, old, new)) == meaning  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 1, 115, 116, 117, 65_525, 65_526, 65_527, 70_000])
def test_frames_of_every_length_are_read_back(length: int) -> None:
    text = json.dumps({"x": "x" * length}).encode()
    for cut in (0, 1, len(text)):
        framed = frame(text[:cut], text[cut:])
        assert list(read_frames(framed + framed)) == [{"x": "x" * length}] * 2


def test_one_row_and_a_page_write_values_alike() -> None:
    kinds = ["BOOLEAN", "INT", "BIGINT", "DOUBLE", "TEXT", "BYTES", "JSON", "UUID", "DATE", "TIMESTAMP"]
    columns = [(kind, ColumnType(kind)) for kind in kinds] + [("DECIMAL", ColumnType.decimal(10, 2))]
    row: tuple[Value, ...] = (True, 1, 2**62, 1.5, 'ü"', b"\x00\xff", '{"a":1}', "u", 0, 1_500_000)
    row += (Decimal("1.50"),)
    writer = RowEncoder(columns)
    rows: list[Row] = [row, tuple(None for _ in row), (*row[:3], float("nan"), *row[4:])]
    written = writer.write_many(rows)
    assert written == [writer.write(one) for one in rows]
    shown = json.loads(written[0])
    assert shown == [
        *(True, 1, 2**62, 1.5, 'ü"', "AP8=", '{"a":1}', "u"),
        *("1970-01-01", "1970-01-01T00:00:01.500Z", "1.50"),
    ]
    assert json.loads(written[2])[3] is None


def test_large_rows_are_sent_in_several_messages_and_only_the_last_is_last() -> None:
    rows: list[Row] = [(at, "x" * (PAGE_BYTES // 3), 0) for at in range(10)]
    parts = snapshot_messages("a", RowEncoder(COLUMNS), rows, 5, last=True)
    found = [message for part in parts for message in read_frames(part)]
    assert len(found) > 3
    assert [message["last"] for message in found] == [False] * (len(found) - 1) + [True]
    assert [tuple(row) for message in found for row in message["rows"]] == rows
    assert all(len(part) < PAGE_BYTES + 1000 for part in parts)


def test_an_empty_snapshot_is_one_message() -> None:
    (part,) = snapshot_messages('i"d', RowEncoder(COLUMNS), [], 5, last=True)
    assert list(read_frames(part)) == [{"type": "snapshot", "id": 'i"d', "rows": [], "last": True, "seq": 5}]


def test_projections_apply_to_old_and_new() -> None:
    change_filter = ChangeFilter(Where(columns=COLUMNS[:1], positions=(0,)))
    tail = change_filter.apply(1, Change("update", (1, "a", 1), (1, "b", 2)))
    assert tail == b'update","row":[1],"old":[1],"seq":1}'
