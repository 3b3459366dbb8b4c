"""The stored times of a deduplication, made anew from the checkpoint alone; only those that still count."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.faults.dedup_query import NAME
from tests.faults.dedup_rows import RETENTION_US
from tidegate.checkpoint.epochs import last_complete, list_epochs, times_after
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.checkpoint.recovery import open_restored
from tidegate.checkpoint.store import operator_store
from tidegate.dedup.standby import standby_settings
from tidegate.model.clock import SystemClock

# A time and the offset beside it, each with its sign bit turned.
TIME_BYTES = 8
VALUE_BYTES = 16
SIGN = 1 << 63


def read_times(checkpoint: Path, folder: Path) -> dict[bytes, list[bytes]]:
    """Return key (with group and segment) to its times, over all partitions; copies are made and removed."""
    shutil.rmtree(folder, ignore_errors=True)
    store = operator_store(str(checkpoint), NAME)
    settings = standby_settings(store, str(folder))
    assert settings is not None
    place = settings.local_directory(SystemClock())
    epoch = list_epochs(store)[-1]
    batch = last_complete(store, epoch)
    stream_us = times_after(store, epoch, batch).newest_event_us
    assert stream_us is not None
    found: dict[bytes, list[bytes]] = {}
    for partition in range(epoch.parallelism):
        with open_restored(place, store, epoch, partition, batch) as backend:
            for key, value in backend.scan(b"", META_GROUP):
                times = [one for one in _times(value) if _us(one) >= stream_us - RETENTION_US]
                if times:
                    found[key] = times
    from tidegate.checkpoint.local.pool import pool

    pool().close()
    shutil.rmtree(folder)
    return found


def _times(value: bytes) -> Iterator[bytes]:
    assert len(value) % VALUE_BYTES == 0, f"a value of {len(value)} bytes"
    return (value[at : at + VALUE_BYTES] for at in range(0, len(value), VALUE_BYTES))


def _us(time: bytes) -> int:
    return int.from_bytes(time[:TIME_BYTES], "big") - SIGN
