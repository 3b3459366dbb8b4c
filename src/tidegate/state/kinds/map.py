"""MapState: a map for each key. An entry of the map is an entry of its own, in the order of the map's keys.

A scan of a small map costs little more than one point read. So the first read of a key's map in a batch is a
point read, and the second one, of another entry, reads the whole map if it is small (`MapReads`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import pyarrow as pa

from tidegate.checkpoint.keys.layout import after
from tidegate.errors import StorageCorrupt, ValueInvalid
from tidegate.state.kinds.bulk import Selection, read_values, select_keys, write_values
from tidegate.state.kinds.declaration import State, StateBinding, StateKind, StateOptions
from tidegate.state.kinds.entry import ABSENT
from tidegate.state.ttl import Ttl

if TYPE_CHECKING:
    from tidegate.state.schema.migrations import Migration
    from tidegate.state.serializers.registry import Serializer
    from tidegate.state.write_batch import WriteBatch

K = TypeVar("K")
V = TypeVar("V")


class MapState(State, Generic[K, V]):
    """A map for each key: `get`, `put`, `put_all`, `remove`, `contains`, `keys`, `values`, `entries`,
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
        super().__init__((key_type, value_type), StateOptions(ttl, name, version, serializer, migrations))

    def get(self, key: K) -> V | None:
        """Return the value of an entry; None where there is none or it is expired."""
        cells = self.cells
        prefix = cells.entry()
        entry = prefix + self._encode_key(key)
        stored = self._reads.get(prefix, entry)
        if stored is None:
            return None
        if self._is_refreshed:
            self._reads.wrote(entry)
        value = cells.open(entry, stored, prefix)
        return None if value is ABSENT else value

    def put(self, key: K, value: V) -> None:
        """Store a value under a key of the map."""
        prefix = self.cells.entry()
        entry = prefix + self._encode_key(key)
        self._reads.wrote(entry)
        self.cells.write(entry, value, prefix)

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Store all entries of a mapping; other entries of the map stay."""
        prefix = self.cells.entry()
        for key, value in entries.items():
            entry = prefix + self._encode_key(key)
            self._reads.wrote(entry)
            self.cells.write(entry, value, prefix)

    def remove(self, key: K) -> None:
        """Remove an entry; nothing happens where there is none."""
        prefix = self.cells.entry()
        entry = prefix + self._encode_key(key)
        self._reads.wrote(entry)
        self.cells.remove(entry, prefix)

    def contains(self, key: K) -> bool:
        """Return whether there is an entry; counts as a read of it."""
        prefix = self.cells.entry()
        entry = prefix + self._encode_key(key)
        stored = self._reads.get(prefix, entry)
        if stored is not None and self._is_refreshed:
            self._reads.wrote(entry)
        return stored is not None and self.cells.is_visible(entry, stored, prefix)

    def keys(self) -> list[K]:
        """Return the keys of the map in their order; reads all entries."""
        prefix = self.cells.entry()
        return [
            self._key_of(entry, prefix)
            for entry, stored in self._all(prefix)
            if self.cells.is_visible(entry, stored, prefix)
        ]

    def values(self) -> list[V]:
        """Return the values in the order of their keys; reads all entries."""
        return [value for _, value in self._seen()]

    def entries(self) -> list[tuple[K, V]]:
        """Return keys and values in the order of the keys; reads all entries."""
        prefix = self.cells.entry()
        return [(self._key_of(entry, prefix), value) for entry, value in self._seen()]

    def is_empty(self) -> bool:
        """Return whether there is no entry; looks for the first one only, and does not refresh its TTL."""
        prefix = self.cells.entry()
        return not any(
            self.cells.is_visible(entry, stored, prefix, touch=False)
            for entry, stored in self.cells.scan(prefix)
        )

    def clear(self) -> None:
        """Remove all entries of the key's map."""
        prefix = self.cells.entry()
        self._reads.cleared(prefix)
        self.cells.clear(prefix)

    def get_many(self, keys: Any, map_keys: Any) -> Any:
        """Return for each key of the batch the value of one entry of its map, in order.

        Types that Arrow has come as an Arrow array with nulls where there is no entry, the rest as a list.
        """
        selection = self._select(keys, map_keys)
        if self._is_refreshed:
            self._reads.wrote_many(selection.entries)
        return read_values(self.cells, selection, None)

    def put_many(self, keys: Any, map_keys: Any, values: Any) -> None:
        """Store one entry in the map of each key of the batch, in order; a null value removes the entry."""
        selection = self._select(keys, map_keys)
        self._reads.wrote_many(selection.entries)
        write_values(self.cells, selection, values)

    def _attach(self, binding: StateBinding) -> None:
        from tidegate.state.kinds.map_keys import SubKeyCodec

        super()._attach(binding)
        codec = SubKeyCodec(self.types[0])
        self._encode_key = codec.encode
        self._encode_keys = codec.encode_many
        self._decode_key = codec.decode
        self._reads = MapReads(binding.write_batch)
        # The entries of the last vectorised call, so that put_many after get_many does not encode them again.
        self._last_selection: tuple[list[bytes], list[Any], Selection] | None = None
        # A read that refreshes the TTL of an entry writes it.
        self._is_refreshed = self.cells.rule is not None and self.cells.rule.refreshes

    def _seen(self) -> list[tuple[bytes, V]]:
        prefix = self.cells.entry()
        seen: list[tuple[bytes, V]] = []
        for entry, stored in self._all(prefix):
            value = self.cells.open(entry, stored, prefix)
            if value is not ABSENT:
                seen.append((entry, value))
        return seen

    def _all(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        found = list(self.cells.scan(prefix))
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

    def _select(self, keys: Any, map_keys: Any) -> Selection:
        selection = select_keys(self.cells, keys)
        listed = map_keys.to_pylist() if isinstance(map_keys, pa.Array | pa.ChunkedArray) else list(map_keys)
        if len(listed) != len(selection.entries):
            reason = f"{len(listed)} keys of maps for {len(selection.entries)} keys"
            raise ValueInvalid(place=f"map_keys given to state '{self.name}'", reason=reason)
        last = self._last_selection
        if last is not None and last[0] is selection.entries and last[1] == listed:
            return last[2]
        ends = self._encode_keys(listed)
        entries = list(map(operator.add, selection.entries, ends))
        found = Selection(selection.many, selection.positions, entries, prefixes=selection.entries)
        self._last_selection = selection.entries, listed, found
        return found


# A map with more entries is read entry by entry.
WHOLE_ENTRIES_MAX = 64
# Entries of maps that were read whole, and first reads, over all keys. Beyond this number they are dropped.
REMEMBERED_MAX = 200_000
# Entries that one batch writes while maps are read whole. A batch that writes more reads entry by entry.
WRITTEN_MAX = 500_000

# Marks a map that is always read through the write batch: it is large, or was cleared in this batch.
_NOT_WHOLE: Final = b""


class MapReads:
    """A read cache of small maps: their entries in the backend, hidden by what this batch has written."""

    __slots__ = ("_count", "_is_off", "_known", "_write_batch", "_written")

    def __init__(self, write_batch: WriteBatch) -> None:
        self._write_batch = write_batch
        # Under each map's prefix: its stored entries; the one entry that was read of it; or _NOT_WHOLE.
        self._known: dict[bytes, dict[bytes, bytes] | bytes] = {}
        self._count = 0
        self._is_off = False
        # Entries that this batch wrote or removed: the write batch has them, also after a rollback of a row.
        self._written: set[bytes] = set()

    def get(self, prefix: bytes, entry: bytes) -> bytes | None:
        """Return the value of an entry of the map under a prefix, as the batch sees it."""
        if self._is_off or entry in self._written:
            return self._write_batch.get(entry)
        known = self._known.get(prefix)
        if type(known) is dict:
            return known.get(entry)
        if known is None:
            self._remember(prefix, entry, 1)
        elif known != entry and known is not _NOT_WHOLE:
            return self._read_whole(prefix, entry)
        return self._write_batch.get(entry)

    def wrote(self, entry: bytes) -> None:
        """Take note that an entry was written or removed."""
        self._written.add(entry)
        if len(self._written) > WRITTEN_MAX:
            self._turn_off()

    def wrote_many(self, entries: Iterable[bytes]) -> None:
        """Take note that entries were written or removed."""
        if self._is_off:
            return
        self._written.update(entries)
        if len(self._written) > WRITTEN_MAX:
            self._turn_off()

    def _turn_off(self) -> None:
        self._is_off = True
        self._known.clear()
        self._written.clear()

    def cleared(self, prefix: bytes) -> None:
        """Take note that a map was cleared."""
        self._known[prefix] = _NOT_WHOLE

    def _read_whole(self, prefix: bytes, entry: bytes) -> bytes | None:
        stored = list(islice(self._write_batch.backend.scan(prefix, after(prefix)), WHOLE_ENTRIES_MAX + 1))
        if len(stored) > WHOLE_ENTRIES_MAX:
            self._known[prefix] = _NOT_WHOLE
            return self._write_batch.get(entry)
        whole = dict(stored)
        self._remember(prefix, whole, len(whole))
        return whole.get(entry)

    def _remember(self, prefix: bytes, known: dict[bytes, bytes] | bytes, count: int) -> None:
        self._count += count
        if self._count > REMEMBERED_MAX:
            # Cleared maps stay marked: the backend still has their entries.
            self._known = {one: _NOT_WHOLE for one, entries in self._known.items() if entries is _NOT_WHOLE}
            self._count = count + len(self._known)
        self._known[prefix] = known
