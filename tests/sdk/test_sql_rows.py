"""Rows that a program has, as the Arrow stream that is sent."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pytest

from tidegate.errors import RequestInvalid
from tidegate.sdk.arrow import rows_of, table_of
from tidegate.sdk.statements import insert_request

TABLE = pa.table({"id": [1, 2], "text": ["a", None]})


@pytest.mark.parametrize(
    "rows",
    [
        TABLE,
        TABLE.to_batches()[0],
        TABLE.to_pylist(),
        iter(TABLE.to_pylist()),
        pd.DataFrame({"id": [1, 2], "text": ["a", None]}, index=[7, 8]),
    ],
)
def test_rows_of_all_kinds_become_one_table(rows: object) -> None:
    assert rows_of(rows).to_pylist() == TABLE.to_pylist()


def test_polars_frames_are_taken_where_polars_is_installed() -> None:
    polars = pytest.importorskip("polars")
    assert rows_of(polars.from_arrow(TABLE)).to_pylist() == TABLE.to_pylist()


def test_values_keep_their_types() -> None:
    row: dict[str, Any] = {
        "id": UUID("12345678-1234-5678-1234-567812345678"),
        "price": Decimal("1.50"),
        "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "day": date(2026, 1, 2),
        "raw": b"\x00",
        "tags": {"a": [1, None]},
        "none": None,
    }
    table = rows_of([row, {**row, "id": None, "tags": '"text"'}])
    assert table["id"].to_pylist() == ["12345678-1234-5678-1234-567812345678", None]
    assert table["tags"].to_pylist() == ['{"a":[1,null]}', '"text"']
    for name in ("price", "at", "day", "raw", "none"):
        assert table[name][0].as_py() == row[name]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"a": 1}, {"a": 1, "b": 2}], "Row 2 has other columns than row 1: b"),
        ([{"a": 1}, {}], "Row 2 has other columns than row 1: a"),
        ([{"a": 1}, [1]], "Row 2 is no dictionary but list"),
        ([{"a": 1}, {"a": "x"}], "Column 'a' has values that do not go together"),
        ({"a": 1}, "dict is not a list of rows"),
        (7, "int is not a list of rows"),
    ],
)
def test_rows_that_would_lose_something_are_refused(rows: object, words: str) -> None:
    with pytest.raises(RequestInvalid, match=words):
        rows_of(rows)


def test_a_table_is_named_and_never_pasted() -> None:
    request = insert_request("Chat.Order", TABLE, upsert=True, key=None)
    assert request is not None
    assert parse_qs(urlsplit(request.path).query) == {"sql": ['UPSERT INTO "chat"."order"']}
    assert table_of(request.content or b"").equals(TABLE)
    assert not request.is_safe
    for name in ("messages", 'a.b"; DROP', "a.b c", "a.b.c", ""):
        with pytest.raises(RequestInvalid, match="not the name of a table"):
            insert_request(name, TABLE, upsert=False, key=None)
