"""The format of a backup file: a tar of plain files, with a manifest as its last entry.

Any tar can read it. Our reader accepts only what the writer writes: a header is exactly the one for that path
and size, so links, devices and folders are refused; padding is zero; contents have the SHA-256 that the
manifest names; the manifest has a SHA-256 of its own. So a changed, missing or added byte anywhere in the
file is found, and the error names where. `tarfile` parses the headers; it checks neither the padding nor what
follows the end, and it accepts headers with other fields, so these three comparisons are ours.

    entry*      path, size, contents; in the order in which they were written
    MANIFEST    {"manifest": {"format": 1, …, "files": [{"path", "bytes", "sha256"}]}, "sha256": "…"}
    end         two blocks of zeros, and nothing after them
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tidegate.errors import BackupUnusable

if TYPE_CHECKING:
    from tidegate.upkeep.backup.encryption import Readable

FORMAT_VERSION = 1
MANIFEST_NAME = "MANIFEST.json"
BLOCK_BYTES = 512
END = bytes(2 * BLOCK_BYTES)
CHUNK_BYTES = 1 << 20
MANIFEST_BYTES_MAX = 1 << 30  # some five million files
# Long names and large sizes are in a pax header, which is read into memory: a path has 4,095 bytes at most.
PAX_BYTES_MAX = 1 << 16
_TYPE = slice(156, 157)  # where a header block says what it is
# What Linux takes: for one name, and for a whole path without the zero at its end.
NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4_095

_Count = Annotated[int, msgspec.Meta(ge=0)]


class ManifestEntry(msgspec.Struct, frozen=True):
    """One file in the manifest."""

    path: str
    size_bytes: _Count = msgspec.field(name="bytes")
    sha256: str = msgspec.field()


class BackupManifest(msgspec.Struct, frozen=True, rename="camel"):
    """What a backup is, and every file in it."""

    tidegate: str
    layout: _Count
    home_id: str
    created_at: str
    files: tuple[ManifestEntry, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(entry.size_bytes for entry in self.files)


class _Versioned(msgspec.Struct):
    format: int


def header_of(path: str, size_bytes: int) -> bytes:
    """Return the only header that a file of this path and size has: no owner, no time, mode 0600."""
    entry = tarfile.TarInfo(path)
    entry.size = size_bytes
    entry.mode = 0o600
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding_of(size_bytes: int) -> bytes:
    """Return the zeros that fill up the last block of a file."""
    return bytes(-size_bytes % BLOCK_BYTES)


def encode_manifest(manifest: BackupManifest) -> bytes:
    """Return a manifest as JSON, with its own checksum."""
    fields = msgspec.to_builtins(manifest)
    files = fields.pop("files")
    totals = {"fileCount": len(files), "bytes": manifest.size_bytes, "files": files}
    inner = {"format": FORMAT_VERSION, **fields, **totals}
    return _json({"manifest": inner, "sha256": hashlib.sha256(_json(inner)).hexdigest()})


def decode_manifest(content: bytes, file: str) -> BackupManifest:
    """Return a manifest; raise BackupUnusable for a newer format and for any byte that differs from ours."""
    try:
        # Not msgspec's own reader: names of files need not be Unicode, and it takes no lone surrogates.
        inner = json.loads(content)["manifest"]
        version = msgspec.convert(inner, _Versioned).format
        if version > FORMAT_VERSION:
            reason = f"it has format {version}; this version knows formats up to {FORMAT_VERSION}"
            raise BackupUnusable(file=file, reason=reason, hint="Restore it with a newer Tidegate.")
        manifest = msgspec.convert(inner, BackupManifest)
        is_exact = encode_manifest(manifest) == content
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise _damaged(file, f"{MANIFEST_NAME} is damaged") from problem
    if not is_exact:
        raise _damaged(file, f"{MANIFEST_NAME} is damaged")
    return manifest


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One file of an archive that is being read; its contents are read once, before the next entry."""

    path: str
    size_bytes: int
    _reader: TarReader

    def chunks(self) -> Iterator[bytes]:
        """Yield the contents in chunks, and check the padding after them."""
        left = self.size_bytes
        while left:
            chunk = self._reader.read(min(left, CHUNK_BYTES))
            left -= len(chunk)
            yield chunk
        if any(self._reader.read(-self.size_bytes % BLOCK_BYTES)):
            raise _damaged(self._reader.name, f"the padding behind {self.path} is damaged")


class TarReader:
    """Reads an archive from front to back, in bounded memory."""

    def __init__(self, file: Readable, name: str) -> None:
        self.name = name
        self._file = file
        self._path = ""  # of the newest entry

    def entries(self) -> Iterator[TarEntry]:
        """Yield every entry, the manifest too, in order; then check that nothing follows."""
        while (block := self.read(BLOCK_BYTES)) != END[:BLOCK_BYTES]:
            header = self._header(block)
            self._path = header.name
            yield TarEntry(header.name, header.size, self)
        if self.read(BLOCK_BYTES) != END[BLOCK_BYTES:] or self._file.read(1):
            raise self._damaged(f"there is data behind the end, after {self._path}")

    def read(self, count: int) -> bytes:
        """Return exactly so many bytes."""
        content = self._file.read(count)
        if len(content) != count:
            raise self._damaged(f"it is cut short at {self._path}")
        return content

    def _header(self, block: bytes) -> tarfile.TarInfo:
        """Return the header that begins with a block, if it is byte for byte the one that we would write."""
        damaged = self._damaged(f"the header after {self._path} is damaged")
        try:
            content = block
            if block[_TYPE] == tarfile.XHDTYPE:
                pax_bytes = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").size
                if not 0 <= pax_bytes <= PAX_BYTES_MAX:
                    raise damaged
                content += self.read(pax_bytes + -pax_bytes % BLOCK_BYTES + BLOCK_BYTES)
            tar = tarfile.TarFile(fileobj=io.BytesIO(content), encoding="utf-8", errors="surrogateescape")
            header = tar.next()
            is_exact = header is not None and header_of(header.name, header.size) == content
        except (tarfile.TarError, ValueError, IndexError) as problem:
            raise damaged from problem
        if header is None or not is_exact or header.size < 0:
            raise damaged
        return header

    def _damaged(self, reason: str) -> BackupUnusable:
        return _damaged(self.name, reason if self._path else "it is not a backup of Tidegate")


def check_path(path: str, file: str) -> PurePosixPath:
    """Return a path that stays inside the folder of the restore and that a disk takes; else raise."""
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
