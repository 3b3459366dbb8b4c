"""The journal and the deltas of a filter page: files of the hashes added after a copy of the page.

A page is sized for all keys that a segment will hold, and changes everywhere until it is full: a snapshot
that copied it each time would write gigabytes for some thousand keys. So a large page is copied rarely (its
base), and hashes added afterwards also go to a journal, eight bytes a key; each snapshot turns the journal
into a delta. Base, deltas and journal together contain the page, and have checksums, which the page has not
while it is written to: a page that a killed worker left is restored from them.

    magic "TGTAIL" | zero u8 | format u8 | hashes u64, little-endian

The filter's manifest records how much of the journal was synced, and its digest. Later bytes may be cut or
end in zeros after a power cut: missing hashes are added again by the batches after the last sync, and a hash
too many does no harm.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xxhash

from tidegate.dedup.bloom.blocked import Hashes
from tidegate.dedup.bloom.manifest import delta_name, journal_name
from tidegate.dedup.bloom.page import write_all
from tidegate.errors import StorageCorrupt
from tidegate.storage.files import disk_error, disk_errors, link_or_copy

MAGIC = b"TGTAIL\x00"
FORMAT = 1
HEAD = MAGIC + bytes([FORMAT])
HASH_BYTES = 8


class Journal:
    """The file of added hashes, in their order; `synced` is its length and digest for the manifest."""

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
        """Return the bytes of its hashes."""
        return self._size_bytes - len(HEAD)

    def append(self, hashes: Hashes) -> None:
        """Append hashes; StorageFull if there is no room, and none was appended."""
        content = np.ascontiguousarray(hashes, "<u8").tobytes()
        try:
            write_all(self._file, content)
        except OSError as problem:
            os.ftruncate(self._file, self._size_bytes)
            raise disk_error(self.path, problem) from problem
        self._digest.update(content)
        self._size_bytes += len(hashes) * HASH_BYTES

    def sync(self) -> None:
        """Sync the file."""
        with disk_errors(self.path):
            os.fsync(self._file)
        self.synced = self._size_bytes, self._digest.hexdigest()

    def cut(self) -> str:
        """End the journal: sync its file and link it as a delta; return the digest in the delta's name.

        The journal's name is removed once no manifest has it.
        """
        self.sync()
        digest = self._digest.hexdigest()
        link_or_copy(self.path, self.path.with_name(delta_name(self.number, digest)))
        self.close()
        return digest

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_delta(path: Path, digest: str) -> Hashes:
    """Return the hashes of a delta; StorageCorrupt if it is missing or does not match its name."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as problem:
        raise StorageCorrupt(place=str(path), reason="the file is missing") from problem
    if xxhash.xxh3_128_hexdigest(content) != digest:
        raise StorageCorrupt(place=str(path), reason="the checksum does not fit its bytes")
    return _hashes_in(path, content)


def read_journal(path: Path, synced: tuple[int, str]) -> Hashes:
    """Return the hashes of a journal; StorageCorrupt if it does not begin with what was synced."""
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
