"""What operators yield becomes rows of the output schema, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tidegate.state.arrow.ddl import schema_of_ddl
from tidegate.state.arrow.encode import OutputCollector, OutputWrong, cast_batches
from tidegate.state.arrow.types import arrow_schema_of
from tidegate.state.instant import Moment

COUNTS = schema_of_ddl("user_id string, n long")


@dataclass
class Count:
    user_id: str
    n: int


@dataclass
class Louder(Count):
    loud: bool = True


@dataclass
class Place:
    city: str
    zip_code: int | None


@dataclass
class Visit:
    user_id: str
    at: datetime
    where: Place
    top: list[tuple[str, int]]
    per_day: dict[str, int]


def rows(made: Any, schema: pa.Schema = COUNTS, out_type: type | None = None) -> list[dict[str, Any]]:
    out = OutputCollector(schema, out_type)
    out.take(made)
    return out.batch().to_pylist()  # type: ignore[no-any-return]


def yielded() -> Iterator[Any]:
    yield ("a", 1)
    yield {"n": 2, "user_id": "b"}
    yield Count("c", 3)


def test_tuples_dicts_and_dataclasses_are_rows() -> None:
    expected = [{"user_id": "a", "n": 1}, {"user_id": "b", "n": 2}, {"user_id": "c", "n": 3}]
    assert rows(yielded(), out_type=Count) == expected


@pytest.mark.parametrize(
    "made", [("a", 1), [("a", 1)], {"user_id": "a", "n": 1}, Count("a", 1), Louder("a", 1)]
)
def test_one_row_may_be_returned_as_it_is_or_in_a_list(made: Any) -> None:
    assert rows(made, out_type=Count) == [{"user_id": "a", "n": 1}]


@pytest.mark.parametrize("made", [None, [], iter(()), (one for one in list[int]())])
def test_nothing_is_no_row(made: Any) -> None:
    assert rows(made) == []


def test_one_column_is_enough() -> None:
    assert rows([(1,), {"n": 2}], schema_of_ddl("n long")) == [{"n": 1}, {"n": 2}]


def test_records_lists_and_maps_come_out_nested() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    visit = Visit("a", at, Place("Bonn", None), [("x", 2), ("y", 1)], {"mon": 3})
    (row,) = rows(visit, arrow_schema_of(Visit), Visit)
    assert row["where"] == {"city": "Bonn", "zip_code": None}
    assert row["top"] == [{"_1": "x", "_2": 2}, {"_1": "y", "_2": 1}]
    assert row["per_day"] == [("mon", 3)]
    assert row["at"] == at


def test_times_are_taken_as_datetimes_and_moments() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    found = rows([(at,), (Moment(1_767_225_600_000),)], schema_of_ddl("at timestamp"))
    assert [row["at"] for row in found] == [at, at]
    assert rows((Moment(5),), schema_of_ddl("ms long")) == [{"ms": 5}]


def test_values_that_arrow_widens_are_taken() -> None:
    schema = schema_of_ddl("d double, n long, p decimal(10, 2), s string, day date")
    found = rows((1, np.int64(7), Decimal("1.50"), "naïve 日", date(2026, 1, 1)), schema)
    assert found == [{"d": 1.0, "n": 7, "p": Decimal("1.50"), "s": "naïve 日", "day": date(2026, 1, 1)}]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (("a",), "a tuple of 1 values, where the output has user_id string, n long"),
        ({"user_id": "a"}, "n missing"),
        ({"user_id": "a", "n": 1, "m": 2}, "m unknown"),
        ({"user_id": "a", "m": 2}, "n missing and m unknown"),
        ("text", "is no row"),
        (5, "5 \\(int\\) is no row; give a dict or a tuple"),
        ([("a", 1), None], "None \\(NoneType\\) is no row"),
        (Place("Bonn", None), "a Place is no row"),
        (("a", "x"), "column 'n' takes long, not 'x' \\(str\\)"),
        (("a", 2**63), "column 'n' takes long"),
        ((5, 1), "column 'user_id' takes string, not 5 \\(int\\)"),
        (("\ud800", 1), "column 'user_id' takes string"),
        (("a", 1.5), "column 'n' takes long, not 1.5"),
    ],
)
def test_a_wrong_row_is_refused_with_what_is_wrong(made: Any, words: str) -> None:
    with pytest.raises(OutputWrong, match=words):
        rows(made)


def test_a_field_that_is_not_optional_is_never_null() -> None:
    with pytest.raises(OutputWrong, match=r"column 'n' takes long, not None .* never null"):
        rows(("a", None), arrow_schema_of(Count))
    assert rows(("a", None)) == [{"user_id": "a", "n": None}]


def test_an_int_is_no_time_because_its_unit_is_not_known() -> None:
    with pytest.raises(OutputWrong, match="does not say its unit"):
        rows((5,), schema_of_ddl("at timestamp"))


def test_rows_taken_before_a_wrong_one_stay_until_dropped() -> None:
    out = OutputCollector(COUNTS, None)
    with pytest.raises(OutputWrong):
        out.take([("a", 1), ("b", "x")])
    assert len(out.rows) == 1


@pytest.mark.parametrize(
    "made",
    [
        pa.record_batch({"n": pa.array([1], pa.int32()), "user_id": ["a"]}),
        pa.table({"user_id": ["a"], "n": [1]}),
        {"user_id": pa.array(["a"]), "n": np.array([1])},
        {"user_id": ["a"], "n": [1]},
        [{"user_id": ["a"], "n": [1]}, None],
        pd.DataFrame({"user_id": ["a"], "n": [1]}),
    ],
)
def test_columns_of_every_shape_are_cast_to_the_output(made: Any) -> None:
    (batch,) = cast_batches(made, COUNTS)
    assert batch.schema == COUNTS
    assert batch.to_pylist() == [{"user_id": "a", "n": 1}]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"user_id": ["a"]}, "n missing"),
        ({"user_id": ["a"], "n": [1], "m": [1]}, "m unknown"),
        ({"user_id": ["a"], "n": ["x"]}, "column 'n' takes int64, not string"),
        ({"user_id": ["a", "b"], "n": [1]}, "the columns cannot be read"),
        (("a", 1), "holds no columns"),
        (5, "5 \\(int\\) holds no columns"),
    ],
)
def test_wrong_columns_are_refused_with_what_is_wrong(made: Any, words: str) -> None:
    with pytest.raises(OutputWrong, match=words):
        cast_batches(made, COUNTS)
