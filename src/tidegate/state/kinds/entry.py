"""The entries of one bound state: reads and writes of single values, with what TTL means for each.

A cell is one stored value (entry_format.py) under one entry of the layout (checkpoint/keys/layout.py). Here
is decided whether it is visible, when a read refreshes it, and under which bucket of the index it lies.
"""

from __future__ import annotations

import enum
import operator
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tidegate.checkpoint.keys.layout import SPACE_ENTRY, SPACE_EXPIRY
from tidegate.errors import StateCorrupt, StateInvalid, StateOutsideKey, StorageCorrupt
from tidegate.model.names import shorten
from tidegate.state.cursor import KeyBatch
from tidegate.state.kinds.entry_format import TimesMs, plain_header, split_value, time_of, timed_header
from tidegate.state.ttl import TtlRule

if TYPE_CHECKING:
    from tidegate.state.kinds.declaration import State, StateBinding

T = TypeVar("T")

# The value of an index entry is its format version and nothing else.
INDEX_VALUE = b"\x01"

# Where the key begins in an entry: behind the key group, the space and the state's number.
KEY_AT = 5

# Entries under prefixes that one batch stages by vectorised calls. They stay in memory until the batch ends,
# also after a spill; beyond this number they are staged one by one.
UNGROUPED_MAX = 500_000

_MIDDLE = struct.Struct(">BH")
_BUCKET = struct.Struct(">Q")
_SIGN = 1 << 63


class Absent(enum.Enum):
    """The result of a read where no entry is visible: there is none, or it is expired."""

    ABSENT = 0


ABSENT: Final = Absent.ABSENT


class UngroupedEntries:
    """Entries staged by vectorised calls, grouped by their prefixes only when a prefix is scanned.

    The write batch does not index them by prefix: that costs more than staging them, and is seldom needed.
    """

    __slots__ = ("_batches", "_under", "count")

    def __init__(self) -> None:
        self._batches: list[tuple[Sequence[bytes], Sequence[bytes]]] = []
        self._under: dict[bytes, list[bytes]] = {}
        self.count = 0

    def add(self, prefixes: Sequence[bytes], entries: Sequence[bytes]) -> None:
        """Add entries, each under its prefix."""
        self._batches.append((prefixes, entries))
        self.count += len(entries)

    def under(self, prefix: bytes) -> Sequence[bytes]:
        """Return the entries under a prefix in the order in which they came; one may occur again."""
        for prefixes, entries in self._batches:
            for one, entry in zip(prefixes, entries, strict=True):
                self._under.setdefault(one, []).append(entry)
        self._batches.clear()
        return self._under.get(prefix, ())


class Cells(Generic[T]):
    """The entries of one state while a batch runs."""

    __slots__ = (
        "accesses",
        "arrow_type",
        "cursor",
        "decode",
        "encode",
        "head",
        "index_middle",
        "indexed",
        "indexed_count",
        "known_times",
        "last_selection",
        "many",
        "many_entries",
        "middle",
        "name",
        "number",
        "rule",
        "serializer",
        "ungrouped",
        "upgrader",
        "version",
        "write_batch",
    )

    def __init__(self, state: State, binding: StateBinding) -> None:
        self.name = state.name
        self.number = binding.number
        self.write_batch = binding.write_batch
        self.cursor = binding.cursor
        self.upgrader = binding.upgrader
        self.version = state.options.version
        self.serializer = state.serializer
        self.encode = self.serializer.encode
        self.decode = self.serializer.decode
        self.head = plain_header(self.version)
        self.middle = _MIDDLE.pack(SPACE_ENTRY, self.number)
        self.index_middle = _MIDDLE.pack(SPACE_EXPIRY, self.number)
        self.rule = TtlRule(state.ttl) if state.ttl else None
        self.arrow_type = _arrow_type_of(state.value_type)
        # The newest batch of keys and its entries: put_many after get_many does not encode them again.
        self.many: KeyBatch | None = None
        self.many_entries: list[bytes] = []
        # The newest lookup of keys among those of the batch, and its selection.
        self.last_selection: tuple[Any, Any] | None = None
        # Entries of a vectorised call and their current times, for the write after a read. Whatever changes
        # an entry without an update here comes with another batch of keys, and so with other lists.
        self.known_times: tuple[list[bytes], TimesMs] | None = None
        self.ungrouped = UngroupedEntries()
        # The measure of cleanup: accesses with IncrementalCleanup, else entries that were added to the index.
        self.accesses = 0
        self.indexed_count = 0
        # Buckets to which this batch added entries.
        self.indexed: set[bytes] = set()

    def entry(self) -> bytes:
        """Return the entry of the current key; StateOutsideKey where there is none."""
        cursor = self.cursor
        stored = cursor.stored
        if stored is None:
            raise StateOutsideKey(state=self.name)
        return cursor.group + self.middle + stored

    def entry_keys(self, groups: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
        """Return the entries of keys, given their key groups and their encoded form."""
        heads = {group: group.to_bytes(2, "big") + self.middle for group in set(groups)}
        return list(map(operator.add, map(heads.__getitem__, groups), stored))

    def read(self, entry: bytes, prefix: bytes | None = None) -> T | Absent:
        """Return the visible value of an entry; a read may refresh its TTL."""
        stored = self.write_batch.get(entry)
        return ABSENT if stored is None else self.open(entry, stored, prefix)

    def open(self, entry: bytes, stored: bytes, prefix: bytes | None = None) -> T | Absent:
        """Return the visible value of bytes that were read from an entry."""
        try:
            if stored[:2] == self.head:
                return self.decode(stored[2:])  # type: ignore[no-any-return]
            version, time_ms, payload = split_value(stored)
            if time_ms is not None and self.rule and not self._touch(entry, stored, time_ms, prefix):
                return ABSENT
            return self.decoded(version, payload)
        except StorageCorrupt as error:
            raise self.corrupt(error) from error

    def is_visible(self, entry: bytes, stored: bytes, prefix: bytes | None, *, touch: bool = True) -> bool:
        """Return whether a stored value is visible, without decoding it; with `touch` as a read of it."""
        if self.rule is None:
            return True
        time_ms = self._time_of(stored)
        if time_ms is None:
            return True
        if touch:
            return self._touch(entry, stored, time_ms, prefix)
        return self.rule.shows_expired or not self.rule.is_expired(time_ms, self.now_ms(self.rule))

    def write(self, entry: bytes, value: T, prefix: bytes | None = None) -> None:
        """Store a value with the current time; by event time an entry's time never goes back."""
        payload = self.encode(value)
        rule = self.rule
        if rule is None:
            self.put(entry, self.head + payload, prefix)
            return
        now_ms = self.now_ms(rule)
        self.accesses += 1
        old = self.write_batch.get(entry)
        old_ms = None if old is None else self._time_of(old)
        if rule.is_event and old_ms is not None and old_ms > now_ms:
            now_ms = old_ms
        self.put(entry, timed_header(self.version, now_ms) + payload, prefix)
        self.index(rule, entry, old_ms, now_ms)

    def append(self, entry: bytes, value: T, prefix: bytes) -> None:
        """Store a value under a new entry; nothing is read."""
        payload = self.encode(value)
        rule = self.rule
        if rule is None:
            self.write_batch.put_sub(prefix, entry, self.head + payload)
            return
        now_ms = self.now_ms(rule)
        self.accesses += 1
        self.write_batch.put_sub(prefix, entry, timed_header(self.version, now_ms) + payload)
        self.index(rule, entry, None, now_ms)

    def now_ms(self, rule: TtlRule) -> int:
        """Return the current time of the row by the clock of the TTL."""
        if not rule.is_event:
            return self.cursor.batch_ms
        now_ms = self.cursor.event_ms
        if now_ms is None:
            now_ms = self.cursor.watermark_ms
        if now_ms is None:
            reason = (
                f"the TTL of state '{self.name}' goes by event time, and there is none; give event_time=\"…\""
            )
            raise StateInvalid(operator=self.cursor.operator, reason=reason)
        return now_ms

    def index_many(self, entries: Sequence[bytes], bucket: int) -> None:
        """Index entries under a bucket.

        No bucket is scanned in the batch that writes to it, so the write batch need not know its prefix.
        """
        tail = self.index_middle + _BUCKET.pack(bucket + _SIGN)
        groups = [entry[:2] for entry in entries]
        prefixes = {group: group + tail for group in set(groups)}
        keys = [entry[KEY_AT:] for entry in entries]
        keys = list(map(operator.add, map(prefixes.__getitem__, groups), keys))
        self.write_batch.put_many(keys, [INDEX_VALUE] * len(keys))
        self.indexed_count += len(keys)
        self.indexed.update(prefixes.values())

    def put_many(
        self, entries: Sequence[bytes], stored: Sequence[bytes | None], prefixes: Sequence[bytes] | None
    ) -> None:
        """Stage stored values, None to delete, with their prefixes where entries are scanned."""
        write_batch = self.write_batch
        if prefixes is None:
            write_batch.put_many(entries, stored)
        elif self.ungrouped.count + len(entries) <= UNGROUPED_MAX:
            self.ungrouped.add(prefixes, entries)
            write_batch.put_many(entries, stored)
        else:
            for prefix, entry, one in zip(prefixes, entries, stored, strict=True):
                if one is None:
                    write_batch.delete_sub(prefix, entry)
                else:
                    write_batch.put_sub(prefix, entry, one)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries under a prefix in key order."""
        ungrouped = self.ungrouped.under(prefix)
        if not ungrouped:
            return self.write_batch.scan_sub(prefix)
        found: dict[bytes, bytes | None] = dict(self.write_batch.scan_sub(prefix))
        found.update(zip(ungrouped, self.write_batch.get_many(ungrouped), strict=True))
        return ((entry, stored) for entry, stored in sorted(found.items()) if stored is not None)

    def clear(self, prefix: bytes) -> None:
        """Stage the deletion of everything under a prefix."""
        self.known_times = None
        self.write_batch.clear_sub(prefix)
        for entry in self.ungrouped.under(prefix):
            self.write_batch.delete_sub(prefix, entry)

    def remove(self, entry: bytes, prefix: bytes | None = None) -> None:
        """Stage the deletion of an entry."""
        self.known_times = None
        if prefix is None:
            self.write_batch.delete(entry)
        else:
            self.write_batch.delete_sub(prefix, entry)

    def corrupt(self, error: StorageCorrupt, key: Any = ABSENT) -> StateCorrupt:
        """Return the error for damaged bytes, with operator, state and key."""
        shown = self.cursor.key if key is ABSENT else key
        reason = str(error.values.get("reason", error))
        return StateCorrupt(
            operator=self.cursor.operator, state=self.name, key=shorten(repr(shown)), reason=reason
        )

    def _time_of(self, stored: bytes) -> int | None:
        try:
            return time_of(stored)
        except StorageCorrupt as error:
            raise self.corrupt(error) from error

    def _touch(self, entry: bytes, stored: bytes, time_ms: int, prefix: bytes | None) -> bool:
        """Return whether an entry is visible to a read; the read may refresh its TTL."""
        rule = self.rule
        if rule is None:
            return True
        self.accesses += 1
        now_ms = self.now_ms(rule)
        if now_ms - time_ms > rule.ttl_ms:
            return rule.shows_expired
        if rule.refreshes and now_ms > time_ms:
            self.put(entry, timed_header(stored[0], now_ms) + stored[10:], prefix)
            self.index(rule, entry, time_ms, now_ms)
        return True

    def put(self, entry: bytes, stored: bytes, prefix: bytes | None) -> None:
        """Stage a stored value under an entry, with its prefix where entries are scanned."""
        self.known_times = None
        if prefix is None:
            self.write_batch.put(entry, stored)
        else:
            self.write_batch.put_sub(prefix, entry, stored)

    def index(self, rule: TtlRule, entry: bytes, old_ms: int | None, now_ms: int) -> None:
        """Index an entry under the bucket of its new time, unless its old time has the same bucket."""
        if rule.is_indexed:
            bucket = rule.bucket_of(now_ms)
            if old_ms is None or rule.bucket_of(old_ms) != bucket:
                prefix = entry[:2] + self.index_middle + _BUCKET.pack(bucket + _SIGN)
                self.write_batch.put(prefix + entry[KEY_AT:], INDEX_VALUE)
                self.indexed_count += 1
                self.indexed.add(prefix)

    def decoded(self, version: int, payload: bytes) -> T:
        """Decode a payload of this version or of an older one."""
        if version == self.version:
            return self.decode(payload)  # type: ignore[no-any-return]
        if self.upgrader is None:
            raise StorageCorrupt(place="a stored value", reason=f"its version {version} is not known")
        upgraded: T = self.upgrader.decode(version, payload)
        return upgraded


def _arrow_type_of(python_type: Any) -> Any:
    """Return the Arrow type of a column of values; None where they stay Python values.

    Records stay records: `put_many` takes no Arrow struct. A Decimal may have more digits than Arrow takes.
    """
    from tidegate.state.arrow.types import arrow_type_of
    from tidegate.state.serializers.signatures import signature_of

    try:
        if any(word in str(signature_of(python_type)) for word in ("record", "decimal", "arrow", "ndarray")):
            return None
        return arrow_type_of(python_type)
    except StateInvalid:
        return None
