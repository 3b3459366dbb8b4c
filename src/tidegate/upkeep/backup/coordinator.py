"""The desk: takes requests for backups, gives one at a time, keeps its lease and its job until it ends.

A backup has two makers. The desk, where the engine is open, freezes; a packer, mostly another process, writes
the file. The lease is kept for as long as both live: a packer that dies gives up its lock on the frozen copy
and is noticed, a desk that dies no longer renews the lease, and its frozen copy goes at the next start.

Threads: any may call; one thread of the desk's own renews while a backup is being made.
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
from typing import Protocol

from tidegate.catalog.audit import Actor
from tidegate.catalog.database import Catalog
from tidegate.catalog.jobs import ClaimedJob
from tidegate.catalog.leases import Lease
from tidegate.catalog.paging import Page
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
# A dead desk holds others up for this long; a renewal costs the catalog one small write.
LEASE_SECONDS = 30.0
RENEW_SECONDS = 5.0
# Time that a packer gets to begin once the copy is frozen.
PACKER_WAIT_SECONDS = 20.0
JOBS_LOOKED_AT_MAX = 100

log = logging.getLogger(__name__)


class BackupObserver(Protocol):
    """Who is told of backups: of each once that it began, and once how it ended. Any thread."""

    def began(self) -> None:
        """A backup is being made."""

    def finished(self, took_seconds: float, size_bytes: int) -> None:
        """Its file is complete."""

    def failed(self) -> None:
        """There will be no file."""


class _NoObserver:
    """Who is told where nobody wants to know."""

    def began(self) -> None:
        return None

    def finished(self, took_seconds: float, size_bytes: int) -> None:  # noqa: ARG002
        return None

    def failed(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class BackupStart:
    """A frozen home that waits for its packer."""

    id: str
    folder: Path
    job: str


@dataclass(slots=True)
class _ActiveBackup:
    """The backup that is being made; the fields below `id` belong to whoever holds the desk's turn."""

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
        notice: BackupObserver | None = None,
        flush_streams: Callable[[], object] = lambda: None,
    ) -> None:
        """`flush_streams` brings what streams gather in memory to their files; it may block."""
        self._home = home
        self._engine = engine
        self._catalog = catalog
        self._clock = clock
        self._notice: BackupObserver = notice or _NoObserver()
        self._flush_streams = flush_streams
        self._name = f"{JOB_KIND}/{home.home_id}"
        # One run of one program: process ids come again.
        self._holder = f"{home.home_id}:{os.getpid()}:{clock.now_us()}"
        self._turn = threading.RLock()
        self._making: _ActiveBackup | None = None
        self._closed = False

    def start(self, actor: Actor) -> BackupStart:
        """Freeze the home; LeaseHeld while another backup of it is being made."""
        making = self._begin()
        try:
            self._fail_dead_jobs()
            making.folder.mkdir(mode=0o700)
            self._catalog.dump(_make_folder(making.folder / CONTENT_FOLDER / CATALOG_DUMP))
            # Made after the dump: a restored catalog knows nothing of a backup that never ends.
            job = self._catalog.jobs.create(
                actor, DEFAULT_TENANT, JOB_KIND, self._name, {"backup": making.id}
            )
            making.claimed = self._catalog.jobs.claim(job.id, self._holder, LEASE_SECONDS)
            freeze(
                self._home,
                self._engine,
                making.folder,
                self._clock,
                flush_streams=self._flush_streams,
            )
            with self._turn:
                making.frozen_seconds = self._clock.monotonic_seconds()
            return BackupStart(making.id, making.folder, job.id)
        except TidegateError as error:
            self._end(making, error)
            raise
        except OSError as problem:
            refusal = self._refusal(problem)
            self._end(making, refusal)
            raise refusal from problem
        except BaseException:
            self._end(making, InvariantBroken(reason="the freeze was cut off"))
            raise

    def finish(self, backup: str, file: str, size_bytes: int) -> str:
        """Note that the file is complete, remove the frozen copy, and give the job's id."""
        making = self._find(backup)
        with self._turn:
            if making.claimed is None:
                raise BackupNotFound(backup=backup)
            self._catalog.jobs.finish(making.claimed, {"file": file, "bytes": size_bytes})
            job = str(making.claimed.job.id)
            making.claimed = None
            # Under the same turn as the job's end: nobody gives up a backup that is finished.
            self._leave(making)
        self._notice.finished(self._clock.monotonic_seconds() - making.began_seconds, size_bytes)
        self._end(making, None)
        return job

    def check(self, backup: str) -> None:
        """Refuse a backup that is not being made."""
        self._find(backup)

    def give_up(self, backup: str, reason: str) -> None:
        """Remove the frozen copy of a backup that will not be finished."""
        making = self._find(backup)
        self._end(making, Unavailable(reason=reason))

    def close(self) -> None:
        """Make no more backups. A packer that is at work keeps its copy and may finish its file."""
        with self._turn:
            self._closed = True
            making = self._making
        if making is not None:
            self._end(making, NotReady(reason="it stopped before the file was finished"))

    def _begin(self) -> _ActiveBackup:
        with self._turn:
            if self._closed:
                raise NotReady(reason="it is stopping")
            if self._making is not None:
                raise LeaseHeld(holder=self._holder, lease=self._name)
            lease = self._catalog.leases.take(self._name, self._holder, LEASE_SECONDS)
            stamp = datetime.fromtimestamp(self._clock.now_us() / 1_000_000, UTC)
            name = stamp.strftime("%Y%m%dT%H%M%S%fZ")
            _make_folder(self._home.backups_path)
            making = _ActiveBackup(name, self._home.backups_path / name, lease)
            making.began_seconds = self._clock.monotonic_seconds()
            self._making = making
            self._notice.began()
        threading.Thread(target=self._watch, args=(making,), name="tidegate-backup", daemon=True).start()
        return making

    def _find(self, backup: str) -> _ActiveBackup:
        with self._turn:
            if self._making is None or self._making.id != backup:
                raise BackupNotFound(backup=backup[:80])
            return self._making

    def _watch(self, making: _ActiveBackup) -> None:
        """Renew the lease and tell the job how far it is, until the backup ends or its packer is gone."""
        while not making.ended.wait(RENEW_SECONDS):
            try:
                self._renew(making)
                if self._packer_gone(making):
                    self.give_up(making.id, "the program that packed it ended before the file was finished")
            except LeaseLost as error:
                log.warning("backup %s: %s", making.id, error)
                self._end(making, error)
            except BackupNotFound:
                return  # it ended meanwhile
            except TidegateError as error:
                log.warning("backup %s, will try again: %s", making.id, error)

    def _renew(self, making: _ActiveBackup) -> None:
        with self._turn:
            if making.ended.is_set():
                return
            making.lease = self._catalog.leases.renew(making.lease)
            if making.claimed is not None:
                making.claimed = self._catalog.jobs.progress(making.claimed, packed_fraction(making.folder))

    def _packer_gone(self, making: _ActiveBackup) -> bool:
        if making.frozen_seconds is None:
            return False
        if is_flocked(making.folder / PACKING_LOCK):
            making.packer_seen = True
            return False
        waited_seconds = self._clock.monotonic_seconds() - making.frozen_seconds
        return making.packer_seen or waited_seconds > PACKER_WAIT_SECONDS

    def _end(self, making: _ActiveBackup, error: TidegateError | None) -> None:
        """Let go of everything: the job fails with the error, if it has not ended otherwise."""
        with self._turn:
            is_first = self._leave(making)
            claimed, making.claimed = making.claimed, None
        if is_first:
            self._notice.failed()
        try:
            if claimed is not None and error is not None:
                self._catalog.jobs.fail(claimed, error.to_wire()["error"])
            self._catalog.leases.release(making.lease)
        except TidegateError as problem:  # both end by themselves in half a minute
            log.warning("backup %s: %s", making.id, problem)
        if error is None or not is_flocked(making.folder / PACKING_LOCK):
            remove_frozen(making.folder)

    def _leave(self, making: _ActiveBackup) -> bool:
        """Let the next backup come, and say whether this one had not ended before; in the desk's turn."""
        is_first = not making.ended.is_set()
        making.ended.set()
        if self._making is making:
            self._making = None
        return is_first

    def _fail_dead_jobs(self) -> None:
        """End the jobs of desks that died: we hold the lease, so nobody else makes this home's backup."""
        page = Page(None, JOBS_LOOKED_AT_MAX)
        for job in self._catalog.jobs.list(DEFAULT_TENANT, page, kind=JOB_KIND, state="running").rows:
            if job.subject != self._name:
                continue
            claimed = self._catalog.jobs.claim(job.id, self._holder, LEASE_SECONDS)
            if claimed is not None:
                reason = "the server ended before the file was finished"
                self._catalog.jobs.fail(claimed, Unavailable(reason=reason).to_wire()["error"])

    def _refusal(self, problem: OSError) -> TidegateError:
        place = self._home.path if is_full(problem) else Path(problem.filename or self._home.path)
        return disk_error(place, problem, hint="Try again.")


def remove_frozen(folder: Path) -> None:
    """Remove a frozen copy; what cannot be removed now goes at the next start of the server."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except OSError as problem:
        log.warning("cannot remove %s: %s", folder, problem)


def remove_stale_backups(home: Home) -> int:
    """Remove what dead backups left behind, and say how many; called at the start, under the server's lock.

    A copy that a living packer is still at is left alone: it needs no server to finish its file.
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
