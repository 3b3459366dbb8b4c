"""Backends opened by the name of their kind, as tests have it in their parameters."""

from __future__ import annotations

from pathlib import Path

from tidegate.checkpoint.backend import Backend
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.settings import backend_factory


def open_backend(kind: str, folder: Path, options: RocksSettings | None = None) -> Backend:
    """Open the backend of that kind in a folder."""
    return backend_factory(kind, options).open(folder, lambda: 0)
