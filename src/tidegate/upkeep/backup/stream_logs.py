"""A copy of the stream logs of a folder as of one moment, while others append to them.

A log only grows, so a hard link and the length of now are a copy of now: whatever is appended later lies
after that length, and the packer does not read it. The length may lie inside a frame; readers treat that as
the torn tail of an append that was not acknowledged.

    windows expire         one that is renamed or unlinked meanwhile is left out: its rows are expired
    tables are dropped     so is a dropped table; a part of its rows would be of no use
    tables are recreated   one that is dropped and created again under its name is copied from the beginning:
                           logs of the old one beside the id of the new one would show dropped rows

A log with a torn tail is truncated when it is opened for writing, and is then shorter than its noted length:
the packer takes what is there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tidegate.storage.files import link_or_copy

ID_FILE = "table.id"  # the id of the table that the logs beside it belong to
HIDDEN = "."  # begins the names of folders whose content is being removed
UNFINISHED = ".new"  # ends the names of files that are not complete
# A table that is dropped and created again more often than this while we copy is left out.
ATTEMPTS_MAX = 5

log = logging.getLogger(__name__)


def copy_streams(source: Path, target: Path) -> dict[Path, int]:
    """Copy every stream below a folder; return the length of each copied file."""
    lengths: dict[Path, int] = {}
    for namespace in _folders(source):
        for table in _folders(namespace):
            lengths |= _copy_table(table, target / namespace.name / table.name)
    return lengths


def _copy_table(source: Path, target: Path) -> dict[Path, int]:
    for _ in range(ATTEMPTS_MAX):
        before = _id_of(source)
        lengths = dict(_copy_folder(source, target)) if before is not None else {}
        if before is not None and _id_of(source) == before:
            return lengths
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(target)
        if _id_of(source) is None:
            return {}  # dropped, or not finished yet
    log.warning("table skipped: dropped and created repeatedly table=%s", source)
    return {}


def _copy_folder(source: Path, target: Path) -> Iterator[tuple[Path, int]]:
    """Link every file and yield it with its length; what vanishes meanwhile is left out."""
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    for entry in _entries(source):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _copy_folder(Path(entry.path), place)
        elif not entry.name.endswith(UNFINISHED):
            with contextlib.suppress(FileNotFoundError):
                link_or_copy(Path(entry.path), place, sync=False)
                yield place, place.stat().st_size


def _id_of(table: Path) -> bytes | None:
    try:
        return (table / ID_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _folders(place: Path) -> list[Path]:
    return [
        Path(entry.path)
        for entry in _entries(place)
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(HIDDEN)
    ]


def _entries(place: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
