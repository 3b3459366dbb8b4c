"""The format of a backup: a tar of plain files, with a manifest as its last entry.

Any tar can read it. Our reader takes no byte on trust: a header is exactly the one that the writer makes for
that path and size, padding is zero, contents have the SHA-256 that the manifest says, and the manifest has
its own. So a changed, missing or added byte anywhere in the file is found, and named.

    entry*      path, size, contents; in the order in which they were written
    MANIFEST    {"manifest": {"format": 1, …, "files": [{"path", "bytes", "sha256"}]}, "sha256": "…"}
    end         two blocks of zeros, and nothing behind them
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, BinaryIO

import msgspec

from tidegate.errors import BackupUnusable

FORMAT_VERSION = 1
MANIFEST_NAME = "MANIFEST.json"
BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
CHUNK_BYTES = 1 << 20
MANIFEST_BYTES_MAX = 1 << 30  # some five million files
LONG_HEADER_BYTES_MAX = 1 << 16  # a path has 4,096 bytes at most
_TYPE_AT, _LONG_HEADER = 156, b"x"
# What Linux takes: for one name, and for a whole path with the zero behind it.
NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4_095

_Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """What the manifest says of one file."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """What a backup is, and everything that is in it."""

    tidegate: str
    layout: int
    home_id: str
    created_at: str
    files: tuple[ManifestEntry, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(note.size_bytes for note in self.files)


class _AnyInner(msgspec.Struct):
    format: int


class _AnyOuter(msgspec.Struct):
    manifest: _AnyInner


class _Note(msgspec.Struct):
    path: str
    bytes: _Count
    sha256: str


class _Inner(msgspec.Struct):
    tidegate: str
    layout: _Count
    homeId: str  # noqa: N815 - as the manifest spells it
    createdAt: str  # noqa: N815 - as the manifest spells it
    files: list[_Note]


class _Outer(msgspec.Struct):
    manifest: _Inner


def header_of(path: str, size_bytes: int) -> bytes:
    """Return one header that a file of this path and size has: no owner, no time, readable by its owner."""
    entry = tarfile.TarInfo(path)
    entry.size = size_bytes
    entry.mode = 0o600
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding_of(size_bytes: int) -> bytes:
    """Return the zeros that fill up the last block of a file."""
    return bytes(-size_bytes % BLOCK_BYTES)


def encode_manifest(manifest: BackupManifest) -> bytes:
    """Write a manifest with its own checksum."""
    inner = {
        "format": FORMAT_VERSION,
        "tidegate": manifest.tidegate,
        "layout": manifest.layout,
        "homeId": manifest.home_id,
        "createdAt": manifest.created_at,
        "fileCount": len(manifest.files),
        "bytes": manifest.size_bytes,
        "files": [{"path": n.path, "bytes": n.size_bytes, "sha256": n.sha256} for n in manifest.files],
    }
    return _json({"manifest": inner, "sha256": hashlib.sha256(_json(inner)).hexdigest()})


def decode_manifest(content: bytes, file: str) -> BackupManifest:
    """Read a manifest; a newer format, and any byte that is not as it was written, is refused."""
    try:
        # Not msgspec's own reader: names of files need not be Unicode, and it takes no lone surrogates.
        outer = json.loads(content)
        version = msgspec.convert(outer, _AnyOuter).manifest.format
        if version > FORMAT_VERSION:
            reason = f"it has format {version}; this version knows formats up to {FORMAT_VERSION}"
            raise BackupUnusable(file=file, reason=reason, hint="Restore it with a newer Tidegate.")
        inner = msgspec.convert(outer, _Outer).manifest
        notes = tuple(ManifestEntry(note.path, note.bytes, note.sha256) for note in inner.files)
        found = BackupManifest(inner.tidegate, inner.layout, inner.homeId, inner.createdAt, notes)
        same = encode_manifest(found) == content
    except (ValueError, RecursionError) as problem:
        raise _damaged(file, f"{MANIFEST_NAME} is damaged") from problem
    if not same:
        raise _damaged(file, f"{MANIFEST_NAME} is damaged")
    return found


@dataclass(slots=True)
class TarEntry:
    """One file in an archive that is read; its contents are read once, before the next entry."""

    path: str
    size_bytes: int
    _reader: TarReader

    def chunks(self) -> Iterator[bytes]:
        """Yield the contents in chunks, and check the padding behind them."""
        left = self.size_bytes
        while left:
            chunk = self._reader.read(min(left, CHUNK_BYTES), self.path)
            left -= len(chunk)
            yield chunk
        if any(self._reader.read(-self.size_bytes % BLOCK_BYTES, self.path)):
            raise _damaged(self._reader.name, f"the padding behind {self.path} is damaged")


class TarReader:
    """Reads an archive from front to back; tarfile finds the entries, and nothing of it is taken on trust."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file

    def entries(self) -> Iterator[TarEntry]:
        """Yield every entry, the manifest too, in order; then check that nothing follows."""
        last, end = "the beginning", 0
        try:
            self._check_long_header(last)
            tar = tarfile.TarFile(fileobj=self._file, encoding="utf-8", errors="surrogateescape")
        except (tarfile.TarError, ValueError) as problem:
            raise _damaged(self.name, "it is not a backup of Tidegate") from problem
        while (found := self._next(tar, last)) is not None:
            # The header must be the one that we would have written, byte by byte.
            self._file.seek(found.offset)
            if self._file.read(found.offset_data - found.offset) != header_of(found.name, found.size):
                raise _damaged(self.name, f"the header after {last} is damaged")
            last, end = found.name, found.offset_data + found.size + len(padding_of(found.size))
            yield TarEntry(found.name, found.size, self)
            self._file.seek(end)
            self._check_long_header(last)
        self._file.seek(end)
        if self.read(len(END), last) != END or self._file.read(1):
            raise _damaged(self.name, f"something stands behind the end, after {last}")

    def read(self, count: int, path: str) -> bytes:
        """Return exactly so many bytes."""
        found = self._file.read(count)
        if len(found) != count:
            raise _damaged(self.name, f"it is cut short at {path}")
        return found

    def _next(self, tar: tarfile.TarFile, last: str) -> tarfile.TarInfo | None:
        try:
            return tar.next()
        except (tarfile.TarError, ValueError, IndexError) as problem:
            raise _damaged(self.name, f"the header after {last} is damaged") from problem

    def _check_long_header(self, last: str) -> None:
        """Refuse a long name that is longer than any: tarfile would read it into memory."""
        at = self._file.tell()
        block = self._file.read(BLOCK_BYTES)
        self._file.seek(at)
        if block[_TYPE_AT : _TYPE_AT + 1] != _LONG_HEADER:
            return
        try:
            size_bytes = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").size
        except tarfile.HeaderError as problem:
            raise _damaged(self.name, f"the header after {last} is damaged") from problem
        if size_bytes > LONG_HEADER_BYTES_MAX:
            raise _damaged(self.name, f"the header after {last} is damaged")


def check_path(path: str, file: str) -> PurePosixPath:
    """Refuse a path that leaves the folder into which it is unpacked, and one that no disk takes."""
    inside = PurePosixPath(path)
    if not path or path != str(inside) or inside.is_absolute() or ".." in inside.parts or "\0" in path:
        raise _damaged(file, f"'{path[:200]}' leaves the folder")
    try:
        longest, whole = max(len(os.fsencode(part)) for part in inside.parts), len(os.fsencode(path))
    except UnicodeEncodeError as problem:
        raise _damaged(file, f"{path[:200]!a} is no name of a file") from problem
    if longest > NAME_BYTES_MAX or whole > PATH_BYTES_MAX:
        raise _damaged(file, f"the name '{path[:200]}…' is too long")
    return inside


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _damaged(file: str, reason: str) -> BackupUnusable:
    return BackupUnusable(file=file, reason=reason)
