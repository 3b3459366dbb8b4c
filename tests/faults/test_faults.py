"""The short form of the fault harness: a few drivers, some twenty disturbances, and proof that it can fail.

Case 8: failed tasks, killed workers and drivers; the soak has a cluster too, with killed executors and two
attempts at once. Case 9: evaluated twice. Case 12: damaged snapshots. Case 13: recovery with and without the
local copy.
"""

from __future__ import annotations

import random
import secrets
from pathlib import Path

import pytest

from tests.faults import damage
from tests.faults.driver import Case
from tests.faults.plans import killed, shaken
from tests.faults.run import Journal, check, missed, prepare, run
from tests.faults.strikes import Strike, Strikes
from tests.faults.volume import make_room, small_volume

pytestmark = pytest.mark.crash

SEED = secrets.randbelow(10**6)
# Each is hit in every run; the soak hits all of them, in drivers too.
WORKER_POINTS = ("worked", "out-written", "head-linked", "applied", "snapshot-copied", "pruned")
STANDIN_BATCHES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the undisturbed queries, and in the same driver those whose strikes it survives."""
    folder = tmp_path_factory.mktemp(f"faults-{SEED}")
    tide = Case()
    folders = [
        prepare(folder / "plain", SEED, tide),
        prepare(folder / "shaken", SEED, tide, shaken(SEED, WORKER_POINTS)),
        prepare(folder / "careful", SEED, Case(keeper="careful"), batches=STANDIN_BATCHES),
        prepare(
            folder / "careless",
            SEED,
            Case(keeper="careless"),
            [Strike("raise", 2)],
            batches=STANDIN_BATCHES,
        ),
    ]
    run(folders)
    return folder


def _equal(folder: Path, name: str, journal: Journal | str = "") -> None:
    faults = check(folder / "plain", folder / name) + missed(folder / name)
    planned = [strike.name for strike in Strikes.load(folder / name / "strikes").planned]
    assert not faults, "\n".join([f"seed {SEED}, {name}, planned {planned}", str(journal), *faults])


def test_failed_rows_and_killed_slow_and_repeated_workers_change_nothing(folder: Path) -> None:
    """Cases 8 and 9."""
    _equal(folder, "shaken")


def test_a_careless_operator_is_found_out(folder: Path) -> None:
    faults = check(folder / "careful", folder / "careless")
    assert any(fault.startswith("output: lost") for fault in faults), faults
    assert any(fault.startswith("state: not owed") for fault in faults), faults


def test_a_strike_that_never_came_is_told(tmp_path: Path) -> None:
    strikes = Strikes(tmp_path / "strikes", [Strike("die", 2), Strike("raise", 3)])
    strikes.save()
    assert strikes.take(strikes.planned[1])
    assert missed(tmp_path) == ["die-ledger-p0-b2"]


def test_killed_drivers_lost_and_damaged_files_and_a_full_disk_change_nothing(folder: Path) -> None:
    """Cases 8, 12 and 13."""
    with small_volume(folder / "volume") as volume:
        case = Case(volume=volume)
        # Each start of a driver takes seconds: the soak kills at every point.
        point = random.Random(SEED).choice(("out-written", "head-linked"))
        strikes = killed(SEED, [point], ["before-sink", "after-sink"])
        if volume:
            strikes += [Strike("full", max(strike.batch for strike in strikes) + 1)]
        prepare(folder / "killed", SEED, case, strikes)
        kept = [damage.lose_local, damage.damage_snapshot, damage.damage_changes]
        mended = {"StorageCorrupt": damage.mend_changes, "StorageFull": make_room}
        journal = run([folder / "killed"], kept, mended | {"No space left": make_room})
        assert "refused with 'StorageCorrupt', mended" in journal.lines, str(journal)
        _equal(folder, "killed", journal)
