"""Endpoints of backups: the server freezes its home; who asked packs the copy and says so."""

from __future__ import annotations

from typing import Annotated

import msgspec
from starlette.responses import Response

from tidegate.model.access import Operation
from tidegate.server.api.tenants import instance_actor
from tidegate.server.http.request import Call
from tidegate.server.http.responses import json_answer

FILE_CHARS_MAX = 4096  # the longest path that Linux takes


class StartBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Body of a request to freeze the home; nothing to choose yet."""


class StartedAnswer(msgspec.Struct, rename="camel"):
    """A frozen copy: on the server's machine, for whoever packs it."""

    id: str
    path: str
    job: str


class FinishBody(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """What became of the copy."""

    file: Annotated[str, msgspec.Meta(min_length=1, max_length=FILE_CHARS_MAX)]
    bytes: Annotated[int, msgspec.Meta(ge=0)]


class FinishedAnswer(msgspec.Struct, rename="camel"):
    """A backup that is complete."""

    id: str
    file: str
    bytes: int
    job: str


class RemovedAnswer(msgspec.Struct, rename="camel"):
    """A backup that was given up."""

    removed: str


_start = msgspec.json.Decoder(StartBody)
_finish = msgspec.json.Decoder(FinishBody)


async def start_backup(call: Call) -> Response:
    """Freeze the whole home at one point of time, while it runs; the caller packs it."""
    await call.json(_start)
    running, actor = call.running, instance_actor(call)
    async with running.audited(actor, Operation.BACKUP_CREATE, f"backup/{running.home.home_id}"):
        started = await running.threads.read(running.backups.start, actor)
    return json_answer(StartedAnswer(started.id, str(started.folder), started.job), 201)


async def finish_backup(call: Call) -> Response:
    """Note that the file of a backup is complete, and remove the frozen copy."""
    body = await call.json(_finish)
    running, backup = call.running, call.params["backup"]
    await running.threads.read(running.backups.check, backup)
    details = {"file": body.file, "bytes": body.bytes}
    async with running.audited(instance_actor(call), Operation.BACKUP_CHANGE, f"backup/{backup}", details):
        job = await running.threads.read(running.backups.finish, backup, body.file, body.bytes)
    return json_answer(FinishedAnswer(backup, body.file, body.bytes, job))


async def give_up_backup(call: Call) -> Response:
    """Remove the frozen copy of a backup that will not be finished."""
    running, backup = call.running, call.params["backup"]
    await running.threads.read(running.backups.check, backup)
    details = {"gaveUp": True}
    async with running.audited(instance_actor(call), Operation.BACKUP_CHANGE, f"backup/{backup}", details):
        await running.threads.read(running.backups.give_up, backup, "the caller gave it up")
    return json_answer(RemovedAnswer(backup))
