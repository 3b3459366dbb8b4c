"""Tables at rest: takes a folder of Delta tables that are written to, gives a copy at one version of each.

A table's version is read first, its log entries up to there are linked, and only then its files: every file
that the version names was written before its commit, so it is there. Log entries, checkpoints and data files
are renamed into place by every writer and never changed, so a second name is as good as a copy.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.storage.files import copy_file, link_or_copy

LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
SIDECARS = "_sidecars"
_COMMIT = re.compile(r"(\d{20})\.json")
# Everything in a log that belongs to one version, with the sums that Hadoop keeps beside a file.
_OF_VERSION = re.compile(r"\.?(\d{20})\.(json|checkpoint\.[\w.-]+|crc)(\.crc)?")
_WRITTEN_ONCE = (".parquet", ".bin", ".crc")


@dataclass(slots=True)
class LakeFreeze:
    """Copies one folder of tables; called again, it brings the copy up to date and costs little."""

    source: Path
    target: Path
    _linked: dict[str, int] = field(default_factory=dict)

    def take(self) -> None:
        """Copy every table at its version of now."""
        with contextlib.suppress(FileNotFoundError):  # a lake without tables has no folder yet
            self._take_folder(self.source, self.target)

    def tables(self) -> list[Path]:
        """List the copies that are tables."""
        return sorted(log.parent for log in self.target.rglob(LOG_FOLDER))

    def _take_folder(self, source: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        version = None
        if (source / LOG_FOLDER).is_dir():
            version = self._take_log(source / LOG_FOLDER, target / LOG_FOLDER)
        # Listed after the log was read: what it names is there by now.
        with os.scandir(source) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            if entry.is_dir():
                if entry.name != LOG_FOLDER and not entry.name.startswith((".", "_temporary")):
                    with contextlib.suppress(FileNotFoundError):
                        self._take_folder(source / entry.name, target / entry.name)
            elif entry.name.endswith(_WRITTEN_ONCE):
                self._link(entry, target / entry.name)
            elif not entry.name.startswith((".", "_")):
                with contextlib.suppress(FileNotFoundError):
                    copy_file(Path(entry.path), target / entry.name, sync=False)
        if version is not None and not (source / LOG_FOLDER / f"{version:020}.json").exists():
            self._forget(target)  # dropped while we copied: half a table is none

    def _take_log(self, source: Path, target: Path) -> int | None:
        with os.scandir(source) as entries:
            found = {entry.name: entry for entry in entries}
        commits = [int(match[1]) for name in found if (match := _COMMIT.fullmatch(name))]
        if not commits:
            return None
        version = max(commits)
        target.mkdir(exist_ok=True, mode=0o700)
        wanted = {name for name in found if _version_of(name) <= version}
        for name in sorted(wanted):
            self._link(found[name], target / name)
        if SIDECARS in found:
            self._take_folder(source / SIDECARS, target / SIDECARS)
        for name in os.listdir(target):  # noqa: PTH208 - names are all we need
            if name not in wanted and name != SIDECARS:
                (target / name).unlink()  # of a table that was there before this one
        _take_last_checkpoint(source, target, version)
        return version

    def _link(self, entry: os.DirEntry[str], target: Path) -> None:
        inode = entry.inode()
        if self._linked.get(str(target)) == inode:
            return
        with contextlib.suppress(FileNotFoundError):  # vacuumed or cleaned up: no version needs it
            link_or_copy(Path(entry.path), target, sync=False)
            self._linked[str(target)] = inode

    def _forget(self, target: Path) -> None:
        shutil.rmtree(target)
        self._linked = {path: inode for path, inode in self._linked.items() if Path(path).exists()}


def _version_of(name: str) -> float:
    match = _OF_VERSION.fullmatch(name)
    return int(match[1]) if match else float("inf")


def _take_last_checkpoint(source: Path, target: Path, version: int) -> None:
    """Copy the pointer to the newest checkpoint, unless it points beyond the version; readers do without."""
    try:
        content = (source / LAST_CHECKPOINT).read_bytes()
        if int(json.loads(content)["version"]) <= version:
            (target / LAST_CHECKPOINT).write_bytes(content)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return
