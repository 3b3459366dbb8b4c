"""ListState: the elements of each key, in the order in which they were added.

An element is an entry of its own, `… | key | batch i64 | counter u32`, so adding one costs one put and no
read, however long the list is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from tidegate.errors import InvariantBroken
from tidegate.state.kinds.bulk import append_values, select_keys
from tidegate.state.kinds.declaration import State, StateBinding, StateKind, StateOptions
from tidegate.state.kinds.entry import ABSENT
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from tidegate.state.schema.migrations import Migration
    from tidegate.state.serializers.registry import Serializer

T = TypeVar("T")

# batch i64 | counter u32
ELEMENT_BYTES = 12
# Elements that one batch of one partition may add to the lists of a state: the counter is a u32.
ADDED_MAX = 2**32

_BATCH = struct.Struct(">Q")
_SIGN = 1 << 63
_END = np.dtype([("batch", "V8"), ("count", ">u4")])


class ListState(State, Generic[T]):
    """A list for each key: `get`, `add`, `add_all`, `update`, `clear`; with `add_many` for batches."""

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
        super().__init__((type,), StateOptions(ttl, name, version, serializer, migrations))

    def get(self) -> list[T]:
        """Return the key's elements in the order in which they were added; reads them all."""
        prefix = self.cells.entry()
        seen: list[T] = []
        for entry, stored in list(self.cells.scan(prefix)):
            value = self.cells.open(entry, stored, prefix)
            if value is not ABSENT:
                seen.append(value)
        return seen

    def add(self, value: T) -> None:
        """Add an element at the end; costs one put."""
        cells = self.cells
        prefix = cells.entry()
        cells.append(prefix + self._ends.take(), value, prefix)

    def add_all(self, values: Iterable[T]) -> None:
        """Add elements at the end, in their order."""
        cells = self.cells
        prefix = cells.entry()
        for value in values:
            cells.append(prefix + self._ends.take(), value, prefix)

    def update(self, values: Iterable[T]) -> None:
        """Replace the key's elements by these."""
        elements = list(values)
        self.clear()
        self.add_all(elements)

    def clear(self) -> None:
        """Remove the key's elements."""
        self.cells.clear(self.cells.entry())

    def add_many(self, keys: Any, values: Any) -> None:
        """Add an element to the list of each key, in order; a key may be there several times."""
        append_values(self.cells, select_keys(self.cells, keys), values, self._ends.take_many)

    def _attach(self, binding: StateBinding) -> None:
        super()._attach(binding)
        self._ends = ElementKeys(binding.cursor.number)


class ElementKeys:
    """The ends of the entries of new elements, each returned once and in order."""

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

    def take_many(self, count: int) -> list[bytes]:
        """Return the next ones."""
        first = self._count
        self._count = first + count
        if self._count > ADDED_MAX:
            raise InvariantBroken(reason=f"more than {ADDED_MAX} elements were added in one batch")
        ends = np.empty(count, _END)
        ends["batch"], ends["count"] = np.void(self._batch), np.arange(first, self._count)
        taken: list[bytes] = ends.view(f"V{ELEMENT_BYTES}").tolist()
        return taken
