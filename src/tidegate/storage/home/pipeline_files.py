"""The files of pipelines in a home.

<name>.py           installed: the worker runs it
<name>.py.stopped   stopped: unchanged, and not run

A process that installs a file over a stopped one may die before the stopped one is removed, so a stopped file
beside an installed one is ignored.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidegate.errors import Conflict, PipelineNotFound
from tidegate.model.names import check_pipeline_name
from tidegate.storage.files import sync_folder, write_file_atomically

INSTALLED_SUFFIX = ".py"
STOPPED_SUFFIX = ".py.stopped"

Replaced = Literal["installed", "stopped"]


@dataclass(frozen=True, slots=True)
class PipelineFiles:
    """The names of the pipelines in a folder, in order; none is in both."""

    installed: tuple[str, ...]
    stopped: tuple[str, ...]


def list_pipeline_files(folder: Path) -> PipelineFiles:
    """Return the pipelines of a folder; none where it does not exist or is not readable."""
    try:
        # One listing: between two, a file could be renamed and be missing in both.
        files = [path.name for path in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return PipelineFiles((), ())  # the checks of the home report a lost folder
    installed = {name.removesuffix(INSTALLED_SUFFIX) for name in files if name.endswith(INSTALLED_SUFFIX)}
    stopped = {name.removesuffix(STOPPED_SUFFIX) for name in files if name.endswith(STOPPED_SUFFIX)}
    return PipelineFiles(tuple(sorted(installed)), tuple(sorted(stopped - installed)))


def installed_path(folder: Path, name: str) -> Path:
    """Return the path of an installed pipeline's file."""
    return folder / f"{name}{INSTALLED_SUFFIX}"


def stopped_path(folder: Path, name: str) -> Path:
    """Return the path of a stopped pipeline's file."""
    return folder / f"{name}{STOPPED_SUFFIX}"


def install_pipeline_file(folder: Path, name: str, content: bytes) -> Replaced | None:
    """Install a file under a name, also over a stopped one; return what other content it replaced.

    It is written also where nothing changed: the worker then drops an old failure and retries at once.
    """
    target, stopped = installed_path(folder, check_pipeline_name(name)), stopped_path(folder, name)
    replaced: Replaced | None = None
    if (before := _content(target)) is not None:
        replaced = "installed" if before != content else None
    elif (before := _content(stopped)) is not None:
        replaced = "stopped" if before != content else None
    write_file_atomically(target, content)
    _unlink(stopped)
    return replaced


def stop_pipeline_file(folder: Path, name: str) -> bool:
    """Stop a pipeline by renaming its file; False where it is stopped already."""
    return _rename(installed_path(folder, check_pipeline_name(name)), stopped_path(folder, name), name)


def start_pipeline_file(folder: Path, name: str) -> bool:
    """Start a stopped pipeline by renaming its file back; False where it is not stopped."""
    target, stopped = installed_path(folder, check_pipeline_name(name)), stopped_path(folder, name)
    if target.exists():
        return False
    with suppress(FileNotFoundError):
        # A rename keeps the time of a file, which tells the worker to start the pipeline again.
        os.utime(stopped)
    return _rename(stopped, target, name)


def check_removable(folder: Path, name: str) -> None:
    """Raise PipelineNotFound or, for a pipeline that is not stopped, Conflict."""
    if installed_path(folder, check_pipeline_name(name)).exists():
        reason = f"Pipeline '{name}' is not stopped: only a stopped one can be removed."
        raise Conflict(reason=reason, hint=f"Stop it first: tidegate pipeline stop {name}")
    if not stopped_path(folder, name).exists():
        raise PipelineNotFound(pipeline=name)


def remove_pipeline_file(folder: Path, name: str) -> None:
    """Remove a stopped pipeline's file; what the pipeline has written stays."""
    check_removable(folder, name)
    if not _unlink(stopped_path(folder, name)):
        raise PipelineNotFound(pipeline=name)


def _rename(source: Path, target: Path, name: str) -> bool:
    """Rename the file of a pipeline; False where it has the new name already."""
    try:
        source.replace(target)
    except FileNotFoundError as problem:
        if target.exists():
            return False
        raise PipelineNotFound(pipeline=name) from problem
    sync_folder(target.parent)
    return True


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    sync_folder(path.parent)
    return True
