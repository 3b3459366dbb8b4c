"""OperatorListState: a list of an operator instance, not of a key; redistributed by a rescale.

An element lies at `0xfffe | 0x01 | state u16 | batch i64 | instance u16 | counter u32`, so that one store can
have elements of several instances.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar, get_args

from tidegate.checkpoint.keys.layout import OPERATOR_GROUP, SPACE_ENTRY
from tidegate.errors import ValueInvalid
from tidegate.state.kinds.declaration import State, StateBinding, StateKind, StateOptions
from tidegate.state.kinds.entry import ABSENT
from tidegate.state.kinds.list import ADDED_MAX

if TYPE_CHECKING:
    from tidegate.state.schema.migrations import Migration
    from tidegate.state.serializers.registry import Serializer

T = TypeVar("T")

Redistribute = Literal["split", "union"]

_PREFIX = struct.Struct(">BH")
_END = struct.Struct(">QHI")
_SIGN = 1 << 63


class OperatorListState(State, Generic[T]):
    """A list for each operator instance: `get`, `add`, `add_all`, `update`, `clear`; needs no key.

    When the parallelism changes, `redistribute="split"` distributes the elements among the new instances, and
    `redistribute="union"` gives each of them all elements.
    """

    kind: ClassVar[StateKind] = "operator-list"

    def __init__(
        self,
        type: type[T],
        *,
        redistribute: Redistribute = "split",
        name: str | None = None,
        version: int = 1,
        serializer: Serializer[T] | None = None,
        migrations: Sequence[Migration] = (),
    ) -> None:
        if redistribute not in get_args(Redistribute):
            reason = f"'{redistribute}' is none of {', '.join(get_args(Redistribute))}"
            raise ValueInvalid(place="redistribute of an OperatorListState", reason=reason)
        super().__init__((type,), StateOptions(None, name, version, serializer, migrations))
        self._redistribute = redistribute

    @property
    def redistribute(self) -> str | None:
        return self._redistribute

    def get(self) -> list[T]:
        """Return the instance's elements in the order in which they were added."""
        seen: list[T] = []
        for entry, stored in list(self.cells.write_batch.scan_sub(self._prefix)):
            value = self.cells.open(entry, stored, self._prefix)
            if value is not ABSENT:
                seen.append(value)
        return seen

    def add(self, value: T) -> None:
        """Add an element at the end; costs one put."""
        cursor = self.cells.cursor
        if self._count >= ADDED_MAX:
            reason = f"more than {ADDED_MAX} elements were added in one batch"
            raise ValueInvalid(place=f"state '{self.name}'", reason=reason)
        end = _END.pack(cursor.number + _SIGN, cursor.partition, self._count)
        self._count += 1
        self.cells.append(self._prefix + end, value, self._prefix)

    def add_all(self, values: Iterable[T]) -> None:
        """Add elements at the end, in their order."""
        for value in values:
            self.add(value)

    def update(self, values: Iterable[T]) -> None:
        """Replace the instance's elements by these."""
        elements = list(values)
        self.clear()
        self.add_all(elements)

    def clear(self) -> None:
        """Remove the instance's elements."""
        self.cells.write_batch.clear_sub(self._prefix)

    def _attach(self, binding: StateBinding) -> None:
        super()._attach(binding)
        self._prefix = operator_prefix(binding.number)
        self._count = 0


def operator_prefix(number: int) -> bytes:
    """Return the prefix of the elements of an operator state."""
    return OPERATOR_GROUP + _PREFIX.pack(SPACE_ENTRY, number)
