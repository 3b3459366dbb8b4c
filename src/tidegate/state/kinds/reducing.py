"""ReducingState and AggregatingState: one folded value for each key; what is added is folded in at once."""

# ruff: noqa: ARG002 - a declared state only refuses; its bound form has the work

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from tidegate.errors import ValueInvalid
from tidegate.state.aggregates import IN, OUT, AggregateFunction, adapted
from tidegate.state.cells import GONE, Cells
from tidegate.state.folding import fold_many, reduce_numbers
from tidegate.state.states import Binding, Options, State, StateKind
from tidegate.state.ttl import Ttl
from tidegate.state.vectors import chosen_of, open_all, read_values, seen_of

if TYPE_CHECKING:
    from typing import Self

    from tidegate.state.evolution import Migration
    from tidegate.state.serializers import Serializer

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
        """Give what the added values make; None where none was added, or it is expired."""
        raise self.unbound()

    def add(self, value: T) -> None:
        """Fold a value in."""
        raise self.unbound()

    def clear(self) -> None:
        """Forget what was added for the key."""
        raise self.unbound()

    def get_many(self, keys: Any) -> Any:
        """Give what many keys of the batch have, in their order: as Arrow with nulls, else as a list."""
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
        """Give the result of what was added; None where nothing was, or it is expired."""
        raise self.unbound()

    def add(self, value: IN) -> None:
        """Fold a value in."""
        raise self.unbound()

    def clear(self) -> None:
        """Forget what was added for the key."""
        raise self.unbound()

    def get_many(self, keys: Any) -> list[OUT | None]:
        """Give the results of many keys of the batch, in their order."""
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
        self.cells.stage.delete(self.cells.entry())

    def get_many(self, keys: Any) -> Any:
        return read_values(self.cells, chosen_of(self.cells, keys), None)

    def add_many(self, keys: Any, values: Any) -> None:
        chosen = chosen_of(self.cells, keys)
        ufunc: Any = self.reducer
        is_vectorised = isinstance(ufunc, np.ufunc) and self.cells.serializer.dtype is not None
        if not is_vectorised or not reduce_numbers(self.cells, chosen, values, ufunc):
            fold_many(self.cells, chosen, values, self._fold)

    def entry_keys(self, groups: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
        """Give the entries of keys, for a prefetch."""
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
        self.cells.stage.delete(self.cells.entry())

    def get_many(self, keys: Any) -> list[OUT | None]:
        chosen = chosen_of(self.cells, keys)
        found = open_all(self.cells, chosen, seen_of(self.cells, chosen), None)
        return [None if one is None else self.function.result(one) for one in found]

    def add_many(self, keys: Any, values: Any) -> None:
        fold_many(self.cells, chosen_of(self.cells, keys), values, self._add)

    def entry_keys(self, groups: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
        """Give the entries of keys, for a prefetch."""
        return self.cells.entry_keys(groups, stored)

    def _add(self, kept: Any, value: IN) -> Any:
        function = self.function
        return function.add(function.create() if kept is GONE else kept, value)


def _plain_reducer(reducer: Callable[[T, T], T]) -> Callable[[T, T], T]:
    """Give the reducer for single values: a ufunc gives Python's own numbers, as every reducer does."""
    if not isinstance(reducer, np.ufunc):
        return reducer
    plain = _PLAIN_REDUCERS.get(reducer)
    if plain is not None:
        return plain
    ufunc: Any = reducer
    return lambda kept, value: ufunc(kept, value).item()
