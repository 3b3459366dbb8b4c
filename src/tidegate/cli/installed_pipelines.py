"""Pipelines that are in the home and not in a worker's report: takes both, gives one list of pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WAITING = "waiting"
STOPPED = "stopped"


def installed_names(home_path: Path) -> list[str]:
    """Return the names of the pipelines that a worker of the home shall run, in order."""
    from tidegate.storage.home.pipeline_files import list_pipeline_files

    return list(list_pipeline_files(home_path / "pipelines").installed)


def kept_names(home_path: Path) -> list[str]:
    """Return the names of the pipelines whose files are in the home, also of the stopped ones, in order."""
    from tidegate.storage.home.pipeline_files import list_pipeline_files

    files = list_pipeline_files(home_path / "pipelines")
    return sorted([*files.installed, *files.stopped])


def with_waiting(reported: Sequence[Mapping[str, Any]], installed: Sequence[str]) -> list[Mapping[str, Any]]:
    """Add the installed pipelines that no worker has taken up yet, in the state `waiting`."""
    known = {line["name"] for line in reported}
    waiting = [waiting_pipeline(name) for name in installed if name not in known]
    lines = [told_waiting(line, installed) for line in reported]
    return sorted([*lines, *waiting], key=lambda line: str(line["name"]))


def told_waiting(line: Mapping[str, Any], installed: Sequence[str]) -> Mapping[str, Any]:
    """Return a pipeline as it is, or as `waiting`: started again, and the worker does not know of it yet."""
    if line["state"] == STOPPED and line["name"] in installed:
        return {**line, "state": WAITING}
    return line


def waiting_pipeline(name: str) -> dict[str, Any]:
    """Return the status of a pipeline that waits for the worker: a name, a state, and no figures."""
    figures = ("batches", "rows", "rowsPerSecond", "lag", "lastBatchSeconds", "error", "topic", "table")
    return {"name": name, "state": WAITING, "restarts": 0, **dict.fromkeys(figures)}
