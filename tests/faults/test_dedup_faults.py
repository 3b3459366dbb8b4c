"""The short form of the fault harness for a deduplication: never a duplicate through, never a first one lost.

Cases 18 and 20: decided as the model decides, and a batch that is done again does not see its own keys. Case
23: damaged segments. Drivers that are killed, damaged snapshots and a full disk are in the soak.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.dedup_check import against_model
from tests.faults.dedup_query import NAME
from tests.faults.driver import Case
from tests.faults.plans import shaken
from tests.faults.run import Journal, check, missed, prepare, run
from tests.faults.strikes import Strikes
from tests.paths import ROOT

pytestmark = pytest.mark.crash

SEED = secrets.randbelow(10**6)
# Each is hit in every run; the soak hits all of them, in drivers too.
WORKER_POINTS = ("worked", "head-linked", "applied", "snapshot-copied")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the undisturbed query, and in the same driver the one whose strikes it survives."""
    folder = tmp_path_factory.mktemp(f"dedup-{SEED}")
    case = Case(keeper="dedup")
    strikes = shaken(SEED, WORKER_POINTS, (NAME,))
    run([prepare(folder / "plain", SEED, case), prepare(folder / "shaken", SEED, case, strikes)])
    return folder


def _equal(folder: Path, name: str, journal: Journal | str = "") -> None:
    faults = check(folder / "plain", folder / name) + missed(folder / name)
    planned = [strike.name for strike in Strikes.load(folder / name / "strikes").planned]
    assert not faults, "\n".join([f"seed {SEED}, {name}, planned {planned}", str(journal), *faults])


def test_undisturbed_it_decides_as_the_model_does(folder: Path) -> None:
    """Case 18."""
    faults = against_model(folder / "plain")
    assert not faults, "\n".join([f"seed {SEED}", *faults])


def test_failed_rows_and_killed_slow_and_repeated_workers_change_nothing(folder: Path) -> None:
    """Case 20."""
    _equal(folder, "shaken")


def test_a_walk_of_killed_workers_and_damaged_segments_decides_as_the_model_does() -> None:
    """Case 23, without Spark: every fork of a worker is made before RocksDB is opened, as Spark's are."""
    walk = [sys.executable, "-m", "tests.faults.dedup_walk", "--seed", str(SEED)]
    done = subprocess.run(walk, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4_000:]
