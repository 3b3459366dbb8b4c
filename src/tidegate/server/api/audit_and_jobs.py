"""Endpoints of the audit trail and of jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from tidegate.catalog.audit import AuditEvent
from tidegate.catalog.jobs import Job
from tidegate.errors import RequestInvalid
from tidegate.model.times import format_time
from tidegate.model.wire.operations import (
    AuditEventResponse,
    AuditPage,
    JobPage,
    JobResponse,
    JobStep,
    JobSummary,
)
from tidegate.server.http.request import HttpRequest, format_optional_time
from tidegate.server.http.responses import json_answer

JOB_STATES = ("queued", "running", "done", "failed", "cancelled")
# Longer than any name of a user, an action or a kind of job.
FILTER_CHARS_MAX = 200


async def list_events(request: HttpRequest) -> Response:
    """The audit trail of the tenant, newest first, in pages."""
    read = partial(
        request.runtime.catalog.audit.list,
        request.tenant,
        request.page(),
        user=_filter(request, "user"),
        action=_filter(request, "action"),
    )
    found = await request.runtime.threads.catalog(read)
    return json_answer(AuditPage([_event(event) for event in found.rows], found.next))


async def list_jobs(request: HttpRequest) -> Response:
    """The jobs of the tenant, newest first, in pages."""
    read = partial(
        request.runtime.catalog.jobs.list,
        request.tenant,
        request.page(),
        kind=_filter(request, "kind"),
        state=request.choice("state", JOB_STATES),
    )
    found = await request.runtime.threads.catalog(read)
    return json_answer(JobPage([JobSummary(**_job_fields(job)) for job in found.rows], found.next))


async def show_job(request: HttpRequest) -> Response:
    """One job, with its history."""
    jobs = request.runtime.catalog.jobs
    job = await request.runtime.threads.catalog(jobs.get, request.tenant, request.params["job"])
    history = [JobStep(format_time(step.at_us), step.state, step.note) for step in job.history]
    return json_answer(JobResponse(**_job_fields(job), history=history))


def _filter(request: HttpRequest, name: str) -> str | None:
    value = request.query.get(name)
    if value is not None and not (1 <= len(value) <= FILTER_CHARS_MAX and value.isprintable()):
        reason = f"{name} is a line of 1 to {FILTER_CHARS_MAX} characters."
        raise RequestInvalid(reason=reason, hint="Leave it out for all.")
    return value


def _event(event: AuditEvent) -> AuditEventResponse:
    return AuditEventResponse(
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


def _job_fields(job: Job) -> dict[str, Any]:
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
        "started_at": format_optional_time(job.started_us),
        "finished_at": format_optional_time(job.finished_us),
        "details": job.details,
        "result": job.result,
        "error": job.error,
    }
