"""Each recovery procedure of docs/operate/dedup.md, carried out.

Case 23: a damaged segment, a full disk. The rest of the runbook: a lost disk, a clock that is wrong, a
checkpoint that cannot be reached.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dedup.store.copies import (
    MINUTE_US,
    OPERATOR,
    RETENTION_US,
    Job,
    Model,
    flip,
    key_of,
    rows_of,
    settings,
)
from tests.faults.strikes import BALLAST, fill
from tests.faults.volume import small_volume
from tidegate.errors import CheckpointUnusable, StorageCorrupt, StorageFailed, StorageFull, TidegateError

BATCHES = 4
SEGMENT_MINUTES = 10


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def job(room: Path, model: Model) -> Job:
    job = Job(room, settings(room))
    job.drive(range(BATCHES), model)
    return job


def test_segment_corruption_heals_with_the_next_attempt(job: Job, model: Model) -> None:
    job.stop()
    for table in job.segment(SEGMENT_MINUTES).glob("*.sst"):
        flip(table, 0.1)
    rows = [(key, at_us + 1) for key, at_us in rows_of(BATCHES - 1)]
    with pytest.raises(StorageCorrupt, match=f"{OPERATOR}.{SEGMENT_MINUTES * 60_000}"):
        job.run(BATCHES, rows)
    assert job.run(BATCHES, rows) == model.take(rows)
    assert any("restored alone" in line for line in job.head(BATCHES).damaged)
    job.drive([BATCHES + 1], model)


def test_segment_corruption_by_hand(job: Job, model: Model) -> None:
    """Stop; rm -rf the segment's folder; start."""
    job.stop()
    assert _shell(f"rm -rf '{job.segment(SEGMENT_MINUTES)}'") == 0
    job.drive(range(BATCHES, BATCHES + 2), model)
    assert job.stored(BATCHES + 2) == model.counted()


@pytest.mark.parametrize("place", ["checkpoint", "local"])
def test_disk_full_fails_the_batch_and_goes_on_when_there_is_room(room: Path, place: str) -> None:
    with small_volume(room / place) as volume:
        if not volume:
            pytest.skip("this user may not mount a volume")
        job, model = Job(room, settings(room)), Model()
        job.drive(range(BATCHES), model)
        job.stop()
        fill(Path(volume))
        batch = BATCHES
        if place == "local":
            # The checkpoint has room, so a batch may be done that the copy does not take; not another one.
            batch = _driven_until_full(job, model, batch)
        for _ in range(2):  # and again as often as Spark tries
            with pytest.raises(StorageFull, match=str(room / place)):
                job.run(batch, rows_of(batch))
        assert not job.checkpoint_store.exists(f"e0/0/v{batch}.head")
        (Path(volume) / BALLAST).unlink()
        assert job.stored(batch) == model.counted()
        job.drive(range(batch, batch + 2), model)
        job.stop()


def _driven_until_full(job: Job, model: Model, batch: int) -> int:
    for number in range(batch, batch + 2):
        try:
            told = job.run(number, rows_of(number))
        except StorageFull:
            return number
        assert told == model.take(rows_of(number))
    return batch + 2


def test_lost_local_disk_is_made_again_from_the_checkpoint(job: Job, model: Model) -> None:
    job.stop()
    assert _shell(f"rm -rf '{job.root / 'local'}'") == 0
    job.drive([BATCHES], model)
    assert (job.reports[-1].source, job.reports[-1].from_batch) == ("snapshot", BATCHES - 1)
    job.drive([BATCHES + 1], model)
    assert job.reports[-1].source == "local"


def test_a_row_from_the_future_makes_the_rows_behind_it_late_and_a_savepoint_from_before_undoes_it(
    job: Job, model: Model
) -> None:
    """One wrong clock moves stream time for all: the rows of the right ones are late, marked and counted."""
    from tidegate.checkpoint.savepoints import savepoint
    from tidegate.model.clock import SystemClock

    savepoint.make(job.root / "checkpoint", OPERATOR, "daily", SystemClock())
    future_us = BATCHES * 5 * MINUTE_US + 10 * RETENTION_US
    stray = [(10**6, future_us)]
    # The batch in which it comes is not hurt: stream time is that of the batches before.
    wrong = Model({key: list(times) for key, times in model.stored.items()}, model.stream_us)
    mixed = rows_of(BATCHES) + stray
    assert job.run(BATCHES, mixed) == wrong.take(mixed)
    assert job.head(BATCHES).newest_event_us == future_us
    # From the next batch on everything is late, and says so.
    told = job.run(BATCHES + 1, rows_of(BATCHES + 1))
    assert set(told.values()) == {"late"}
    assert job.head(BATCHES + 1).counts["late"] == len(told)
    assert not [one for one in job.stored(BATCHES + 2) if one[0] != key_of(10**6)]
    # Begin anew from the savepoint, the stray row left out: as if it had never come.
    folder = savepoint.path_of(job.root / "checkpoint", OPERATOR, "daily")
    job.stop()
    again = Job(job.root, job.settings, checkpoint="mended", savepoint=str(folder))
    for batch, number in enumerate((BATCHES, BATCHES + 1)):
        assert again.run(batch, rows_of(number)) == model.take(rows_of(number))


@contextmanager
def _unreachable(folder: Path, kind: str) -> Iterator[None]:
    """Take a checkpoint away: a mount point without its mount, or a volume that refuses every write."""
    if kind == "gone":
        away = folder.with_name("away")
        folder.rename(away)
        folder.write_text("nothing is mounted here")
        try:
            yield
        finally:
            folder.unlink()
            away.rename(folder)
        return
    _shell(f"mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}'")
    try:
        yield
    finally:
        _shell(f"umount --lazy '{folder}'")


@pytest.mark.parametrize("kind", ["gone", "read-only"])
def test_a_checkpoint_that_cannot_be_reached_fails_the_batch_and_nothing_else(
    job: Job, model: Model, kind: str
) -> None:
    checkpoint = job.root / "checkpoint"
    if kind == "read-only" and not _can_mount(job.root / "probe"):
        pytest.skip("this user may not mount a volume")
    with _unreachable(checkpoint, kind):
        for _ in range(2):
            with pytest.raises((CheckpointUnusable, StorageFailed)) as refused:
                job.run(BATCHES, rows_of(BATCHES))
            assert str(checkpoint) in str(refused.value)
    assert job.stored(BATCHES) == model.counted()
    job.drive(range(BATCHES, BATCHES + 2), model)
    # The copy stayed: nothing was made again.
    assert {report.source for report in job.reports[-3:]} == {"local"}


def test_a_write_to_the_checkpoint_that_hangs_holds_its_own_partition_only(room: Path) -> None:
    """A partition of the network: one attempt waits in a write; the others go on, and so does it at last."""
    from tidegate.checkpoint.store import CheckpointDisk

    class Hanging(CheckpointDisk):
        """A disk whose next write waits until the network is back."""

        def __init__(self) -> None:
            self.reached = threading.Event()
            self.back = threading.Event()

        def write(self, file, content) -> None:  # type: ignore[no-untyped-def]
            self.reached.set()
            assert self.back.wait(60)
            super().write(file, content)

    job, model = Job(room, settings(room), parallelism=2), Model()
    job.drive(range(2), model)
    disk = Hanging()
    stuck = Job(room, job.settings, parallelism=2, disk=disk)
    rows = rows_of(2)
    mine = {part: [row for row in rows if job.owner(row) == part] for part in (0, 1)}
    told: dict[tuple[int, int], str] = {}
    problems: list[TidegateError] = []

    def work() -> None:
        try:
            told.update(stuck.do(2, 0, mine[0]))
        except TidegateError as problem:
            problems.append(problem)

    attempt = threading.Thread(target=work)
    attempt.start()
    assert disk.reached.wait(60)
    told |= job.do(2, 1, mine[1])
    assert not job.checkpoint_store.exists("e0/0/v2.head")
    disk.back.set()
    attempt.join(60)
    assert not problems
    assert told == model.take(rows)


def _can_mount(folder: Path) -> bool:
    with small_volume(folder) as volume:
        return bool(volume)


def _shell(line: str) -> int:
    """Run a line as the runbook has it."""
    return subprocess.run(["bash", "-c", line], check=False, capture_output=True).returncode


def test_no_procedure_leaves_anything_beside_the_copies(job: Job) -> None:
    """What is set aside is bounded: of a segment that is damaged again and again one is kept."""
    for batch in range(BATCHES, BATCHES + 2):
        job.stop()
        for table in job.segment(SEGMENT_MINUTES * (batch - BATCHES + 1)).glob("*.sst"):
            flip(table, 0.1)
        rows = [(key, at_us + batch) for key, at_us in rows_of(BATCHES - 1)]
        try:
            job.run(batch, rows)
        except StorageCorrupt:
            job.run(batch, rows)
    job.stop()
    aside = [path.name for path in job.copy().iterdir() if ".damaged." in path.name]
    assert len(aside) == len({name.split(".damaged.")[0] for name in aside})
    assert not (job.copy().parent / "mending").exists()
    shutil.rmtree(job.root / "local")
