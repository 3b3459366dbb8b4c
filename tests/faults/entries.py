"""The entries of every operator's state, made anew from the checkpoint alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from tidegate.model.clock import SystemClock
from tidegate.state.backend import Backend
from tidegate.state.backends import open_backend
from tidegate.state.depot import operator_depot
from tidegate.state.epochs import last_complete, listed
from tidegate.state.layout import META_GROUP
from tidegate.state.local import Place
from tidegate.state.restore import bringing
from tidegate.state.rocks_settings import RocksSettings

WAIT_MS_MAX = 1_000


def read_entries(checkpoint: Path, folder: Path, kind: str) -> dict[tuple[str, bytes], bytes]:
    """Give operator and key to value, over all partitions; copies are made in a folder and removed."""
    shutil.rmtree(folder, ignore_errors=True)

    def opened(at: Path) -> Backend:
        return open_backend("heap" if kind == "heap" else "rocksdb", at, RocksSettings())

    place = Place(folder, kind, opened, keep_open=False, wait_ms_max=WAIT_MS_MAX, clock=SystemClock())
    entries: dict[tuple[str, bytes], bytes] = {}
    for operator in sorted(path.name for path in (checkpoint / "state").iterdir() if path.name != "0"):
        depot = operator_depot(str(checkpoint), operator)
        epoch = listed(depot)[-1]
        batch = last_complete(depot, epoch)
        for partition in range(epoch.parallelism):
            with bringing(place)(depot, epoch, partition, batch) as backend:
                for key, value in backend.scan(b"", META_GROUP):
                    entries[operator, key] = value
    shutil.rmtree(folder)
    return entries
