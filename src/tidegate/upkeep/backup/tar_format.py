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
_LONG_HEADER = b"x"
# What Linux takes: for one name, and for a whole path with the zero behind it.
NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4_095

_Count = Annotated[int, msgspec.Meta(ge=0)]
# What every header of a tar has, and where: a file without it is something else.
TAR_MARK = b"ustar"
TAR_MARK_AT = 257


@dataclass(frozen=True, slots=True)
class FileNote:
    """What the manifest says of one file."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup is, and everything that is in it."""

    tidegate: str
    layout: int
    home_id: str
    created_at: str
    files: tuple[FileNote, ...]

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
    """Give the one header that a file of this path and size has: no owner, no time, readable by its owner."""
    entry = tarfile.TarInfo(path)
    entry.size = size_bytes
    entry.mode = 0o600
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding_of(size_bytes: int) -> bytes:
    """Give the zeros that fill up the last block of a file."""
    return bytes(-size_bytes % BLOCK_BYTES)


def encode_manifest(manifest: Manifest) -> bytes:
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


def decode_manifest(content: bytes, file: str) -> Manifest:
    """Read a manifest; a newer format, and any byte that is not as it was written, is refused."""
    try:
        # Not msgspec's own reader: names of files need not be Unicode, and it takes no lone surrogates.
        outer = json.loads(content)
        version = msgspec.convert(outer, _AnyOuter).manifest.format
        if version > FORMAT_VERSION:
            reason = f"it has format {version}; this version knows formats up to {FORMAT_VERSION}"
            raise BackupUnusable(file=file, reason=reason, hint="Restore it with a newer Tidegate.")
        inner = msgspec.convert(outer, _Outer).manifest
        notes = tuple(FileNote(note.path, note.bytes, note.sha256) for note in inner.files)
        found = Manifest(inner.tidegate, inner.layout, inner.homeId, inner.createdAt, notes)
        same = encode_manifest(found) == content
    except (ValueError, RecursionError) as problem:
        raise _damaged(file, f"{MANIFEST_NAME} is damaged") from problem
    if not same:
        raise _damaged(file, f"{MANIFEST_NAME} is damaged")
    return found


@dataclass(slots=True)
class Entry:
    """One file in an archive that is read; its contents are read once, before the next entry."""

    path: str
    size_bytes: int
    _reader: ArchiveReader

    def chunks(self) -> Iterator[bytes]:
        """Give the contents in pieces."""
        left = self.size_bytes
        while left:
            chunk = self._reader.take(min(left, CHUNK_BYTES), self.path)
            left -= len(chunk)
            yield chunk
        if any(self._reader.take(-self.size_bytes % BLOCK_BYTES, self.path)):
            raise _damaged(self._reader.name, f"the padding behind {self.path} is damaged")


class ArchiveReader:
    """Reads an archive from front to back, strictly."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file

    def entries(self) -> Iterator[Entry]:
        """Give every entry, the manifest too, in order; then check that nothing follows."""
        last = "the beginning"
        entries_seen = 0
        while True:
            block = self._file.read(BLOCK_BYTES)
            if entries_seen == 0 and _is_no_tar(block):
                raise _damaged(self.name, "it is not a backup of Tidegate")
            if len(block) != BLOCK_BYTES:
                raise _damaged(self.name, f"the archive ends at {last}")
            if not any(block):
                break
            entry = self._entry(block, last)
            last = entry.path
            entries_seen += 1
            yield entry
        if any(self.take(BLOCK_BYTES, last)) or self._file.read(1):
            raise _damaged(self.name, f"something stands behind the end, after {last}")

    def take(self, count: int, path: str) -> bytes:
        """Give exactly so many bytes."""
        found = self._file.read(count)
        if len(found) != count:
            raise _damaged(self.name, f"it is cut short at {path}")
        return found

    def _entry(self, block: bytes, last: str) -> Entry:
        """Read a header and compare it with the one that we would have written."""
        found, long_names = block, {}
        try:
            if block[156:157] == _LONG_HEADER:
                size = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape").size
                if size > LONG_HEADER_BYTES_MAX:
                    raise ValueError(size)
                content = self.take(size + len(padding_of(size)), last)
                long_names = _records(content[:size])
                block = self.take(BLOCK_BYTES, last)
                found += content + block
            plain = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            path = long_names.get("path", plain.name)
            size_bytes = int(long_names.get("size", plain.size))
            same = size_bytes >= 0 and header_of(path, size_bytes) == found
        except (tarfile.HeaderError, ValueError, IndexError) as problem:
            raise _damaged(self.name, f"the header after {last} is damaged") from problem
        if not same:
            raise _damaged(self.name, f"the header after {last} is damaged")
        return Entry(path, size_bytes, self)


def _is_no_tar(block: bytes) -> bool:
    """Say whether the first block of a file is neither a header nor the end of an empty archive."""
    ends_at_once = len(block) == BLOCK_BYTES and not any(block)
    return not ends_at_once and block[TAR_MARK_AT : TAR_MARK_AT + len(TAR_MARK)] != TAR_MARK


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


def _records(content: bytes) -> dict[str, str]:
    """Read the `length key=value` records of a long header."""
    found = {}
    while content:
        length = int(content.split(b" ", 1)[0])
        if not 0 < length <= len(content):
            raise ValueError(length)
        key, _, value = content[:length].split(b" ", 1)[1].rstrip(b"\n").partition(b"=")
        found[key.decode("ascii")] = value.decode("utf-8", "surrogateescape")
        content = content[length:]
    return found


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _damaged(file: str, reason: str) -> BackupUnusable:
    return BackupUnusable(file=file, reason=reason)
