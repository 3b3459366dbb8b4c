"""The audit trail, jobs and backups on the wire."""

from __future__ import annotations

from typing import Any

from tidegate.model.wire.struct import WireStruct


class AuditEventResponse(WireStruct):
    """Who did what, when, and how it ended."""

    id: int
    at: str
    tenant: str
    user: str
    action: str
    subject: str
    outcome: str
    request_id: str
    details: dict[str, Any]


class AuditPage(WireStruct):
    """Events, newest first, one page."""

    events: list[AuditEventResponse]
    next: str | None


class JobStep(WireStruct):
    """One entry of a job's history."""

    at: str
    state: str
    note: str


class JobSummary(WireStruct):
    """Work that the server does by itself, as lists show it."""

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


class JobResponse(JobSummary):
    """A job and its history."""

    history: list[JobStep]


class JobPage(WireStruct):
    """Jobs, newest first, one page."""

    jobs: list[JobSummary]
    next: str | None


class BackupStartResponse(WireStruct):
    """A frozen copy of the home, on the server's machine, to be packed by the client."""

    id: str
    path: str
    job: str


class BackupFinishResponse(WireStruct):
    """A backup that is complete."""

    id: str
    file: str
    bytes: int
    job: str


class BackupAbortResponse(WireStruct):
    """The id of an aborted backup."""

    removed: str
