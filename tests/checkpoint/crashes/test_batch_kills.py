"""Killed at every named point of the commit, again and again: what comes out equals an undisturbed run."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.checkpoint import batches
from tests.checkpoint.batches import Job, expected, settings
from tidegate.checkpoint.crash_points import POINTS
from tidegate.checkpoint.local.pool import pool

pytestmark = pytest.mark.crash

BATCHES = 13
# Killed in the order of a batch and against it, so that each kill meets what another one left.
COMMIT_POINTS = [point for point in POINTS if point != "epoch-written"]


@pytest.mark.parametrize(
    ("kind", "points", "spills"),
    [
        ("rocksdb", COMMIT_POINTS, False),
        ("rocksdb", ["worked", "out-written", "head-linked"], True),
        ("heap", COMMIT_POINTS[::-1], False),
    ],
)
def test_killed_at_each_point_the_result_is_that_of_an_undisturbed_run(
    tmp_path: Path, kind: str, points: list[str], spills: bool
) -> None:
    """Case 8: workers killed before and after each step of the commit."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["tests.checkpoint.batches"])
    for point in [*points, None]:
        place = None if point is None else f"{point}:1"
        worker = forks.Process(
            target=batches.drive_in_child, args=(str(tmp_path), kind, BATCHES, place, spills)
        )
        worker.start()
        worker.join()
        assert worker.exitcode == (0 if point is None else -9), point
    given, counts = expected(BATCHES)
    job = Job(tmp_path, settings(tmp_path, backend=kind))
    assert job.sunk() == given
    assert job.counts(BATCHES) == counts
    pool().close()
    cold = Job(tmp_path, settings(tmp_path, backend=kind, local_root=str(tmp_path / "elsewhere")))
    assert cold.counts(BATCHES) == counts
    pool().close()
