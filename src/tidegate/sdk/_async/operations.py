"""Operations: pipelines, the audit trail, jobs and backups; and lists that come in pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.sdk._async.transport import Transport
from tidegate.sdk.requests import delete, get, post, quoted
from tidegate.sdk.types import AuditEventDict, BackupStartDict, JobDict, JobSummaryDict

# The newest few are what people look for; `limit=None` returns all.
ENTRIES_DEFAULT = 100
# Freezing links files and flushes what is in memory, which a large home on a slow disk does slowly.
FREEZE_SECONDS_MAX = 600.0


class PipelinesClient:
    """All pipelines that the worker runs."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> list[dict[str, Any]]:
        """List pipelines with their progress."""
        return await list_all(self._transport, "/pipelines", "pipelines")

    async def show(self, name: str) -> dict[str, Any]:
        """Describe a pipeline."""
        return dict(await self._transport.call(get(f"/pipelines/{quoted(name)}")))


class AuditClient:
    """The audit trail: what was done, by whom, and how it ended."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self, *, user: str | None = None, action: str | None = None, limit: int | None = ENTRIES_DEFAULT
    ) -> list[AuditEventDict]:
        """List events, the newest first."""
        return await list_all(self._transport, "/audit", "events", {"user": user, "action": action}, limit)


class JobsClient:
    """The background jobs of the server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(
        self, *, kind: str | None = None, state: str | None = None, limit: int | None = ENTRIES_DEFAULT
    ) -> list[JobSummaryDict]:
        """List jobs, the newest first."""
        return await list_all(self._transport, "/jobs", "jobs", {"kind": kind, "state": state}, limit)

    async def show(self, job_id: str) -> JobDict:
        """Describe a job and its history."""
        shown: JobDict = await self._transport.call(get(f"/jobs/{quoted(job_id)}"))
        return shown


class BackupsClient:
    """Backups in progress; `tidegate backup FILE` does all steps."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def begin(self) -> BackupStartDict:
        """Freeze a copy of the home, on the server's machine; `finish` or `give_up` removes it."""
        begun: BackupStartDict = await self._transport.call(
            post("/backups", {}, wait_seconds=FREEZE_SECONDS_MAX)
        )
        return begun

    async def finish(self, backup_id: str, *, file: str, size_bytes: int) -> dict[str, Any]:
        """Report the file into which the backup was packed, and remove the frozen copy."""
        body = {"file": file, "bytes": size_bytes}
        return dict(await self._transport.call(post(f"/backups/{quoted(backup_id)}/finish", body)))

    async def give_up(self, backup_id: str) -> None:
        """Remove the frozen copy without a backup."""
        await self._transport.call(delete(f"/backups/{quoted(backup_id)}"))


# Sent only where fewer are wanted: how many a page holds at most is a setting of the server.
PAGE_ENTRIES = 100


async def list_all(
    transport: Transport,
    path: str,
    noun: str,
    query: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> list[Any]:
    """Return the entries of a list, page after page, up to `limit`."""
    entries: list[Any] = []
    parameters = dict(query or {})
    while limit is None or len(entries) < limit:
        if limit is not None and limit - len(entries) < PAGE_ENTRIES:
            parameters["limit"] = limit - len(entries)
        page = await transport.call(get(path, parameters))
        entries += page[noun]
        parameters["after"] = page.get("next")
        if parameters["after"] is None:
            break
    return entries if limit is None else entries[:limit]
