"""Operating: pipelines, what was done by whom, jobs and backups.

Lists that come in pages: takes a path, gives all entries or the first few, keeps nothing.

Made from _async/operations.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.requests import delete, get, post, quoted
from tidegate.sdk.types import AuditEvent, BackupBegun, Job

# The newest few are what people look for; `limit=None` gives all.
ENTRIES_DEFAULT = 100
# Freezing links files and writes out what is in memory; a large home on a slow disk takes its time.
FREEZE_SECONDS_MAX = 600.0


class PipelinesClient:
    """All pipelines that the worker runs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> list[dict[str, Any]]:
        """List pipelines with their progress."""
        return listed(self._transport, "/pipelines", "pipelines")

    def show(self, name: str) -> dict[str, Any]:
        """Describe a pipeline."""
        return dict(self._transport.call(get(f"/pipelines/{quoted(name)}")))


class AuditClient:
    """What was done, by whom, and how it ended."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, *, user: str | None = None, action: str | None = None, limit: int | None = ENTRIES_DEFAULT
    ) -> list[AuditEvent]:
        """List events, the newest first."""
        return listed(self._transport, "/audit", "events", {"user": user, "action": action}, limit)


class JobsClient:
    """What the server does by itself."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, *, kind: str | None = None, state: str | None = None, limit: int | None = ENTRIES_DEFAULT
    ) -> list[Job]:
        """List jobs, the newest first."""
        return listed(self._transport, "/jobs", "jobs", {"kind": kind, "state": state}, limit)

    def show(self, job_id: str) -> Job:
        """Describe a job and its history."""
        shown: Job = self._transport.call(get(f"/jobs/{quoted(job_id)}"))
        return shown


class BackupsClient:
    """Backups in the making; `tidegate backup FILE` does all of it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def begin(self) -> BackupBegun:
        """Freeze a copy of the home, on the server's machine; finish it or give it up."""
        begun: BackupBegun = self._transport.call(post("/backups", {}, wait_seconds=FREEZE_SECONDS_MAX))
        return begun

    def finish(self, backup_id: str, *, file: str, size_bytes: int) -> dict[str, Any]:
        """Return where the backup is packed; the frozen copy goes."""
        body = {"file": file, "bytes": size_bytes}
        return dict(self._transport.call(post(f"/backups/{quoted(backup_id)}/finish", body)))

    def give_up(self, backup_id: str) -> None:
        """Let the frozen copy go, unpacked."""
        self._transport.call(delete(f"/backups/{quoted(backup_id)}"))


# Asked for only where fewer are wanted: how many a page holds at most is a setting of the server.
PAGE_ENTRIES = 100


def listed(
    transport: Transport,
    path: str,
    noun: str,
    query: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> list[Any]:
    """Return the entries of a list, page after page, up to `limit`."""
    entries: list[Any] = []
    question = dict(query or {})
    while limit is None or len(entries) < limit:
        if limit is not None and limit - len(entries) < PAGE_ENTRIES:
            question["limit"] = limit - len(entries)
        page = transport.call(get(path, question))
        entries += page[noun]
        question["after"] = page.get("next")
        if question["after"] is None:
            break
    return entries if limit is None else entries[:limit]
