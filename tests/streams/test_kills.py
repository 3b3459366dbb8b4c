"""A real kill -9 under appends; many more by `python -m tests.streams.kills --rounds N`."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.streams.kills import kill_one


@pytest.mark.crash
def test_rows_acknowledged_before_the_last_flush_survive_a_kill(tmp_path: Path) -> None:
    """Case 2: twice in one folder, so that the second child opens what the first left behind."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    assert kill_one(tmp_path, seed) > 0
    assert kill_one(tmp_path, seed + 1) > 0
