"""The current key and time of an operator, shared by its states.

Row operators have one current key at a time (`enter`, `leave`), vectorised ones the keys of a batch
(`enter_keys`, `leave`). While there is none, keyed state cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(slots=True, eq=False)
class KeyBatch:
    """The distinct keys of a batch, as users see them and as they are stored, all in one order."""

    keys: pa.Array
    # key group of each key
    groups: Sequence[int]
    # encoded key of each key
    stored: list[bytes]
    # returns the newest event time of each key's rows; called only by states whose TTL is by event time
    newest_event_ms: Callable[[], npt.NDArray[np.int64]] | None = None


class KeyCursor:
    """The current key of an operator instance; set by the runner, read by the states."""

    __slots__ = (
        "batch_ms",
        "event_ms",
        "group",
        "key",
        "many",
        "number",
        "operator",
        "partition",
        "stored",
        "watermark_ms",
    )

    def __init__(self, operator: str, number: int, batch_ms: int, *, partition: int = 0) -> None:
        """`number` is the batch's, and rises during the whole life of the state, also across savepoints.

        Elements of lists are stored in its order, and their entries are unique by it.
        """
        self.operator = operator
        self.number = number
        self.partition = partition
        self.batch_ms = batch_ms
        self.watermark_ms: int | None = None
        # Of the row: its key group as two bytes, its key encoded and as users see it, its event time.
        self.group = b""
        self.stored: bytes | None = None
        self.key: Any = None
        self.event_ms: int | None = None
        self.many: KeyBatch | None = None

    def enter(self, group: bytes, stored: bytes, key: Any, event_ms: int | None = None) -> None:
        """Make one key the current one; `group` is its key group as two bytes, `stored` the encoded key."""
        self.group = group
        self.stored = stored
        self.key = key
        self.event_ms = event_ms

    def enter_keys(self, many: KeyBatch) -> None:
        """Make the keys of a batch the current ones."""
        self.many = many

    def leave(self) -> None:
        """Have no current key."""
        self.stored = None
        self.key = None
        self.event_ms = None
        self.many = None
