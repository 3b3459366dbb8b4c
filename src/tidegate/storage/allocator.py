"""How this process takes memory from the system: sets up the C library's allocator so that it gives it back.

RocksDB's threads take blocks of all sizes and give them back in another order. Left alone, glibc keeps a heap
for each thread, puts ever larger blocks into it, and can return none of it: a process whose live blocks
stayed at 105 MB held 290 MB more after five minutes. Few heaps, and large blocks that the system hands out
and takes back one by one, slow that down; between two batches, what is free inside the heaps is given back.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# glibc's own numbers, from malloc.h.
_ARENA_MAX = -8
_MMAP_THRESHOLD = -3

# The thread that works and RocksDB's own do not wait for each other in one heap.
HEAPS_MAX = 2

# Blocks from this size on never lie in a heap. Smaller ones cost too much that way: at 256 KiB a worker spent
# a tenth of its time in the system.
LARGE_BYTES = 2 * 1024 * 1024

# Giving pages back takes some 10 ms, and taking them again more. A process that has not grown by this much
# since the last time has little to give; and what a batch leaves, the next one takes again, so that only what
# stays over many of them is worth it.
GROWN_BYTES_MIN = 64 * 1024 * 1024
TURNS_BETWEEN = 20

_PARAMETERS = (
    ("MALLOC_ARENA_MAX", "glibc.malloc.arena_max", _ARENA_MAX, HEAPS_MAX),
    ("MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold", _MMAP_THRESHOLD, LARGE_BYTES),
)


def keep_memory_level() -> None:
    """Set the allocator up; what the environment says of it stays, and other allocators are left alone."""
    if not sys.platform.startswith("linux"):
        return
    set_up = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if set_up is None:
        return
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    for variable, tunable, parameter, value in _PARAMETERS:
        if variable not in os.environ and tunable not in tunables:
            set_up(parameter, value)


class Level:
    """What this process held when it last gave memory back, and the rule when to do so again."""

    def __init__(self) -> None:
        self._floor_bytes: int | None = None
        self._turns = 0

    def give_back(self) -> bool:
        """Return free pages to the system, every so many turns, where the process has grown; say whether."""
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
    """Return what this process holds in memory; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except FileNotFoundError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
