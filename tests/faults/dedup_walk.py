"""A walk without Spark: batches in workers that are killed, on copies and snapshots that are damaged.

    python -m tests.faults.dedup_walk --seeds 50

Every batch is done by a child that may be killed at any named point, and then by another one. Between two
batches something happens to the files, or the partitions become more or fewer. What is decided and what is
stored must be what the dictionary says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.dedup.store.copies import MINUTE_US, RETENTION_US, Job, Model, Row, flip, settings
from tests.faults.strikes import LOOSE_POINTS
from tidegate.checkpoint.crash_points import ONCE_VARIABLE, POINT_VARIABLE, POINTS
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.standby import Standby
from tidegate.errors import StateNotFound, StorageCorrupt
from tidegate.model.clock import SystemClock

BATCHES = 24
BATCH_ROWS = 60
PARTITIONS_MAX = 4
# Every attempt may find another damaged segment; there are a few, in a few partitions.
ATTEMPTS_MAX = 24
CORRUPT = 3
# A worker that takes so long waits for something that never comes.
HANG_SECONDS_MAX = 300.0
MEMORY = Path("/dev/shm")


@dataclass
class Walk:
    """One walk: a job, what it should know, and what happened."""

    root: Path
    draw: random.Random
    job: Job
    model: Model = field(default_factory=Model)
    sent: list[Row] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    # One snapshot may be damaged at a time: of two that are kept the other one serves.
    damaged_at: int = -BATCHES

    def go(self, batches: int) -> None:
        """Do all batches, each after something went wrong."""
        for batch in range(batches):
            self._disturb(batch)
            rows = self._rows(batch)
            owed = self.model.take(rows)
            told = self._done(batch, rows)
            wrong = {row: (told.get(row), owed[row]) for row in owed if told.get(row, owed[row]) != owed[row]}
            assert not wrong, f"batch {batch}: {wrong}"
            if batch % 4 == 3:
                self._check(batch + 1)
        self._check(batches)
        shutil.rmtree(self.root / "local", ignore_errors=True)
        self._check(batches)

    def _rows(self, batch: int) -> list[Row]:
        newest_us = (batch + 1) * 4 * MINUTE_US + (RETENTION_US if batch > BATCHES // 2 else 0)
        rows: set[Row] = set()
        for number in range(BATCH_ROWS):
            key, at_us = batch * 1_000 + number, newest_us - self.draw.randrange(6 * MINUTE_US)
            if self.sent and self.draw.random() < 0.4:
                key, before_us = self.draw.choice(self.sent)
                edges = (before_us, before_us + RETENTION_US, before_us + RETENTION_US - 1, at_us)
                at_us = min(newest_us, self.draw.choice(edges))
            rows.add((key, at_us))
        self.sent = [*self.sent[-1_000:], *rows]
        return sorted(rows)

    def _done(self, batch: int, rows: list[Row]) -> dict[Row, str]:
        """Let children do a batch until one has done it; what a killed one had decided is not known."""
        point = self.draw.choice(("", *POINTS))
        for attempt in range(ATTEMPTS_MAX):
            answer = self.root / "answer"
            answer.unlink(missing_ok=True)
            place = "" if attempt else self._place(point, batch)
            code = _in_child(_work, self.job, batch, rows, place, answer)
            self.lines.append(f"batch {batch} {place} ended with {code}")
            if code == 0:
                return {(key, at_us): outcome for key, at_us, outcome in json.loads(answer.read_text())}
            assert code in (-signal.SIGKILL, CORRUPT), f"it ended with {code}"
            self.happened["killed" if code < 0 else "corrupt"] += 1
        raise AssertionError(f"batch {batch} was not done in {ATTEMPTS_MAX} attempts")

    def _place(self, point: str, batch: int) -> str:
        if not point or point in LOOSE_POINTS:
            return point
        return f"{point}:{self.draw.randrange(self.job.parallelism)}:{batch}"

    def _check(self, batch: int) -> None:
        for _ in range(ATTEMPTS_MAX):
            code = _in_child(_compare, self.job, batch, self.model)
            self.lines.append(f"what is stored before batch {batch}: {code}")
            if code == 0:
                return
            assert code == CORRUPT, f"what is stored before batch {batch} is not what it should be"
            self.happened["corrupt"] += 1
        raise AssertionError(f"what is stored before batch {batch} could not be read")

    def _disturb(self, batch: int) -> None:
        if not batch:
            return
        chosen = self.draw.choice(DISTURBANCES)
        self.lines.append(f"before batch {batch}: {chosen.__name__}")
        self.happened[chosen.__name__] += 1
        chosen(self, batch)


def _in_child(work: Callable[..., None], *given: object) -> int:
    """Run something in a fork, and say how it ended.

    The parent never opens RocksDB: its threads are not there after a fork.
    """
    child = multiprocessing.get_context("fork").Process(target=_told, args=(work, *given))
    child.start()
    child.join(HANG_SECONDS_MAX)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError("a worker hangs")
    return child.exitcode


def _told(work: Callable[..., None], *given: object) -> None:
    try:
        work(*given)
    except StorageCorrupt:
        pool().close()
        os._exit(CORRUPT)
    except BaseException:  # noqa: BLE001 - a fork ends here, whatever it was
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _compare(job: Job, batch: int, model: Model) -> None:
    found, owed = job.stored(batch), model.counted()
    assert found == owed, f"lost {sorted(owed - found)[:5]}, not owed {sorted(found - owed)[:5]}"
    pool().close()


def _follow(checkpoint: Path, settings: StateSettings, parallelism: int) -> None:
    for partition in range(parallelism):
        with contextlib.suppress(StateNotFound):
            Standby(checkpoint, "orders", partition, settings, SystemClock()).follow()
    pool().close()


def _work(job: Job, batch: int, rows: list[Row], point: str, answer: Path) -> None:
    """Do a batch in a worker of its own; partitions that were done before are not told."""
    if point:
        os.environ[POINT_VARIABLE] = point
        os.environ[ONCE_VARIABLE] = str(job.root / "died")
        (job.root / "died").unlink(missing_ok=True)
    told = job.run(batch, rows)
    answer.write_text(json.dumps([(*row, outcome) for row, outcome in told.items()]))
    # Else nothing is closed: the copy is what RocksDB happened to write.
    if batch % 3:
        pool().close()


def _one_of(walk: Walk, pattern: str) -> Path | None:
    found = sorted(path for path in (walk.root / "local").glob(pattern) if ".damaged." not in str(path))
    return walk.draw.choice(found) if found else None


def lose_segment(walk: Walk, _batch: int) -> None:
    """Remove the folder of a segment."""
    segment = _one_of(walk, "*/*/e*/*/db-segments*/orders.*")
    if segment is not None:
        shutil.rmtree(segment)


def damage_table(walk: Walk, _batch: int) -> None:
    """Turn bits in a table."""
    table = _one_of(walk, "*/*/e*/*/db-segments*/orders.*/*.sst")
    if table is not None and table.stat().st_size:
        flip(table, walk.draw.random())


def damage_filter(walk: Walk, _batch: int) -> None:
    """Turn bits in a filter, cut it, or lose it."""
    page = _one_of(walk, "*/*/e*/*/db-segments*/orders.*/*.bloom")
    if page is None or not page.stat().st_size:
        return
    match walk.draw.randrange(3):
        case 0:
            flip(page, walk.draw.random())
        case 1:
            page.write_bytes(page.read_bytes()[: page.stat().st_size // 2])
        case _:
            page.unlink()


def damage_mark(walk: Walk, _batch: int) -> None:
    """Turn bits in what a copy says of itself."""
    mark = _one_of(walk, "*/*/e*/*/db-segments*/copy.mark")
    if mark is not None:
        flip(mark, walk.draw.random())


def damage_snapshot(walk: Walk, batch: int) -> None:
    """Turn bits in one of the newest files of a snapshot; another snapshot serves, or the change files do."""
    if batch - walk.damaged_at < 8:
        return
    files = sorted(
        walk.job.checkpoint_store.root.glob("e*/*/sst/*"), key=lambda path: path.stat().st_mtime_ns
    )
    if files and files[-1].stat().st_size:
        walk.damaged_at = batch
        flip(files[-1], walk.draw.random())
        shutil.rmtree(walk.root / "local", ignore_errors=True)


def lose_copies(walk: Walk, _batch: int) -> None:
    """Remove all copies."""
    shutil.rmtree(walk.root / "local", ignore_errors=True)


def rescale(walk: Walk, _batch: int) -> None:
    """Go on with another number of partitions."""
    walk.job.parallelism = walk.draw.randint(1, PARTITIONS_MAX)


def move(walk: Walk, _batch: int) -> None:
    """Go on where a standby followed."""
    settings = walk.job.elsewhere("standby").settings
    code = _in_child(_follow, walk.root / walk.job.checkpoint, settings, walk.job.parallelism)
    assert code in (0, CORRUPT), f"the standby ended with {code}"
    if code == 0:
        shutil.rmtree(walk.root / "local", ignore_errors=True)
        (walk.root / "standby").rename(walk.root / "local")


def nothing(_walk: Walk, _batch: int) -> None:
    """Leave everything as it is."""


DISTURBANCES: tuple[Callable[[Walk, int], None], ...] = (
    nothing,
    lose_segment,
    lose_segment,
    damage_table,
    damage_table,
    damage_filter,
    damage_filter,
    damage_mark,
    damage_snapshot,
    lose_copies,
    rescale,
    move,
)


def walked(seed: int, root: Path, batches: int = BATCHES) -> Walk:
    """Walk once."""
    draw = random.Random(seed)
    every = draw.choice((1, 2, 3))
    job = Job(root, settings(root, snapshot_every_batches=every), parallelism=draw.randint(1, 3))
    walk = Walk(root, draw, job)
    try:
        walk.go(batches)
    except BaseException:
        print(f"seed {seed}", *walk.lines, sep="\n", file=sys.stderr)
        raise
    return walk


def main() -> int:
    """Walk so many times; keep the folder of one that failed."""
    parser = argparse.ArgumentParser(
        description="Disturb a deduplication without Spark; compare with a model."
    )
    parser.add_argument("--seed", type=int, default=None, help="repeat one walk")
    parser.add_argument("--seeds", type=int, default=10, help="how many walks")
    options = parser.parse_args()
    for _ in range(1 if options.seed is not None else options.seeds):
        seed = secrets.randbelow(10**6) if options.seed is None else options.seed
        where = MEMORY if os.access(MEMORY, os.W_OK) else None
        folder = Path(tempfile.mkdtemp(prefix=f"tidegate-walk-{seed}-", dir=where))
        print(f"seed {seed}, in {folder}", flush=True)
        walk = walked(seed, folder)
        print(f"  {dict(walk.happened)}", flush=True)
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
