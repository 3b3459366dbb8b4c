"""The packer: one file from a frozen home, which appears complete or not at all.

The file is written as FILE.<random>.partial, locked by its writer, synced, and then renamed. Every few
megabytes are synced and dropped from the page cache: one large sync at the end would delay those of other
writers, and the copy would push their pages out of memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tidegate.errors import RequestInvalid, StorageFailed, TidegateError
from tidegate.storage.files import disk_error, files_below, is_full, rename_new, sync_folder
from tidegate.storage.home.locks import is_at, is_flocked
from tidegate.upkeep.backup.home_snapshot import CONTENT_FOLDER, FreezeNotes
from tidegate.upkeep.backup.tar_format import (
    CHUNK_BYTES,
    END,
    MANIFEST_NAME,
    BackupManifest,
    ManifestEntry,
    encode_manifest,
    header_of,
    padding_of,
)

if TYPE_CHECKING:  # the server imports this module, and has no use for a cipher
    from tidegate.upkeep.backup.encryption import EncryptingWriter, Writable

PACKING_LOCK = "packing.lock"
PARTIAL = ".partial"
RANDOM_CHARS = 8  # what `tempfile` puts between
# Between two syncs of what was packed: a sync of another writer waits for no more than this.
SYNC_BYTES = 2 << 20

Report = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A backup that was made."""

    file: Path
    size_bytes: int
    file_count: int
    home_id: str
    created_at: str


def check_target(file: Path, *, force: bool) -> None:
    """Raise RequestInvalid where a file would be overwritten, or its folder is missing."""
    if file.is_dir() or (file.exists() and not force):
        hint = "Choose another name." if file.is_dir() else "Choose another name, or replace it with --force."
        raise RequestInvalid(reason=f"{file} already exists.", hint=hint)
    if not file.absolute().parent.is_dir():
        raise RequestInvalid(
            reason=f"There is no folder {file.absolute().parent}.", hint="Make it first, or choose another."
        )


@contextmanager
def packing(folder: Path) -> Iterator[Callable[[float], None]]:
    """Hold the packing lock of a frozen home for as long as the block runs or the process lives.

    Yields a function that writes the progress, from 0 to 1.
    """
    fd = os.open(folder / PACKING_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield lambda done: _write_progress(fd, done)
    finally:
        os.close(fd)


def packed_fraction(folder: Path) -> float:
    """Return how much of a frozen home is packed, from 0 to 1, as its packer wrote last."""
    try:
        return min(1.0, max(0.0, float((folder / PACKING_LOCK).read_text(encoding="ascii") or 0)))
    except (OSError, ValueError):
        return 0.0


def pack(
    folder: Path,
    file: Path,
    *,
    tidegate_version: str,
    force: bool,
    report: Report,
    after_sync: Callable[[], None] = lambda: None,
    encrypt: Callable[[BinaryIO], EncryptingWriter] | None = None,
) -> BackupFile:
    """Write a frozen home into a file; raise StorageFull where there is no room, and then nothing is left.

    `after_sync` is called after every sync, so that a caller who shares the disk may let others go first.
    `encrypt` returns what encrypts into the file.
    """
    check_target(file, force=force)
    notes = FreezeNotes.read(folder)
    content = folder / CONTENT_FOLDER
    try:
        _remove_leftovers(file)
        paths = list(files_below(content))
        total = sum((content / path).stat().st_size for path in paths)
        with _partial(file) as (out, partial):
            writer = _BackupWriter(out, total, report, after_sync, encrypt)
            files = tuple(writer.add(content / path, path, notes.lengths_bytes.get(path)) for path in paths)
            manifest = BackupManifest(tidegate_version, notes.layout, notes.home_id, notes.created_at, files)
            writer.end(encode_manifest(manifest))
            _publish(partial, file, force=force)
        sync_folder(file.absolute().parent)
    except OSError as problem:
        raise _packing_failed(file, problem) from problem
    return BackupFile(file, writer.written_bytes, len(files), notes.home_id, notes.created_at)


@contextmanager
def _partial(file: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Open a new file beside the target, locked by this process; removed at the end, if not renamed."""
    while True:
        fd, name = tempfile.mkstemp(prefix=f"{file.name}.", suffix=PARTIAL, dir=file.absolute().parent)
        partial = Path(name)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if is_at(fd, partial):
            break
        os.close(fd)  # another packer removed it as a leftover before it was locked
    try:
        with os.fdopen(fd, "wb", buffering=CHUNK_BYTES) as out:
            yield out, partial
    finally:
        partial.unlink(missing_ok=True)


def _publish(partial: Path, file: Path, *, force: bool) -> None:
    """Rename a complete file to its target; without force, only where nobody else was quicker."""
    if force:
        partial.replace(file)
        return
    try:
        rename_new(partial, file)
    except FileExistsError:
        check_target(file, force=False)
        raise


def _remove_leftovers(file: Path) -> None:
    """Remove what packers of the same target left when they were killed."""
    for left in file.absolute().parent.iterdir():
        if left.name.startswith(f"{file.name}.") and left.name.endswith(PARTIAL) and left.is_file():
            middle = left.name[len(file.name) + 1 : -len(PARTIAL)]
            if len(middle) == RANDOM_CHARS and not is_flocked(left):
                left.unlink(missing_ok=True)


class _BackupWriter:
    """Writes entries one after the other."""

    def __init__(
        self,
        out: BinaryIO,
        total_bytes: int,
        report: Report,
        after_sync: Callable[[], None],
        encrypt: Callable[[BinaryIO], EncryptingWriter] | None,
    ) -> None:
        self.written_bytes = 0  # to the disk
        self._out = out
        self._encrypting = None if encrypt is None else encrypt(out)
        self._sink: Writable = self._encrypting or out
        self._total_bytes = total_bytes
        self._report = report
        self._after_sync = after_sync
        self._packed_bytes = 0
        self._synced_bytes = 0

    def add(self, source: Path, path: str, length_bytes: int | None) -> ManifestEntry:
        """Add a file with the length of now, or of the freeze, if it has grown since.

        A file without a length that is still written to is one that nothing in the backup refers to.
        """
        digest = hashlib.sha256()
        with source.open("rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if length_bytes is not None:
                size_bytes = min(size_bytes, length_bytes)
            self._write(header_of(path, size_bytes))
            left = size_bytes
            while left:
                chunk = file.read(min(left, CHUNK_BYTES))
                if not chunk:
                    raise StorageFailed(
                        path=str(source), reason="it shrank while it was packed.", hint="Try again."
                    )
                digest.update(chunk)
                self._write(chunk)
                left -= len(chunk)
                self._packed_bytes += len(chunk)
                self._report(self._packed_bytes, max(self._total_bytes, self._packed_bytes))
        self._write(padding_of(size_bytes))
        return ManifestEntry(path, size_bytes, digest.hexdigest())

    def end(self, manifest: bytes) -> None:
        """Write the manifest and the end, and sync the file."""
        for part in (header_of(MANIFEST_NAME, len(manifest)), manifest, padding_of(len(manifest)), END):
            self._write(part)
        if self._encrypting is not None:
            self._encrypting.end()
        self._out.flush()
        self.written_bytes = self._out.tell()
        os.fsync(self._out.fileno())

    def _write(self, part: bytes) -> None:
        self._sink.write(part)
        self.written_bytes += len(part)
        if self.written_bytes - self._synced_bytes >= SYNC_BYTES:
            self._out.flush()
            os.fdatasync(self._out.fileno())
            os.posix_fadvise(self._out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._synced_bytes = self.written_bytes
            self._after_sync()


def _write_progress(fd: int, done: float) -> None:
    os.pwrite(fd, f"{done:.4f}".encode("ascii"), 0)  # of fixed width: it overwrites all of an older number


def _packing_failed(file: Path, problem: OSError) -> TidegateError:
    place = file.absolute().parent if is_full(problem) else Path(problem.filename or file)
    hint = "Nothing was left behind; try again, or name another place."
    return disk_error(place, problem, hint=hint, full_hint="Free some space, or name another disk.")
