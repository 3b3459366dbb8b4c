"""A small volume that can be filled: a file system in memory, where this user may mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.driver import load_case
from tests.faults.strikes import BALLAST

# Enough for checkpoint and copies of a run; the rest is taken by ballast.
VOLUME_MIB = 256


@contextmanager
def small_volume(folder: Path) -> Iterator[str]:
    """Return a volume until the end of the block; an empty name where none can be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={VOLUME_MIB}m", "tmpfs", str(folder)]
    mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield str(folder) if mounted else ""
    finally:
        if mounted:
            # A worker that outlived its driver for a moment may still stand in it.
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def make_room(folder: Path) -> None:
    """Take the ballast away."""
    (Path(load_case(folder).volume) / BALLAST).unlink(missing_ok=True)
