"""States as an operator declares them: take a type and options, give a description, then a bound state.

A state is a class attribute of an operator. The class attribute only describes; while an operator runs, a
bound state of the same class lies in its place on the instance and works on the key that the cursor stands
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tidegate.errors import StateOutsideKey, ValueInvalid
from tidegate.state.kinds.entry_format import SCHEMA_VERSION_MAX
from tidegate.state.runtime.cursor import Cursor
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from typing import Self

    from tidegate.state.runtime.write_batch import Stage
    from tidegate.state.schema.migrations import Migration, Upgrader
    from tidegate.state.schema.schema import StateSpec
    from tidegate.state.serializers.registry import Serializer

StateKind = Literal["value", "list", "map", "reducing", "aggregating", "operator-list"]


@dataclass(frozen=True, slots=True)
class Options:
    """What every state may be told beside its types."""

    ttl: Ttl | None = None
    name: str | None = None
    version: int = 1
    serializer: Serializer[Any] | None = None
    migrations: Sequence[Migration] = ()


@dataclass(frozen=True, slots=True)
class Binding:
    """What a state needs to run: its number in the schema, the stage, the cursor, and how old bytes are read.

    `upgrader` reads values of older versions; None where there are none.
    """

    number: int
    stage: Stage
    cursor: Cursor
    upgrader: Upgrader | None = None


class State:
    """One state of an operator: its name, kind, types and options."""

    kind: ClassVar[StateKind]

    def __init__(self, types: tuple[Any, ...], options: Options) -> None:
        is_number = isinstance(options.version, int) and not isinstance(options.version, bool)
        if not is_number or not 1 <= options.version <= SCHEMA_VERSION_MAX:
            reason = f"{options.version!r} is no whole number between 1 and {SCHEMA_VERSION_MAX}"
            raise ValueInvalid(place="version of a state", reason=reason)
        self.types = types
        self.options = options
        self._name = options.name

    def __set_name__(self, owner: type, name: str) -> None:
        if self._name is None:
            self._name = name

    @property
    def name(self) -> str:
        """Return the name under which the state is kept: as it was told, else that of the class attribute."""
        return self._name or "(without a name)"

    @property
    def ttl(self) -> Ttl | None:
        return self.options.ttl

    @property
    def redistribute(self) -> str | None:
        """Return how elements are shared out when the parallelism changes; None for keyed state."""
        return None

    @property
    def value_type(self) -> Any:
        """Return the type of what is stored in one entry."""
        return self.types[-1]

    @property
    def serializer(self) -> Serializer[Any]:
        """Return the serializer of one entry's value: as it was told, else that of its type."""
        from tidegate.state.serializers.registry import serializer_for

        return self.options.serializer or serializer_for(self.value_type)

    def spec(self) -> StateSpec:
        """Return the description that is compared with what the checkpoint knows."""
        from tidegate.state.schema.schema import StateSpec, signature_for
        from tidegate.state.schema.signatures import signature_of

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

    def bind(self, binding: Binding) -> Self:
        """Return the state that works on entries; the operator's attribute while it runs."""
        raise NotImplementedError

    def unbound(self) -> StateOutsideKey:
        """Return the error for a state that is used while no operator runs."""
        return StateOutsideKey(state=self.name)


def bind(state: State, binding: Binding) -> State:
    """Return the bound state of a declared one."""
    return state.bind(binding)
