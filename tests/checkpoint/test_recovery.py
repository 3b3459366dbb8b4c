"""Restoring: warm where the copy is current, else only what is missing; damage is gone round and named."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.checkpoint.batches import OPERATOR, Job, expected, open_new, settings
from tidegate.checkpoint.backend import StateChanges, Version
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.commit_record import read_commit_record
from tidegate.checkpoint.epochs import INITIAL_COMMIT_ID
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.recovery import RestoreReport, apply_parts
from tidegate.checkpoint.store import CheckpointStore, operator_store
from tidegate.errors import StateMismatch, StorageCorrupt
from tidegate.model.clock import SystemClock

BATCHES = 7  # snapshots after batches 1, 3 and 5; the two newest are kept

Damage = Callable[[Path], None]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x04
    path.write_bytes(content)


def lose(path: Path) -> None:
    path.unlink()


damages = pytest.mark.parametrize("damage", [cut, flip, lose])


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    yield
    pool().close()


@pytest.fixture(scope="module", params=["heap", "rocksdb"])
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job that was stopped after some batches; nothing is open."""
    root = tmp_path_factory.mktemp("stopped")
    job = Job(root, settings(root, backend=request.param))
    job.drive(BATCHES)
    pool().close()
    return job


@pytest.fixture
def job(stopped: Job, tmp_path: Path) -> Job:
    """That job at another place, with all its files; its copies lie where that place has them."""
    shutil.copytree(stopped.root, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("wanted"))
    job = Job(tmp_path, settings(tmp_path, backend=stopped.settings.backend))
    place, old = job.settings.local_directory(SystemClock()), next((tmp_path / "local").glob("*"))
    old.rename(place.folder(store_of(job), 0, 0).parents[2])
    return job


def store_of(job: Job) -> CheckpointStore:
    return operator_store(str(job.root / "checkpoint"), OPERATOR)


def folder(job: Job) -> Path:
    return job.root / "checkpoint" / "state" / OPERATOR / "e0" / "0"


def local_folder(job: Job) -> Path:
    return next((job.root / "local").glob("*/*/e0/0"))


def copy_files(job: Job) -> Path:
    (found,) = local_folder(job).glob(f"db-{job.settings.backend.kind}.*")
    return found


def only(job: Job, pattern: str) -> Path:
    (found,) = folder(job).glob(pattern)
    return found


def lose_copies(job: Job) -> None:
    pool().close()
    shutil.rmtree(job.root / "local")


def report(job: Job, batch: int = BATCHES) -> RestoreReport:
    with open_new(job.request(batch), job.settings, SystemClock()) as opened:
        assert opened.report is not None
        return opened.report


def goes_on(job: Job) -> None:
    """The state is right, the batches that follow give what they should, and their snapshots are whole."""
    assert job.counts(BATCHES) == expected(BATCHES)[1]
    job.drive(BATCHES + 3)
    assert (job.sunk(), job.counts(BATCHES + 3)) == expected(BATCHES + 3)
    lose_copies(job)
    cold = report(job, BATCHES + 3)
    assert (cold.source, cold.damaged) == ("snapshot", ())
    assert cold.from_batch >= BATCHES


def test_a_current_copy_is_used_as_it_is(job: Job) -> None:
    """Case 13: warm where the local copy is current."""
    found = report(job)
    assert (found.source, found.from_batch, found.changelog_files, found.damaged) == (
        "local",
        BATCHES - 1,
        0,
        (),
    )
    goes_on(job)


def test_a_copy_that_is_behind_reads_only_what_is_missing(job: Job) -> None:
    """Case 13: the copy of a host that saw two batches less."""
    pool().close()
    shutil.copytree(local_folder(job), job.root / "old", ignore=shutil.ignore_patterns("wanted"))
    job.drive(BATCHES + 2)
    pool().close()
    kept = local_folder(job)
    shutil.rmtree(kept)
    (job.root / "old").rename(kept)
    found = report(job, BATCHES + 2)
    assert (found.source, found.from_batch, found.changelog_files) == ("local", BATCHES - 1, 2)
    assert job.counts(BATCHES + 2) == expected(BATCHES + 2)[1]


def test_a_copy_older_than_the_log_is_made_anew_without_an_alarm(job: Job) -> None:
    for path in folder(job).glob("v[45].*"):
        path.unlink()
    only(job, "3.snapshot").unlink()
    lose_copies(job)
    assert report(job).source == "snapshot"
    pool().close()
    backend = job.settings.local_directory(SystemClock()).open_backend(copy_files(job))
    commit = read_commit_record(store_of(job), 0, 0, 3)
    assert commit is not None
    backend.apply(StateChanges(), Version(0, 3, commit.commit_id))
    backend.close()
    found = report(job)
    assert (found.source, found.damaged) == ("snapshot", ())


def test_without_a_copy_the_newest_snapshot_and_the_change_files_since_are_read(job: Job) -> None:
    lose_copies(job)
    found = report(job)
    assert (found.source, found.from_batch, found.changelog_files) == ("snapshot", 5, 1)
    assert found.snapshot_bytes > 0
    goes_on(job)


@pytest.mark.parametrize(
    "version", [Version(0, BATCHES - 1, "another head"), Version(0, 99, "ahead"), Version(1, 3, "epoch")]
)
def test_a_copy_of_another_run_is_made_anew(job: Job, version: Version) -> None:
    """Case 8: ahead, of another epoch or with another head's id: not to be trusted."""
    backend = job.settings.local_directory(SystemClock()).open_backend(copy_files(job))
    backend.apply(StateChanges(entries={b"\x00\x00": b"99"}), version)
    backend.close()
    assert report(job).source == "snapshot"
    goes_on(job)


def test_a_copy_that_took_part_of_a_batch_is_made_anew(job: Job) -> None:
    backend = job.settings.local_directory(SystemClock()).open_backend(copy_files(job))
    backend.write_partly(StateChanges(entries={b"\x00\x00": b"99"}))
    backend.close()
    assert report(job).source == "snapshot"
    goes_on(job)


def test_a_damaged_copy_is_made_anew(job: Job) -> None:
    files = copy_files(job)
    for path in files.iterdir():
        if path.is_file() and path.stat().st_size > 10 and path.name != "LOCK":
            cut(path)
    assert report(job).source == "snapshot"
    goes_on(job)


@damages
def test_a_damaged_manifest_is_gone_round_and_named(
    job: Job, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 12: damaged newest snapshot: the one before it plus the change files, and it says so."""
    lose_copies(job)
    damage(only(job, "5.snapshot"))
    with caplog.at_level(logging.INFO):
        found = report(job)
    assert (found.source, found.from_batch, found.changelog_files) == ("snapshot", 3, 3)
    if damage is not lose:
        assert "5.snapshot" in found.damaged[0]
        assert "5.snapshot" in "\n".join(caplog.messages)
    assert any("store restored source=snapshot" in message for message in caplog.messages)
    goes_on(job)


@damages
def test_a_damaged_file_of_the_newest_snapshot_is_gone_round_and_named(
    job: Job, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 12: damaged newest snapshot: the one before it plus the change files, and it says so."""
    lose_copies(job)
    largest = max(folder(job).glob("sst/5.*"), key=lambda path: path.stat().st_size)
    damage(largest)
    with caplog.at_level(logging.WARNING):
        found = report(job)
    assert (found.source, found.from_batch, found.changelog_files) == ("snapshot", 3, 3)
    assert largest.name in found.damaged[0]
    assert largest.name in "\n".join(caplog.messages)
    goes_on(job)


def test_the_next_head_says_what_the_restore_before_it_went_round(job: Job) -> None:
    lose_copies(job)
    cut(only(job, "5.snapshot"))
    job.do(BATCHES)
    commit = read_commit_record(store_of(job), 0, 0, BATCHES)
    assert commit is not None
    assert "5.snapshot" in commit.damaged[0]


@damages
def test_a_damaged_change_file_before_a_snapshot_is_not_needed(job: Job, damage: Damage) -> None:
    lose_copies(job)
    damage(only(job, "v5.*.changes"))
    found = report(job)
    assert (found.source, found.from_batch, found.damaged) == ("snapshot", 5, ())
    goes_on(job)


@damages
def test_a_damaged_change_file_that_the_copy_has_taken_is_not_needed(job: Job, damage: Damage) -> None:
    damage(only(job, "v6.*.changes"))
    assert report(job).source == "local"
    goes_on(job)


@damages
def test_a_change_file_without_a_way_round_is_named(job: Job, damage: Damage) -> None:
    lose_copies(job)
    path = only(job, "v6.*.changes")
    damage(path)
    with pytest.raises(StorageCorrupt, match=path.name):
        report(job)


@damages
def test_a_copy_that_is_behind_a_damaged_change_file_goes_by_a_later_snapshot(
    job: Job, damage: Damage
) -> None:
    lose_copies(job)
    hidden = [only(job, name) for name in ("5.snapshot", "v6.head", "v5.head", "v4.head")]
    for path in hidden:
        path.rename(path.with_name(f"hidden.{path.name}"))
    assert report(job, 4).from_batch == 3
    pool().close()
    for path in hidden:
        path.with_name(f"hidden.{path.name}").rename(path)
    damaged = only(job, "v5.*.changes")
    damage(damaged)
    found = report(job)
    assert (found.source, found.from_batch) == ("snapshot", 5)
    assert damaged.name in found.damaged[0]
    goes_on(job)


@pytest.mark.parametrize("damage", [cut, flip])
def test_a_damaged_newest_head_is_named(job: Job, damage: Damage) -> None:
    path = only(job, "v6.head")
    damage(path)
    with pytest.raises(StorageCorrupt, match=str(path)):
        report(job)
    with pytest.raises(StorageCorrupt, match=str(path)):
        job.do(BATCHES - 1)


@damages
def test_damaged_output_is_named_and_not_given_out(job: Job, damage: Damage) -> None:
    path = only(job, "v6.*.out")
    damage(path)
    with pytest.raises(StorageCorrupt, match=path.name):
        job.do(BATCHES - 1)


def test_another_backend_than_that_of_the_snapshots_is_refused(job: Job) -> None:
    lose_copies(job)
    other = "heap" if job.settings.backend.kind == "rocksdb" else "rocksdb"
    job.settings = settings(job.root, backend=other)
    with pytest.raises(StateMismatch, match=f"not by {other}"):
        report(job)


def test_a_copy_found_damaged_while_it_is_read_is_made_anew_by_the_next_attempt(job: Job) -> None:
    with (
        pytest.raises(StorageCorrupt),
        open_batch(job.request(BATCHES), job.settings, SystemClock()),
    ):
        raise StorageCorrupt(place="a block", reason="as a read finds it")
    assert report(job).source == "snapshot"
    goes_on(job)


def test_a_copy_at_the_beginning_of_another_checkpoint_is_made_anew(tmp_path: Path) -> None:
    """A checkpoint that was removed and begun anew under the same path begins with nothing."""
    job = Job(tmp_path, settings(tmp_path))
    with open_new(job.request(0), job.settings, SystemClock()) as opened:
        opened.backend.apply(StateChanges(entries={b"\x00\x00": b"99"}), Version(0, -1, INITIAL_COMMIT_ID))
    pool().close()
    assert report(job, 0).source == "local"
    pool().close()
    shutil.rmtree(job.root / "checkpoint")
    with open_new(job.request(0), job.settings, SystemClock()) as opened:
        assert opened.backend.get(b"\x00\x00") is None
        assert opened.report is not None
        assert opened.report.source == "initial"


def test_a_copy_has_a_version_after_the_last_part_of_a_batch_alone(tmp_path: Path) -> None:
    backend = settings(tmp_path).local_directory(SystemClock()).open_backend(tmp_path / "copy")
    backend.apply(StateChanges(), Version(0, 0, "first"))
    seen = []

    def parts() -> Iterator[StateChanges]:
        for number in range(3):
            yield StateChanges(entries={b"\x00\x00%d" % number: b"1"})
            seen.append(backend.version())

    apply_parts(backend, parts(), Version(0, 1, "second"))
    assert seen == [Version(0, 0, "first"), None, None]
    assert backend.version() == Version(0, 1, "second")
    backend.close()
