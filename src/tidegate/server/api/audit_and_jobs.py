"""Endpoints of what was done and what goes on: the audit trail, and jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response

from tidegate.catalog.audit import AuditEvent
from tidegate.catalog.jobs import Job
from tidegate.errors import RequestInvalid
from tidegate.model.timeranges import format_time
from tidegate.server.http.request import Call, list_page, moment
from tidegate.server.http.responses import json_answer

JOB_STATES = ("queued", "running", "done", "failed", "cancelled")
# Longer than any name of a user, an action or a kind of job.
FILTER_CHARS_MAX = 200


class AuditAnswer(msgspec.Struct, rename="camel"):
    """One event: who did what, and how it ended."""

    id: int
    at: str
    tenant: str
    user: str
    action: str
    subject: str
    outcome: str
    request_id: str
    details: dict[str, Any]


class AuditPage(msgspec.Struct, rename="camel"):
    """Events, newest first."""

    events: list[AuditAnswer]
    next: str | None


class JobSummary(msgspec.Struct, rename="camel"):
    """A job as lists show it."""

    id: str
    kind: str
    subject: str
    state: str
    progress: float
    attempts: int
    owner: str | None
    created_by: str
    created_at: str
    started_at: str | None
    finished_at: str | None
    details: dict[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None


class JobStep(msgspec.Struct, rename="camel"):
    """What became of a job at a moment."""

    at: str
    state: str
    note: str


class JobAnswer(JobSummary, rename="camel"):
    """A job and its history."""

    history: list[JobStep]


class JobPage(msgspec.Struct, rename="camel"):
    """Jobs, newest first."""

    jobs: list[JobSummary]
    next: str | None


async def list_events(call: Call) -> Response:
    """The audit trail of the tenant, newest first, a page at a time."""
    page = list_page(call)
    read = partial(
        call.running.catalog.audit.list,
        call.tenant,
        page,
        user=_filter(call, "user"),
        action=_filter(call, "action"),
    )
    found = await call.running.threads.catalog(read)
    return json_answer(AuditPage([_event(event) for event in found.rows], found.next))


async def list_jobs(call: Call) -> Response:
    """The jobs of the tenant, newest first, a page at a time."""
    page = list_page(call)
    read = partial(
        call.running.catalog.jobs.list,
        call.tenant,
        page,
        kind=_filter(call, "kind"),
        state=call.choice("state", JOB_STATES),
    )
    found = await call.running.threads.catalog(read)
    return json_answer(JobPage([JobSummary(**_job_values(job)) for job in found.rows], found.next))


async def show_job(call: Call) -> Response:
    """One job, with everything that became of it."""
    jobs = call.running.catalog.jobs
    job = await call.running.threads.catalog(jobs.get, call.tenant, call.params["job"])
    history = [JobStep(format_time(step.at_us), step.state, step.note) for step in job.history]
    return json_answer(JobAnswer(**_job_values(job), history=history))


def _filter(call: Call, name: str) -> str | None:
    value = call.query.get(name)
    if value is not None and not (1 <= len(value) <= FILTER_CHARS_MAX and value.isprintable()):
        reason = f"{name} is a line of 1 to {FILTER_CHARS_MAX} characters."
        raise RequestInvalid(reason=reason, hint="Leave it out for all.")
    return value


def _event(event: AuditEvent) -> AuditAnswer:
    return AuditAnswer(
        id=event.id,
        at=format_time(event.at_us),
        tenant=event.tenant,
        user=event.user,
        action=event.action,
        subject=event.subject,
        outcome=event.outcome,
        request_id=event.request_id,
        details=event.details,
    )


def _job_values(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "subject": job.subject,
        "state": job.state,
        "progress": job.progress,
        "attempts": job.attempts,
        "owner": job.owner,
        "created_by": job.created_by,
        "created_at": format_time(job.created_us),
        "started_at": moment(job.started_us),
        "finished_at": moment(job.finished_us),
        "details": job.details,
        "result": job.result,
        "error": job.error,
    }
