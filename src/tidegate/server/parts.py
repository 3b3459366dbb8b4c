"""Parts: says of each thing that the server stands on whether it works, and why not."""

from __future__ import annotations

from typing import Any

from tidegate.errors import TidegateError
from tidegate.server.running import Running

OK: dict[str, Any] = {"ok": True, "reason": ""}


async def check_parts(running: Running) -> dict[str, dict[str, Any]]:
    """Try every part: the door itself, the engine, the disk, the catalog and the lake."""
    return {
        "door": _broken("it is stopping") if running.stopping else OK,
        "engine": await _tried(running, _check_engine),
        "disk": _check_disk(running),
        "catalog": await _catalog(running),
        "lake": await _tried(running, _check_lake),
    }


def _broken(reason: str) -> dict[str, Any]:
    return {"ok": False, "reason": reason}


async def _catalog(running: Running) -> dict[str, Any]:
    try:
        await running.threads.catalog(running.catalog.ping)
    except TidegateError as problem:
        return _broken(str(problem))
    return OK


async def _tried(running: Running, check: Any) -> dict[str, Any]:
    try:
        await running.threads.read(check, running)
    except (TidegateError, OSError) as problem:
        return _broken(str(problem))
    return OK


def _check_engine(running: Running) -> None:
    running.engine.get(b"\x00")


def _check_lake(running: Running) -> None:
    if not running.home.lake_path.is_dir():
        raise FileNotFoundError(f"{running.home.lake_path} is not there")


def _check_disk(running: Running) -> dict[str, Any]:
    free, least = running.disk_free_bytes(), running.settings.storage.free_bytes_min
    return OK if free >= least else _broken(f"{free} bytes are free, {least} are the least")
