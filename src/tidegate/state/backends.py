"""The kinds of backends: takes a kind, a folder and settings, gives the backend, keeps nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tidegate.errors import StateInvalid
from tidegate.state.backend import Backend
from tidegate.state.heap import HeapBackend
from tidegate.state.rocks import RocksBackend
from tidegate.state.rocks_settings import RocksSettings
from tidegate.state.segments.settings import SegmentSettings
from tidegate.state.segments.store import SegmentStore, standing_still

BackendKind = Literal["rocksdb", "heap"]
BACKEND_KINDS: tuple[BackendKind, ...] = ("rocksdb", "heap")
# Keyed state does not lie in segments: it is a kind of its own, with settings of its own.
SEGMENTS_KIND = "segments"


def open_backend(
    kind: str,
    folder: Path,
    settings: RocksSettings | None = None,
    segments: SegmentSettings | None = None,
    ticks_ns: Callable[[], int] | None = None,
) -> Backend:
    """Open the copy in a folder, which is made if it is not there.

    The folder is empty, or holds what a backend of this kind left when it was closed, or the files of one of
    its snapshots under the names that `snapshot` gave them. Damaged files: StorageCorrupt. `segments` are the
    settings of the kind of that name; `ticks_ns` counts nanoseconds, by which it says how long lookups took.
    """
    if kind == "rocksdb":
        return RocksBackend(folder, settings)
    if kind == "heap":
        return HeapBackend(folder)
    if kind == SEGMENTS_KIND and segments is not None:
        return SegmentStore(folder, segments, settings, ticks_ns=ticks_ns or standing_still)
    known = ", ".join(BACKEND_KINDS)
    raise StateInvalid(operator=folder.name, reason=f"there is no backend '{kind}'; there are {known}")
