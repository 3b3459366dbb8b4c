"""A copy of the Delta tables of a folder, each at one version, while others write to them.

A table's version is read first, its log entries up to that version are linked, and only then its files: every
file that the version names was written before its commit. Log entries, checkpoints and data files are renamed
into place by every writer and never changed, so a hard link is as good as a copy.

A table may be compacted and vacuumed, or removed, between the two. So the copy is checked for every file that
the copied log names; where one is missing, the table is copied again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from tidegate.errors import StorageFailed
from tidegate.storage.files import copy_file, link_or_copy

LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
SIDECARS = "_sidecars"
_COMMIT = re.compile(r"(\d{20})\.json")
# Everything in a log that belongs to one version, with the checksum files that Hadoop writes.
_OF_VERSION = re.compile(r"\.?(\d{20})\.(json|checkpoint\.[\w.-]+|crc)(\.crc)?")
_WRITTEN_ONCE = (".parquet", ".bin", ".crc")
# A table that is vacuumed is complete at its next version; one that is being removed is gone in a moment.
ATTEMPTS_MAX = 20
ATTEMPT_WAIT_SECONDS = 0.05

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LakeCopy:
    """The copy of one folder of tables; every further update links only what is new."""

    source: Path
    target: Path
    _linked: dict[str, int] = field(default_factory=dict)
    _complete: dict[str, tuple[int, int]] = field(default_factory=dict)  # table: version, inode of its commit

    def update(self) -> None:
        """Copy every table at its version of now; raise StorageFailed for one whose files are missing."""
        with contextlib.suppress(FileNotFoundError):  # a lake without tables has no folder yet
            self._copy_folder(self.source, self.target)

    def tables(self) -> list[Path]:
        """Return the folders of the copied tables."""
        return sorted(log.parent for log in self.target.rglob(LOG_FOLDER))

    def _copy_folder(self, source: Path, target: Path) -> None:
        if (source / LOG_FOLDER).is_dir():
            self._copy_table(source, target)
        else:
            self._copy_files(source, target)

    def _copy_table(self, source: Path, target: Path) -> None:
        missing = ""
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                time.sleep(ATTEMPT_WAIT_SECONDS)
            try:
                target.mkdir(parents=True, exist_ok=True, mode=0o700)
                version = self._copy_log(source / LOG_FOLDER, target / LOG_FOLDER)
                self._copy_files(source, target)
            except FileNotFoundError:
                version = None
            if not _has_commits(source / LOG_FOLDER):
                self._forget(target)  # dropped while we copied: a part of a table is of no use
                if source.is_dir():
                    self._copy_files(source, target)
                return
            if version is not None:
                missing = self._missing(source, target, version)
                if not missing:
                    return
        raise StorageFailed(
            path=str(source),
            reason=f"it has no file {missing}, which its log names.",
            hint="Try again. If it stays so, the table is damaged: repair it, or move it out of the home.",
        )

    def _copy_files(self, source: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.scandir(source) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if entry.is_dir():
                if entry.name != LOG_FOLDER and not entry.name.startswith((".", "_temporary")):
                    with contextlib.suppress(FileNotFoundError):
                        self._copy_folder(source / entry.name, target / entry.name)
            elif entry.name.endswith(_WRITTEN_ONCE):
                self._link(entry, target / entry.name)
            elif not entry.name.startswith((".", "_")):
                with contextlib.suppress(FileNotFoundError):
                    copy_file(Path(entry.path), target / entry.name, sync=False)

    def _missing(self, source: Path, target: Path, version: int) -> str:
        """Return a file that the copy's version needs and does not have; "" where there is none."""
        try:
            mark = (version, (target / LOG_FOLDER / f"{version:020}.json").stat().st_ino)
        except FileNotFoundError:
            return f"{LOG_FOLDER}/{version:020}.json"  # removed, since a newer checkpoint replaces it
        if self._complete.get(str(target)) != mark:
            paths = _active_files(target)
            if paths is None and _active_files(source) is not None:
                return LOG_FOLDER  # a part of the log was removed while we copied it
            for path in paths or ():
                if not any((target / name).exists() for name in (unquote(path), path)):
                    return path
            self._complete[str(target)] = mark
        return ""

    def _copy_log(self, source: Path, target: Path) -> int | None:
        with os.scandir(source) as entries:
            found = {entry.name: entry for entry in entries}
        commits = [int(match[1]) for name in found if (match := _COMMIT.fullmatch(name))]
        if not commits:
            return None
        version = max(commits)
        target.mkdir(exist_ok=True, mode=0o700)
        needed = {name for name in found if _version_of(name) <= version}
        for name in sorted(needed):
            self._link(found[name], target / name)
        if SIDECARS in found:
            self._copy_folder(source / SIDECARS, target / SIDECARS)
        for name in os.listdir(target):  # noqa: PTH208 - names are all we need
            if name not in needed and name != SIDECARS:
                (target / name).unlink()  # of an earlier table of this name
        _copy_last_checkpoint(source, target, version)
        return version

    def _link(self, entry: os.DirEntry[str], target: Path) -> None:
        inode = entry.inode()
        if self._linked.get(str(target)) == inode:
            return
        with contextlib.suppress(FileNotFoundError):  # vacuumed or cleaned up: no version needs it
            link_or_copy(Path(entry.path), target, sync=False)
            self._linked[str(target)] = inode

    def _forget(self, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        self._complete = {path: mark for path, mark in self._complete.items() if Path(path).exists()}
        self._linked = {path: inode for path, inode in self._linked.items() if Path(path).exists()}


def _has_commits(log_folder: Path) -> bool:
    try:
        return any(_COMMIT.fullmatch(name) for name in os.listdir(log_folder))  # noqa: PTH208
    except FileNotFoundError:
        return False


def _active_files(table: Path) -> list[str] | None:
    """Return the active files of a table, relative to its folder; None where its log cannot be read."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        paths = pa.table(DeltaTable(table.absolute().as_uri()).get_add_actions(flatten=True))["path"]
    except (DeltaError, OSError) as problem:
        log.warning("table log unreadable table=%s error=%s", table, problem)
        return None
    return [path for path in paths.to_pylist() if not path.startswith("/") and "://" not in path]


def _version_of(name: str) -> float:
    match = _OF_VERSION.fullmatch(name)
    return int(match[1]) if match else float("inf")


def _copy_last_checkpoint(source: Path, target: Path, version: int) -> None:
    """Copy the pointer to the newest checkpoint, unless it points past the version; it is optional."""
    try:
        content = (source / LAST_CHECKPOINT).read_bytes()
        if int(json.loads(content)["version"]) <= version:
            (target / LAST_CHECKPOINT).write_bytes(content)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
