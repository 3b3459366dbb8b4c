"""A segmented store as the contract of backends sees it: each key lies in one of three segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tidegate.checkpoint.backend import Backend, Sizes, StateChanges, Version
from tidegate.checkpoint.keys.layout import META_GROUP, SEGMENT_PREFIX_BYTES, segment_prefix
from tidegate.dedup.settings import SegmentSettings
from tidegate.dedup.store.store import SegmentStore

HOUR_US = 3_600_000_000
SETTINGS = SegmentSettings(store="keys", retention_us=HOUR_US, interval_us=HOUR_US, exact_keys=True)


class UnderSegments(Backend):
    """Puts a key of any bytes into a segment by its first byte, so that the order of keys stays."""

    def __init__(self, folder: Path) -> None:
        self.store = SegmentStore(folder, SETTINGS)

    def get(self, key: bytes) -> bytes | None:
        return self.store.get(_outer(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.store.get_many([_outer(key) for key in keys])

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self.store.scan(_outer(start), _outer(stop))
        return ((key[SEGMENT_PREFIX_BYTES:], value) for key, value in found)

    def version(self) -> Version | None:
        return self.store.version()

    def apply(self, changes: StateChanges, version: Version) -> None:
        self.store.apply(_moved(changes), version)

    def write_partly(self, changes: StateChanges) -> None:
        self.store.write_partly(_moved(changes))

    def snapshot(self, folder: Path) -> list[Path]:
        return self.store.snapshot(folder)

    def sizes(self) -> Sizes:
        return self.store.sizes()

    def close(self) -> None:
        self.store.close()


def _outer(key: bytes) -> bytes:
    """Return the key outside; the store's own keys stay what they are, so that they are refused."""
    if key >= META_GROUP:
        return key
    first = key[0] if key else 0
    return segment_prefix(7, (first > 0x40) + (first > 0x61) - 1) + key


def _moved(changes: StateChanges) -> StateChanges:
    ranges = [(_outer(start), _outer(stop)) for start, stop in changes.ranges]
    return StateChanges(ranges, {_outer(key): value for key, value in changes.entries.items()})
