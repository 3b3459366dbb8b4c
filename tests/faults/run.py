"""One run: start a driver, let the strikes come, start it again until its query is through; then compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.faults import dedup_rows, rows
from tests.faults.driver import Case, load_case
from tests.faults.reading import Found, differences, found_in
from tests.faults.strikes import HOME, Strike, Strikes, kill_tree, wait_until_alone
from tests.paths import ROOT

BATCHES = 12
BATCH_ROWS = 120
STARTS_MAX = 40
# Of one kind in a run: what was mended more often than that was not mended.
REFUSALS_MAX = 4
# One that hangs must not take the whole run with it; on a loaded machine a start alone takes minutes.
STILL_SECONDS_MAX = 300.0
POLL_SECONDS = 0.005

Between = Callable[[Path], None]


@dataclass(slots=True)
class Journal:
    """What happened to one folder."""

    lines: list[str] = field(default_factory=list)
    starts: int = 0

    def add(self, text: str) -> None:
        """Note one thing."""
        self.lines.append(text)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def prepare(
    folder: Path, seed: int, case: Case, strikes: Sequence[Strike] = (), batches: int = BATCHES
) -> Path:
    """Write down what a driver needs to know."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows = dedup_rows.write_rows if case.is_dedup else rows.write_rows
    write_rows(folder / "rows", seed, batches, BATCH_ROWS)
    (folder / "case.json").write_text(json.dumps(asdict(case)))
    Strikes(folder / "strikes", strikes, case.volume).save()
    return folder


def run(
    folders: Sequence[Path], between: Sequence[Between] = (), refusals: Mapping[str, Between] | None = None
) -> Journal:
    """Start drivers until every folder is through.

    After each kill the next of `between` is done to the last folder. `refusals` maps words of an error to
    what makes it go away; any other failure of a query is an error of the run.
    """
    journal, waiting = Journal(), list(between)
    while not all((folder / "done").exists() for folder in folders):
        journal.starts += 1
        if journal.starts > STARTS_MAX:
            raise AssertionError(f"not through after {STARTS_MAX} starts:\n{journal}")
        code = _drive(folders, journal, refusals or {})
        if code < 0 and waiting:
            action = waiting.pop(0)
            journal.add(f"between two starts: {getattr(action, '__name__', action)}")
            action(folders[-1])
        elif code > 0:
            raise AssertionError(f"the driver ended with {code}:\n{journal}\n{_log(folders[-1])}")
    wait_until_alone(folders[-1])
    for action in waiting:
        journal.add(f"too few kills: {getattr(action, '__name__', action)} was never done")
    return journal


def check(expected: Path, disturbed: Path) -> list[str]:
    """Return every difference between two folders that took the same rows."""
    return differences(_found(expected), _found(disturbed))


def missed(disturbed: Path) -> list[str]:
    """Return the strikes that did not come."""
    return [strike.name for strike in Strikes.load(disturbed / "strikes").missed()]


def _found(folder: Path) -> Found:
    return found_in(folder, load_case(folder))


def _drive(folders: Sequence[Path], journal: Journal, refusals: Mapping[str, Between]) -> int:
    """Run one driver to its end, and kill it when a strike says so."""
    for folder in folders:
        (folder / "failed.txt").unlink(missing_ok=True)
    log = folders[-1] / "driver.log"
    with log.open("ab") as opened:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.driver", *map(str, folders)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=opened,
            env=os.environ | {"TIDEGATE_HOME": str(folders[-1] / HOME)},
        )
    strikes = [Strikes.load(folder / "strikes") for folder in folders]
    due = [(plan, one) for plan in strikes for one in plan.planned if one.kind == "driver"]
    due = [(plan, one) for plan, one in due if not plan.happened(one)]
    left, moved_at = 0, time.monotonic()
    try:
        while (code := child.poll()) is None:
            for plan, strike in due:
                if plan.happened(strike):
                    kill_tree(child.pid, spare_workers=strike.batch % 2 == 0)
            for folder in folders:
                _mend(folder, refusals, journal)
            if (found := _left_behind(folders)) != left:
                left, moved_at = found, time.monotonic()
            if time.monotonic() > moved_at + STILL_SECONDS_MAX:
                raise AssertionError(f"the driver hangs:\n{journal}\n{_log(folders[-1])}")
            time.sleep(POLL_SECONDS)
    finally:
        if child.poll() is None:
            kill_tree(child.pid, spare_workers=False)
        child.wait()
    journal.add(f"start {journal.starts} ended with {code}")
    return code


def _left_behind(folders: Sequence[Path]) -> int:
    """Count what drivers left: batches and strikes. It grows while they move."""
    places = (folder / name for folder in folders for name in ("seen", "out", "strikes"))
    return sum(1 for place in places if place.exists() for _ in place.iterdir())


def _mend(folder: Path, refusals: Mapping[str, Between], journal: Journal) -> None:
    """Make a refusal go away, when there is one and it was expected; the driver goes on then."""
    failed = folder / "failed.txt"
    if not failed.exists():
        return
    said = failed.read_text()
    for words, mend in refusals.items():
        line = f"refused with '{words}', mended"
        if words in said and journal.lines.count(line) < REFUSALS_MAX:
            journal.add(line)
            mend(folder)
            failed.unlink()
            return
    raise AssertionError(f"the query failed:\n{said[-4000:]}\n{journal}")


def _log(folder: Path) -> str:
    return (folder / "driver.log").read_text(errors="replace")[-4000:]
