"""The journal: an ordered record of a run, kept outside the processes that are killed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: its number, when, what, to which subject, and its values."""

    number: int
    at_seconds: float
    kind: str
    subject: str
    values: dict[str, Any]

    def __str__(self) -> str:
        values = " ".join(f"{name}={value}" for name, value in self.values.items())
        return f"#{self.number:<6} {self.at_seconds:8.3f} s  {self.kind:<8} {self.subject:<14} {values}"


class Journal:
    """Append-only; every thread of a run writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._file = path.open("a", encoding="utf-8")

    def now_seconds(self) -> float:
        """Return the time on the journal's clock."""
        return time.monotonic() - self._begun

    def add(self, kind: str, subject: str, **values: Any) -> Event:
        """Record an event."""
        with self._lock:
            event = Event(len(self._events), self.now_seconds(), kind, subject, values)
            self._events.append(event)
            line = [event.number, round(event.at_seconds, 4), kind, subject, values]
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        return event

    def __iter__(self) -> Iterator[Event]:
        with self._lock:
            return iter(list(self._events))

    def of_kind(self, *kinds: str) -> list[Event]:
        """Return the events of some kinds, in order."""
        return [event for event in self if event.kind in kinds]

    def close(self) -> None:
        """Finish the file."""
        self._file.close()
