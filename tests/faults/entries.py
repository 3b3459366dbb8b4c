"""The entries of every operator's state, made anew from the checkpoint alone."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from pathlib import Path

from tidegate.checkpoint.backend import Backend
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.epochs import last_complete, list_epochs
from tidegate.checkpoint.keys.layout import META_GROUP, SPACE_ENTRY
from tidegate.checkpoint.local.store import LocalDirectory
from tidegate.checkpoint.recovery import open_restored
from tidegate.checkpoint.settings import backend_factory
from tidegate.checkpoint.store import CheckpointStore, operator_store
from tidegate.model.clock import SystemClock
from tidegate.state.schema.schema import newest_schema, redistribution_of

WAIT_MS_MAX = 1_000
# An element of a list ends with its batch (8 bytes) and a number that its instance counts (4 bytes).
COUNTER_BYTES = 4


def read_entries(checkpoint: Path, folder: Path, kind: str) -> dict[tuple[str, bytes], bytes]:
    """Return operator and key to value, over all partitions; copies are made in a folder and removed."""
    shutil.rmtree(folder, ignore_errors=True)

    factory = backend_factory(kind, RocksSettings())
    place = LocalDirectory(
        folder,
        factory,
        keep_open=False,
        wait_ms_max=WAIT_MS_MAX,
        clock=SystemClock(),
        redistribution=redistribution_of,
    )
    entries: dict[tuple[str, bytes], bytes] = {}
    for operator in sorted(path.name for path in (checkpoint / "state").iterdir() if path.name != "0"):
        store = operator_store(str(checkpoint), operator)
        epoch = list_epochs(store)[-1]
        batch = last_complete(store, epoch)
        for partition in range(epoch.parallelism):
            with open_restored(place, store, epoch, partition, batch) as backend:
                _add(entries, operator, backend, _lists(store, operator))
    shutil.rmtree(folder)
    return entries


def _add(entries: dict[tuple[str, bytes], bytes], operator: str, backend: Backend, lists: set[int]) -> None:
    """Add a partition's entries; elements of a list are counted anew for each key and batch.

    With another number of partitions an instance counts other elements: their order and values must be the
    same, their numbers need not.
    """
    ranks: Counter[bytes] = Counter()
    for key, value in backend.scan(b"", META_GROUP):
        stored = key
        if key[2] == SPACE_ENTRY and struct.unpack_from(">H", key, 3)[0] in lists:
            front = key[:-COUNTER_BYTES]
            stored = front + ranks[front].to_bytes(COUNTER_BYTES, "big")
            ranks[front] += 1
        entries[operator, stored] = value


def _lists(store: CheckpointStore, operator: str) -> set[int]:
    schema = newest_schema(store, operator)
    assert schema is not None, f"operator '{operator}' has no schema"
    return {state.number for state in schema.states.values() if state.kind == "list"}
