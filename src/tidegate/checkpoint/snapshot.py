"""The snapshot of a partition: its whole state after one batch, as files that are uploaded once and shared.

`e<epoch>/<partition>/<batch>.snapshot` is the manifest: sealed JSON (as a commit record is) that names the
files below `sst/`, each with its size and digest. A snapshot is there when its manifest is; the files are
synced before. What a kill leaves:

    before the manifest    files below `sst/` that no manifest names; pruning removes them later
    after the manifest     a whole snapshot

A file is uploaded once: one that the newest manifest names under the same name, with the same size, has
the same bytes (backend.py) and is named again and not read, whichever local store it comes from. Only the
newest manifest counts for that: pruning retains it, and by the time it does not, newer snapshots are there
and the one being made is pruned with it. A snapshot that a recovery found damaged is marked by a file
`<batch>.snapshot.damaged`, so that no later one shares its files.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from tidegate.checkpoint.commit_record import loaded_fields, stored_fields
from tidegate.checkpoint.store import (
    CheckpointStore,
    StoreWriter,
    checkpoint_error,
    checkpoint_errors,
    partition_folder,
)
from tidegate.errors import StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

SNAPSHOT_FORMAT = 1
FILES_FOLDER = "sst"
DAMAGED_SUFFIX = ".damaged"
# Read and written at a time while a file is copied and digested.
COPY_BYTES = 1 << 20
# Uploads of one file name by one batch; more than one means that an attempt was killed.
NAMES_MAX = 1_000

# The errors of a file whose bytes are lost: the disk cannot read them, or their checksum is wrong.
UNREADABLE = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)

_MANIFEST_NAME = re.compile(r"^(\d+)\.snapshot$")
_STORED_NAME = re.compile(r"^(\d+)\.")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of a snapshot: its name in a local store, and its path below the partition's folder."""

    name: str
    stored: str
    size_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a snapshot, which opens at Version(epoch, batch, commit_id)."""

    epoch: int
    partition: int
    batch: int
    commit_id: str
    backend: str
    files: tuple[SnapshotFile, ...]
    made_at_ms: int
    format: int = SNAPSHOT_FORMAT

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all its files."""
        return sum(file.size_bytes for file in self.files)


def manifest_name(epoch: int, partition: int, batch: int) -> str:
    """Return the name of a manifest in the checkpoint store."""
    return f"{partition_folder(epoch, partition)}/{batch}.snapshot"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest's file."""
    return seal(stored_fields(asdict(manifest)))


def decode_manifest(content: bytes, place: str) -> Manifest:
    """Return the manifest of a file; StorageCorrupt names the place when it is damaged."""
    document: dict[str, Any] = unseal(content, place, SNAPSHOT_FORMAT)
    try:
        files = tuple(SnapshotFile(**file) for file in document.pop("files"))
        return Manifest(files=files, **loaded_fields(document))
    except (KeyError, TypeError) as problem:
        raise StorageCorrupt(place=place, reason="fields are missing or unknown") from problem


def read_manifest(store: CheckpointStore, epoch: int, partition: int, batch: int) -> Manifest | None:
    """Return the manifest of a snapshot; None when there is no snapshot of that batch."""
    name = manifest_name(epoch, partition, batch)
    content = store.read(name)
    return None if content is None else decode_manifest(content, str(store.path(name)))


def snapshot_batches(store: CheckpointStore, epoch: int, partition: int) -> list[int]:
    """Return the batches that have a snapshot, in order, without those marked as damaged."""
    names = store.names(partition_folder(epoch, partition))
    found = [int(match[1]) for match in map(_MANIFEST_NAME.match, names) if match]
    marked = set(names)
    return sorted(batch for batch in found if f"{batch}.snapshot{DAMAGED_SUFFIX}" not in marked)


def mark_damaged(store: CheckpointStore, epoch: int, partition: int, batch: int) -> None:
    """Mark a snapshot as damaged: it is not restored, its files are not shared, and it does not count."""
    store.put_new(f"{manifest_name(epoch, partition, batch)}{DAMAGED_SUFFIX}", b"")


def uploaded_in(stored: str) -> int | None:
    """Return the batch whose snapshot uploaded a file, by its name below `sst/`."""
    match = _STORED_NAME.match(stored)
    return int(match[1]) if match else None


def missing_files(store: CheckpointStore, manifest: Manifest) -> Iterator[Path]:
    """Yield the files of a snapshot that are not there or have another size; their bytes are not read."""
    folder = partition_folder(manifest.epoch, manifest.partition)
    for file in manifest.files:
        path = store.path(f"{folder}/{file.stored}")
        try:
            if path.stat().st_size != file.size_bytes:
                yield path
        except OSError:
            yield path


def fetch(store: CheckpointStore, manifest: Manifest, target: Path) -> None:
    """Copy a snapshot's files into a new folder, each checked by its digest.

    A file that is cut, changed, missing or unreadable: StorageCorrupt that names it, and the folder is
    useless.
    """
    folder = partition_folder(manifest.epoch, manifest.partition)
    target.mkdir(parents=True)
    for file in manifest.files:
        place = target / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        _fetch_file(store.path(f"{folder}/{file.stored}"), place, file)


def unreadable(path: Path, problem: OSError) -> StorageCorrupt | None:
    """Return the error for a file that is missing or whose bytes are lost; None for any other failure."""
    if problem.errno == errno.ENOENT:
        return StorageCorrupt(place=str(path), reason="the file is missing")
    if problem.errno in UNREADABLE:
        return StorageCorrupt(place=str(path), reason=f"it cannot be read ({problem.strerror})")
    return None


def _fetch_file(source: Path, target: Path, file: SnapshotFile) -> None:
    digest = xxhash.xxh3_128()
    with checkpoint_errors(target), target.open("wb", 0) as new:
        for content in _pieces(source):
            digest.update(content)
            rest = memoryview(content)
            while rest:
                rest = rest[new.write(rest) :]
    if digest.hexdigest() != file.digest:
        raise StorageCorrupt(place=str(source), reason="its bytes are not those that the snapshot names")


def _pieces(source: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces; StorageCorrupt when it is missing or its bytes are lost."""
    try:
        with source.open("rb", 0) as file:
            while content := file.read(COPY_BYTES):
                yield content
    except OSError as problem:
        raise unreadable(source, problem) or checkpoint_error(source, problem) from problem


def upload(store: CheckpointStore, manifest: Manifest, staged: Path, names: Sequence[str]) -> Manifest:
    """Upload a staged snapshot's files into the checkpoint, synced; return the manifest that names them.

    The manifest passed in identifies the snapshot and has no files yet. A failure leaves files that nothing
    names; those written here are removed when this worker lives to do so. A staged file that cannot be read:
    StorageCorrupt that names it.
    """
    shared = _shareable(store, manifest)
    files: list[SnapshotFile] = []
    written: list[str] = []
    try:
        for name in sorted(names):
            old = shared.get(name)
            if old is not None and old.size_bytes == (staged / name).stat().st_size:
                files.append(old)
                continue
            files.append(_upload_file(store, manifest, staged / name, name))
            written.append(files[-1].stored)
        if written:
            store.sync(f"{partition_folder(manifest.epoch, manifest.partition)}/{written[0]}")
    except BaseException:
        remove_files(store, manifest, written)
        raise
    return replace(manifest, files=tuple(files))


def remove_files(store: CheckpointStore, manifest: Manifest, stored: Sequence[str]) -> None:
    """Remove files that were uploaded for a snapshot that was not finished."""
    for name in stored:
        store.remove(f"{partition_folder(manifest.epoch, manifest.partition)}/{name}")


def _shareable(store: CheckpointStore, manifest: Manifest) -> dict[str, SnapshotFile]:
    """Return the files of the newest manifest by their names; none when that snapshot is not whole."""
    batches = snapshot_batches(store, manifest.epoch, manifest.partition)
    if not batches:
        return {}
    try:
        newest = read_manifest(store, manifest.epoch, manifest.partition, batches[-1])
    except StorageCorrupt:
        return {}
    if newest is None or newest.backend != manifest.backend or any(missing_files(store, newest)):
        return {}
    return {file.name: file for file in newest.files}


def _upload_file(store: CheckpointStore, manifest: Manifest, path: Path, name: str) -> SnapshotFile:
    writer = _new_file(store, manifest, name)
    try:
        for content in _pieces(path):
            writer.write(content)
        writer.close()
    except BaseException:
        writer.discard()
        raise
    return SnapshotFile(name, f"{FILES_FOLDER}/{writer.path.name}", writer.size_bytes, writer.digest)


def _new_file(store: CheckpointStore, manifest: Manifest, name: str) -> StoreWriter:
    folder = f"{partition_folder(manifest.epoch, manifest.partition)}/{FILES_FOLDER}"
    plain = name.replace("/", "-")
    for number in range(NAMES_MAX):
        try:
            return store.writer(f"{folder}/{manifest.batch}.{manifest.commit_id}.{number}.{plain}")
        except FileExistsError:
            continue
    raise StorageCorrupt(place=str(store.path(folder)), reason=f"{NAMES_MAX} uploads of one file lie there")
