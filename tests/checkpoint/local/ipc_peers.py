"""Helpers for the tests of remote stores: a process that stands still, and copies made by hand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tidegate.checkpoint.backends.rocksdb import RocksBackend, RocksFactory
from tidegate.checkpoint.local.ipc_client import RemoteBackend
from tidegate.checkpoint.local.store import LocalDirectory, acquire
from tidegate.model.clock import SystemClock

KINDS = ["rocksdb", "heap"]


def stop(pid: int) -> None:
    """Stop a process, and wait until it stands."""
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def hurry(backend: Any, seconds: float) -> None:
    """Limit the client's wait for the server's next answer; until here it has all its time."""
    line = backend._store.connection
    if line is not None:
        line._socket.settimeout(seconds)


def is_remote(opened: Any) -> bool:
    return isinstance(opened.backend, RemoteBackend)


class FullFactory(RocksFactory):
    """Opens a backend whose disk is nearly full."""

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> RocksBackend:  # noqa: ARG002
        return RocksBackend(folder, free_bytes=lambda _: 12)


def full_place(root: Path) -> LocalDirectory:
    return LocalDirectory(root, FullFactory(), True, 500, SystemClock(), is_served=True)


def made(place: LocalDirectory, folder: Path) -> Any:
    local = acquire(place, folder)
    local.wipe().mkdir()
    local.adopt()
    return local
