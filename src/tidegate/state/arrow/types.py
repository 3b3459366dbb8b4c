"""The Arrow types of Python types, and the events of a batch: records of a dataclass, dicts or named tuples.

    int           int64               str    string      list[X]         list<X>
    float         double              bytes  binary      dict[K, V]      map<K, V>
    bool          bool                date   date32      tuple[X, Y]     struct<_1: X, _2: Y>
    datetime      timestamp[us, UTC]  Decimal decimal(38, 18)  dataclass  struct of its fields

Optional[X] is a nullable X. `decode.py` converts the columns of a batch to the fields of a record.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import namedtuple
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import StateInvalid, ValueInvalid
from tidegate.state.arrow.decode import Convert, Faults, converter
from tidegate.state.serializers.signatures import (
    Signature,
    hints_of,
    signature_of,
    type_text,
    unwrapped,
)

Record = TypeVar("Record")

# Spark's widest decimal, with about as many digits before the point as after it.
DECIMAL_TYPE = pa.decimal128(38, 18)

_LEAVES: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    bytes: pa.binary(),
    dt.datetime: pa.timestamp("us", tz="UTC"),
    dt.date: pa.date32(),
    Decimal: DECIMAL_TYPE,
}


def arrow_type_of(python_type: Any, *, operator: str = "(not named yet)") -> pa.DataType:
    """Return the Arrow type of a Python type; StateInvalid where there is none."""
    return _arrow_type(signature_of(python_type, operator=operator), python_type, operator)


def _arrow_type(signature: Signature, python_type: Any, operator: str) -> pa.DataType:
    if isinstance(signature, str):
        leaf = _LEAVES.get(unwrapped(python_type)) or _BY_NAME.get(signature)
        if leaf is None:
            reason = f"{type_text(python_type)} is no type of a column; use list[float] or bytes."
            raise StateInvalid(operator=operator, reason=reason)
        return leaf
    if "record" in signature:
        return pa.struct([_field(name, kind, python_type, operator) for name, kind in signature["fields"]])
    ((form, inner),) = signature.items()
    match form:
        case "optional":
            return _arrow_type(inner, python_type, operator)
        case "list":
            return pa.list_(_field("element", inner, python_type, operator))
        case "tuple":
            return pa.struct([_field(f"_{n}", one, python_type, operator) for n, one in enumerate(inner, 1)])
    key, value = (
        _field(name, one, python_type, operator) for name, one in zip(("key", "value"), inner, strict=True)
    )
    return pa.map_(key.with_nullable(False), value)


def _field(name: str, signature: Signature, python_type: Any, operator: str) -> pa.Field:
    nullable = isinstance(signature, dict) and "optional" in signature
    return pa.field(name, _arrow_type(signature, python_type, operator), nullable=nullable)


_BY_NAME: dict[str, pa.DataType] = {
    "int": _LEAVES[int],
    "float": _LEAVES[float],
    "bool": _LEAVES[bool],
    "str": _LEAVES[str],
    "bytes": _LEAVES[bytes],
    "datetime": _LEAVES[dt.datetime],
    "date": _LEAVES[dt.date],
    "decimal": _LEAVES[Decimal],
}


def arrow_schema_of(record: type, *, operator: str = "(not named yet)") -> pa.Schema:
    """Return the Arrow schema of a dataclass: its fields in order, nullable where they are Optional."""
    if not dataclasses.is_dataclass(record):
        reason = f"{type_text(record)} is not a dataclass; rows are described by one."
        raise StateInvalid(operator=operator, reason=reason)
    return pa.schema(list(arrow_type_of(record, operator=operator)))


class RecordBuilder(Generic[Record]):
    """Converts Arrow batches of one schema to instances of a dataclass, columns at a time.

    StateInvalid when a column does not fit its field.
    """

    def __init__(self, record: type[Record], schema: pa.Schema, *, operator: str = "(not named yet)") -> None:
        if not dataclasses.is_dataclass(record):
            reason = f"{type_text(record)} is not a dataclass; rows are described by one."
            raise StateInvalid(operator=operator, reason=reason)
        self.record: type[Any] = record
        self._inputs: list[_Input] = []
        hints = hints_of(record, operator=operator)
        for field in dataclasses.fields(record):
            if field.init:
                self._inputs.append(_input(field, hints[field.name], record, schema, operator))
        self._make = self._maker()

    def __call__(self, batch: pa.RecordBatch, faults: Faults | None = None) -> list[Record]:
        """Return one record a row.

        A row that does not fit raises ValueInvalid with its number and field. With `faults`, the error is
        stored there under the row's number instead, and the list has None for the row.
        """
        found: Faults = {}
        records = self._built(batch, np.arange(batch.num_rows), found)
        if found and faults is None:
            raise found[min(found)]
        if faults is not None:
            faults.update(found)
        return records

    def _built(self, batch: pa.RecordBatch, rows: npt.NDArray[np.int64], faults: Faults) -> list[Any]:
        """Return the records of a batch; without the rows that do not fit, the others are built again."""
        found: Faults = {}
        try:
            columns = [one.column(batch, rows, found) for one in self._inputs]
            if not found:
                return list(map(self._make, *columns)) if columns else [self._make() for _ in rows]
        except Exception as error:  # noqa: BLE001 - constructors raise anything; it is stored with its row
            if not found and len(rows) == 1:
                faults[int(rows[0])] = self._refused(int(rows[0]), error)
                return [None]
            if not found:
                half = len(rows) // 2
                first = self._built(batch.slice(0, half), rows[:half], faults)
                return first + self._built(batch.slice(half), rows[half:], faults)
        faults.update(found)
        good = ~np.isin(rows, list(found))
        records = iter(self._built(batch.filter(pa.array(good)), rows[good], faults))
        return [next(records) if is_good else None for is_good in good.tolist()]

    def _refused(self, row: int, error: Exception) -> ValueInvalid:
        reason = f"{self.record.__name__} cannot be made of it: {type(error).__name__}: {error}"
        refused = ValueInvalid(place=f"row {row}", reason=reason, row=row, field=None)
        refused.__cause__ = error
        return refused

    def _maker(self) -> Callable[..., Any]:
        named = [one.name for one in self._inputs]
        if not any(one.keyword_only for one in self._inputs):
            return self.record
        record = self.record
        return lambda *values: record(**dict(zip(named, values, strict=True)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Input:
    """The source of a field: a column, or the field's default where the batch has no such column."""

    name: str
    index: int | None
    convert: Convert | None
    default: Callable[[], Any]
    keyword_only: bool

    def column(self, batch: pa.RecordBatch, rows: npt.NDArray[np.int64], faults: Faults) -> Iterable[Any]:
        if self.index is None or self.convert is None:
            return [self.default() for _ in range(batch.num_rows)]
        column = batch.column(self.index)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        return self.convert(column, rows, faults)


def _input(
    field: dataclasses.Field[Any], kind: Any, record: type, schema: pa.Schema, operator: str
) -> _Input:
    places = schema.get_all_field_indices(field.name)
    place = f"field '{field.name}' of {record.__name__}"
    if len(places) > 1:
        raise StateInvalid(
            operator=operator, reason=f"{place} is there as {len(places)} columns; rename one."
        )
    if places:
        convert = converter(kind, schema.field(places[0]).type, field.name)
        if convert is None:
            column = schema.field(places[0]).type
            reason = f"{place} is {type_text(kind)}, but the column is {column}; cast one of them."
            raise StateInvalid(operator=operator, reason=reason)
        return _Input(field.name, places[0], convert, _no_default, bool(field.kw_only))
    if field.default_factory is not dataclasses.MISSING:
        return _Input(field.name, None, None, field.default_factory, bool(field.kw_only))
    if field.default is not dataclasses.MISSING:
        value = field.default
        return _Input(field.name, None, None, lambda: value, bool(field.kw_only))
    columns = ", ".join(schema.names)
    reason = f"{place} has no default, and the rows have no such column. They have: {columns}."
    raise StateInvalid(operator=operator, reason=reason)


def _no_default() -> Any:
    return None


Build = Callable[[pa.RecordBatch, Faults], list[Any]]


def event_builder(in_type: type | None, schema: pa.Schema, operator: str) -> Build:
    """Return the builder of events of batches with this schema; StateInvalid where a column does not fit."""
    if in_type is dict:
        return _as_dicts
    if in_type is not None:
        build: RecordBuilder[Any] = RecordBuilder(in_type, schema, operator=operator)
        return build
    return _as_records(schema)


def _as_dicts(batch: pa.RecordBatch, _faults: Faults) -> list[Any]:
    rows: list[Any] = batch.to_pylist()
    return rows


def _as_records(schema: pa.Schema) -> Build:
    """Return a builder of named tuples, the cheapest form; `event["…"]` reads columns with odd names."""
    plain = namedtuple("Event", schema.names, rename=True)  # type: ignore[misc]
    places = {name: place for place, name in enumerate(schema.names)}

    class Event(plain):
        """A row: its columns are attributes, or `event["column"]` where the name is no Python name."""

        __slots__ = ()

        def __getitem__(self, name: Any) -> Any:
            return tuple.__getitem__(self, places[name] if isinstance(name, str) else name)

        def __getattr__(self, name: str) -> Any:
            # Reached only for names that a named tuple cannot have, such as `_id`.
            if name in places:
                return tuple.__getitem__(self, places[name])
            raise AttributeError(f"the row has no column '{name}'; it has {', '.join(places)}")

    make = Event._make

    def build(batch: pa.RecordBatch, _faults: Faults) -> list[Any]:
        return list(map(make, zip(*(column.to_pylist() for column in batch.columns), strict=True)))

    return build
