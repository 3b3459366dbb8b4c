"""The hashes that came after a copy of a page: takes them as they are added, gives files of a snapshot.

A page is made for all keys that a segment will hold, and changes all over until it is full: a snapshot that
copied it each time would write gigabytes for some thousand keys. So a large page is copied now and then (its
stem), and what is added afterwards goes to a journal beside it, eight bytes a key; each snapshot cuts the
journal into a tail. Stem, tails and journal together say what the page is, and have checksums, which the page
has not while it is written to: a page that a killed worker left is mended from them.

    magic "TGTAIL" | zero u8 | format u8 | hashes u64, little-endian

The filter's record says how much of the journal was synced, and the digest of that. What comes behind may be
short or end in zeros after a power cut: what is missing is added again by the batches after the last sync,
and a hash too many does no harm.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xxhash

from tidegate.dedup.bloom.blocked import Hashes
from tidegate.dedup.bloom.manifest import journal_name, tail_name
from tidegate.dedup.bloom.page import write_all
from tidegate.errors import StorageCorrupt
from tidegate.storage.files import disk_error, link_or_copy

MAGIC = b"TGTAIL\x00"
FORMAT = 1
HEAD = MAGIC + bytes([FORMAT])
HASH_BYTES = 8


class Journal:
    """The file that hashes go to, in the order in which they are added; `synced` is what a record says."""

    def __init__(self, folder: Path, number: int, after: str) -> None:
        self.path = folder / journal_name(number, after)
        self.number = number
        self._digest = xxhash.xxh3_128()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        size_bytes = os.fstat(self._file).st_size
        try:
            if size_bytes < len(HEAD):
                os.ftruncate(self._file, 0)
                os.write(self._file, HEAD)
                size_bytes = len(HEAD)
            self._size_bytes = size_bytes - (size_bytes - len(HEAD)) % HASH_BYTES
            os.ftruncate(self._file, self._size_bytes)
            self._digest.update(self.path.read_bytes())
            self.sync()
        except OSError as problem:
            os.close(self._file)
            raise disk_error(self.path, problem) from problem
        except BaseException:
            os.close(self._file)
            raise

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the hashes in it."""
        return self._size_bytes - len(HEAD)

    def append(self, hashes: Hashes) -> None:
        """Take hashes; no room: StorageFull, and none was taken."""
        rest = np.ascontiguousarray(hashes, "<u8").tobytes()
        try:
            write_all(self._file, rest)
        except OSError as problem:
            os.ftruncate(self._file, self._size_bytes)
            raise disk_error(self.path, problem) from problem
        self._digest.update(rest)
        self._size_bytes += len(hashes) * HASH_BYTES

    def sync(self) -> None:
        """Put the hashes on the disk."""
        try:
            os.fsync(self._file)
        except OSError as problem:
            raise disk_error(self.path, problem) from problem
        self.synced = self._size_bytes, self._digest.hexdigest()

    def cut(self) -> str:
        """End the journal: its file gets the name of a tail too, synced; give the digest that is in the name.

        The old name goes when no record has it any more.
        """
        self.sync()
        digest = self._digest.hexdigest()
        link_or_copy(self.path, self.path.with_name(tail_name(self.number, digest)))
        self.close()
        return digest

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def read_tail(path: Path, digest: str) -> Hashes:
    """Return the hashes of a tail; StorageCorrupt when it is missing or not what its name says."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as problem:
        raise StorageCorrupt(place=str(path), reason="the file is missing") from problem
    if xxhash.xxh3_128_hexdigest(content) != digest:
        raise StorageCorrupt(place=str(path), reason="the checksum does not fit its bytes")
    return _hashes_in(path, content)


def read_journal(path: Path, synced: tuple[int, str]) -> Hashes:
    """Return the hashes of a journal; StorageCorrupt when it is not what was synced, and more behind it."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as problem:
        raise StorageCorrupt(place=str(path), reason="the file is missing") from problem
    size_bytes, digest = synced
    if len(content) < size_bytes or xxhash.xxh3_128_hexdigest(content[:size_bytes]) != digest:
        raise StorageCorrupt(place=str(path), reason="the checksum does not fit its bytes")
    return _hashes_in(path, content[: len(content) - (len(content) - len(HEAD)) % HASH_BYTES])


def _hashes_in(path: Path, content: bytes) -> Hashes:
    if content[: len(HEAD)] != HEAD or (len(content) - len(HEAD)) % HASH_BYTES:
        raise StorageCorrupt(
            place=str(path), reason="it is no tail of a filter, or of a format we do not know"
        )
    return np.frombuffer(content, "<u8", offset=len(HEAD)).astype(np.uint64, copy=False)
