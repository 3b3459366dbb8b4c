"""The allocator keeps few heaps and no large blocks in them, and what the environment says of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.storage import allocator

# Says how many heaps six threads made, and how many bytes of a large block were taken from the system.
CHILD = """
import ctypes, sys, threading
from pathlib import Path

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = libc.free.argtypes = [ctypes.c_size_t]


class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


libc.mallinfo2.restype = Info
if sys.argv[1] == "alone":
    from tidegate.storage.allocator import configure_allocator
    configure_allocator()
elif sys.argv[1] == "copy":
    from tidegate.checkpoint.backends.rocksdb import RocksBackend
    RocksBackend(Path(sys.argv[2]).parent / "copy")
else:
    from tidegate.storage.rocksdb.engine import RocksEngine
    engine = RocksEngine(Path(sys.argv[2]).parent / "engine")

libc.free(libc.malloc(20 * 1024 * 1024))  # from now on glibc would take blocks below this from a heap
before = libc.mallinfo2().hblkhd
block = libc.malloc(3 * 1024 * 1024)
large = libc.mallinfo2().hblkhd - before

all_here = threading.Barrier(6)


def take():
    libc.malloc(1000)
    all_here.wait()


threads = [threading.Thread(target=take) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
out = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
print(Path(sys.argv[2]).read_text().count("<heap "), large)
"""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc only"
)


def measured(how: str, report: Path, **environ: str) -> tuple[int, int]:
    command = [sys.executable, "-c", CHILD, how, str(report)]
    whole = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    run = subprocess.run(command, env=whole | environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    heaps, large = run.stdout.split()
    return int(heaps), int(large)


@pytest.mark.parametrize("how", ["alone", "copy", "engine"])
def test_few_heaps_and_no_large_blocks_in_them(tmp_path: Path, how: str) -> None:
    heaps, large = measured(how, tmp_path / "report")
    assert heaps <= allocator.HEAPS_MAX
    assert large >= 3 * 1024 * 1024


def test_what_the_environment_says_stays(tmp_path: Path) -> None:
    report = tmp_path / "report"
    heaps, large = measured("alone", report, MALLOC_ARENA_MAX="5")
    assert heaps == 5
    assert large > 0
    tunables = "glibc.malloc.arena_max=4:glibc.malloc.mmap_threshold=33554432"
    heaps, large = measured("alone", report, GLIBC_TUNABLES=tunables)
    assert heaps == 4
    assert large == 0
