"""OperatorListState: a list of an operator instance, not of a key; shared out when the parallelism changes.

An element lies at `0xfffe | 0x01 | state u16 | batch i64 | instance u16 | counter u32`, so that elements of
several instances can lie in one copy.
"""

# ruff: noqa: ARG002 - a declared state only refuses; its bound form has the work

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args

from tidegate.checkpoint.keys.layout import OPERATOR_GROUP, SPACE_ENTRY
from tidegate.errors import ValueInvalid
from tidegate.state.kinds.declaration import Binding, Options, State, StateKind
from tidegate.state.kinds.entry import GONE, Cells
from tidegate.state.kinds.list import ADDED_MAX

if TYPE_CHECKING:
    from typing import Self

    from tidegate.state.schema.migrations import Migration
    from tidegate.state.serializers.registry import Serializer

T = TypeVar("T")

Redistribute = Literal["split", "union"]

_PREFIX = struct.Struct(">BH")
_END = struct.Struct(">QHI")
_SIGN = 1 << 63


class OperatorListState(State, Generic[T]):
    """Keeps a list for each operator instance: `get`, `add`, `add_all`, `update`, `clear`; needs no key.

    With another parallelism, `redistribute="split"` shares the elements out among the new instances, and
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
        super().__init__((type,), Options(None, name, version, serializer, migrations))
        self._redistribute = redistribute

    @property
    def redistribute(self) -> str | None:
        return self._redistribute

    def get(self) -> list[T]:
        """Return the instance's elements in the order in which they were added."""
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
        """Forget the instance's elements."""
        raise self.unbound()

    def bind(self, binding: Binding) -> Self:
        bound: Any = BoundOperatorList(self, binding)
        return bound  # type: ignore[no-any-return]


class BoundOperatorList(OperatorListState[T]):
    """An operator list state while a batch runs."""

    def __init__(self, state: OperatorListState[T], binding: Binding) -> None:
        State.__init__(self, state.types, state.options)
        self._name = state.name
        self._redistribute = "union" if state.redistribute == "union" else "split"
        self.cells: Cells[T] = Cells(state, binding)
        self._prefix = operator_prefix(binding.number)
        self._count = 0

    def get(self) -> list[T]:
        seen: list[T] = []
        for entry, stored in list(self.cells.stage.scan_sub(self._prefix)):
            value = self.cells.open(entry, stored, self._prefix)
            if value is not GONE:
                seen.append(value)
        return seen

    def add(self, value: T) -> None:
        cursor = self.cells.cursor
        if self._count >= ADDED_MAX:
            reason = f"more than {ADDED_MAX} elements were added in one batch"
            raise ValueInvalid(place=f"state '{self.name}'", reason=reason)
        end = _END.pack(cursor.number + _SIGN, cursor.partition, self._count)
        self._count += 1
        self.cells.append(self._prefix + end, value, self._prefix)

    def add_all(self, values: Iterable[T]) -> None:
        for value in values:
            self.add(value)

    def update(self, values: Iterable[T]) -> None:
        kept = list(values)
        self.clear()
        self.add_all(kept)

    def clear(self) -> None:
        self.cells.stage.clear_sub(self._prefix)


def operator_prefix(number: int) -> bytes:
    """Return what stands before the elements of an operator state."""
    return OPERATOR_GROUP + _PREFIX.pack(SPACE_ENTRY, number)
