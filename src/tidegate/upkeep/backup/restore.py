"""Restoring: takes a backup file, gives a home that goes on where the backup was made, or changes nothing.

Everything is unpacked and checked in `DIR.restoring-<pid>` beside the home; that becomes DIR by one rename at
the end. A kill at any moment leaves DIR absent or whole, and the next restore removes what was left. Where
DIR is a disk of its own, which cannot be renamed, all that stands in `DIR/.restoring-<pid>`, and its entries
are moved up, layout.json last: a folder without it is no home, and no server takes one with such a rest.

The catalog may be in a database elsewhere, which no rename reaches. It is loaded with a mark, by which a
restore of the same file into the same place knows what one that was killed has left, and loads it anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tidegate.errors import BackupUnusable, HomeUnusable, StorageFailed, TidegateError
from tidegate.storage.files import disk_error, files_below, is_full, sync_folder, sync_tree
from tidegate.storage.home.home import ALLOWED_BEFORE, FOLDERS, LAYOUT_FILE, LAYOUT_VERSION, LOST_AND_FOUND
from tidegate.storage.home.home import RESTORING as MARK
from tidegate.storage.home.locks import is_alive
from tidegate.upkeep.backup.home_snapshot import CATALOG_DUMP, SETTINGS_FILE
from tidegate.upkeep.backup.pack import Report
from tidegate.upkeep.backup.tar_format import (
    CHUNK_BYTES,
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    BackupManifest,
    ManifestEntry,
    TarEntry,
    TarReader,
    check_path,
    decode_manifest,
    encode_manifest,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A home that was made from a backup."""

    home: Path
    size_bytes: int
    file_count: int
    home_id: str
    created_at: str


class CatalogLoader(Protocol):
    """Fills the catalog of a home that is being restored, in whatever database."""

    def load(self, home: Path, dump: Path, mark: str) -> None:
        """Put a dump into the catalog that a home names; over one of the same mark that was not kept."""

    def keep(self, home: Path, mark: str) -> None:
        """Note that the home stands: its catalog is in use from now on."""

    def undo(self, home: Path, mark: str) -> None:
        """Empty the catalog again, since there will be no home."""


def restore(
    file: Path,
    home: Path,
    catalog: CatalogLoader,
    report: Report,
    before_appearing: Callable[[], None] = lambda: None,
) -> RestoreResult:
    """Make a home from a backup.

    HomeUnusable where the folder holds something, BackupUnusable naming what is wrong with the file.
    `before_appearing` is called when everything is loaded, just before the home is there: tests stop here.
    """
    home = home.expanduser().absolute()
    if home.is_symlink():
        home = home.resolve()
    in_place = is_mount_point(home)
    spare = home / f"{MARK}{os.getpid()}" if in_place else home.with_name(f"{home.name}{MARK}{os.getpid()}")
    _check_empty(home, in_place=in_place)
    loaded = ""
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
            mark = _mark_of(manifest, home)
            catalog.load(spare, spare / CATALOG_DUMP, mark)
            loaded = mark
            shutil.rmtree(spare / CATALOG_DUMP)
        sync_tree(spare)
        before_appearing()
        # 5. all of it appears
        _appear(spare, home, in_place=in_place)
    except OSError as problem:
        _give_up(catalog, spare, home, loaded)
        raise _failed(file, home, problem) from problem
    except BaseException:
        _give_up(catalog, spare, home, loaded)
        raise
    _keep(catalog, home, loaded)
    return RestoreResult(
        home, manifest.size_bytes, len(manifest.files), manifest.home_id, manifest.created_at
    )


def is_mount_point(path: Path) -> bool:
    """Return whether something is mounted there.

    Also a folder of the same disk, which `os` does not notice.
    """
    if path.is_mount():
        return True
    try:
        lines = (
            Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        )
    except FileNotFoundError:
        return False
    escaped = str(path.resolve())
    for char in "\\ \t\n":
        escaped = escaped.replace(char, f"\\{ord(char):03o}")
    return any(line.split(" ")[4] == escaped for line in lines)


def _mark_of(manifest: BackupManifest, home: Path) -> str:
    """Name the restore of one file into one place on one machine."""
    text = encode_manifest(manifest) + os.fsencode(f"\0{socket.gethostname()}\0{home}")
    return hashlib.sha256(text).hexdigest()


def _appear(spare: Path, home: Path, *, in_place: bool) -> None:
    if not in_place:
        spare.rename(home)
        sync_folder(home.parent)
        return
    for entry in sorted(spare.iterdir()):
        if entry.name != LAYOUT_FILE:
            entry.rename(home / entry.name)
    sync_folder(home)
    (spare / LAYOUT_FILE).rename(home / LAYOUT_FILE)
    sync_folder(home)
    spare.rmdir()


def _keep(catalog: CatalogLoader, home: Path, loaded: str) -> None:
    try:
        if loaded:
            catalog.keep(home, loaded)
    except TidegateError as problem:  # the home is whole; the trail says of its restore that it began
        log.warning("the audit trail of %s does not say that it is restored: %s", home, problem)


def _give_up(catalog: CatalogLoader, spare: Path, home: Path, loaded: str) -> None:
    """Leave nothing behind; what cannot be removed is known again by the next restore of the same file."""
    if (home / LAYOUT_FILE).exists():
        return  # it stands: only what comes after failed
    try:
        if loaded:
            catalog.undo(home if (home / SETTINGS_FILE).exists() else spare, loaded)
    except TidegateError as problem:
        log.warning("the catalog keeps what was loaded; restore the same file to %s again: %s", home, problem)
    if spare.parent == home:
        _remove_moved(home)
    shutil.rmtree(spare, ignore_errors=True)


def read_manifest(file: Path, report: Report = lambda _done, _total: None) -> BackupManifest:
    """Check a whole backup file and give its manifest; writes nothing."""
    return _read(file, None, report)


def _unpack(file: Path, spare: Path, report: Report) -> BackupManifest:
    manifest = _read(file, spare, report)
    if manifest.layout > LAYOUT_VERSION:
        reason = f"its home has layout {manifest.layout}; this version knows layouts up to {LAYOUT_VERSION}"
        raise BackupUnusable(file=str(file), reason=reason, hint="Restore it with a newer Tidegate.")
    try:
        layout = json.loads((spare / LAYOUT_FILE).read_bytes())["layout"]
    except (FileNotFoundError, IsADirectoryError) as problem:
        raise BackupUnusable(file=str(file), reason=f"it holds no {LAYOUT_FILE}") from problem
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise BackupUnusable(file=str(file), reason=f"its {LAYOUT_FILE} is damaged") from problem
    if layout != manifest.layout:
        reason = f"its {LAYOUT_FILE} says another layout than its manifest"
        raise BackupUnusable(file=str(file), reason=reason)
    for name in (*FOLDERS, str(CATALOG_DUMP)):
        if (spare / name).exists() and not (spare / name).is_dir():
            raise BackupUnusable(file=str(file), reason=f"{name} is a file in it, and a folder in a home")
    return manifest


def _read(file: Path, target: Path | None, report: Report) -> BackupManifest:
    with file.open("rb", buffering=CHUNK_BYTES) as stream:
        total = os.fstat(stream.fileno()).st_size
        found: dict[str, ManifestEntry] = {}
        manifest: BackupManifest | None = None
        for entry in TarReader(stream, str(file)).entries():
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


def _whole(entry: TarEntry, file: str) -> bytes:
    if entry.size_bytes > MANIFEST_BYTES_MAX:
        raise BackupUnusable(file=file, reason=f"{MANIFEST_NAME} is larger than can be")
    return b"".join(entry.chunks())


def _take(entry: TarEntry, target: Path | None, file: str) -> ManifestEntry:
    """Read one file, and write it where there is a target."""
    inside = check_path(entry.path, file)
    digest = hashlib.sha256()
    if target is None:
        for chunk in entry.chunks():
            digest.update(chunk)
        return ManifestEntry(entry.path, entry.size_bytes, digest.hexdigest())
    place = target / inside
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except (FileExistsError, NotADirectoryError) as problem:
        reason = f"{entry.path} stands where it has something else"
        raise BackupUnusable(file=file, reason=reason) from problem
    with os.fdopen(fd, "wb") as out:
        for chunk in entry.chunks():
            digest.update(chunk)
            out.write(chunk)
    return ManifestEntry(entry.path, entry.size_bytes, digest.hexdigest())


def _compare(manifest: BackupManifest, found: dict[str, ManifestEntry], file: str) -> None:
    for note in manifest.files:
        real = found.pop(note.path, None)
        if real is None:
            raise BackupUnusable(file=file, reason=f"{note.path} is missing")
        if real != note:
            raise BackupUnusable(file=file, reason=f"{note.path} is damaged")
    if found:
        raise BackupUnusable(file=file, reason=f"{next(iter(found))} is not in its manifest")


def _check_empty(home: Path, *, in_place: bool) -> None:
    try:
        names = {entry.name for entry in home.iterdir()}
    except FileNotFoundError:
        return
    except OSError as problem:
        raise HomeUnusable(home=str(home), reason=problem.strerror or str(problem)) from problem
    if in_place:
        _check_leftovers(home, names)
        names -= _removable(home, names)
    if names:
        hint = "Name a folder that is not there yet: --home DIR. Nothing was touched."
        raise HomeUnusable(home=str(home), reason="it is not empty", hint=hint)


def _check_leftovers(home: Path, names: set[str]) -> None:
    for name in names:
        pid = name.removeprefix(MARK)
        if pid != name and pid.isdecimal() and not _is_dead(pid):
            reason = f"another restore is at work there (process {pid})"
            raise HomeUnusable(home=str(home), reason=reason, hint="Wait until it has ended.")


def _removable(home: Path, names: set[str]) -> set[str]:
    """Return what a disk of its own always has, and what a restore that was killed there left."""
    rests = {name for name in names if name.startswith(MARK)}
    if not rests or (home / LAYOUT_FILE).exists():
        return names & {LOST_AND_FOUND}
    return rests | (names & ALLOWED_BEFORE)


def _remove_moved(home: Path) -> None:
    """Remove what a restore moved to its place before it was cut off."""
    if not (home / LAYOUT_FILE).exists():
        for name in ALLOWED_BEFORE - {LOST_AND_FOUND}:
            if (home / name).is_dir():
                shutil.rmtree(home / name)
            else:
                (home / name).unlink(missing_ok=True)


def _remove_leftovers(home: Path) -> None:
    if home.parent.is_dir():
        _remove_dead(home.parent, f"{home.name}{MARK}")
    if home.is_dir() and any(entry.name.startswith(MARK) for entry in home.iterdir()):
        _remove_moved(home)
        _remove_dead(home, MARK)


def _remove_dead(folder: Path, prefix: str) -> None:
    for left in sorted(folder.iterdir()):
        pid = left.name.removeprefix(prefix)
        if pid != left.name and pid.isdecimal() and _is_dead(pid):
            shutil.rmtree(left)


def _is_dead(pid: str) -> bool:
    return int(pid) == os.getpid() or not is_alive(int(pid))


def _failed(file: Path, home: Path, problem: OSError) -> TidegateError:
    if is_full(problem):
        place = next(folder for folder in (home, *home.parents) if folder.exists())
        return disk_error(place, problem, full_hint="Free some space, or name another disk.")
    if problem.filename == str(file):
        return BackupUnusable(file=str(file), reason=problem.strerror or str(problem))
    hint = "Nothing was left behind; try again, or name another folder: --home DIR."
    return StorageFailed(
        path=str(problem.filename or home), reason=f"{problem.strerror or problem}.", hint=hint
    )
