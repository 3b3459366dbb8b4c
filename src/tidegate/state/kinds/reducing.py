"""ReducingState and AggregatingState: one folded value for each key; what is added is folded in at once.

Folding: takes values for many keys, gives each key what it keeps with its values folded in, in order.
"""

# ruff: noqa: ARG002 - a declared state only refuses; its bound form has the work

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import ValueInvalid
from tidegate.state.kinds.aggregates import IN, OUT, AggregateFunction, adapted
from tidegate.state.kinds.bulk import (
    Chosen,
    as_dtype,
    chosen_of,
    open_all,
    read_values,
    seen_of,
    write_values,
)
from tidegate.state.kinds.declaration import Binding, Options, State, StateKind
from tidegate.state.kinds.entry import GONE, Cells
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from typing import Self

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
    """Keeps one value for each key, made of all that were added: `get`, `add`, `clear`; with `get_many` and
    `add_many` for batches.

    `reducer` takes what is kept and what is added and gives what is kept then. A numpy ufunc such as
    `np.add` is applied to whole batches at once.
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
        super().__init__((type,), Options(ttl, name, version, serializer, migrations))
        self.reducer = reducer

    def get(self) -> T | None:
        """Return what the added values make; None where none was added, or it is expired."""
        raise self.unbound()

    def add(self, value: T) -> None:
        """Fold a value in."""
        raise self.unbound()

    def clear(self) -> None:
        """Forget what was added for the key."""
        raise self.unbound()

    def get_many(self, keys: Any) -> Any:
        """Return what many keys of the batch have, in their order: as Arrow with nulls, else as a list."""
        raise self.unbound()

    def add_many(self, keys: Any, values: Any) -> None:
        """Fold a value in for each key, in order; a key may be there several times."""
        raise self.unbound()

    def bind(self, binding: Binding) -> Self:
        bound: Any = BoundReducing(self, binding)
        return bound  # type: ignore[no-any-return]


class AggregatingState(State, Generic[IN, OUT]):
    """Keeps an accumulator for each key: `get` gives its result, `add` folds a value in, `clear` forgets."""

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
        self.function, accumulator = adapted(function)
        super().__init__((accumulator,), Options(ttl, name, version, serializer, migrations))

    def get(self) -> OUT | None:
        """Return the result of what was added; None where nothing was, or it is expired."""
        raise self.unbound()

    def add(self, value: IN) -> None:
        """Fold a value in."""
        raise self.unbound()

    def clear(self) -> None:
        """Forget what was added for the key."""
        raise self.unbound()

    def get_many(self, keys: Any) -> list[OUT | None]:
        """Return the results of many keys of the batch, in their order."""
        raise self.unbound()

    def add_many(self, keys: Any, values: Any) -> None:
        """Fold a value in for each key, in order; a key may be there several times."""
        raise self.unbound()

    def bind(self, binding: Binding) -> Self:
        bound: Any = BoundAggregating(self, binding)
        return bound  # type: ignore[no-any-return]


class BoundReducing(ReducingState[T]):
    """A reducing state while a batch runs."""

    def __init__(self, state: ReducingState[T], binding: Binding) -> None:
        State.__init__(self, state.types, state.options)
        self._name = state.name
        self.reducer = state.reducer
        self.cells: Cells[T] = Cells(state, binding)
        self._reduce = _plain_reducer(state.reducer)

    def get(self) -> T | None:
        found = self.cells.read(self.cells.entry())
        return None if found is GONE else found

    def add(self, value: T) -> None:
        cells = self.cells
        entry = cells.entry()
        found = cells.read(entry)
        cells.write(entry, value if found is GONE else self._reduce(found, value))

    def clear(self) -> None:
        self.cells.remove(self.cells.entry())

    def get_many(self, keys: Any) -> Any:
        return read_values(self.cells, chosen_of(self.cells, keys), None)

    def add_many(self, keys: Any, values: Any) -> None:
        chosen = chosen_of(self.cells, keys)
        ufunc: Any = self.reducer
        is_vectorised = isinstance(ufunc, np.ufunc) and self.cells.serializer.dtype is not None
        if not is_vectorised or not reduce_numbers(self.cells, chosen, values, ufunc):
            fold_many(self.cells, chosen, values, self._fold)

    def entry_keys(self, groups: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
        """Return the entries of keys, for a prefetch."""
        return self.cells.entry_keys(groups, stored)

    def _fold(self, kept: Any, value: T) -> T:
        return value if kept is GONE else self._reduce(kept, value)


class BoundAggregating(AggregatingState[IN, OUT]):
    """An aggregating state while a batch runs."""

    def __init__(self, state: AggregatingState[IN, OUT], binding: Binding) -> None:
        State.__init__(self, state.types, state.options)
        self._name = state.name
        self.function = state.function
        self.cells: Cells[Any] = Cells(state, binding)

    def get(self) -> OUT | None:
        found = self.cells.read(self.cells.entry())
        return None if found is GONE else self.function.result(found)

    def add(self, value: IN) -> None:
        entry = self.cells.entry()
        self.cells.write(entry, self._add(self.cells.read(entry), value))

    def clear(self) -> None:
        self.cells.remove(self.cells.entry())

    def get_many(self, keys: Any) -> list[OUT | None]:
        chosen = chosen_of(self.cells, keys)
        found = open_all(self.cells, chosen, seen_of(self.cells, chosen), None)
        return [None if one is None else self.function.result(one) for one in found]

    def add_many(self, keys: Any, values: Any) -> None:
        fold_many(self.cells, chosen_of(self.cells, keys), values, self._add)

    def entry_keys(self, groups: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
        """Return the entries of keys, for a prefetch."""
        return self.cells.entry_keys(groups, stored)

    def _add(self, kept: Any, value: IN) -> Any:
        function = self.function
        return function.add(function.create() if kept is GONE else kept, value)


def _plain_reducer(reducer: Callable[[T, T], T]) -> Callable[[T, T], T]:
    """Return the reducer for single values: a ufunc gives Python's own numbers, as every reducer does."""
    if not isinstance(reducer, np.ufunc):
        return reducer
    plain = _PLAIN_REDUCERS.get(reducer)
    if plain is not None:
        return plain
    ufunc: Any = reducer
    return lambda kept, value: ufunc(kept, value).item()


# Sums and products at or above this may have gone round the end of 64 bits; the float beside them tells.
_BEYOND = 2.0**63


def fold_many(cells: Cells[Any], chosen: Chosen, values: Any, fold: Callable[[Any, Any], Any]) -> None:
    """Fold values in one by one; `fold` takes what is kept, or GONE, and a value."""
    listed = values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)
    if isinstance(values, np.ndarray):
        listed = values.tolist()
    _check_count(cells, chosen, len(listed))
    once, places = _distinct(cells, chosen)
    kept = [GONE if one is None else one for one in open_all(cells, once, seen_of(cells, once), None)]
    for place, value in zip(places.tolist(), listed, strict=True):
        kept[place] = fold(kept[place], value)
    write_values(cells, once, kept)


def reduce_numbers(cells: Cells[Any], chosen: Chosen, values: Any, ufunc: np.ufunc) -> bool:
    """Fold numbers in with a ufunc, all keys at once; False, and nothing done, where 64 bits may not do."""
    given = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else np.asarray(values)
    numbers = as_dtype(cells, given, np.dtype(cells.serializer.dtype))
    _check_count(cells, chosen, len(numbers))
    if not len(numbers):
        return True
    once, places = _distinct(cells, chosen)
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    folded = ufunc.reduceat(numbers[order], starts)
    found = read_values(cells, once, None)
    kept = found.fill_null(0).to_numpy(zero_copy_only=False)
    is_there = found.is_valid().to_numpy(zero_copy_only=False)
    total = np.where(is_there, ufunc(kept, folded), folded)
    if numbers.dtype.kind == "i" and ufunc in (np.add, np.multiply):
        rough = ufunc.reduceat(numbers[order].astype(np.float64), starts)
        rough = np.where(is_there, ufunc(kept.astype(np.float64), rough), rough)
        if np.abs(rough).max() >= _BEYOND:
            return False
    write_values(cells, once, total)
    return True


def _distinct(cells: Cells[Any], chosen: Chosen) -> tuple[Chosen, npt.NDArray[np.int64]]:
    """Return each key of a call once, and for each value the place of its key among them."""
    if chosen.places is None:
        return chosen, np.arange(len(chosen.entries))
    unique, places = np.unique(chosen.places, return_inverse=True)
    entries = chosen_of(cells, chosen.many.keys).entries
    return Chosen(chosen.many, unique, [entries[at] for at in unique.tolist()]), places


def _check_count(cells: Cells[Any], chosen: Chosen, count: int) -> None:
    if count != len(chosen.entries):
        reason = f"{count} values for {len(chosen.entries)} keys"
        raise ValueInvalid(place=f"values given to state '{cells.name}'", reason=reason)
