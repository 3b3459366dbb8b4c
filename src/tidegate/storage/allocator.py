"""The settings of the C library's allocator, so that freed memory is returned to the system.

RocksDB's threads allocate blocks of all sizes and free them in another order. With its defaults, glibc has a
heap for each thread, puts ever larger blocks into it, and can return none of it: a process whose live blocks
stayed at 105 MB held 290 MB more after five minutes. Few heaps, and large blocks that are mapped one by one,
slow that down; between two batches, free pages inside the heaps are returned.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# glibc's own numbers, from malloc.h.
_ARENA_MAX = -8
_MMAP_THRESHOLD = -3

# With two, the working thread and RocksDB's own do not wait for each other in one heap.
HEAPS_MAX = 2

# Blocks from this size on are mapped outside of the heaps. For smaller ones that costs too much: at 256 KiB a
# worker spent a tenth of its time in the system.
LARGE_BYTES = 2 * 1024 * 1024

# Returning pages takes about 10 ms, and allocating them again more. A process that has not grown by this much
# since the last time has little to return; and what a batch frees, the next one allocates again, so that only
# what stays free over many of them is worth it.
GROWN_BYTES_MIN = 64 * 1024 * 1024
TURNS_BETWEEN = 20

_PARAMETERS = (
    ("MALLOC_ARENA_MAX", "glibc.malloc.arena_max", _ARENA_MAX, HEAPS_MAX),
    ("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold", _MMAP_THRESHOLD, LARGE_BYTES),
)


def configure_allocator() -> None:
    """Configure glibc's allocator; settings of the environment win, and other allocators are left alone."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    for variable, tunable, parameter, value in _PARAMETERS:
        if variable not in os.environ and tunable not in tunables:
            mallopt(parameter, value)


class MemoryTrimmer:
    """Returns free memory to the system when the process has grown since the last time."""

    def __init__(self) -> None:
        self._floor_bytes: int | None = None
        self._turns = 0

    def trim(self) -> bool:
        """Return free pages to the system at every 20th call, if the process has grown; True if it did."""
        self._turns += 1
        if self._floor_bytes is not None and self._turns < TURNS_BETWEEN:
            return False
        self._turns = 0
        held = _resident_bytes()
        if held is None:
            return False
        if self._floor_bytes is None or held < self._floor_bytes:
            self._floor_bytes = held
        if held - self._floor_bytes < GROWN_BYTES_MIN:
            return False
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is None:
            return False
        trim(0)
        self._floor_bytes = _resident_bytes()
        return True


def _resident_bytes() -> int | None:
    """Return the resident memory of this process; None where the system does not have it."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except FileNotFoundError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
