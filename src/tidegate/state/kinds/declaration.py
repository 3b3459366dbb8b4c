"""States as an operator declares them, and what all kinds of state share.

A state is a class attribute of an operator. There it is only declared: methods that read or write entries
raise StateOutsideKey. While an operator runs, its instance has a bound copy under the same name, whose
methods read and write the entries of the current key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from tidegate.errors import StateOutsideKey, ValueInvalid
from tidegate.state.cursor import KeyCursor
from tidegate.state.kinds.entry import Cells
from tidegate.state.kinds.entry_format import SCHEMA_VERSION_MAX
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from typing import Self

    from tidegate.state.schema.migrations import Migration, Upgrader
    from tidegate.state.schema.schema import StateSpec
    from tidegate.state.serializers.registry import Serializer
    from tidegate.state.write_batch import WriteBatch

StateKind = Literal["value", "list", "map", "reducing", "aggregating", "operator-list"]


@dataclass(frozen=True, slots=True)
class StateOptions:
    """The options of every state, beside its types."""

    ttl: Ttl | None = None
    name: str | None = None
    version: int = 1
    serializer: Serializer[Any] | None = None
    migrations: Sequence[Migration] = ()


@dataclass(frozen=True, slots=True)
class StateBinding:
    """What a state needs to run: its number in the schema, the write batch, the cursor, the upgrader.

    `upgrader` reads values of older versions; None where there are none.
    """

    number: int
    write_batch: WriteBatch
    cursor: KeyCursor
    upgrader: Upgrader | None = None


class _Unbound:
    """The cells and the cursor of a declared state: any use of them raises StateOutsideKey.

    A bound state has the same class, so a hook of the class (`__getattr__`, a descriptor) would slow down the
    attributes of bound states too; a value of the instance does not.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # pickle and copy look for optional methods
            raise AttributeError(name)
        raise StateOutsideKey(state=self._state.name)


class State:
    """One state of an operator: its name, kind, types and options."""

    kind: ClassVar[StateKind]

    def __init__(self, types: tuple[Any, ...], options: StateOptions) -> None:
        is_number = isinstance(options.version, int) and not isinstance(options.version, bool)
        if not is_number or not 1 <= options.version <= SCHEMA_VERSION_MAX:
            reason = f"{options.version!r} is no whole number between 1 and {SCHEMA_VERSION_MAX}"
            raise ValueInvalid(place="version of a state", reason=reason)
        self.types = types
        self.options = options
        self._name = options.name
        unbound: Any = _Unbound(self)
        self.cells: Cells[Any] = unbound
        # That of the cells: value states read it for every row, without a step through the cells.
        self._cursor: KeyCursor = unbound

    def __set_name__(self, owner: type, name: str) -> None:
        if self._name is None:
            self._name = name

    @property
    def name(self) -> str:
        """Return the name under which the state is stored: that of the options, else of the attribute."""
        return self._name or "(without a name)"

    @property
    def ttl(self) -> Ttl | None:
        return self.options.ttl

    @property
    def redistribute(self) -> str | None:
        """Return how rescaling distributes the elements; None for keyed state."""
        return None

    @property
    def value_type(self) -> Any:
        """Return the type of what is stored in one entry."""
        return self.types[-1]

    @property
    def serializer(self) -> Serializer[Any]:
        """Return the serializer of one entry's value: that of the options, else of its type."""
        from tidegate.state.serializers.registry import serializer_for

        return self.options.serializer or serializer_for(self.value_type)

    def spec(self) -> StateSpec:
        """Return the description that is compared with the schema in the checkpoint."""
        from tidegate.state.schema.schema import StateSpec, signature_for
        from tidegate.state.serializers.signatures import signature_of

        serializer = self.serializer.name
        keys = tuple(signature_of(one) for one in self.types[:-1])
        return StateSpec(
            name=self.name,
            kind=self.kind,
            types=(*keys, signature_for(self.value_type, serializer)),
            version=self.options.version,
            serializer=serializer,
            ttl=self.ttl.to_json() if self.ttl else None,
            redistribute=self.redistribute,
        )

    def bind(self, binding: StateBinding) -> Self:
        """Return a copy that works on entries: the operator's attribute while it runs."""
        bound = object.__new__(type(self))
        # Not by `copy`, which creates a dict for the attributes: they are slower to read from it.
        for name, value in vars(self).items():
            setattr(bound, name, value)
        bound._attach(binding)
        return bound

    def _attach(self, binding: StateBinding) -> None:
        """Make this copy the bound state; kinds add what their methods read for every row."""
        self.cells = Cells(self, binding)
        self._cursor = binding.cursor

    def entry_keys(self, groups: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
        """Return the entries of keys, for a prefetch; only for kinds with one entry for each key."""
        return self.cells.entry_keys(groups, stored)
