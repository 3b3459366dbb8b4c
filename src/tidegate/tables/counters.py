"""The counters of a table: its rows, and the bytes of their keys and values as stored, without indexes.

Every statement adds its change; a group commit stores one value for each table, in the write batch of the
rows, so the numbers are exact after a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from tidegate.errors import StorageCorrupt
from tidegate.storage.engine import Reader
from tidegate.storage.group_commit import Staging
from tidegate.tables import keys

COUNTERS_VERSION = 1
_COUNTERS = struct.Struct(">BQQ")


class Counts(NamedTuple):
    """The numbers of rows and bytes of a table."""

    rows: int = 0
    bytes: int = 0


def read_counts(reader: Reader | Staging, table_id: int) -> Counts:
    """Return the counters of a table; zeros for a table that was never written to."""
    stored = reader.get(keys.counter_key(table_id))
    if stored is None:
        return Counts()
    if len(stored) != _COUNTERS.size or stored[0] != COUNTERS_VERSION:
        place = f"the counters of table {table_id}"
        raise StorageCorrupt(place=place, reason="they are not of a version that this reads")
    _, rows, size_bytes = _COUNTERS.unpack(stored)
    return Counts(rows, size_bytes)


def stage_count(staging: Staging, table_id: int, rows: int, size_bytes: int) -> None:
    """Add to the counters of a table; later changes of the same group commit see the sums."""
    before = read_counts(staging, table_id)
    stored = _COUNTERS.pack(COUNTERS_VERSION, before.rows + rows, before.bytes + size_bytes)
    key = keys.counter_key(table_id)
    staging.foresee(key, stored)
    staging.gather(("table", table_id), (key, stored), len(key) + len(stored), _finish)


def _finish(parts: list[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], Callable[[], None]]:
    """Store the last of the values: each one contains the ones before."""
    return parts[-1:], _no_callback


def _no_callback() -> None:
    """Do nothing when the counters are durable: they are read from the engine."""
