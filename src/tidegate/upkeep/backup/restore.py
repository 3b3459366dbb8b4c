"""The restore of a home from a backup file: all of it, or nothing is changed.

Everything is unpacked and checked in `DIR.restoring-<pid>` beside the home; one rename at the end makes it
DIR. A kill at any moment leaves DIR absent or complete, and the next restore removes what was left. Where DIR
is a mount point, which cannot be renamed, the staging folder is `DIR/.restoring-<pid>`, and its entries are
moved up, layout.json last: a folder without it is no home, and no server starts on one with such a folder.

The catalog may be in a database elsewhere, which no rename reaches. It is loaded with a mark, by which a
later restore of the same file into the same place recognizes what a killed one has left, and replaces it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from tidegate.catalog.restored_access import ValidAccess
from tidegate.errors import BackupUnusable, HomeUnusable, StorageFailed, TidegateError
from tidegate.storage.files import (
    disk_error,
    files_below,
    is_full,
    sync_folder,
    sync_tree,
    write_file_atomically,
)
from tidegate.storage.home.home import (
    ALLOWED_BEFORE,
    FOLDERS,
    LAYOUT_FILE,
    LAYOUT_VERSION,
    LOST_AND_FOUND,
    TOKEN_FILE,
)
from tidegate.storage.home.home import RESTORING as MARK
from tidegate.storage.home.locks import is_alive
from tidegate.storage.home.pipeline_files import list_pipeline_files
from tidegate.upkeep.backup.encryption import BackupKey, open_readable
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

PIPELINES_FOLDER = "pipelines"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """A home that was made from a backup."""

    home: Path
    size_bytes: int
    file_count: int
    home_id: str
    created_at: str
    access: ValidAccess
    pipelines: tuple[str, ...]  # that start with its worker


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What a restore asks for: with a key, a file encrypted with it; with a token, an end of all others."""

    key: BackupKey | None = None
    new_token: str | None = None


PLAIN = RestoreOptions()


class CatalogLoader(Protocol):
    """Fills the catalog of a home that is being restored, in whatever database."""

    def load(self, home: Path, dump: Path, mark: str, *, end_tokens: bool) -> ValidAccess:
        """Load a dump into the catalog that a home names; replace an unconfirmed one of the same mark.

        Return what lets somebody in; `end_tokens` leaves the text in the home's admin.token alone.
        """

    def confirm(self, home: Path, mark: str) -> None:
        """Note that the home is there: its catalog is in use from now on."""

    def undo(self, home: Path, mark: str) -> None:
        """Empty the catalog again, since there will be no home."""


def restore(
    file: Path,
    home: Path,
    catalog: CatalogLoader,
    report: Report,
    before_appearing: Callable[[], None] = lambda: None,
    options: RestoreOptions = PLAIN,
) -> RestoreResult:
    """Make a home from a backup.

    Raise HomeUnusable where the folder is not empty, BackupUnusable naming what is wrong with the file.
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
        # 1. what killed restores left
        _remove_leftovers(home)
        # 2. unpack and check
        manifest = _fill(file, spare, report, options)
        # 3. the catalog; a home from before there was one has no token but admin.token
        access = ValidAccess(1)
        if (spare / CATALOG_DUMP).is_dir():
            mark = _mark_of(manifest, home)
            end_tokens = options.new_token is not None
            access = catalog.load(spare, spare / CATALOG_DUMP, mark, end_tokens=end_tokens)
            loaded = mark
            shutil.rmtree(spare / CATALOG_DUMP)
        sync_tree(spare)
        before_appearing()
        # 4. all of it appears
        _appear(spare, home, in_place=in_place)
    except OSError as problem:
        _give_up(catalog, spare, home, loaded)
        raise _failed(file, home, problem) from problem
    except BaseException:
        _give_up(catalog, spare, home, loaded)
        raise
    _confirm(catalog, home, loaded)
    return RestoreResult(
        home,
        manifest.size_bytes,
        len(manifest.files),
        manifest.home_id,
        manifest.created_at,
        access,
        list_pipeline_files(home / PIPELINES_FOLDER).installed,
    )


def _fill(file: Path, spare: Path, report: Report, options: RestoreOptions) -> BackupManifest:
    """Fill the staging folder with what a home has, all but the catalog."""
    spare.mkdir(parents=True, mode=0o700)
    manifest = _unpack(file, spare, report, options.key)
    if options.new_token is not None:
        write_file_atomically(spare / TOKEN_FILE, f"{options.new_token}\n".encode("ascii"), mode=0o600)
    _sync_files(spare)
    for name in FOLDERS:
        (spare / name).mkdir(exist_ok=True, mode=0o700)
    return manifest


def is_mount_point(path: Path) -> bool:
    """True if something is mounted there, also a folder of the same disk, which `os` does not notice."""
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
    """Return a digest of one file, one folder and one machine: the mark of this restore in the catalog."""
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


def _confirm(catalog: CatalogLoader, home: Path, loaded: str) -> None:
    try:
        if loaded:
            catalog.confirm(home, loaded)
    except TidegateError as problem:  # the home is complete; in the audit trail its restore stays "started"
        log.warning("restore not confirmed in the audit trail home=%s error=%s", home, problem)


def _give_up(catalog: CatalogLoader, spare: Path, home: Path, loaded: str) -> None:
    """Remove everything; what cannot be removed is recognized by the next restore of the same file."""
    if (home / LAYOUT_FILE).exists():
        return  # the home is there: only what comes after failed
    try:
        if loaded:
            catalog.undo(home if (home / SETTINGS_FILE).exists() else spare, loaded)
    except TidegateError as problem:
        log.warning(
            "catalog not emptied after a failed restore, restore the same file again home=%s error=%s",
            home,
            problem,
        )
    if spare.parent == home:
        _remove_moved(home)
    shutil.rmtree(spare, ignore_errors=True)


def read_manifest(
    file: Path, report: Report = lambda _done, _total: None, key: BackupKey | None = None
) -> BackupManifest:
    """Check a whole backup file and return its manifest; nothing is written."""
    return _read(file, None, report, key)


def _unpack(file: Path, spare: Path, report: Report, key: BackupKey | None) -> BackupManifest:
    manifest = _read(file, spare, report, key)
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


def _read(file: Path, target: Path | None, report: Report, key: BackupKey | None) -> BackupManifest:
    with file.open("rb", buffering=CHUNK_BYTES) as stream:
        total = os.fstat(stream.fileno()).st_size
        found: dict[str, ManifestEntry] = {}
        manifest: BackupManifest | None = None
        for entry in TarReader(open_readable(stream, key, str(file)), str(file)).entries():
            if manifest is not None:
                raise BackupUnusable(file=str(file), reason=f"{entry.path} is behind {MANIFEST_NAME}")
            if entry.path == MANIFEST_NAME:
                manifest = _read_manifest(entry, str(file))
            elif entry.path in found:
                raise BackupUnusable(file=str(file), reason=f"{entry.path} is in it twice")
            else:
                found[entry.path] = _extract(entry, target, str(file))
            report(stream.tell(), total)
    if manifest is None:
        reason = f"it is not a backup of Tidegate: it has no {MANIFEST_NAME}"
        raise BackupUnusable(file=str(file), reason=reason)
    _compare(manifest, found, str(file))
    return manifest


def _sync_files(folder: Path) -> None:
    """Sync every file; at the end, since the disk has written most of it by then."""
    for path in files_below(folder):
        fd = os.open(folder / path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _read_manifest(entry: TarEntry, file: str) -> BackupManifest:
    if entry.size_bytes > MANIFEST_BYTES_MAX:
        raise BackupUnusable(file=file, reason=f"{MANIFEST_NAME} is larger than can be")
    return decode_manifest(b"".join(entry.chunks()), file)


def _extract(entry: TarEntry, target: Path | None, file: str) -> ManifestEntry:
    """Read one file, write it where there is a target, and return what its manifest entry must be."""
    inside = check_path(entry.path, file)
    digest = hashlib.sha256()
    with nullcontext() if target is None else _create(target / inside, entry.path, file) as out:
        for chunk in entry.chunks():
            digest.update(chunk)
            if out is not None:
                out.write(chunk)
    return ManifestEntry(entry.path, entry.size_bytes, digest.hexdigest())


def _create(place: Path, path: str, file: str) -> BinaryIO:
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
    except (FileExistsError, NotADirectoryError) as problem:
        reason = f"{path} is in the place of something else"
        raise BackupUnusable(file=file, reason=reason) from problem


def _compare(manifest: BackupManifest, found: dict[str, ManifestEntry], file: str) -> None:
    for expected in manifest.files:
        actual = found.pop(expected.path, None)
        if actual is None:
            raise BackupUnusable(file=file, reason=f"{expected.path} is missing")
        if actual != expected:
            raise BackupUnusable(file=file, reason=f"{expected.path} is damaged")
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
    """Return what every mounted disk has, and what a restore that was killed there left."""
    leftovers = {name for name in names if name.startswith(MARK)}
    if not leftovers or (home / LAYOUT_FILE).exists():
        return names & {LOST_AND_FOUND}
    return leftovers | (names & ALLOWED_BEFORE)


def _remove_moved(home: Path) -> None:
    """Remove what a restore moved to its place before it was killed."""
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
