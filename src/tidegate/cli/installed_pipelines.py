"""The pipelines whose files are in a home, joined with those that a worker reports."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.storage.home.home import Home
    from tidegate.storage.home.pipeline_files import Replaced

WORKER_SECONDS_MAX = 60.0  # Spark starts in five to twenty seconds; without a report after this none runs

WAITING = "waiting"
STOPPED = "stopped"


def install_pipeline(home: Home, file: Path) -> tuple[str, Replaced | None]:
    """Check a file and copy it to the folder of the worker, even if it is the same.

    Return the pipeline's name, and whether the file replaces another that was installed or stopped.
    """
    from tidegate.pipeline.worker.definitions import load_pipeline
    from tidegate.storage.home.pipeline_files import install_pipeline_file

    with redirect_stdout(sys.stderr):  # what the file prints is no part of the answer
        name = load_pipeline(file.absolute()).name
    return name, install_pipeline_file(home.pipelines_path, name, file.read_bytes())


def installed_names(home_path: Path) -> list[str]:
    """Return the names of the pipelines that a worker of the home runs, in order."""
    from tidegate.storage.home.pipeline_files import list_pipeline_files

    return list(list_pipeline_files(home_path / "pipelines").installed)


def pipeline_names(home_path: Path) -> list[str]:
    """Return the names of all pipelines whose files are in the home, the stopped ones too, in order."""
    from tidegate.storage.home.pipeline_files import list_pipeline_files

    files = list_pipeline_files(home_path / "pipelines")
    return sorted([*files.installed, *files.stopped])


def with_waiting(reported: Sequence[Mapping[str, Any]], installed: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the reported pipelines and the installed ones that no worker has reported yet (`waiting`)."""
    known = {status["name"] for status in reported}
    waiting = [waiting_pipeline(name) for name in installed if name not in known]
    current = [current_status(status, installed) for status in reported]
    return sorted([*current, *waiting], key=lambda status: str(status["name"]))


def current_status(status: Mapping[str, Any], installed: Sequence[str]) -> Mapping[str, Any]:
    """Return a status as it is, or as `waiting` if it is started again and the worker has not seen that."""
    if status["state"] == STOPPED and status["name"] in installed:
        return {**status, "state": WAITING}
    return status


def waiting_pipeline(name: str) -> dict[str, Any]:
    """Return the status of a pipeline that no worker has reported: a name, a state, and no figures."""
    figures = ("batches", "rows", "rowsPerSecond", "lag", "lastBatchSeconds", "error", "topic", "table")
    return {"name": name, "state": WAITING, "restarts": 0, **dict.fromkeys(figures)}
