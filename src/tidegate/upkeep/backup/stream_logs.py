"""Streams at rest: takes a folder of stream logs that are appended to, gives a copy as of one moment.

A log only grows, so a second name and the length that it has now are a copy of now: whatever is appended
later stands behind that length, and the packer does not read it. The length may lie inside a frame; readers
take that for a torn tail, of an append that was not answered yet.

    windows expire     one that is renamed away or unlinked meanwhile is left out: its rows are over
    tables go          so is one that is dropped; half of it would be rows that nobody asked to keep
    tables come again  one that is dropped and made anew under its name is taken again from the beginning:
                       logs of the old one beside the id of the new one would show what was dropped

A log that was cut off by a crash loses its torn tail when it is opened for writing, and is shorter then than
it was: the packer takes what is there.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tidegate.storage.files import link_or_copy

ID_FILE = "table.id"  # says which table the logs beside it belong to
HIDDEN = "."  # begins the names of folders that hold what is being removed
SPARE = ".new"  # ends the names of files that are not finished
# A table that is dropped and made again more often than this while we look is as good as new: it is left out.
ATTEMPTS_MAX = 5

log = logging.getLogger(__name__)


def copy_streams(source: Path, target: Path) -> dict[Path, int]:
    """Copy every stream below a folder; give each copied file with the length up to which it counts."""
    lengths: dict[Path, int] = {}
    for namespace in _folders(source):
        for table in _folders(namespace):
            lengths |= _take_table(table, target / namespace.name / table.name)
    return lengths


def _take_table(source: Path, target: Path) -> dict[Path, int]:
    for _ in range(ATTEMPTS_MAX):
        before = _id_of(source)
        lengths = dict(_take_folder(source, target)) if before is not None else {}
        if before is not None and _id_of(source) == before:
            return lengths
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(target)
        if _id_of(source) is None:
            return {}  # dropped, or not finished yet
    log.warning("left out of the backup: %s is dropped and made again all the time", source)
    return {}


def _take_folder(source: Path, target: Path) -> Iterator[tuple[Path, int]]:
    """Link every file, give each with its length; what vanishes meanwhile is left out."""
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    for entry in _entries(source):
        place = target / entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _take_folder(Path(entry.path), place)
        elif not entry.name.endswith(SPARE):
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
