"""The kinds of backends: takes a kind, a folder and settings, gives the backend, keeps nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tidegate.errors import StateInvalid
from tidegate.state.backend import Backend
from tidegate.state.heap import HeapBackend
from tidegate.state.rocks import RocksBackend
from tidegate.state.rocks_settings import RocksSettings

BackendKind = Literal["rocksdb", "heap"]
BACKEND_KINDS: tuple[BackendKind, ...] = ("rocksdb", "heap")


def open_backend(kind: str, folder: Path, settings: RocksSettings | None = None) -> Backend:
    """Open the copy in a folder, which is made if it is not there.

    The folder is empty, or holds what a backend of this kind left when it was closed, or the files of one of
    its snapshots under the names that `snapshot` gave them. Damaged files: StorageCorrupt.
    """
    if kind == "rocksdb":
        return RocksBackend(folder, settings)
    if kind == "heap":
        return HeapBackend(folder)
    known = ", ".join(BACKEND_KINDS)
    raise StateInvalid(operator=folder.name, reason=f"there is no backend '{kind}'; there are {known}")
