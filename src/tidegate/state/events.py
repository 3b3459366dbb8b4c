"""Events: take a batch's rows, give them as the operator wants them: its dataclass, dicts or records."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidegate.state.columns import Faults
from tidegate.state.types import RecordBuilder

Build = Callable[[pa.RecordBatch, Faults], list[Any]]


def event_builder(in_type: type | None, schema: pa.Schema, operator: str) -> Build:
    """Give what builds the events of batches with this schema; StateInvalid where a column does not fit."""
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
    """Give a builder of named tuples, which cost the least; odd names of columns go by `event["…"]`."""
    plain = namedtuple("Event", schema.names, rename=True)  # type: ignore[misc]
    places = {name: place for place, name in enumerate(schema.names)}

    class Event(plain):
        """A row: its columns are attributes, or `event["column"]` where the name is no Python name."""

        __slots__ = ()

        def __getitem__(self, name: Any) -> Any:
            return tuple.__getitem__(self, places[name] if isinstance(name, str) else name)

        def __getattr__(self, name: str) -> Any:
            # Only names that a tuple cannot have as its own come here, such as `_id`.
            if name in places:
                return tuple.__getitem__(self, places[name])
            raise AttributeError(f"the row has no column '{name}'; it has {', '.join(places)}")

    make = Event._make

    def build(batch: pa.RecordBatch, _faults: Faults) -> list[Any]:
        return list(map(make, zip(*(column.to_pylist() for column in batch.columns), strict=True)))

    return build
