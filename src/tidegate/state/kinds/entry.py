"""Cells: the entries of one bound state. Takes values, gives what is seen of them, keeps times and index.

A cell is one stored value (values.py) under one entry of the layout. Everything that TTL means for a single
entry happens here: whether it is seen, when a read makes it live longer, which bucket of the index names it.
"""

from __future__ import annotations

import enum
import operator
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from tidegate.checkpoint.keys.layout import SPACE_ENTRY, SPACE_EXPIRY
from tidegate.errors import StateCorrupt, StateInvalid, StateOutsideKey, StorageCorrupt
from tidegate.model.names import shorten
from tidegate.state.kinds.declaration import Binding, State
from tidegate.state.kinds.entry_format import TimesMs, plain_header, split_value, time_of, timed_header
from tidegate.state.runtime.cursor import KeyBatch
from tidegate.state.ttl import TtlRule

T = TypeVar("T")

# The value of an index entry says nothing but its own version.
INDEX_VALUE = b"\x01"

# Where the state's number ends in the key of an entry: behind the key group, the space and the number.
KEY_AT = 5

# Entries under prefixes that one batch stages many at once. They are remembered until the batch is over, also
# when the stage has spilled them; beyond it they are staged one by one.
LOOSE_MAX = 500_000

_MIDDLE = struct.Struct(">BH")
_BUCKET = struct.Struct(">Q")
_SIGN = 1 << 63


class Gone(enum.Enum):
    """Nothing to be seen: no entry, or one that is expired."""

    GONE = 0


GONE: Final = Gone.GONE


class Loose:
    """Entries that were staged many at once: which of them lie under a prefix is found when somebody asks.

    The stage does not know them by their prefix; that costs more than to stage them, and is seldom asked for.
    """

    __slots__ = ("_batches", "_under", "count")

    def __init__(self) -> None:
        self._batches: list[tuple[Sequence[bytes], Sequence[bytes]]] = []
        self._under: dict[bytes, list[bytes]] = {}
        self.count = 0

    def add(self, prefixes: Sequence[bytes], entries: Sequence[bytes]) -> None:
        """Remember entries, each under its prefix."""
        self._batches.append((prefixes, entries))
        self.count += len(entries)

    def under(self, prefix: bytes) -> Sequence[bytes]:
        """Return the entries under a prefix, in the order in which they came; one may be there again."""
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
        "loose",
        "many",
        "many_chosen",
        "many_entries",
        "middle",
        "name",
        "number",
        "rule",
        "serializer",
        "stage",
        "upgrader",
        "version",
    )

    def __init__(self, state: State, binding: Binding) -> None:
        self.name = state.name
        self.number = binding.number
        self.stage = binding.stage
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
        # What cleaning goes by: accesses with IncrementalCleanup, entries that were put into the index else.
        self.arrow_type = _arrow_type_of(state.value_type)
        # The batch of keys whose entries were made last, so that put_many after get_many does not make them.
        self.many: KeyBatch | None = None
        self.many_entries: list[bytes] = []
        # Keys that were looked up last among those of the batch, and what was found.
        self.many_chosen: tuple[Any, Any] | None = None
        # Entries of a vectorised call and their times as of now, for the write after a read. Whatever changes
        # an entry without saying so here comes with another batch of keys, and so with other lists.
        self.known_times: tuple[list[bytes], TimesMs] | None = None
        self.loose = Loose()
        self.accesses = 0
        self.indexed_count = 0
        # Buckets that this batch put entries into.
        self.indexed: set[bytes] = set()

    def entry(self) -> bytes:
        """Return the entry of the key that the cursor stands on; StateOutsideKey where it stands on none."""
        cursor = self.cursor
        stored = cursor.stored
        if stored is None:
            raise StateOutsideKey(state=self.name)
        return cursor.group + self.middle + stored

    def entry_keys(self, groups: Sequence[int], stored: Sequence[bytes]) -> list[bytes]:
        """Return the entries of keys, from their key groups and their encoded form."""
        heads = {group: group.to_bytes(2, "big") + self.middle for group in set(groups)}
        return list(map(operator.add, map(heads.__getitem__, groups), stored))

    def read(self, entry: bytes, prefix: bytes | None = None) -> T | Gone:
        """Return what is seen of an entry; a read may make it live longer."""
        stored = self.stage.get(entry)
        return GONE if stored is None else self.open(entry, stored, prefix)

    def open(self, entry: bytes, stored: bytes, prefix: bytes | None = None) -> T | Gone:
        """Return what is seen of a stored value that was read from an entry."""
        try:
            if stored[:2] == self.head:
                return self.decode(stored[2:])  # type: ignore[no-any-return]
            version, time_ms, payload = split_value(stored)
            if time_ms is not None and self.rule and not self._touch(entry, stored, time_ms, prefix):
                return GONE
            return self.decoded(version, payload)
        except StorageCorrupt as error:
            raise self.corrupt(error) from error

    def sees(self, entry: bytes, stored: bytes, prefix: bytes | None, *, touch: bool = True) -> bool:
        """Return whether a stored value is seen, without decoding it; with `touch` it counts as a read."""
        if self.rule is None:
            return True
        time_ms = self._time_of(stored)
        if time_ms is None:
            return True
        if touch:
            return self._touch(entry, stored, time_ms, prefix)
        return self.rule.shows_expired or not self.rule.is_expired(time_ms, self.now_ms(self.rule))

    def write(self, entry: bytes, value: T, prefix: bytes | None = None) -> None:
        """Keep a value; its time is now, and never goes back by event time."""
        payload = self.encode(value)
        rule = self.rule
        if rule is None:
            self.put(entry, self.head + payload, prefix)
            return
        now_ms = self.now_ms(rule)
        self.accesses += 1
        old = self.stage.get(entry)
        old_ms = None if old is None else self._time_of(old)
        if rule.is_event and old_ms is not None and old_ms > now_ms:
            now_ms = old_ms
        self.put(entry, timed_header(self.version, now_ms) + payload, prefix)
        self.index(rule, entry, old_ms, now_ms)

    def append(self, entry: bytes, value: T, prefix: bytes) -> None:
        """Keep a value under an entry that is new: nothing is read."""
        payload = self.encode(value)
        rule = self.rule
        if rule is None:
            self.stage.put_sub(prefix, entry, self.head + payload)
            return
        now_ms = self.now_ms(rule)
        self.accesses += 1
        self.stage.put_sub(prefix, entry, timed_header(self.version, now_ms) + payload)
        self.index(rule, entry, None, now_ms)

    def now_ms(self, rule: TtlRule) -> int:
        """Return what time it is for the row being worked on, by the clock of the TTL."""
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
        """Name entries in a bucket of the index.

        Nobody scans a bucket that its own batch has written to, so the stage need not know what is in it.
        """
        tail = self.index_middle + _BUCKET.pack(bucket + _SIGN)
        groups = [entry[:2] for entry in entries]
        prefixes = {group: group + tail for group in set(groups)}
        keys = [entry[KEY_AT:] for entry in entries]
        keys = list(map(operator.add, map(prefixes.__getitem__, groups), keys))
        self.stage.put_many(keys, [INDEX_VALUE] * len(keys))
        self.indexed_count += len(keys)
        self.indexed.update(prefixes.values())

    def put_many(
        self, entries: Sequence[bytes], stored: Sequence[bytes | None], prefixes: Sequence[bytes] | None
    ) -> None:
        """Stage stored values, None to delete, under their prefixes where entries are scanned."""
        stage = self.stage
        if prefixes is None:
            stage.put_many(entries, stored)
        elif self.loose.count + len(entries) <= LOOSE_MAX:
            self.loose.add(prefixes, entries)
            stage.put_many(entries, stored)
        else:
            for prefix, entry, one in zip(prefixes, entries, stored, strict=True):
                if one is None:
                    stage.delete_sub(prefix, entry)
                else:
                    stage.put_sub(prefix, entry, one)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Return the entries under a prefix in key order."""
        loose = self.loose.under(prefix)
        if not loose:
            return self.stage.scan_sub(prefix)
        found: dict[bytes, bytes | None] = dict(self.stage.scan_sub(prefix))
        found.update(zip(loose, self.stage.get_many(loose), strict=True))
        return ((entry, stored) for entry, stored in sorted(found.items()) if stored is not None)

    def clear(self, prefix: bytes) -> None:
        """Stage that everything under a prefix goes."""
        self.known_times = None
        self.stage.clear_sub(prefix)
        for entry in self.loose.under(prefix):
            self.stage.delete_sub(prefix, entry)

    def remove(self, entry: bytes, prefix: bytes | None = None) -> None:
        """Stage that an entry goes."""
        self.known_times = None
        if prefix is None:
            self.stage.delete(entry)
        else:
            self.stage.delete_sub(prefix, entry)

    def corrupt(self, error: StorageCorrupt, key: Any = GONE) -> StateCorrupt:
        """Return the error for damaged bytes, with operator, state and key."""
        shown = self.cursor.key if key is GONE else key
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
        """Return whether an entry is seen, and let the read count as one."""
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
        """Stage a stored value under an entry, and under its prefix where entries are scanned."""
        self.known_times = None
        if prefix is None:
            self.stage.put(entry, stored)
        else:
            self.stage.put_sub(prefix, entry, stored)

    def index(self, rule: TtlRule, entry: bytes, old_ms: int | None, now_ms: int) -> None:
        """Name an entry in the bucket of its new time, unless its old time has the same."""
        if rule.is_indexed:
            bucket = rule.bucket_of(now_ms)
            if old_ms is None or rule.bucket_of(old_ms) != bucket:
                prefix = entry[:2] + self.index_middle + _BUCKET.pack(bucket + _SIGN)
                self.stage.put(prefix + entry[KEY_AT:], INDEX_VALUE)
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
    """Return the Arrow type of a column of values; None where they are better kept as Python has them.

    Records stay what they are: an Arrow struct could not be put back. A Decimal may have more digits than
    Arrow takes.
    """
    from tidegate.state.arrow.types import arrow_type_of
    from tidegate.state.schema.signatures import signature_of

    try:
        if any(word in str(signature_of(python_type)) for word in ("record", "decimal", "arrow", "ndarray")):
            return None
        return arrow_type_of(python_type)
    except StateInvalid:
        return None
