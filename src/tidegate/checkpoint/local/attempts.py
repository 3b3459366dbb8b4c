"""Attempts: takes a task that opens a batch, says whether it does so for the first time, keeps the newest.

A task works for one partition. Where a step behind the operator moves partitions together, Spark runs several
of them in one task, and each looks like the same one. So whoever opens a batch is written down on this
machine: `<root>/<hash of the checkpoint>/<operator>/attempts.<partition>` holds the marks of the newest, 8
bytes each. A file that is lost costs no more than a refusal.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import xxhash

MARK_BYTES = 8
# Attempts at one partition that may run on one machine at once; few ever do.
MARKS_KEPT = 64

_PREFIX = "attempts."


def is_first_time(folder: Path, partition: int, attempt: str) -> bool:
    """Return whether an attempt opens a partition of the operator that has this folder for the first time."""
    mark = xxhash.xxh3_64_digest(attempt.encode())
    file = _opened(folder / f"{_PREFIX}{partition}")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = os.pread(file, MARK_BYTES * MARKS_KEPT, 0)
        if mark in {kept[at : at + MARK_BYTES] for at in range(0, len(kept), MARK_BYTES)}:
            return False
        os.pwrite(file, (mark + kept)[: MARK_BYTES * MARKS_KEPT], 0)
        return True
    finally:
        os.close(file)


def forget_unused(root: Path, before_us: int) -> None:
    """Remove the marks of partitions that nobody opened since a time."""
    for path in root.glob(f"*/*/{_PREFIX}*"):
        try:
            if path.stat().st_mtime_ns < before_us * 1_000:
                path.unlink()
        except OSError:  # another one was first, or it is another user's
            continue


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
