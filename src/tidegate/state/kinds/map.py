"""MapState: a map for each key. An entry of the map is an entry of its own, in the order of the keys."""

# ruff: noqa: ARG002 - a declared state only refuses; its bound form has the work

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from tidegate.errors import StorageCorrupt, ValueInvalid
from tidegate.state.cells import GONE, Cells
from tidegate.state.map_reads import MapReads
from tidegate.state.states import Binding, Options, State, StateKind
from tidegate.state.ttl import Ttl
from tidegate.state.vectors import Chosen, chosen_of, read_values, write_values

if TYPE_CHECKING:
    from typing import Self

    from tidegate.state.evolution import Migration
    from tidegate.state.serializers import Serializer

K = TypeVar("K")
V = TypeVar("V")


class MapState(State, Generic[K, V]):
    """Keeps a map for each key: `get`, `put`, `put_all`, `remove`, `contains`, `keys`, `values`, `entries`,
    `is_empty`, `clear`; with `get_many` and `put_many` for batches."""

    kind: ClassVar[StateKind] = "map"

    def __init__(
        self,
        key_type: type[K],
        value_type: type[V],
        *,
        ttl: Ttl | None = None,
        name: str | None = None,
        version: int = 1,
        serializer: Serializer[V] | None = None,
        migrations: Sequence[Migration] = (),
    ) -> None:
        super().__init__((key_type, value_type), Options(ttl, name, version, serializer, migrations))

    def get(self, key: K) -> V | None:
        """Give the value of an entry; None where there is none or it is expired."""
        raise self.unbound()

    def put(self, key: K, value: V) -> None:
        """Keep a value under a key of the map."""
        raise self.unbound()

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Keep all entries of a mapping; those that are there already and not in it stay."""
        raise self.unbound()

    def remove(self, key: K) -> None:
        """Forget an entry; nothing happens where there is none."""
        raise self.unbound()

    def contains(self, key: K) -> bool:
        """Say whether there is an entry; counts as a read of it."""
        raise self.unbound()

    def keys(self) -> list[K]:
        """Give the keys of the map in their order; reads all entries."""
        raise self.unbound()

    def values(self) -> list[V]:
        """Give the values in the order of their keys; reads all entries."""
        raise self.unbound()

    def entries(self) -> list[tuple[K, V]]:
        """Give keys and values in the order of the keys; reads all entries."""
        raise self.unbound()

    def is_empty(self) -> bool:
        """Say whether there is no entry; looks for the first one only, and is no read of it."""
        raise self.unbound()

    def clear(self) -> None:
        """Forget all entries of the key's map."""
        raise self.unbound()

    def get_many(self, keys: Any, map_keys: Any) -> Any:
        """Give for each key of the batch the value of one entry of its map, in order.

        Types that Arrow has come as an Arrow array with nulls where there is no entry, the rest as a list.
        """
        raise self.unbound()

    def put_many(self, keys: Any, map_keys: Any, values: Any) -> None:
        """Keep one entry in the map of each key of the batch, in order; a null value forgets the entry."""
        raise self.unbound()

    def bind(self, binding: Binding) -> Self:
        bound: Any = BoundMap(self, binding)
        return bound  # type: ignore[no-any-return]


class BoundMap(MapState[K, V]):
    """A map state while a batch runs."""

    def __init__(self, state: MapState[K, V], binding: Binding) -> None:
        from tidegate.state.keys import SubKeyCodec

        State.__init__(self, state.types, state.options)
        self._name = state.name
        self.cells: Cells[V] = Cells(state, binding)
        codec = SubKeyCodec(state.types[0])
        self._encode_key = codec.encode
        self._decode_key = codec.decode
        self._reads = MapReads(binding.stage)
        # A read that makes an entry live longer writes it.
        self._is_refreshed = self.cells.rule is not None and self.cells.rule.refreshes

    def get(self, key: K) -> V | None:
        cells = self.cells
        prefix = cells.entry()
        entry = prefix + self._encode_key(key)
        stored = self._reads.get(prefix, entry)
        if stored is None:
            return None
        if self._is_refreshed:
            self._reads.wrote(entry)
        value = cells.open(entry, stored, prefix)
        return None if value is GONE else value

    def put(self, key: K, value: V) -> None:
        prefix = self.cells.entry()
        entry = prefix + self._encode_key(key)
        self._reads.wrote(entry)
        self.cells.write(entry, value, prefix)

    def put_all(self, entries: Mapping[K, V]) -> None:
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: K) -> None:
        prefix = self.cells.entry()
        entry = prefix + self._encode_key(key)
        self._reads.wrote(entry)
        self.cells.stage.delete_sub(prefix, entry)

    def contains(self, key: K) -> bool:
        prefix = self.cells.entry()
        entry = prefix + self._encode_key(key)
        stored = self._reads.get(prefix, entry)
        if stored is not None and self._is_refreshed:
            self._reads.wrote(entry)
        return stored is not None and self.cells.sees(entry, stored, prefix)

    def keys(self) -> list[K]:
        prefix = self.cells.entry()
        return [
            self._key_of(entry, prefix)
            for entry, stored in self._all(prefix)
            if self.cells.sees(entry, stored, prefix)
        ]

    def values(self) -> list[V]:
        return [value for _, value in self._seen()]

    def entries(self) -> list[tuple[K, V]]:
        prefix = self.cells.entry()
        return [(self._key_of(entry, prefix), value) for entry, value in self._seen()]

    def is_empty(self) -> bool:
        prefix = self.cells.entry()
        return not any(
            self.cells.sees(entry, stored, prefix, touch=False)
            for entry, stored in self.cells.stage.scan_sub(prefix)
        )

    def clear(self) -> None:
        prefix = self.cells.entry()
        self._reads.cleared(prefix)
        self.cells.stage.clear_sub(prefix)

    def get_many(self, keys: Any, map_keys: Any) -> Any:
        return read_values(self.cells, self._chosen(keys, map_keys), None)

    def put_many(self, keys: Any, map_keys: Any, values: Any) -> None:
        write_values(self.cells, self._chosen(keys, map_keys), values)

    def _seen(self) -> list[tuple[bytes, V]]:
        prefix = self.cells.entry()
        seen: list[tuple[bytes, V]] = []
        for entry, stored in self._all(prefix):
            value = self.cells.open(entry, stored, prefix)
            if value is not GONE:
                seen.append((entry, value))
        return seen

    def _all(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        found = list(self.cells.stage.scan_sub(prefix))
        if self._is_refreshed:
            for entry, _ in found:
                self._reads.wrote(entry)
        return found

    def _key_of(self, entry: bytes, prefix: bytes) -> K:
        try:
            key: K = self._decode_key(entry[len(prefix) :])
        except StorageCorrupt as error:
            raise self.cells.corrupt(error) from error
        return key

    def _chosen(self, keys: Any, map_keys: Any) -> Chosen:
        chosen = chosen_of(self.cells, keys)
        listed = map_keys.to_pylist() if isinstance(map_keys, pa.Array | pa.ChunkedArray) else list(map_keys)
        if len(listed) != len(chosen.entries):
            reason = f"{len(listed)} keys of maps for {len(chosen.entries)} keys"
            raise ValueInvalid(place=f"map_keys given to state '{self.name}'", reason=reason)
        encode = self._encode_key
        entries = [prefix + encode(key) for prefix, key in zip(chosen.entries, listed, strict=True)]
        for entry in entries:
            self._reads.wrote(entry)
        return Chosen(chosen.many, chosen.places, entries, prefixes=chosen.entries)
