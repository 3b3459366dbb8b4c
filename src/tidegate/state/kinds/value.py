"""ValueState: one value for each key."""

# ruff: noqa: ARG002 - a declared state only refuses; its bound form has the work

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, overload

from tidegate.errors import StateCorrupt, StateOutsideKey, StorageCorrupt, ValueInvalid
from tidegate.state.kinds.bulk import chosen_of, read_values, write_values
from tidegate.state.kinds.declaration import Binding, Options, State, StateKind
from tidegate.state.kinds.entry import GONE, Cells
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import TypeVar

    from tidegate.state.schema.migrations import Migration
    from tidegate.state.schema.schema import StateSpec
    from tidegate.state.serializers.registry import Serializer

    T = TypeVar("T")
    # What `value()` gives: T with a default, else T or None.
    Given = TypeVar("Given", default=T | None)
else:
    from typing import TypeVar

    T = TypeVar("T")
    Given = TypeVar("Given")

# A default of these types may be given out as it is: nobody can change it in place.
_UNCHANGEABLE = (bool, int, float, str, bytes)


class ValueState(State, Generic[T, Given]):
    """Keeps one value for each key: `value`, `update`, `clear`; `get_many` and `put_many` for batches."""

    kind: ClassVar[StateKind] = "value"

    @overload
    def __init__(
        self: ValueState[T, T],
        type: type[T],
        *,
        default: T,
        ttl: Ttl | None = None,
        name: str | None = None,
        version: int = 1,
        serializer: Serializer[T] | None = None,
        migrations: Sequence[Migration] = (),
    ) -> None: ...
    @overload
    def __init__(
        self: ValueState[T, T | None],
        type: type[T],
        *,
        default: None = None,
        ttl: Ttl | None = None,
        name: str | None = None,
        version: int = 1,
        serializer: Serializer[T] | None = None,
        migrations: Sequence[Migration] = (),
    ) -> None: ...
    def __init__(
        self,
        type: Any,
        *,
        default: Any = None,
        ttl: Ttl | None = None,
        name: str | None = None,
        version: int = 1,
        serializer: Serializer[Any] | None = None,
        migrations: Sequence[Migration] = (),
    ) -> None:
        super().__init__((type,), Options(ttl, name, version, serializer, migrations))
        self.default = default

    def value(self) -> Given:
        """Return the key's value; the default, or None, where there is none or it is expired.

        What is changed in place in the value is not kept until it is given to `update`.
        """
        raise self.unbound()

    def update(self, value: T) -> None:
        """Keep a value for the key."""
        raise self.unbound()

    def clear(self) -> None:
        """Forget the key's value."""
        raise self.unbound()

    def get_many(self, keys: Any) -> Any:
        """Return the values of many keys of the batch, in their order.

        With a default, int, float and bool come as a numpy array; other types that Arrow has come as an Arrow
        array with nulls where there is no value, the rest as a list.
        """
        raise self.unbound()

    def put_many(self, keys: Any, values: Any) -> None:
        """Keep a value for each of many keys ; a null forgets. Of a repeated key the last is kept."""
        raise self.unbound()

    def spec(self) -> StateSpec:
        """Return the description of the state; refuses a default that is not of its type."""
        if self.default is not None:
            try:
                self.serializer.encode(self.default)
            except ValueInvalid as error:
                raise ValueInvalid(place=f"default of state '{self.name}'", reason=str(error)) from error
        return super().spec()

    def bind(self, binding: Binding) -> Self:
        bound: Any = BoundValue(self, binding)
        return bound  # type: ignore[no-any-return]


class BoundValue(ValueState[T, Given]):
    """A value state while a batch runs."""

    def __init__(self, state: ValueState[T, Given], binding: Binding) -> None:
        State.__init__(self, state.types, state.options)
        self._name = state.name
        self.default = state.default
        self.cells: Cells[T] = Cells(state, binding)
        self._cursor = binding.cursor
        self._get = binding.stage.get
        self._put = binding.stage.put
        self._middle = self.cells.middle
        self._head = self.cells.head
        self._encode = self.cells.encode
        self._decode = self.cells.decode
        self._is_plain = self.cells.rule is None
        is_shared = self.default is None or isinstance(self.default, _UNCHANGEABLE)
        self._default_bytes = None if is_shared else self._encode(self.default)

    def value(self) -> Given:
        cursor = self._cursor
        key = cursor.stored
        if key is None:
            raise StateOutsideKey(state=self.name)
        entry = cursor.group + self._middle + key
        stored = self._get(entry)
        if stored is None:
            return self._absent()
        if stored[:2] == self._head:
            try:
                return self._decode(stored[2:])  # type: ignore[no-any-return]
            except StorageCorrupt as error:
                raise self._corrupt(error) from error
        found = self.cells.open(entry, stored)
        return self._absent() if found is GONE else found  # type: ignore[return-value]

    def update(self, value: T) -> None:
        cursor = self._cursor
        key = cursor.stored
        if key is None:
            raise StateOutsideKey(state=self.name)
        if self._is_plain:
            self._put(cursor.group + self._middle + key, self._head + self._encode(value))
        else:
            self.cells.write(cursor.group + self._middle + key, value)

    def clear(self) -> None:
        self.cells.remove(self.cells.entry())

    def get_many(self, keys: Any) -> Any:
        return read_values(self.cells, chosen_of(self.cells, keys), self.default)

    def put_many(self, keys: Any, values: Any) -> None:
        write_values(self.cells, chosen_of(self.cells, keys), values)

    def entry_keys(self, groups: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
        """Return the entries of keys, for a prefetch."""
        return self.cells.entry_keys(groups, stored)

    def _absent(self) -> Given:
        if self._default_bytes is None:
            return self.default  # type: ignore[no-any-return]
        return self._decode(self._default_bytes)  # type: ignore[no-any-return]

    def _corrupt(self, error: StorageCorrupt) -> StateCorrupt:
        return self.cells.corrupt(error)
