"""Pipelines that are in the home and not in a worker's report: takes both, gives one list of pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WAITING = "waiting"


def installed_names(home_path: Path) -> list[str]:
    """Give the names of the pipelines whose files are in the home, in order."""
    return sorted(file.stem for file in (home_path / "pipelines").glob("*.py"))


def with_waiting(reported: Sequence[Mapping[str, Any]], installed: Sequence[str]) -> list[Mapping[str, Any]]:
    """Add the installed pipelines that no worker has reported yet, in the state `waiting`."""
    known = {line["name"] for line in reported}
    waiting = [waiting_pipeline(name) for name in installed if name not in known]
    return sorted([*reported, *waiting], key=lambda line: str(line["name"]))


def waiting_pipeline(name: str) -> dict[str, Any]:
    """Give the status of a pipeline that waits for the worker: a name, a state, and no figures."""
    figures = ("batches", "rows", "rowsPerSecond", "lag", "lastBatchSeconds", "error", "topic", "table")
    return {"name": name, "state": WAITING, "restarts": 0, **dict.fromkeys(figures)}
