"""The newest attempts at a partition on this machine, by which a task that runs several partitions is found.

A task works for one partition. Where a step behind the operator moves partitions together, Spark runs several
of them in one task, and each looks like the same one. So every attempt that opens a partition is recorded:
`<root>/<hash of the checkpoint>/<operator>/attempts.<partition>` has the hashes of the newest, 8 bytes each.
A file that is lost costs no more than a refusal.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import xxhash

MARK_BYTES = 8
# Attempts at one partition that may run on one machine at once; few ever do.
MARKS_MAX = 64

_PREFIX = "attempts."


def is_first_time(folder: Path, partition: int, attempt: str) -> bool:
    """Return whether an attempt opens a partition of the operator that has this folder for the first time."""
    mark = xxhash.xxh3_64_digest(attempt.encode())
    file = _open_file(folder / f"{_PREFIX}{partition}")
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        stored = os.pread(file, MARK_BYTES * MARKS_MAX, 0)
        if mark in {stored[at : at + MARK_BYTES] for at in range(0, len(stored), MARK_BYTES)}:
            return False
        os.pwrite(file, (mark + stored)[: MARK_BYTES * MARKS_MAX], 0)
        return True
    finally:
        os.close(file)


def forget_unused(root: Path, before_us: int) -> None:
    """Remove the marks of partitions that no attempt has opened since a time."""
    for path in root.glob(f"*/*/{_PREFIX}*"):
        try:
            if path.stat().st_mtime_ns < before_us * 1_000:
                path.unlink()
        except OSError:  # another process was first, or it is another user's
            continue


def _open_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
