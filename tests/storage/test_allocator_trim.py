"""A process that has grown gives back what is free inside its heaps, and one that has not leaves it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Blocks of which every second one stays: the heap has holes of whole pages, and cannot end earlier.
CHILD = """
import ctypes
from tidegate.storage.allocator import GROWN_BYTES_MIN, TURNS_BETWEEN, MemoryTrimmer, configure_allocator
from tidegate.storage import allocator

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = libc.free.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def grow(size_bytes):
    blocks = [libc.malloc(16 * 1024) for _ in range(size_bytes // (16 * 1024))]
    [libc.memset(block, 1, 16 * 1024) for block in blocks]
    [libc.free(block) for block in blocks[::2]]


def turns():
    return [trimmer.trim() for _ in range(TURNS_BETWEEN)]


configure_allocator()
trimmer = MemoryTrimmer()
print(trimmer.trim())
grow(GROWN_BYTES_MIN // 2)
print(any(turns()))
grow(2 * GROWN_BYTES_MIN)
before = allocator._resident_bytes()
given = turns()
print(any(given[:-1]), given[-1])
print(before - allocator._resident_bytes() > GROWN_BYTES_MIN * 3 // 4)
print(any(turns()))
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc only"
)
def test_what_is_free_is_given_back_once_a_process_has_grown() -> None:
    run = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["False", "False", "False", "True", "True", "False"], run.stderr
