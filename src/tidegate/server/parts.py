"""Parts: says of each thing that the server stands on whether it works, and why not.

Anyone may ask, so that an answer holds a few words. Paths, sizes and messages of others stay in the log.
"""

from __future__ import annotations

import logging
from typing import Any

from tidegate.errors import TidegateError
from tidegate.server.running import Running

OK: dict[str, Any] = {"ok": True, "reason": ""}

log = logging.getLogger(__name__)


async def check_parts(running: Running) -> dict[str, dict[str, Any]]:
    """Try every part: the door itself, the engine, the disk, the catalog and the lake."""
    return {
        "door": _broken("it is stopping") if running.stopping else OK,
        "engine": await _tried(running, "engine", _check_engine),
        "disk": _check_disk(running),
        "catalog": await _catalog(running),
        "lake": await _tried(running, "lake", _check_lake),
    }


def _broken(reason: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason}


async def _catalog(running: Running) -> dict[str, Any]:
    try:
        await running.threads.catalog(running.catalog.ping)
    except TidegateError as problem:
        log.warning("the catalog does not answer: %s", problem)
        return _broken("does not answer")
    return OK


async def _tried(running: Running, name: str, check: Any) -> dict[str, Any]:
    try:
        await running.threads.read(check, running)
    except (TidegateError, OSError) as problem:
        log.warning("the %s cannot be read: %s", name, problem)
        return _broken("cannot be read")
    return OK


def _check_engine(running: Running) -> None:
    running.engine.get(b"\x00")


def _check_lake(running: Running) -> None:
    if not running.home.lake_path.is_dir():
        raise FileNotFoundError(f"{running.home.lake_path} is not there")


def _check_disk(running: Running) -> dict[str, Any]:
    try:
        free, least = running.disk_free_bytes(), running.settings.storage.free_bytes_min
    except OSError as problem:
        log.warning("the disk cannot be read: %s", problem)
        return _broken("cannot be read")
    if free >= least:
        return OK
    log.warning("the disk has not enough room: %d bytes are free, %d are the least", free, least)
    return _broken("not enough room")
