"""ReducingState and AggregatingState: one folded value for each key; what is added is folded in at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import ValueInvalid
from tidegate.state.kinds.aggregates import IN, OUT, AggregateFunction, adapt_function
from tidegate.state.kinds.bulk import (
    Selection,
    as_dtype,
    decode_values,
    read_values,
    read_visible,
    select_keys,
    write_values,
)
from tidegate.state.kinds.declaration import State, StateBinding, StateKind, StateOptions
from tidegate.state.kinds.entry import ABSENT, Cells
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from tidegate.state.schema.migrations import Migration
    from tidegate.state.serializers.registry import Serializer

T = TypeVar("T")

__all__ = ["AggregateFunction", "AggregatingState", "ReducingState"]

# Python's own operators for single values: quicker than numpy's, and exact beyond 64 bits.
_PLAIN_REDUCERS: dict[Any, Callable[[Any, Any], Any]] = {
    np.add: operator.add,
    np.multiply: operator.mul,
    np.maximum: max,
    np.minimum: min,
}


class ReducingState(State, Generic[T]):
    """One value for each key, reduced from all that were added: `get`, `add`, `clear`; with `get_many` and
    `add_many` for batches.

    `reducer` takes the stored value and the added one and returns the new one. A numpy ufunc such as `np.add`
    is applied to whole batches at once.
    """

    kind: ClassVar[StateKind] = "reducing"

    def __init__(
        self,
        type: type[T],
        reducer: Callable[[T, T], T],
        *,
        ttl: Ttl | None = None,
        name: str | None = None,
        version: int = 1,
        serializer: Serializer[T] | None = None,
        migrations: Sequence[Migration] = (),
    ) -> None:
        if not callable(reducer):
            raise ValueInvalid(place="reducer of a state", reason=f"{reducer!r} cannot be called")
        super().__init__((type,), StateOptions(ttl, name, version, serializer, migrations))
        self.reducer = reducer

    def get(self) -> T | None:
        """Return the reduced value; None where none was added, or it is expired."""
        found = self.cells.read(self.cells.entry())
        return None if found is ABSENT else found

    def add(self, value: T) -> None:
        """Fold a value in."""
        cells = self.cells
        entry = cells.entry()
        found = cells.read(entry)
        cells.write(entry, value if found is ABSENT else self._reduce(found, value))

    def clear(self) -> None:
        """Remove what was added for the key."""
        self.cells.remove(self.cells.entry())

    def get_many(self, keys: Any) -> Any:
        """Return the values of many keys of the batch, in order: as Arrow with nulls, else as a list."""
        return read_values(self.cells, select_keys(self.cells, keys), None)

    def add_many(self, keys: Any, values: Any) -> None:
        """Fold a value in for each key, in order; a key may be there several times."""
        selection = select_keys(self.cells, keys)
        ufunc: Any = self.reducer
        is_vectorised = isinstance(ufunc, np.ufunc) and self.cells.serializer.dtype is not None
        if not is_vectorised or not reduce_numbers(self.cells, selection, values, ufunc):
            fold_many(self.cells, selection, values, self._fold)

    def _attach(self, binding: StateBinding) -> None:
        super()._attach(binding)
        self._reduce = _plain_reducer(self.reducer)

    def _fold(self, stored: Any, value: T) -> T:
        return value if stored is ABSENT else self._reduce(stored, value)


class AggregatingState(State, Generic[IN, OUT]):
    """An accumulator for each key: `get` returns its result, `add` folds a value in, `clear` removes it."""

    kind: ClassVar[StateKind] = "aggregating"

    def __init__(
        self,
        function: AggregateFunction[IN, Any, OUT],
        *,
        ttl: Ttl | None = None,
        name: str | None = None,
        version: int = 1,
        serializer: Serializer[Any] | None = None,
        migrations: Sequence[Migration] = (),
    ) -> None:
        self.function, accumulator = adapt_function(function)
        super().__init__((accumulator,), StateOptions(ttl, name, version, serializer, migrations))

    def get(self) -> OUT | None:
        """Return the result of the accumulator; None where nothing was added, or it is expired."""
        found = self.cells.read(self.cells.entry())
        return None if found is ABSENT else self.function.result(found)

    def add(self, value: IN) -> None:
        """Fold a value in."""
        entry = self.cells.entry()
        self.cells.write(entry, self._add(self.cells.read(entry), value))

    def clear(self) -> None:
        """Remove what was added for the key."""
        self.cells.remove(self.cells.entry())

    def get_many(self, keys: Any) -> list[OUT | None]:
        """Return the results of many keys of the batch, in their order."""
        selection = select_keys(self.cells, keys)
        found = decode_values(self.cells, selection, read_visible(self.cells, selection), None)
        return [None if one is None else self.function.result(one) for one in found]

    def add_many(self, keys: Any, values: Any) -> None:
        """Fold a value in for each key, in order; a key may be there several times."""
        fold_many(self.cells, select_keys(self.cells, keys), values, self._add)

    def _add(self, stored: Any, value: IN) -> Any:
        function = self.function
        return function.add(function.create() if stored is ABSENT else stored, value)


def _plain_reducer(reducer: Callable[[T, T], T]) -> Callable[[T, T], T]:
    """Return the reducer for single values; a ufunc is wrapped so that it returns Python's own numbers."""
    if not isinstance(reducer, np.ufunc):
        return reducer
    plain = _PLAIN_REDUCERS.get(reducer)
    if plain is not None:
        return plain
    ufunc: Any = reducer
    return lambda stored, value: ufunc(stored, value).item()


# Sums and products at or above this may have overflowed 64 bits; the same in floats shows it.
_BEYOND = 2.0**63


def fold_many(cells: Cells[Any], selection: Selection, values: Any, fold: Callable[[Any, Any], Any]) -> None:
    """Fold values in one by one; `fold` takes the stored value, or ABSENT, and the added one."""
    listed = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)
    if isinstance(values, np.ndarray):
        listed = values.tolist()
    _check_count(cells, selection, len(listed))
    once, positions = _distinct(cells, selection)
    folded = [
        ABSENT if one is None else one for one in decode_values(cells, once, read_visible(cells, once), None)
    ]
    for position, value in zip(positions.tolist(), listed, strict=True):
        folded[position] = fold(folded[position], value)
    write_values(cells, once, folded)


def reduce_numbers(cells: Cells[Any], selection: Selection, values: Any, ufunc: np.ufunc) -> bool:
    """Fold numbers in with a ufunc, all keys at once; False, and nothing done, where 64 bits may overflow."""
    column = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else np.asarray(values)
    numbers = as_dtype(cells, column, np.dtype(cells.serializer.dtype))
    _check_count(cells, selection, len(numbers))
    if not len(numbers):
        return True
    once, positions = _distinct(cells, selection)
    order = np.argsort(positions, kind="stable")
    starts = np.flatnonzero(np.diff(positions[order], prepend=-1))
    folded = ufunc.reduceat(numbers[order], starts)
    found = read_values(cells, once, None)
    stored = found.fill_null(0).to_numpy(zero_copy_only=False)
    is_there = found.is_valid().to_numpy(zero_copy_only=False)
    total = np.where(is_there, ufunc(stored, folded), folded)
    if numbers.dtype.kind == "i" and ufunc in (np.add, np.multiply):
        rough = ufunc.reduceat(numbers[order].astype(np.float64), starts)
        rough = np.where(is_there, ufunc(stored.astype(np.float64), rough), rough)
        if np.abs(rough).max() >= _BEYOND:
            return False
    write_values(cells, once, total)
    return True


def _distinct(cells: Cells[Any], selection: Selection) -> tuple[Selection, npt.NDArray[np.int64]]:
    """Return each key of a call once, and for each value the position of its key among them."""
    if selection.positions is None:
        return selection, np.arange(len(selection.entries))
    unique, positions = np.unique(selection.positions, return_inverse=True)
    entries = select_keys(cells, selection.many.keys).entries
    return Selection(selection.many, unique, [entries[at] for at in unique.tolist()]), positions


def _check_count(cells: Cells[Any], selection: Selection, count: int) -> None:
    if count != len(selection.entries):
        reason = f"{count} values for {len(selection.entries)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
