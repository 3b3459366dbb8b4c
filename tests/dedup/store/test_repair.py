"""A segment is the unit of repair: one that is lost or damaged is made again alone, the others stay.

Case 23: a damaged segment is restored alone.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.batches import open_new
from tests.dedup.store.copies import MINUTE_US, OPERATOR, Job, Model, flip, marks, rows_of, settings
from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.snapshot import read_manifest, snapshot_batches
from tidegate.dedup.settings import SegmentSettings
from tidegate.dedup.store.store import SegmentStore, SegmentStoreFactory
from tidegate.errors import StorageCorrupt, StorageFull
from tidegate.model.clock import SystemClock

BATCHES = 7  # snapshots after batches 1, 3 and 5, of which the two newest are kept
LOST_MINUTES = 20  # the segment that holds minutes 20 to 30
LOST = f"{OPERATOR}.{LOST_MINUTES * 60_000}"


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def job(room: Path, model: Model) -> Job:
    """A job that was stopped after some batches."""
    job = Job(room, settings(room))
    job.drive(range(BATCHES), model)
    job.stop()
    job.reports.clear()
    return job


def others(job: Job) -> dict[str, tuple[int, int]]:
    """The folders and the filters of the segments that are not lost; RocksDB may merge their tables."""
    copy = job.copy()
    folders = {part.name: (part.stat().st_ino, 0) for part in copy.glob("orders.*") if part.is_dir()}
    filters = {name: mark for name, mark in marks(copy).items() if name.endswith(".bloom")}
    return {name: mark for name, mark in (folders | filters).items() if not name.startswith(LOST)}


def goes_on(job: Job, model: Model) -> None:
    """All that counts is stored, and the batches that follow are decided right, from any copy."""
    assert job.stored(BATCHES) == model.counted()
    job.drive(range(BATCHES, BATCHES + 3), model)
    job.lose_copies()
    assert job.stored(BATCHES + 3) == model.counted()
    assert job.reports[-1].damaged == ()


def test_a_segment_whose_folder_is_gone_is_made_again_and_the_others_are_not_touched(
    job: Job, model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    assert job.segment(LOST_MINUTES).is_dir()
    shutil.rmtree(job.segment(LOST_MINUTES))
    before = others(job)
    assert len(before) > 2
    with caplog.at_level(logging.WARNING):
        assert job.stored(BATCHES) == model.counted()
    (report,) = job.reports
    assert (report.source, report.from_batch) == ("local", BATCHES - 1)
    assert [(part.name, part.from_batch, part.changelog_files) for part in report.parts] == [(LOST, 5, 1)]
    assert any(LOST in message for message in caplog.messages)
    job.stop()
    assert others(job) == before
    goes_on(job, model)


def test_the_head_of_the_next_batch_says_what_was_mended(job: Job, model: Model) -> None:
    shutil.rmtree(job.segment(LOST_MINUTES))
    job.drive([BATCHES], model)
    assert any(LOST in line for line in job.head(BATCHES).damaged)
    job.drive([BATCHES + 1], model)
    assert job.head(BATCHES + 1).damaged == ()


def test_damage_that_a_lookup_finds_costs_one_attempt_and_one_segment(job: Job, model: Model) -> None:
    for table in job.segment(LOST_MINUTES).glob("*.sst"):
        flip(table, 0.1)
    before = others(job)
    # Keys of that segment come again, so that it is read.
    again = [(key, at_us + 1) for key, at_us in rows_of(BATCHES - 1) if at_us // MINUTE_US >= LOST_MINUTES]
    with pytest.raises(StorageCorrupt):
        job.do(BATCHES, 0, again)
    assert not job.checkpoint_store.exists(f"e0/0/v{BATCHES}.head")
    assert job.run(BATCHES, again) == model.take(again)
    assert [part.name for part in job.reports[-1].parts] == [LOST]
    job.stop()
    kept = others(job)
    assert {name: kept.get(name) for name in before} == before
    job.drive(range(BATCHES + 1, BATCHES + 3), model)
    assert job.stored(BATCHES + 3) == model.counted()


def test_an_older_snapshot_serves_when_the_newest_has_the_segment_damaged(job: Job, model: Model) -> None:
    newest, older = _snapshots(job)
    manifest = read_manifest(job.checkpoint_store, 0, 0, newest)
    assert manifest is not None
    own = [file for file in manifest.files if file.name.startswith(f"{LOST}/") and file.size_bytes]
    old = read_manifest(job.checkpoint_store, 0, 0, older)
    assert old is not None
    shared = {file.stored for file in old.files}
    damaged = next(file for file in own if file.stored not in shared)
    flip(job.checkpoint_store.path(f"e0/0/{damaged.stored}"))
    shutil.rmtree(job.segment(LOST_MINUTES))
    assert job.stored(BATCHES) == model.counted()
    (report,) = job.reports
    assert [(part.name, part.from_batch) for part in report.parts] == [(LOST, older)]
    assert any(damaged.stored in line for line in report.damaged)
    # Nothing shares the damaged file any more: the next snapshot is whole.
    goes_on(job, model)


def test_a_segment_that_began_after_the_snapshot_is_made_from_change_files(room: Path) -> None:
    job, model = Job(room, settings(room, snapshot_every_batches=100)), Model()
    job.drive(range(3), model)
    job.stop()
    shutil.rmtree(job.segment(0))
    job.reports.clear()
    assert job.stored(3) == model.counted()
    (report,) = job.reports
    assert [(part.from_batch, part.changelog_files, part.size_bytes) for part in report.parts] == [(-1, 3, 0)]


def test_without_its_change_file_a_segment_is_refused_by_name_and_nothing_is_lost(
    job: Job, model: Model
) -> None:
    changes = job.checkpoint_store.path(f"e0/0/{job.head(BATCHES - 1).changes.file}")
    whole = changes.read_bytes()
    flip(changes)
    shutil.rmtree(job.segment(LOST_MINUTES))
    with pytest.raises(StorageCorrupt, match=changes.name):
        job.stored(BATCHES)
    changes.write_bytes(whole)
    goes_on(job, model)


class _Full(SegmentStore):
    """A store whose disk is full when a part is to be caught up."""

    def apply_to_part(self, part: str, changes: StateChanges, version: Version) -> None:  # noqa: ARG002
        raise StorageFull(path=str(self.folder), free_bytes=0)


class _FullFactory(SegmentStoreFactory):
    """Opens such a store."""

    def open(self, folder: Path, ticks_ns: Callable[[], int]) -> SegmentStore:
        return _Full(folder, self.settings, self.options, ticks_ns=ticks_ns)


def test_a_repair_that_is_cut_off_is_done_again(job: Job, model: Model) -> None:
    shutil.rmtree(job.segment(LOST_MINUTES))
    usual, job.settings = (
        job.settings,
        StateSettings(backend=_FullFactory(_segments(job)), local_root=job.settings.local_root),
    )
    with pytest.raises(StorageFull):
        job.stored(BATCHES)
    job.stop()
    job.settings = usual
    assert job.stored(BATCHES) == model.counted()
    assert [part.name for part in job.reports[-1].parts] == [LOST]
    goes_on(job, model)


def test_no_snapshot_is_taken_of_a_copy_that_lacks_a_segment(job: Job) -> None:
    shutil.rmtree(job.segment(LOST_MINUTES))
    store = SegmentStore(job.copy(), _segments(job))
    try:
        assert store.missing_parts() == [LOST]
        with pytest.raises(StorageCorrupt):
            store.snapshot(job.root / "snapshot")
    finally:
        store.close()
    # Opening and closing it did not make it forget.
    store = SegmentStore(job.copy(), _segments(job))
    assert store.missing_parts() == [LOST]
    store.close()


def test_several_segments_at_once_are_made_again(job: Job, model: Model) -> None:
    with open_new(job.asked(BATCHES), job.settings, SystemClock()) as opened:
        assert isinstance(opened.backend, SegmentStore)
        live = [segment.start_ms for segment in opened.backend.segments()]
    job.stop()
    assert len(live) > 1
    for start_ms in live:
        shutil.rmtree(job.copy() / f"{OPERATOR}.{start_ms}")
    assert job.stored(BATCHES) == model.counted()
    assert len(job.reports[-1].parts) == len(live)
    goes_on(job, model)


def _snapshots(job: Job) -> list[int]:
    return snapshot_batches(job.checkpoint_store, 0, 0)[::-1][:2]


def _segments(job: Job) -> SegmentSettings:
    factory = job.settings.backend
    assert isinstance(factory, SegmentStoreFactory)
    return factory.settings
