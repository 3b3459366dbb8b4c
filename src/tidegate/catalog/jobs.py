"""Jobs: work that outlives a request, with its state and history until it is pruned.

    queued → running → done | failed          cancelled from queued or running

The owner of a job holds a lease on it. When the owner dies, the lease ends and the next claim takes the job
over, with one attempt more; what the old owner still reports is refused with LeaseLost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, insert, select, update

from tidegate.catalog.audit import PRUNE_ROWS, Actor, Audit
from tidegate.catalog.connections import Connections
from tidegate.catalog.idempotency import IdempotencyKey, IdempotencyKeys
from tidegate.catalog.leases import Lease, Leases
from tidegate.catalog.paging import PageRequest, PageResult, read_page
from tidegate.catalog.tables import JOB_EVENTS, JOBS, LEASES, to_mapping, to_text
from tidegate.errors import JobNotFound, JobStateWrong, LeaseHeld, LeaseLost
from tidegate.model.clock import Clock
from tidegate.model.ids import ObjectIdSource
from tidegate.model.names import shorten

DETAILS_BYTES_MAX = 1 << 20  # a job names its data; it does not contain it
HISTORY_EVENTS_MAX = 200  # kept of one job; the oldest go first
NOTE_CHARS_MAX = 1_000
CLAIM_QUEUED_MAX = 20  # tried in one claim; others claim at the same time
CLAIM_RUNNING_MAX = 1_000  # watched for owners that are gone

_FINAL = frozenset({"done", "failed", "cancelled"})
_ID = re.compile(r"[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of a job's history."""

    at_us: int
    state: str
    note: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job; only `Jobs.get` reads its history."""

    id: str
    tenant: str
    kind: str
    subject: str
    state: str
    progress: float
    attempts: int
    owner: str | None
    created_by: str
    created_us: int
    started_us: int | None
    finished_us: int | None
    details: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    history: list[JobEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job with the lease of its owner."""

    job: Job
    lease: Lease


class Jobs:
    """Jobs of every tenant. Threads: any."""

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        leases: Leases,
        notes: tuple[Audit, IdempotencyKeys],
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._ids = ObjectIdSource(clock, random_bytes)
        self._leases = leases
        self._audit, self._keys = notes

    def create(
        self,
        actor: Actor,
        tenant: str,
        kind: str,
        subject: str,
        details: Mapping[str, Any] | None = None,
        key: IdempotencyKey | None = None,
    ) -> Job:
        """Queue a job."""
        values = {"id": str(self._ids.take()), "tenant": tenant, "kind": kind, "subject": subject}
        values |= {"state": "queued", "created_by": actor.user}
        values |= {"details": to_text(details or {}, DETAILS_BYTES_MAX, "Details")}
        counts = {"progress": 0.0, "attempts": 0, "created_us": self._clock.now_us()}
        with self._connections.write() as connection:
            self._keys.reserve(connection, actor.tenant, key)
            row = connection.execute(insert(JOBS).values(**values, **counts).returning(JOBS)).one()
            self._note(connection, row, "queued", "")
            return self._keys.keep(connection, actor.tenant, key, _job(row))

    def claim(self, which: str | Collection[str], holder: str, ttl_seconds: float) -> ClaimedJob | None:
        """Claim a job by its id, or the oldest of some kinds, queued or abandoned by a dead owner.

        Return None where there is no such job. The claim ends when no progress is reported for `ttl_seconds`;
        a job of a living owner is never taken.
        """
        for job_id in [which] if isinstance(which, str) else self._candidates(which):
            claimed = self._claim_one(job_id, holder, ttl_seconds)
            if claimed is not None:
                return claimed
        return None

    def progress(self, claimed: ClaimedJob, done: float, note: str = "") -> ClaimedJob:
        """Report progress, 0 to 1, and renew the claim; LeaseLost when the job was taken over."""
        done = min(1.0, max(0.0, done))
        with self._connections.write() as connection:
            row = self._own(connection, claimed)
            lease = self._leases.renew_on(connection, claimed.lease)
            connection.execute(update(JOBS).where(JOBS.c.number == row.number).values(progress=done))
            if note:
                self._note(connection, row, "running", note)
        return ClaimedJob(replace(claimed.job, progress=done), lease)

    def finish(self, claimed: ClaimedJob, result: Mapping[str, Any] | None = None) -> Job:
        """End a job as done; LeaseLost when it was taken over or cancelled."""
        text = to_text(result or {}, DETAILS_BYTES_MAX, "Results")
        return self._end(claimed, {"state": "done", "progress": 1.0, "result": text}, "")

    def fail(self, claimed: ClaimedJob, error: Mapping[str, Any]) -> Job:
        """End a job as failed, with its error; LeaseLost when it was taken over or cancelled."""
        text = to_text(error, DETAILS_BYTES_MAX, "Errors")
        return self._end(claimed, {"state": "failed", "error": text}, str(error.get("message", "")))

    def cancel(self, actor: Actor, tenant: str, job_id: str) -> Job:
        """Cancel a job that has not ended; its owner gets LeaseLost with its next report."""
        with self._connections.write() as connection:
            row = _find(connection, tenant, job_id, lock=True)
            if row.state in _FINAL:
                raise JobStateWrong(job=job_id, state=row.state, wanted="cancelled")
            self._leases.forget_on(connection, _lease_name(job_id))
            ended = {"state": "cancelled", "finished_us": self._clock.now_us()}
            change = update(JOBS).where(JOBS.c.number == row.number).values(**ended).returning(JOBS)
            row = connection.execute(change).one()
            self._note(connection, row, "cancelled", f"by {actor.user}")
            self._audit.write(connection, actor, "job.cancel", f"job/{job_id}")
        return _job(row)

    def get(self, tenant: str, job_id: str) -> Job:
        """Return a job with its history, oldest line first."""
        with self._connections.read() as connection:
            row = _find(connection, tenant, job_id)
            lines = select(JOB_EVENTS).where(JOB_EVENTS.c.job == row.number).order_by(JOB_EVENTS.c.number)
            history = [JobEvent(e.at_us, e.state, e.note) for e in connection.execute(lines)]
        return replace(_job(row), history=history)

    def list(
        self, tenant: str, page: PageRequest, kind: str | None = None, state: str | None = None
    ) -> PageResult[Job]:
        """Return a page of the jobs of a tenant, newest first, without their history."""
        query = select(JOBS).where(JOBS.c.tenant == tenant)
        if kind is not None:
            query = query.where(JOBS.c.kind == kind)
        if state is not None:
            query = query.where(JOBS.c.state == state)
        with self._connections.read() as connection:
            return read_page(connection, query, page, "job", JOBS.c.number, _job)

    def prune(self, before_us: int) -> int:
        """Delete jobs that ended before a time, with their history; return their number."""
        old = select(JOBS.c.number).where(JOBS.c.finished_us < before_us).limit(PRUNE_ROWS)
        return self._connections.delete_in_portions(
            delete(JOBS).where(JOBS.c.number.in_(old.scalar_subquery())), PRUNE_ROWS
        )

    def _candidates(self, kinds: Collection[str]) -> Sequence[str]:
        """Return the ids to try: queued jobs first, then those whose owner seems dead."""
        mine = JOBS.c.kind.in_(sorted(kinds))
        queued = select(JOBS.c.id).where(mine, JOBS.c.state == "queued").order_by(JOBS.c.number)
        running = (
            select(JOBS.c.id.label("job_id"), LEASES)
            .outerjoin(LEASES, LEASES.c.name == "job/" + JOBS.c.id)
            .where(mine, JOBS.c.state == "running")
            .order_by(JOBS.c.number)
        )
        with self._connections.read() as connection:
            found = connection.execute(queued.limit(CLAIM_QUEUED_MAX)).scalars().all()
            held = connection.execute(running.limit(CLAIM_RUNNING_MAX)).all()
        gone = [row.job_id for row in held if row.name is None or self._leases.is_takeable(row)]
        return [*found, *gone]

    def _claim_one(self, job_id: str, holder: str, ttl_seconds: float) -> ClaimedJob | None:
        if not _ID.fullmatch(job_id):
            return None
        with self._connections.write() as connection:
            query = select(JOBS).where(JOBS.c.id == job_id).with_for_update()
            row = connection.execute(query).one_or_none()
            if row is None or row.state in _FINAL:
                return None
            try:
                lease = self._leases.take_on(connection, _lease_name(job_id), holder, ttl_seconds)
            except LeaseHeld:
                return None
            note = f"taken over from {row.owner}" if row.state == "running" else ""
            started_us = row.started_us if row.started_us is not None else self._clock.now_us()
            changed = {"state": "running", "owner": holder, "attempts": row.attempts + 1}
            change = update(JOBS).where(JOBS.c.number == row.number)
            row = connection.execute(change.values(**changed, started_us=started_us).returning(JOBS)).one()
            self._note(connection, row, "running", note)
        return ClaimedJob(_job(row), lease)

    def _end(self, claimed: ClaimedJob, changed: dict[str, Any], note: str) -> Job:
        with self._connections.write() as connection:
            row = self._own(connection, claimed)
            change = update(JOBS).where(JOBS.c.number == row.number)
            finished_us = self._clock.now_us()
            row = connection.execute(change.values(**changed, finished_us=finished_us).returning(JOBS)).one()
            self._note(connection, row, changed["state"], note)
            self._leases.forget_on(connection, claimed.lease.name)
        return _job(row)

    def _own(self, connection: Connection, claimed: ClaimedJob) -> Row[Any]:
        """Lock a job and its lease, always in that order, and check that the lease is held."""
        query = select(JOBS).where(JOBS.c.id == claimed.job.id).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None or row.state != "running":
            raise LeaseLost(leases=claimed.lease.name)
        self._leases.check(connection, claimed.lease)
        return row

    def _note(self, connection: Connection, row: Row[Any], state: str, note: str) -> None:
        line = {"job": row.number, "at_us": self._clock.now_us(), "state": state}
        connection.execute(insert(JOB_EVENTS).values(**line, note=note[:NOTE_CHARS_MAX]))
        newest = select(JOB_EVENTS.c.number).where(JOB_EVENTS.c.job == row.number)
        newest = newest.order_by(JOB_EVENTS.c.number.desc()).offset(HISTORY_EVENTS_MAX).limit(1)
        old = and_(JOB_EVENTS.c.job == row.number, JOB_EVENTS.c.number <= newest.scalar_subquery())
        connection.execute(delete(JOB_EVENTS).where(old))


def _lease_name(job_id: str) -> str:
    return f"job/{job_id}"


def _find(connection: Connection, tenant: str, job_id: str, *, lock: bool = False) -> Row[Any]:
    query = select(JOBS).where(JOBS.c.tenant == tenant, JOBS.c.id == job_id)
    if lock:
        query = query.with_for_update()
    row = connection.execute(query).one_or_none() if _ID.fullmatch(job_id) else None
    if row is None:
        raise JobNotFound(job=shorten(job_id))
    return row


def _job(row: Row[Any]) -> Job:
    return Job(
        id=row.id,
        tenant=row.tenant,
        kind=row.kind,
        subject=row.subject,
        state=row.state,
        progress=row.progress,
        attempts=row.attempts,
        owner=row.owner,
        created_by=row.created_by,
        created_us=row.created_us,
        started_us=row.started_us,
        finished_us=row.finished_us,
        details=to_mapping(row.details),
        result=None if row.result is None else to_mapping(row.result),
        error=None if row.error is None else to_mapping(row.error),
    )
