"""ValueState: one value for each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, overload

from tidegate.errors import StateOutsideKey, StorageCorrupt, ValueInvalid
from tidegate.state.kinds.bulk import read_values, select_keys, write_values
from tidegate.state.kinds.declaration import State, StateBinding, StateKind, StateOptions
from tidegate.state.kinds.entry import ABSENT
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from tidegate.state.schema.migrations import Migration
    from tidegate.state.schema.schema import StateSpec
    from tidegate.state.serializers.registry import Serializer

    T = TypeVar("T")
    # What `value()` returns: T with a default, else T or None.
    ValueOrNone = TypeVar("ValueOrNone", default=T | None)
else:
    from typing import TypeVar

    T = TypeVar("T")
    ValueOrNone = TypeVar("ValueOrNone")

# A default of these types may be shared: nobody can change it in place.
_IMMUTABLE = (bool, int, float, str, bytes)


class ValueState(State, Generic[T, ValueOrNone]):
    """One value for each key: `value`, `update`, `clear`; `get_many` and `put_many` for batches."""

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
        super().__init__((type,), StateOptions(ttl, name, version, serializer, migrations))
        self.default = default

    def value(self) -> ValueOrNone:
        """Return the key's value; the default, or None, where there is none or it is expired.

        A value that is changed in place is stored only when it is given to `update`.
        """
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
                raise self.cells.corrupt(error) from error
        found = self.cells.open(entry, stored)
        return self._absent() if found is ABSENT else found

    def update(self, value: T) -> None:
        """Store a value for the key."""
        cursor = self._cursor
        key = cursor.stored
        if key is None:
            raise StateOutsideKey(state=self.name)
        if self._is_plain:
            self._put(cursor.group + self._middle + key, self._head + self._encode(value))
        else:
            self.cells.write(cursor.group + self._middle + key, value)

    def clear(self) -> None:
        """Remove the key's value."""
        self.cells.remove(self.cells.entry())

    def get_many(self, keys: Any) -> Any:
        """Return the values of many keys of the batch, in their order.

        With a default, int, float and bool come as a numpy array; other types that Arrow has come as an Arrow
        array with nulls where there is no value, the rest as a list.
        """
        return read_values(self.cells, select_keys(self.cells, keys), self.default)

    def put_many(self, keys: Any, values: Any) -> None:
        """Store a value for each of many keys; a null removes it. Of a repeated key the last value stays."""
        write_values(self.cells, select_keys(self.cells, keys), values)

    def spec(self) -> StateSpec:
        """Return the description of the state; ValueInvalid for a default that is not of its type."""
        if self.default is not None:
            try:
                self.serializer.encode(self.default)
            except ValueInvalid as error:
                raise ValueInvalid(place=f"default of state '{self.name}'", reason=str(error)) from error
        return super().spec()

    def _attach(self, binding: StateBinding) -> None:
        super()._attach(binding)
        self._get = binding.write_batch.get
        self._put = binding.write_batch.put
        self._middle = self.cells.middle
        self._head = self.cells.head
        self._encode = self.cells.encode
        self._decode = self.cells.decode
        self._is_plain = self.cells.rule is None
        is_shared = self.default is None or isinstance(self.default, _IMMUTABLE)
        self._default_bytes = None if is_shared else self._encode(self.default)

    def _absent(self) -> ValueOrNone:
        if self._default_bytes is None:
            return self.default  # type: ignore[no-any-return]
        return self._decode(self._default_bytes)  # type: ignore[no-any-return]
