"""The coordinator: one backup at a time, with a job that tells, and nothing left of makers that died."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.upkeep.backup.homes import (
    ACTOR,
    make_home,
    no_report,
    open_coordinator,
    opened_catalog,
    opened_topics,
)
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.paging import PageRequest
from tidegate.errors import BackupNotFound, LeaseHeld, NotReady, StorageFailed
from tidegate.model.clock import SystemClock
from tidegate.storage.home.home import Home
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.testing.clock import ManualClock
from tidegate.upkeep.backup import coordinator as coordinators
from tidegate.upkeep.backup.coordinator import (
    JOB_KIND,
    LEASE_SECONDS,
    BackupCoordinator,
    BackupObserver,
    remove_stale_backups,
)
from tidegate.upkeep.backup.pack import pack, packing


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = make_home(tmp_path / "home")
    with opened_topics(made.engine_path) as topics:
        topics.publish(20)
    return made


@contextmanager
def _desk(home: Home) -> Iterator[tuple[BackupCoordinator, Catalog]]:
    engine = RocksEngine(home.engine_path)
    try:
        with open_coordinator(home, engine) as opened:
            yield opened
    finally:
        engine.close()


def _only_job(catalog: Catalog) -> tuple[str, str]:
    (job,) = catalog.jobs.list("default", PageRequest(), kind=JOB_KIND).rows
    return job.id, job.state


def test_a_backup_is_a_job_with_a_history_and_leaves_no_copy(home: Home, tmp_path: Path) -> None:
    with _desk(home) as (coordinator, catalog):
        started = coordinator.start(ACTOR)
        assert _only_job(catalog) == (started.job, "running")
        with packing(started.folder) as tell:
            made = pack(
                started.folder, tmp_path / "b.tar", tidegate_version="0", force=False, report=no_report
            )
            tell(1.0)
            assert coordinator.finish(started.id, str(tmp_path / "b.tar"), made.size_bytes) == started.job
        job = catalog.jobs.get("default", started.job)
        assert (job.state, job.created_by) == ("done", "admin")
        assert job.result == {"file": str(tmp_path / "b.tar"), "bytes": made.size_bytes}
        states = [event.state for event in job.history]
        assert (states[0], states[-1]) == ("queued", "done")
    assert list(home.backups_path.iterdir()) == []


def test_a_second_backup_is_refused_until_the_first_ends(home: Home) -> None:
    with _desk(home) as (coordinator, catalog):
        first = coordinator.start(ACTOR)
        with pytest.raises(LeaseHeld):
            coordinator.start(ACTOR)
        other = BackupCoordinator(home, RocksEngineNever(), catalog, SystemClock())
        with pytest.raises(LeaseHeld):  # of another process on the same home
            other.start(ACTOR)
        coordinator.give_up(first.id, "enough")
        second = coordinator.start(ACTOR)
        assert second.id != first.id
        job = catalog.jobs.get("default", first.job)
        assert job.state == "failed"
        assert job.error is not None
        assert "enough" in job.error["message"]


class RocksEngineNever(RocksEngine):
    """An engine that must not be asked."""

    def __init__(self) -> None:
        """Open nothing."""

    def sync(self) -> None:
        raise AssertionError("the engine was asked")


class RocksEngineBroken(RocksEngineNever):
    """An engine whose disk fails."""

    def sync(self) -> None:
        raise StorageFailed(path="engine", reason="the disk said no")


def test_a_freeze_that_fails_leaves_nothing_and_frees_the_lease(home: Home) -> None:
    with opened_catalog(home) as catalog:
        coordinator = BackupCoordinator(home, RocksEngineBroken(), catalog, SystemClock())
        for _ in range(2):
            with pytest.raises(StorageFailed):
                coordinator.start(ACTOR)
            assert list(home.backups_path.iterdir()) == []
        assert {job.state for job in catalog.jobs.list("default", PageRequest(), kind=JOB_KIND).rows} == {
            "failed"
        }


class Ledger(BackupObserver):
    """Writes down what the coordinator tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def began(self) -> None:
        self.told.append("began")

    def finished(self, took_seconds: float, size_bytes: int) -> None:
        self.told.append(f"finished {size_bytes} {took_seconds >= 0}")

    def failed(self) -> None:
        self.told.append("failed")


def test_every_backup_is_told_of_once_when_it_begins_and_once_when_it_ends(home: Home) -> None:
    ledger, engine = Ledger(), RocksEngine(home.engine_path)
    try:
        with opened_catalog(home) as catalog:
            coordinator = BackupCoordinator(home, engine, catalog, SystemClock(), ledger)
            started = coordinator.start(ACTOR)
            with pytest.raises(LeaseHeld):
                coordinator.start(ACTOR)
            coordinator.finish(started.id, "b.tar", 7)
            coordinator.give_up(coordinator.start(ACTOR).id, "enough")
            coordinator.start(ACTOR)
            coordinator.close()
            coordinator.close()
            broken = BackupCoordinator(home, RocksEngineBroken(), catalog, SystemClock(), ledger)
            with pytest.raises(StorageFailed):
                broken.start(ACTOR)
    finally:
        engine.close()
    assert ledger.told == ["began", "finished 7 True", *["began", "failed"] * 3]


def test_what_nobody_knows_is_not_found(home: Home) -> None:
    with _desk(home) as (coordinator, _):
        with pytest.raises(BackupNotFound):
            coordinator.finish("20260101T000000Z", "x", 1)
        with pytest.raises(BackupNotFound):
            coordinator.give_up("20260101T000000Z", "x")
        with pytest.raises(BackupNotFound):
            coordinator.check("20260101T000000Z")
        started = coordinator.start(ACTOR)
        coordinator.check(started.id)


def test_a_packer_that_dies_is_noticed_and_its_backup_ends(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinators, "RENEW_SECONDS", 0.05)
    waited = threading.Event()
    with _desk(home) as (coordinator, catalog):
        started = coordinator.start(ACTOR)
        with packing(started.folder) as tell:
            # When the second is told, the coordinator has looked for the packer since the first was.
            for part in (0.5, 0.6, 0.7):
                tell(part)
                while (job := catalog.jobs.get("default", started.job)).progress != part:
                    assert job.state == "running", "it was taken from a packer that lives"
                    waited.wait(0.05)
                monkeypatch.setattr(
                    coordinators, "PACKER_WAIT_SECONDS", 0.0
                )  # all that a packer gets to begin
            assert started.folder.exists(), "it was taken from a packer that lives"
        while started.folder.exists():
            waited.wait(0.05)
        assert catalog.jobs.get("default", started.job).state == "failed"
        coordinator.start(ACTOR)


def test_after_a_desk_died_the_next_one_waits_for_the_lease_and_ends_its_job(home: Home) -> None:
    clock = ManualClock()
    place = DatabaseAddress(f"sqlite:///{home.catalog_path}")
    catalog = Catalog.open(place, clock, random_bytes=secrets.token_bytes)
    engine = RocksEngine(home.engine_path)
    try:
        dead = BackupCoordinator(home, engine, catalog, clock)
        left = dead.start(ACTOR)
        after = BackupCoordinator(home, engine, catalog, clock)
        with pytest.raises(LeaseHeld):
            after.start(ACTOR)
        clock.advance(LEASE_SECONDS + 1)
        assert remove_stale_backups(home) == 1
        after.start(ACTOR)
        assert catalog.jobs.get("default", left.job).state == "failed"
        after.close()
        dead.close()
    finally:
        engine.close()
        catalog.close()


def test_a_copy_that_is_being_packed_outlives_its_server(home: Home, tmp_path: Path) -> None:
    with _desk(home) as (coordinator, _):
        started = coordinator.start(ACTOR)
        with packing(started.folder):
            coordinator.close()
            assert remove_stale_backups(home) == 0
            pack(started.folder, tmp_path / "b.tar", tidegate_version="0", force=False, report=no_report)
        assert remove_stale_backups(home) == 1
        with pytest.raises(NotReady):
            coordinator.start(ACTOR)


def test_a_restored_catalog_knows_of_no_running_backup(home: Home) -> None:
    with _desk(home) as (coordinator, _):
        started = coordinator.start(ACTOR)
        assert (started.folder / "content" / "catalog" / "dump" / "jobs.jsonl").read_bytes() == b""
