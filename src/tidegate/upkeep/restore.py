"""Restoring: takes a backup file, gives a home that goes on where the backup was made, or changes nothing.

Everything is unpacked and checked in `DIR.restoring-<pid>` beside the home; that becomes DIR by one rename at
the end. A kill at any moment leaves DIR absent or whole, and the next restore removes what was left.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import BackupUnusable, HomeUnusable, StorageFailed, StorageFull, TidegateError
from tidegate.storage.files import files_below, is_full, sync_folder, sync_tree
from tidegate.storage.home import FOLDERS, LAYOUT_FILE, LAYOUT_VERSION
from tidegate.storage.locks import is_alive
from tidegate.upkeep.archive import (
    CHUNK_BYTES,
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    ArchiveReader,
    Entry,
    FileNote,
    Manifest,
    check_path,
    decode_manifest,
)
from tidegate.upkeep.freeze import CATALOG_DUMP
from tidegate.upkeep.pack import Report

MARK = ".restoring-"


@dataclass(frozen=True, slots=True)
class Restored:
    """A home that was made from a backup."""

    home: Path
    size_bytes: int
    file_count: int
    home_id: str
    created_at: str


def restore(file: Path, home: Path, load_catalog: Callable[[Path, Path], None], report: Report) -> Restored:
    """Make a home from a backup; `load_catalog(home, dump)` fills its catalog, in whatever database.

    HomeUnusable where the folder holds something, BackupUnusable naming what is wrong with the file.
    """
    home = home.expanduser().absolute()
    _check_empty(home)
    spare = home.with_name(f"{home.name}{MARK}{os.getpid()}")
    try:
        # 1. what dead ones left
        _remove_leftovers(home)
        # 2. unpack and check
        spare.mkdir(parents=True, mode=0o700)
        manifest = _unpack(file, spare, report)
        _sync_files(spare)
        # 3. what a home has beside files
        for name in FOLDERS:
            (spare / name).mkdir(exist_ok=True, mode=0o700)
        # 4. the catalog
        if (spare / CATALOG_DUMP).is_dir():
            load_catalog(spare, spare / CATALOG_DUMP)
            shutil.rmtree(spare / CATALOG_DUMP)
        sync_tree(spare)
        # 5. all of it appears
        spare.rename(home)
        sync_folder(home.parent)
    except OSError as problem:
        shutil.rmtree(spare, ignore_errors=True)
        raise _failed(file, home, problem) from problem
    except BaseException:
        shutil.rmtree(spare, ignore_errors=True)
        raise
    return Restored(home, manifest.size_bytes, len(manifest.files), manifest.home_id, manifest.created_at)


def read_manifest(file: Path, report: Report = lambda _done, _total: None) -> Manifest:
    """Check a whole backup file and give its manifest; writes nothing."""
    return _read(file, None, report)


def _unpack(file: Path, spare: Path, report: Report) -> Manifest:
    manifest = _read(file, spare, report)
    if manifest.layout > LAYOUT_VERSION:
        reason = f"its home has layout {manifest.layout}; this version knows layouts up to {LAYOUT_VERSION}"
        raise BackupUnusable(file=str(file), reason=reason, hint="Restore it with a newer Tidegate.")
    if not (spare / LAYOUT_FILE).is_file():
        raise BackupUnusable(file=str(file), reason=f"it holds no {LAYOUT_FILE}")
    return manifest


def _read(file: Path, target: Path | None, report: Report) -> Manifest:
    with file.open("rb", buffering=CHUNK_BYTES) as stream:
        total = os.fstat(stream.fileno()).st_size
        found: dict[str, FileNote] = {}
        manifest: Manifest | None = None
        for entry in ArchiveReader(stream, str(file)).entries():
            if manifest is not None:
                raise BackupUnusable(file=str(file), reason=f"{entry.path} stands behind {MANIFEST_NAME}")
            if entry.path == MANIFEST_NAME:
                manifest = decode_manifest(_whole(entry, str(file)), str(file))
            elif entry.path in found:
                raise BackupUnusable(file=str(file), reason=f"{entry.path} is in it twice")
            else:
                found[entry.path] = _take(entry, target, str(file))
            report(stream.tell(), total)
    if manifest is None:
        raise BackupUnusable(file=str(file), reason=f"it is cut short: there is no {MANIFEST_NAME}")
    _compare(manifest, found, str(file))
    return manifest


def _sync_files(folder: Path) -> None:
    """Put every file on the disk; at the end, since the disk has worked at it all the while."""
    for path in files_below(folder):
        fd = os.open(folder / path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _whole(entry: Entry, file: str) -> bytes:
    if entry.size_bytes > MANIFEST_BYTES_MAX:
        raise BackupUnusable(file=file, reason=f"{MANIFEST_NAME} is larger than can be")
    return b"".join(entry.chunks())


def _take(entry: Entry, target: Path | None, file: str) -> FileNote:
    """Read one file, and write it where there is a target."""
    inside = check_path(entry.path, file)
    digest = hashlib.sha256()
    if target is None:
        for chunk in entry.chunks():
            digest.update(chunk)
        return FileNote(entry.path, entry.size_bytes, digest.hexdigest())
    place = target / inside
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        for chunk in entry.chunks():
            digest.update(chunk)
            out.write(chunk)
    return FileNote(entry.path, entry.size_bytes, digest.hexdigest())


def _compare(manifest: Manifest, found: dict[str, FileNote], file: str) -> None:
    for note in manifest.files:
        real = found.pop(note.path, None)
        if real is None:
            raise BackupUnusable(file=file, reason=f"{note.path} is missing")
        if real != note:
            raise BackupUnusable(file=file, reason=f"{note.path} is damaged")
    if found:
        raise BackupUnusable(file=file, reason=f"{next(iter(found))} is not in its manifest")


def _check_empty(home: Path) -> None:
    try:
        full = any(home.iterdir())
    except FileNotFoundError:
        return
    except OSError as problem:
        raise HomeUnusable(home=str(home), reason=problem.strerror or str(problem)) from problem
    if full:
        hint = "Name a folder that is not there yet: --home DIR. Nothing was touched."
        raise HomeUnusable(home=str(home), reason="it is not empty", hint=hint)


def _remove_leftovers(home: Path) -> None:
    if not home.parent.is_dir():
        return
    for left in sorted(home.parent.iterdir()):
        pid = left.name.removeprefix(f"{home.name}{MARK}")
        if pid != left.name and pid.isdecimal() and (int(pid) == os.getpid() or not is_alive(int(pid))):
            shutil.rmtree(left)


def _failed(file: Path, home: Path, problem: OSError) -> TidegateError:
    if is_full(problem):
        place = next(folder for folder in home.parents if folder.exists())
        free_bytes = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
        return StorageFull(
            path=str(place), free_bytes=free_bytes, hint="Free some space, or name another disk."
        )
    if problem.filename == str(file):
        return BackupUnusable(file=str(file), reason=problem.strerror or str(problem))
    hint = "Nothing was left behind; try again, or name another folder: --home DIR."
    return StorageFailed(
        path=str(problem.filename or home), reason=f"{problem.strerror or problem}.", hint=hint
    )
