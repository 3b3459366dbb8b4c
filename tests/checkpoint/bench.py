"""A workbench for states: bound states over a real backend, keys to stand on, batches that are committed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from tests.checkpoint.backends.opening import open_backend
from tidegate.checkpoint.backend import Backend, Version
from tidegate.checkpoint.keys.codec import KeyType, StateKeyCodec, StateKeyColumn
from tidegate.state.cursor import KeyBatch, KeyCursor
from tidegate.state.kinds.declaration import State, StateBinding
from tidegate.state.runtime.ttl_cleanup import CleanupStats, CleanupTimes, TtlCleaner
from tidegate.state.timers import NextTimers, Timers
from tidegate.state.write_batch import WriteBatch
from tidegate.testing.operators import key_columns

S = TypeVar("S", bound=State)

GROUPS = 8


class Bench:
    """One partition with a backend; `batch` begins a batch and binds states, `commit` ends it."""

    def __init__(self, kind: str, folder: Path, key: str = "string") -> None:
        self.backend: Backend = open_backend(kind, folder)
        self.codec = StateKeyCodec(KeyType((StateKeyColumn("k", key),)))
        self.number = -1
        self.states: list[State] = []

    def batch(self, now_ms: int = 0, watermark_ms: int | None = None) -> Bench:
        """Begin a batch at a time."""
        self.number += 1
        self.stage = WriteBatch(self.backend)
        self.cursor = KeyCursor("sessions", self.number, now_ms)
        self.cursor.watermark_ms = watermark_ms
        self.states = []
        return self

    def bind(self, state: S, number: int = 1) -> S:
        """Bind a state to the batch that is open."""
        if state._name is None:
            state._name = f"s{number}"
        bound = state.bind(StateBinding(number, self.stage, self.cursor, None))
        self.states.append(bound)
        return bound

    def group(self, key: Any) -> bytes:
        """Return the key group of a key, as its entries begin with it."""
        (group,) = self.codec.groups_of(key_columns(self.codec.key_type, [key]), GROUPS).tolist()
        return int(group).to_bytes(2, "big")

    def on(self, key: Any, event_ms: int | None = None) -> None:
        """Stand on a key."""
        self.cursor.enter(self.group(key), self.codec.encode(key), key, event_ms)

    def on_all(self, keys: Sequence[Any]) -> pa.Array:
        """Stand on the keys of a batch, which have no event times."""
        array = pa.array(keys)
        stored = [self.codec.encode(key) for key in keys]
        self.cursor.enter_keys(KeyBatch(array, self.codec.groups_of([array], GROUPS).tolist(), stored))
        return array

    def timers(self, known: NextTimers | None = None) -> Timers:
        """Return the timers of the batch."""
        return Timers(self.stage, range(GROUPS), known)

    def clean(self, now_ms: int, *, watermark_ms: int | None = None, snapshot: bool = False) -> CleanupStats:
        """Clean the states that are bound."""
        cleaner = TtlCleaner(self.stage, range(GROUPS), self.states, self.codec.end_of)
        return cleaner.clean(CleanupTimes(self.number, now_ms, watermark_ms, snapshot))

    def commit(self) -> None:
        """End the batch: its changes reach the backend."""
        self.cursor.leave()
        self.backend.apply(self.stage.take(), Version(0, self.number, "h"))

    def entry_count(self) -> int:
        """Count everything that is stored, the TTL index too; not the place where a sweep stopped."""
        return sum(not key.endswith(b"sweep") for key, _ in self.backend.scan(b"", b"\xff\xfe"))
