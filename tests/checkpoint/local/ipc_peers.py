"""Helpers for the tests of lending: a process that stands still, and copies made by hand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tidegate.checkpoint.backends.rocksdb import RocksBackend, RocksFactory
from tidegate.checkpoint.local.ipc_client import BorrowedBackend
from tidegate.checkpoint.local.store import Place, acquire
from tidegate.model.clock import SystemClock

KINDS = ["rocksdb", "heap"]


def stop(pid: int) -> None:
    """Stop a process, and wait until it stands."""
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.001)


def hurry(backend: Any, seconds: float) -> None:
    """Let a borrower wait so long for the lender's next answer; until here it has all its time."""
    line = backend._copy.line
    if line is not None:
        line._connection.settimeout(seconds)


def is_borrowed(opened: Any) -> bool:
    return isinstance(opened.backend, BorrowedBackend)


class FullFactory(RocksFactory):
    """Opens a backend whose disk is nearly full."""

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> RocksBackend:  # noqa: ARG002
        return RocksBackend(folder, free_bytes=lambda _: 12)


def full_place(root: Path) -> Place:
    return Place(root, FullFactory(), True, 500, SystemClock(), is_served=True)


def made(place: Place, folder: Path) -> Any:
    copy = acquire(place, folder)
    copy.wipe().mkdir()
    copy.adopt()
    return copy
