"""A copy of the folder of a store that is open, as a kill at one moment would leave it."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_still(source: Path, target: Path) -> None:
    """Copy a folder in which nothing changes meanwhile.

    RocksDB removes files in the background that it has merged or written out: a list of files from before
    and files from after that are no state in which the folder ever was.
    """
    while True:
        before = _files(source)
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("LOCK"))
        except (shutil.Error, FileNotFoundError):
            is_still = False
        else:
            is_still = _files(source) == before
        if is_still:
            return
        shutil.rmtree(target)


def _files(folder: Path) -> dict[str, tuple[int, int]] | None:
    """Return what is there with sizes; what RocksDB says of its work is no part of its state."""
    try:
        return {
            str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_size)
            for path in folder.rglob("*")
            if path.is_file() and not path.name.startswith("LOG")
        }
    except FileNotFoundError:
        return None
