"""ListState: the elements of each key, in the order in which they were added.

An element is an entry of its own, `… | key | batch i64 | counter u32`, so that adding one costs one put and
reads nothing, however long the list is.
"""

# ruff: noqa: ARG002 - a declared state only refuses; its bound form has the work

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from tidegate.errors import InvariantBroken
from tidegate.state.kinds.bulk import append_values, chosen_of
from tidegate.state.kinds.declaration import Binding, Options, State, StateKind
from tidegate.state.kinds.entry import GONE, Cells
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from typing import Self

    from tidegate.state.schema.migrations import Migration
    from tidegate.state.serializers.registry import Serializer

T = TypeVar("T")

# batch i64 | counter u32
ELEMENT_BYTES = 12
# The counter is a u32: so many elements may be added to the lists of one state in one batch and partition.
ADDED_MAX = 2**32

_BATCH = struct.Struct(">Q")
_SIGN = 1 << 63
_END = np.dtype([("batch", "V8"), ("count", ">u4")])


class ListState(State, Generic[T]):
    """Keeps a list for each key: `get`, `add`, `add_all`, `update`, `clear`; with `add_many` for batches."""

    kind: ClassVar[StateKind] = "list"

    def __init__(
        self,
        type: type[T],
        *,
        ttl: Ttl | None = None,
        name: str | None = None,
        version: int = 1,
        serializer: Serializer[T] | None = None,
        migrations: Sequence[Migration] = (),
    ) -> None:
        super().__init__((type,), Options(ttl, name, version, serializer, migrations))

    def get(self) -> list[T]:
        """Return the key's elements in the order in which they were added; reads them all."""
        raise self.unbound()

    def add(self, value: T) -> None:
        """Add an element at the end; costs one put."""
        raise self.unbound()

    def add_all(self, values: Iterable[T]) -> None:
        """Add elements at the end, in their order."""
        raise self.unbound()

    def update(self, values: Iterable[T]) -> None:
        """Keep these elements instead of those that are there."""
        raise self.unbound()

    def clear(self) -> None:
        """Forget the key's elements."""
        raise self.unbound()

    def add_many(self, keys: Any, values: Any) -> None:
        """Add an element to the list of each key, in order; a key may be there several times."""
        raise self.unbound()

    def bind(self, binding: Binding) -> Self:
        bound: Any = BoundList(self, binding)
        return bound  # type: ignore[no-any-return]


class ElementKeys:
    """Returns out the ends of entries for elements that are added, each once and in order."""

    __slots__ = ("_batch", "_count")

    def __init__(self, number: int) -> None:
        self._batch = _BATCH.pack(number + _SIGN)
        self._count = 0

    def take(self) -> bytes:
        """Return the next one."""
        count = self._count
        self._count = count + 1
        if count >= ADDED_MAX:
            raise InvariantBroken(reason=f"more than {ADDED_MAX} elements were added in one batch")
        return self._batch + count.to_bytes(4, "big")

    def take_many(self, wanted: int) -> list[bytes]:
        """Return the next ones."""
        first = self._count
        self._count = first + wanted
        if self._count > ADDED_MAX:
            raise InvariantBroken(reason=f"more than {ADDED_MAX} elements were added in one batch")
        ends = np.empty(wanted, _END)
        ends["batch"], ends["count"] = np.void(self._batch), np.arange(first, self._count)
        taken: list[bytes] = ends.view(f"V{ELEMENT_BYTES}").tolist()
        return taken


class BoundList(ListState[T]):
    """A list state while a batch runs."""

    def __init__(self, state: ListState[T], binding: Binding) -> None:
        State.__init__(self, state.types, state.options)
        self._name = state.name
        self.cells: Cells[T] = Cells(state, binding)
        self._ends = ElementKeys(binding.cursor.number)

    def get(self) -> list[T]:
        prefix = self.cells.entry()
        seen: list[T] = []
        for entry, stored in list(self.cells.scan(prefix)):
            value = self.cells.open(entry, stored, prefix)
            if value is not GONE:
                seen.append(value)
        return seen

    def add(self, value: T) -> None:
        cells = self.cells
        prefix = cells.entry()
        cells.append(prefix + self._ends.take(), value, prefix)

    def add_all(self, values: Iterable[T]) -> None:
        for value in values:
            self.add(value)

    def update(self, values: Iterable[T]) -> None:
        kept = list(values)
        self.clear()
        self.add_all(kept)

    def clear(self) -> None:
        self.cells.clear(self.cells.entry())

    def add_many(self, keys: Any, values: Any) -> None:
        append_values(self.cells, chosen_of(self.cells, keys), values, self._ends.take_many)
