"""Types: dataclasses as signatures, as Arrow schemas, and built from the rows of a batch."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NewType

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import StateInvalid, ValueInvalid
from tidegate.state.arrow.types import RecordBuilder, arrow_schema_of, arrow_type_of
from tidegate.state.serializers.signatures import same_shape, signature_of, signature_text, type_of

UserId = NewType("UserId", str)
UTC = dt.UTC


@dataclass
class Place:
    x: float
    label: str | None


@dataclass
class Visit:
    user: UserId
    at: dt.datetime
    place: Place
    tags: list[str]
    counts: dict[str, int]
    top: list[tuple[str, int]]
    last: Place | None = None


@dataclass
class Loop:
    inner: Loop | None


PLACE = {"record": "Place", "fields": [["x", "float"], ["label", {"optional": "str"}]]}


def test_signatures_say_what_bytes_hold() -> None:
    assert signature_of(Visit) == {
        "record": "Visit",
        "fields": [
            ["user", "str"],
            ["at", "datetime"],
            ["place", PLACE],
            ["tags", {"list": "str"}],
            ["counts", {"map": ["str", "int"]}],
            ["top", {"list": {"tuple": ["str", "int"]}}],
            ["last", {"optional": PLACE}],
        ],
    }
    plain = [
        int,
        float,
        bool,
        str,
        bytes,
        dt.datetime,
        dt.date,
        Decimal,
        np.ndarray,
        pa.Table,
        pa.RecordBatch,
    ]
    names = [
        "int",
        "float",
        "bool",
        "str",
        "bytes",
        "datetime",
        "date",
        "decimal",
        "ndarray",
        "arrow",
        "arrow",
    ]
    assert [signature_of(kind) for kind in plain] == names
    assert signature_text(signature_of(Visit)).startswith(
        "Visit(user: str, at: datetime, place: Place(x: float, "
    )
    assert type_of({"list": {"optional": "int"}}) == list[int | None]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (set[int], r"set\[int\] cannot be kept in state; use dict"),
        (list, "does not say what it holds"),
        (tuple[int, ...], "no fixed length"),
        (object, "object cannot be kept in state; known are int, float"),
        (int | str, "known are"),
        (Any, "known are"),
        (Loop, "contains itself"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_way_out(kind: Any, words: str) -> None:
    with pytest.raises(StateInvalid, match=words) as caught:
        signature_of(kind, operator="sessions")
    assert "'sessions'" in str(caught.value)


def test_annotations_that_are_text_become_types_that_travel_with_the_class() -> None:
    @dataclass
    class Near:
        when: dt.datetime

    assert Near.__annotations__ == {"when": "dt.datetime"}
    signature_of(Near)
    assert Near.__annotations__ == {"when": dt.datetime}


@dataclass
class Inner:
    day: dt.date


@dataclass
class Outer:
    inner: dict[str, list[Inner | None]]


def test_annotations_of_all_classes_that_a_class_names_become_types() -> None:
    signature_of(Outer)
    assert Inner.__annotations__ == {"day": dt.date}


def test_annotations_that_name_nothing_are_refused() -> None:
    @dataclass
    class Lost:
        when: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(StateInvalid, match="annotations of Lost cannot be read"):
        signature_of(Lost)


def test_names_of_records_and_the_order_of_fields_do_not_make_another_shape() -> None:
    other = {"record": "Spot", "fields": [["label", {"optional": "str"}], ["x", "float"]]}
    assert same_shape(PLACE, other)
    assert same_shape({"list": PLACE}, {"list": other})
    assert not same_shape(
        PLACE, {"record": "Place", "fields": [["x", "int"], ["label", {"optional": "str"}]]}
    )
    assert not same_shape({"tuple": ["int", "str"]}, {"tuple": ["str", "int"]})


def test_arrow_types_follow_from_python_types() -> None:
    place = pa.struct([pa.field("x", pa.float64(), nullable=False), pa.field("label", pa.string())])
    schema = arrow_schema_of(Visit)
    assert schema.names == ["user", "at", "place", "tags", "counts", "top", "last"]
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("place").type == place
    assert not schema.field("place").nullable
    assert schema.field("last") == pa.field("last", place)
    pair = pa.struct(
        [pa.field("_1", pa.string(), nullable=False), pa.field("_2", pa.int64(), nullable=False)]
    )
    assert schema.field("top").type == pa.list_(pa.field("element", pair, nullable=False))
    assert schema.field("counts").type.item_type == pa.int64()
    assert arrow_type_of(Decimal) == pa.decimal128(38, 18)
    with pytest.raises(StateInvalid, match=r"use list\[float\] or bytes"):
        arrow_type_of(np.ndarray)
    with pytest.raises(StateInvalid, match="is not a dataclass"):
        arrow_schema_of(int)


VISITS = [
    Visit(
        UserId(f"u{n}"),
        dt.datetime(2024, 1, 1, 0, 0, n, 123456, tzinfo=UTC),
        Place(n / 2, None if n % 2 else "home"),
        ["a", "b"][: n % 3],
        {"k": n} if n % 2 else {},
        [("t", n), ("s", -n)][: n % 3],
        None if n % 3 else Place(1.0, "away"),
    )
    for n in range(7)
]


def as_row(visit: Visit) -> dict[str, Any]:
    pairs = [{"_1": text, "_2": number} for text, number in visit.top]
    rest = {"place": vars(visit.place), "last": None if visit.last is None else vars(visit.last)}
    return {**vars(visit), **rest, "top": pairs, "counts": list(visit.counts.items())}


def test_rows_become_records_with_all_their_parts() -> None:
    batch = pa.RecordBatch.from_pylist(list(map(as_row, VISITS)), schema=arrow_schema_of(Visit))
    build = RecordBuilder(Visit, batch.schema)
    assert build(batch) == VISITS
    assert build(batch.slice(2, 3)) == VISITS[2:5]
    assert build(batch.slice(0, 0)) == []


@dataclass
class Plain:
    a: int
    b: str
    c: float = 0.5
    d: list[int] = field(default_factory=list)
    e: Any = None
    f: bool = field(default=True, kw_only=True)
    g: int = field(default=9, init=False)


def test_columns_that_are_not_there_take_the_default() -> None:
    batch = pa.record_batch({"b": ["x", "y"], "a": pa.array([1, 2], pa.int16()), "extra": [0, 0]})
    built = RecordBuilder(Plain, batch.schema)(batch)
    assert built == [Plain(1, "x"), Plain(2, "y")]
    built[0].d.append(1)
    assert built[1].d == []
    full = pa.record_batch({"a": [1], "b": ["x"], "c": [2], "d": [[3]], "e": ["any"], "f": [False]})
    assert RecordBuilder(Plain, full.schema)(full) == [Plain(1, "x", 2.0, [3], "any", f=False)]


@dataclass
class Times:
    at: dt.datetime | None
    local: dt.datetime | None
    day: dt.date | None
    ms: int | None
    price: Decimal | None
    raw: bytes | None
    word: str | None


def test_every_column_type_gives_its_python_value_and_null_gives_none() -> None:
    at = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    columns = {
        "at": pa.array([at, None], pa.timestamp("us", tz="America/New_York")),
        "local": pa.array([at.replace(tzinfo=None), None], pa.timestamp("ns")),
        "day": pa.array([dt.date(1, 1, 1), None], pa.date32()),
        "ms": pa.array([at, None], pa.timestamp("us", tz="UTC")),
        "price": pa.array([5, None], pa.int32()),
        "raw": pa.array([b"\x00", None], pa.large_binary()),
        "word": pa.array(["w", None]).dictionary_encode(),
    }
    batch = pa.record_batch(columns)
    expected = Times(at, at.replace(tzinfo=None), dt.date(1, 1, 1), -1, Decimal(5), b"\x00", "w")
    assert RecordBuilder(Times, batch.schema)(batch) == [expected, Times(*[None] * 7)]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(["1"]), "field 'a' of Plain is int, but the column is string"),
        (pa.array([1.5]), "field 'a' of Plain is int, but the column is double"),
        (None, "no such column. They have: b"),
    ],
)
def test_columns_of_another_type_are_refused_before_any_row(column: pa.Array | None, words: str) -> None:
    columns = {"b": ["x"]} if column is None else {"b": ["x"], "a": column}
    with pytest.raises(StateInvalid, match=words):
        RecordBuilder(Plain, pa.record_batch(columns).schema, operator="count")


@dataclass
class Strict:
    place: Place
    tags: list[int]
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is below zero")


def test_rows_that_do_not_fit_are_named_with_their_field_and_the_others_are_built() -> None:
    x = pa.field("x", pa.float64())
    place = pa.struct([x, pa.field("label", pa.string())])
    rows = [{"place": {"x": 1.0, "label": None}, "tags": [1], "n": number} for number in range(8)]
    rows[1]["n"] = None
    rows[2]["place"] = {"x": None, "label": "l"}
    rows[4]["tags"] = [1, None]
    rows[5]["n"] = -1
    rows[6]["place"] = None
    schema = pa.schema([("place", place), ("tags", pa.list_(pa.int64())), ("n", pa.int64())])
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    build = RecordBuilder(Strict, schema)
    faults: dict[int, ValueInvalid] = {}
    built = build(batch, faults)
    assert [None if one is None else one.n for one in built] == [0, None, None, 3, None, None, None, 7]
    assert {row: fault.values["field"] for row, fault in faults.items()} == {
        1: "n",
        2: "place.x",
        4: "tags[]",
        5: None,
        6: "place",
    }
    assert str(faults[1]) == "row 1, field 'n': it is null, and int has no None."
    assert "ValueError: n is below zero" in str(faults[5])
    with pytest.raises(ValueInvalid, match="row 1, field 'n'"):
        build(batch)
    with pytest.raises(ValueInvalid, match="row 0: Strict cannot be made of it"):
        build(batch.slice(5, 1))


@dataclass
class Deep:
    rows: list[list[int]]
    places: list[Place | None]


def test_a_null_deep_inside_is_the_fault_of_its_row() -> None:
    place = pa.struct([("x", pa.float64()), ("label", pa.string())])
    schema = pa.schema([("rows", pa.list_(pa.list_(pa.int64()))), ("places", pa.list_(place))])
    good, empty = {"x": 1.0, "label": None}, {"x": None, "label": None}
    rows = [
        {"rows": [[1, 2], [3]], "places": [None, good]},
        {"rows": [[], [4, 5]], "places": [None, None]},
        {"rows": [[6, None]], "places": []},
        {"rows": [], "places": [None, good, empty]},
        {"rows": [[7]], "places": [good]},
    ]
    faults: dict[int, ValueInvalid] = {}
    built = RecordBuilder(Deep, schema)(pa.RecordBatch.from_pylist(rows, schema=schema), faults)
    assert {row: fault.values["field"] for row, fault in faults.items()} == {2: "rows[][]", 3: "places[].x"}
    assert built[0] == Deep([[1, 2], [3]], [None, Place(1.0, None)])
    assert built[4] == Deep([[7]], [Place(1.0, None)])


def test_times_beyond_the_year_9999_are_faults_of_their_rows() -> None:
    batch = pa.record_batch({"at": pa.array([0, 2**62, 1], pa.timestamp("us", tz="UTC"))})

    @dataclass
    class At:
        at: dt.datetime

    faults: dict[int, ValueInvalid] = {}
    built = RecordBuilder(At, batch.schema)(batch, faults)
    assert [one is None for one in built] == [False, True, False]
    assert "outside the years 1 to 9999" in str(faults[1])
