"""A plain model of keyed state: dicts and lists with the same rules of TTL, nothing of how it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidegate.state.ttl import Ttl


@dataclass
class Entry:
    """One value and the time by which its TTL counts."""

    value: Any
    time_ms: int


@dataclass
class KeyModel:
    """What is kept for one key; a value, a sum and a mean have their one entry under None."""

    value: dict[Any, Entry] = field(default_factory=dict)
    total: dict[Any, Entry] = field(default_factory=dict)
    mean: dict[Any, Entry] = field(default_factory=dict)
    entries: dict[Any, Entry] = field(default_factory=dict)
    elements: list[Entry] = field(default_factory=list)


@dataclass
class Model:
    """All keys, and what time it is."""

    ttl: Ttl | None
    now_ms: int = 0
    keys: dict[str, KeyModel] = field(default_factory=dict)

    def of(self, key: str) -> KeyModel:
        return self.keys.setdefault(key, KeyModel())

    def is_seen(self, entry: Entry, *, touch: bool = True) -> bool:
        """Return whether an entry is seen now; with `touch` it is read."""
        if self.ttl is None:
            return True
        if self.now_ms - entry.time_ms > self.ttl.duration_ms:
            return self.ttl.visibility == "ReturnExpiredIfNotCleanedUp"
        if touch and self.ttl.update == "OnReadAndWrite":
            entry.time_ms = max(entry.time_ms, self.now_ms)
        return True

    def read(self, cells: dict[Any, Entry], sub: Any = None) -> Any:
        entry = cells.get(sub)
        return entry.value if entry is not None and self.is_seen(entry) else None

    def write(self, cells: dict[Any, Entry], value: Any, sub: Any = None) -> None:
        time_ms = self.now_ms
        if self.ttl is not None and self.ttl.clock == "event" and sub in cells:
            time_ms = max(time_ms, cells[sub].time_ms)
        cells[sub] = Entry(value, time_ms)

    def items(self, key: str) -> list[tuple[Any, Any]]:
        entries = self.of(key).entries
        return [(sub, entries[sub].value) for sub in sorted(entries) if self.is_seen(entries[sub])]

    def listed(self, key: str) -> list[Any]:
        return [entry.value for entry in self.of(key).elements if self.is_seen(entry)]
