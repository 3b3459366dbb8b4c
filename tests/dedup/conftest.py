"""What tests of deduplication share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.checkpoint.local.pool import pool

# Where there is a file system in memory, nothing waits for the disk: what is tested here is not its speed.
MEMORY = Path("/dev/shm")


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder for a job; what it keeps open is closed at the end."""
    folder = tmp_path
    if os.access(MEMORY, os.W_OK):
        folder = Path(tempfile.mkdtemp(prefix="tidegate-test-", dir=MEMORY))
    yield folder
    pool().close()
    if folder != tmp_path:
        shutil.rmtree(folder, ignore_errors=True)
