"""The coordinator of backups: one at a time for each home, with its lease and its job.

A backup is made by two. The coordinator, where the engine is open, takes the snapshot; a packer, mostly
another process, writes the file. The lease is held for as long as both live: a packer that dies loses its
lock on the frozen copy, which the coordinator sees; a coordinator that dies no longer renews the lease, and
the next start removes its frozen copy.

Threads: any may call; one thread of the coordinator renews the lease while a backup is being made.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tidegate.catalog.audit import Actor
from tidegate.catalog.database import Catalog
from tidegate.catalog.jobs import ClaimedJob
from tidegate.catalog.leases import Lease
from tidegate.catalog.paging import PageRequest
from tidegate.errors import (
    BackupNotFound,
    InvariantBroken,
    LeaseHeld,
    LeaseLost,
    NotReady,
    TidegateError,
    Unavailable,
)
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.clock import Clock
from tidegate.storage.engine import Engine
from tidegate.storage.files import disk_error, is_full
from tidegate.storage.home.home import Home
from tidegate.storage.home.locks import is_flocked
from tidegate.upkeep.backup.home_snapshot import CATALOG_DUMP, CONTENT_FOLDER, freeze
from tidegate.upkeep.backup.pack import PACKING_LOCK, packed_fraction

JOB_KIND = "backup"
# A dead coordinator blocks others for this long; a renewal costs the catalog one small write.
LEASE_SECONDS = 30.0
RENEW_SECONDS = 5.0
# Time that a packer gets to begin once the snapshot is complete.
PACKER_WAIT_SECONDS = 20.0
DEAD_JOBS_MAX = 100  # read from the catalog at once; there is one for each coordinator that died

log = logging.getLogger(__name__)


class BackupObserver:
    """What is called once when a backup begins and once when it ends, by any thread. This does nothing."""

    def began(self) -> None:
        """A backup is being made."""

    def finished(self, took_seconds: float, size_bytes: int) -> None:
        """Its file is complete."""

    def failed(self) -> None:
        """There will be no file."""


@dataclass(frozen=True, slots=True)
class BackupStart:
    """A frozen home that waits for its packer."""

    id: str
    folder: Path
    job: str


@dataclass(slots=True)
class _ActiveBackup:
    """The backup that is being made; all fields but `ended` are guarded by the coordinator's lock."""

    id: str
    folder: Path
    lease: Lease
    claimed: ClaimedJob | None = None
    began_seconds: float = 0.0
    frozen_seconds: float | None = None
    packer_seen: bool = False
    ended: threading.Event = field(default_factory=threading.Event)


class BackupCoordinator:
    """Makes the backups of one home, where its engine and its catalog are open."""

    def __init__(
        self,
        home: Home,
        engine: Engine,
        catalog: Catalog,
        clock: Clock,
        observer: BackupObserver | None = None,
        flush_streams: Callable[[], object] = lambda: None,
    ) -> None:
        """`flush_streams` writes what streams buffer in memory to their files; it may block."""
        self._home = home
        self._engine = engine
        self._catalog = catalog
        self._clock = clock
        self._observer = observer or BackupObserver()
        self._flush_streams = flush_streams
        self._name = f"{JOB_KIND}/{home.home_id}"
        # One run of one program: process ids are used again.
        self._holder = f"{home.home_id}:{os.getpid()}:{clock.now_us()}"
        self._lock = threading.RLock()
        self._active: _ActiveBackup | None = None
        self._closed = False

    def start(self, actor: Actor) -> BackupStart:
        """Take the snapshot; raise LeaseHeld while another backup of the home is being made."""
        active = self._begin()
        try:
            self._fail_dead_jobs()
            active.folder.mkdir(mode=0o700)
            self._catalog.dump(_make_folder(active.folder / CONTENT_FOLDER / CATALOG_DUMP))
            # Made after the dump: a restored catalog must not have a backup that never ends.
            job = self._catalog.jobs.create(
                actor, DEFAULT_TENANT, JOB_KIND, self._name, {"backup": active.id}
            )
            active.claimed = self._catalog.jobs.claim(job.id, self._holder, LEASE_SECONDS)
            freeze(
                self._home,
                self._engine,
                active.folder,
                self._clock,
                flush_streams=self._flush_streams,
            )
            with self._lock:
                active.frozen_seconds = self._clock.monotonic_seconds()
            return BackupStart(active.id, active.folder, job.id)
        except TidegateError as error:
            self._end(active, error)
            raise
        except OSError as problem:
            failure = self._disk_error(problem)
            self._end(active, failure)
            raise failure from problem
        except BaseException:
            self._end(active, InvariantBroken(reason="the freeze was cut off"))
            raise

    def finish(self, backup: str, file: str, size_bytes: int) -> str:
        """Note that the file is complete, remove the frozen copy, and return the job's id."""
        active = self._find(backup)
        with self._lock:
            if active.claimed is None:
                raise BackupNotFound(backup=backup)
            self._catalog.jobs.finish(active.claimed, {"file": file, "bytes": size_bytes})
            job = str(active.claimed.job.id)
            active.claimed = None
            # Under the same lock as the job's end: nobody gives up a backup that is finished.
            self._deactivate(active)
        self._observer.finished(self._clock.monotonic_seconds() - active.began_seconds, size_bytes)
        self._end(active, None)
        return job

    def check(self, backup: str) -> None:
        """Raise BackupNotFound for a backup that is not being made."""
        self._find(backup)

    def give_up(self, backup: str, reason: str) -> None:
        """Remove the frozen copy of a backup that will not be finished."""
        self._end(self._find(backup), Unavailable(reason=reason))

    def close(self) -> None:
        """Make no more backups. A running packer keeps its copy and may finish its file."""
        with self._lock:
            self._closed = True
            active = self._active
        if active is not None:
            self._end(active, NotReady(reason="it stopped before the file was finished"))

    def _begin(self) -> _ActiveBackup:
        with self._lock:
            if self._closed:
                raise NotReady(reason="it is stopping")
            if self._active is not None:
                raise LeaseHeld(holder=self._holder, lease=self._name)
            lease = self._catalog.leases.take(self._name, self._holder, LEASE_SECONDS)
            stamp = datetime.fromtimestamp(self._clock.now_us() / 1_000_000, UTC)
            name = stamp.strftime("%Y%m%dT%H%M%S%fZ")
            _make_folder(self._home.backups_path)
            active = _ActiveBackup(name, self._home.backups_path / name, lease)
            active.began_seconds = self._clock.monotonic_seconds()
            self._active = active
            self._observer.began()
        threading.Thread(target=self._watch, args=(active,), name="tidegate-backup", daemon=True).start()
        return active

    def _find(self, backup: str) -> _ActiveBackup:
        with self._lock:
            if self._active is None or self._active.id != backup:
                raise BackupNotFound(backup=backup[:80])
            return self._active

    def _watch(self, active: _ActiveBackup) -> None:
        """Renew the lease and the job's progress, until the backup ends or its packer is gone."""
        while not active.ended.wait(RENEW_SECONDS):
            try:
                self._renew(active)
                if self._is_packer_gone(active):
                    self.give_up(active.id, "the program that packed it ended before the file was finished")
            except LeaseLost as error:
                log.warning("backup lost its lease backup=%s error=%s", active.id, error)
                self._end(active, error)
            except BackupNotFound:
                return  # it ended meanwhile
            except TidegateError as error:
                log.warning("backup lease not renewed, will try again backup=%s error=%s", active.id, error)

    def _renew(self, active: _ActiveBackup) -> None:
        with self._lock:
            if active.ended.is_set():
                return
            active.lease = self._catalog.leases.renew(active.lease)
            if active.claimed is not None:
                active.claimed = self._catalog.jobs.progress(active.claimed, packed_fraction(active.folder))

    def _is_packer_gone(self, active: _ActiveBackup) -> bool:
        if active.frozen_seconds is None:
            return False
        if is_flocked(active.folder / PACKING_LOCK):
            active.packer_seen = True
            return False
        waited_seconds = self._clock.monotonic_seconds() - active.frozen_seconds
        return active.packer_seen or waited_seconds > PACKER_WAIT_SECONDS

    def _end(self, active: _ActiveBackup, error: TidegateError | None) -> None:
        """Release everything; the job fails with the error, unless it has ended before."""
        with self._lock:
            is_first = self._deactivate(active)
            claimed, active.claimed = active.claimed, None
        if is_first:
            self._observer.failed()
        try:
            if claimed is not None and error is not None:
                self._catalog.jobs.fail(claimed, error.to_wire()["error"])
            self._catalog.leases.release(active.lease)
        except TidegateError as problem:  # both end by themselves in half a minute
            log.warning("backup lease not released backup=%s error=%s", active.id, problem)
        if error is None or not is_flocked(active.folder / PACKING_LOCK):
            remove_frozen(active.folder)

    def _deactivate(self, active: _ActiveBackup) -> bool:
        """Let the next backup begin; True if this one had not ended before. The caller holds the lock."""
        is_first = not active.ended.is_set()
        active.ended.set()
        if self._active is active:
            self._active = None
        return is_first

    def _fail_dead_jobs(self) -> None:
        """End the jobs of coordinators that died: we hold the lease, so no other backup is being made."""
        page = PageRequest(None, DEAD_JOBS_MAX)
        for job in self._catalog.jobs.list(DEFAULT_TENANT, page, kind=JOB_KIND, state="running").rows:
            if job.subject != self._name:
                continue
            claimed = self._catalog.jobs.claim(job.id, self._holder, LEASE_SECONDS)
            if claimed is not None:
                reason = "the server ended before the file was finished"
                self._catalog.jobs.fail(claimed, Unavailable(reason=reason).to_wire()["error"])

    def _disk_error(self, problem: OSError) -> TidegateError:
        place = self._home.path if is_full(problem) else Path(problem.filename or self._home.path)
        return disk_error(place, problem, hint="Try again.")


def remove_frozen(folder: Path) -> None:
    """Remove a frozen copy; what cannot be removed now is removed at the next start of the server."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as problem:
        log.warning("frozen copy not removed folder=%s error=%s", folder, problem)


def remove_stale_backups(home: Home) -> int:
    """Remove the frozen copies of dead backups and return how many; called at the start, under its lock.

    A copy that a packer is still reading stays: the packer needs no server to finish its file.
    """
    count = 0
    if home.backups_path.is_dir():
        for folder in sorted(home.backups_path.iterdir()):
            if folder.is_dir() and not is_flocked(folder / PACKING_LOCK):
                remove_frozen(folder)
                count += 1
    return count


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
