"""How much a table holds: rows, and bytes of their keys and values as stored, without indexes.

Every statement adds what it changed; a group of writes stores one value for each table, in the same batch as
the rows, so that the numbers are exact after a crash.
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
    """What a table holds."""

    rows: int = 0
    bytes: int = 0


def read_counts(reader: Reader | Staging, table_id: int) -> Counts:
    """Return what a table holds; a table that nobody has written to holds nothing."""
    stored = reader.get(keys.counter_key(table_id))
    if stored is None:
        return Counts()
    if len(stored) != _COUNTERS.size or stored[0] != COUNTERS_VERSION:
        place = f"the counters of table {table_id}"
        raise StorageCorrupt(place=place, reason="they are not of a version that this reads")
    _, rows, size_bytes = _COUNTERS.unpack(stored)
    return Counts(rows, size_bytes)


def stage_count(staging: Staging, table_id: int, rows: int, size_bytes: int) -> None:
    """Add to what a table holds; changes after this one in the group go on from there."""
    before = read_counts(staging, table_id)
    stored = _COUNTERS.pack(COUNTERS_VERSION, before.rows + rows, before.bytes + size_bytes)
    key = keys.counter_key(table_id)
    staging.foresee(key, stored)
    staging.gather(("table", table_id), (key, stored), len(key) + len(stored), _finish)


def _finish(parts: list[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], Callable[[], None]]:
    """Store the last of the values: each one goes on from the one before."""
    return parts[-1:], _nothing


def _nothing() -> None:
    """Counters are read from the engine: there is nothing to tell anyone."""
