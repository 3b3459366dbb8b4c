"""Endpoints of backups: the server freezes a copy of its home, the client packs it and reports that."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.responses import Response

from tidegate.model.access import Operation
from tidegate.model.wire.operations import BackupAbortResponse, BackupFinishResponse, BackupStartResponse
from tidegate.server.api.tenants import instance_actor
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import json_answer

FILE_CHARS_MAX = 4096  # the longest path that Linux takes


class StartBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Body of a request to freeze the home; it has no fields."""


class FinishBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The file that the client packed."""

    file: Annotated[str, msgspec.Meta(min_length=1, max_length=FILE_CHARS_MAX)]
    bytes: Annotated[int, msgspec.Meta(ge=0)]


_start = msgspec.json.Decoder(StartBody)
_finish = msgspec.json.Decoder(FinishBody)


async def start_backup(request: HttpRequest) -> Response:
    """Freeze the whole home at one point in time, while it runs; the client packs it."""
    await request.json(_start)
    runtime, actor = request.runtime, instance_actor(request)
    async with runtime.audited(actor, Operation.BACKUP_CREATE, f"backup/{runtime.home.home_id}"):
        started = await runtime.threads.read(runtime.backups.start, actor)
    return json_answer(BackupStartResponse(started.id, str(started.folder), started.job), 201)


async def finish_backup(request: HttpRequest) -> Response:
    """Record that the file of a backup is complete, and delete the frozen copy."""
    body = await request.json(_finish)
    runtime, backup = request.runtime, request.params["backup"]
    await runtime.threads.read(runtime.backups.check, backup)
    details = {"file": body.file, "bytes": body.bytes}
    async with runtime.audited(instance_actor(request), Operation.BACKUP_CHANGE, f"backup/{backup}", details):
        job = await runtime.threads.read(runtime.backups.finish, backup, body.file, body.bytes)
    return json_answer(BackupFinishResponse(backup, body.file, body.bytes, job))


async def give_up_backup(request: HttpRequest) -> Response:
    """Delete the frozen copy of a backup that will not be finished."""
    runtime, backup = request.runtime, request.params["backup"]
    await runtime.threads.read(runtime.backups.check, backup)
    details = {"gaveUp": True}
    async with runtime.audited(instance_actor(request), Operation.BACKUP_CHANGE, f"backup/{backup}", details):
        await runtime.threads.read(runtime.backups.give_up, backup, "the caller gave it up")
    return json_answer(BackupAbortResponse(backup))
