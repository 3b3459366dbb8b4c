"""A page of a filter: a mapped file of a fixed number of lines, sealed when it is full.

    header, 4,096 bytes      magic "TGBLOOM" | format u8 | number u32 | bits per key u32 | lines u64
      at 0                   | capacity u64 | xxh3-64 of all before
      at 64                  count u64: hashes added so far
      at 128                 seal: count u64 | xxh3-128 of the lines | xxh3-64 of both and of the first part
    lines                    64 bytes each (blocked.py)

Integers are little-endian, as the words in the lines are: the machine that maps the file writes them.

A valid seal means that nothing was added after it: at open the lines are checked against it. The first `add`
removes it, on the disk too, before it sets a bit. A page without a seal was left by a killed writer: bits are
only ever set, so the page holds every hash that it held at the last `sync`, and perhaps more. Its bytes
cannot be checked then: the page is not trusted until `restore_page` (snapshot.py) has set all those bits
again from files with checksums.

All blocks of the file are allocated when it is created: a write to a mapped hole on a full disk would kill
the whole worker by a signal. Copy-on-write file systems (btrfs, zfs) do not give this guarantee.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from tidegate.dedup.bloom import blocked
from tidegate.dedup.bloom.blocked import LINE_BYTES, LINE_WORDS, Flags, Hashes, Words
from tidegate.dedup.bloom.manifest import copy_name
from tidegate.dedup.bloom.memory import FilterBudget
from tidegate.errors import StorageCorrupt
from tidegate.storage.files import disk_error, disk_errors

MAGIC = b"TGBLOOM"
FORMAT = 1
HEADER_BYTES = 4096  # a system page, so that parts of the lines can be released separately
WORD_BYTES = 8
READ_BYTES = 1 << 20  # read at a time while a page is checked or copied

# At a page fault the system maps all cached bytes of a window of this size around the address.
WINDOW_BYTES = 64 << 10

Rows = np.ndarray[Any, np.dtype[np.int64]]

_FIRST = struct.Struct("<7sBIIQQ")
_CHECK = struct.Struct("<Q")
_SEAL = struct.Struct("<Q16s")
_COUNT_AT = 64
_SEAL_AT = 128
_SEAL_CHECK_AT = _SEAL_AT + _SEAL.size


class FilterPage:
    """One mapped page of a filter, opened from its file or created by `make`."""

    def __init__(self, path: Path, budget: FilterBudget, *, is_read_only: bool = False) -> None:
        self.path = path
        self._budget = budget
        try:
            self._file = os.open(path, (os.O_RDONLY if is_read_only else os.O_RDWR) | os.O_CLOEXEC)
        except FileNotFoundError as problem:
            raise StorageCorrupt(place=str(path), reason="the file is missing") from problem
        try:
            head = os.pread(self._file, HEADER_BYTES, 0)
            self.number, self.bits_per_key, self.lines, self.capacity = _checked_head(path, head)
            size_bytes = HEADER_BYTES + self.lines * LINE_BYTES
            if os.fstat(self._file).st_size != size_bytes:
                raise StorageCorrupt(place=str(path), reason=f"it was cut: {size_bytes} bytes were written")
            self.digest = self._checked_seal(head)
            access = mmap.ACCESS_READ if is_read_only else mmap.ACCESS_WRITE
            self._map = mmap.mmap(self._file, size_bytes, access=access)
        except BaseException:
            os.close(self._file)
            raise
        self.is_trusted = self.digest is not None
        self._count: Words = np.frombuffer(self._map, np.uint64, 1, _COUNT_AT)
        self._seal_check: Words = np.frombuffer(self._map, np.uint64, 1, _SEAL_CHECK_AT)
        self._words: Words = np.frombuffer(self._map, np.uint64, self.lines * LINE_WORDS, HEADER_BYTES)
        self._part_lines = budget.part_bytes(self.size_bytes) // LINE_BYTES
        # Windows are aligned to addresses, not to the beginning of the lines.
        self._shift_bytes = self._words.ctypes.data % WINDOW_BYTES
        self._touched = np.zeros(self._window(self.lines) + 1, np.bool_)
        self._is_backwards = False
        budget.own(self, self.size_bytes)

    @classmethod
    def make(
        cls, path: Path, number: int, capacity: int, bits_per_key: int, budget: FilterBudget
    ) -> FilterPage:
        """Create an empty page with all its blocks; StorageFull if there is no room, and no file is left."""
        lines = blocked.lines_for(capacity, bits_per_key)
        first = _FIRST.pack(MAGIC, FORMAT, number, bits_per_key, lines, capacity)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.posix_fallocate(file, 0, HEADER_BYTES + lines * LINE_BYTES)
                os.pwrite(file, first + _CHECK.pack(xxhash.xxh3_64_intdigest(first)), 0)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as problem:
            path.unlink(missing_ok=True)
            raise disk_error(path, problem) from problem
        return cls(path, budget)

    @property
    def count(self) -> int:
        """Return the number of hashes that were added."""
        return int(self._count[0])

    @property
    def room(self) -> int:
        """Return the number of hashes that still fit."""
        return max(0, self.capacity - self.count)

    @property
    def is_full(self) -> bool:
        """True if it takes no more hashes: from then on it never changes."""
        return self.count >= self.capacity

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its lines."""
        return self.lines * LINE_BYTES

    def contains(self, hashes: Hashes) -> Flags:
        """Return for each hash whether it may have been added."""
        if not self._budget.is_tight:
            return blocked.contains(self._words, hashes)
        found = np.empty(len(hashes), np.bool_)
        for rows in self._by_part(hashes):
            found[rows] = blocked.contains(self._words, hashes[rows])
        return found

    def add(self, hashes: Hashes) -> None:
        """Set the bits of hashes; the seal is removed first."""
        if self.digest is not None:
            self._seal_check[0] = 0
            self._flush(0, HEADER_BYTES)
            self.digest = None
        self._set(hashes)
        self._count[0] += np.uint64(len(hashes))

    def seal(self) -> str:
        """Sync the page and write its seal; return the digest of the lines."""
        if self.digest is None:
            self.sync()
            digest = _digest_of(self._file)
            head = self._sealed_head(digest)
            # The checksum is written last: a seal that was written in part is invalid.
            self._map[_SEAL_AT:_SEAL_CHECK_AT] = head[_SEAL_AT:_SEAL_CHECK_AT]
            self._seal_check[0] = _CHECK.unpack_from(head, _SEAL_CHECK_AT)[0]
            self._flush(0, HEADER_BYTES)
            self.digest = digest.hex()
        return self.digest

    def sync(self) -> None:
        """Sync the file unless it is sealed."""
        if self.digest is None:
            self._flush(0, HEADER_BYTES + self.size_bytes)

    def merge(self, other: FilterPage) -> None:
        """Set all bits that another page of the same size has; words that have them are not written."""
        words = READ_BYTES // WORD_BYTES
        position = 0
        for content in _lines_in(other._file):
            others: Words = np.frombuffer(content, np.uint64)
            own = self._words[position : position + len(others)]
            if (others & ~own).any():
                own |= others
            position += words

    def restore(self, hashes: Hashes) -> int:
        """Set the bits of hashes that are counted already; return their number."""
        self._set(hashes)
        return len(hashes)

    def trust(self, count: int) -> None:
        """Set the count of hashes after all their bits were restored, and trust the page."""
        self._count[0] = count
        self.is_trusted = True

    def check_is(self, number: int, digest: str | None) -> None:
        """Raise StorageCorrupt if the page is not the one that the manifest names."""
        if self.number != number or (digest is not None and self.digest != digest):
            raise StorageCorrupt(place=str(self.path), reason="it is not the page that was written here")

    def copy_into(self, folder: Path) -> str:
        """Write a sealed and synced copy, named by its content; return the digest in the name."""
        spare = folder / f"{self.path.name}.new"
        digest = xxhash.xxh3_128()
        try:
            with spare.open("wb", 0) as copy:
                copy.seek(HEADER_BYTES)
                for content in _lines_in(self._file):
                    digest.update(content)
                    write_all(copy.fileno(), content)
                os.pwrite(copy.fileno(), self._sealed_head(digest.digest()), 0)
                os.fsync(copy.fileno())
            spare.replace(folder / copy_name(self.number, digest.hexdigest()))
        except OSError as problem:
            spare.unlink(missing_ok=True)
            raise disk_error(spare, problem) from problem
        return digest.hexdigest()

    def release(self, part: int | None = None) -> None:
        """Release the memory of a part, or of all, to the system; changes are in the file already."""
        if part is None:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched[:] = False
            return
        start = part * self._part_lines * LINE_BYTES
        length = min(self._part_lines * LINE_BYTES, self.size_bytes - start)
        self._map.madvise(mmap.MADV_DONTNEED, HEADER_BYTES + start, length)
        self._touched[self._windows(part)] = False

    def close(self) -> None:
        """Close the mapping and the file."""
        self._budget.forget(self)
        del self._words, self._count, self._seal_check
        self._map.close()
        os.close(self._file)

    def _set(self, hashes: Hashes) -> None:
        if not self._budget.is_tight:
            blocked.add(self._words, hashes)
            return
        for rows in self._by_part(hashes):
            blocked.add(self._words, hashes[rows])

    def _by_part(self, hashes: Hashes) -> Iterator[Rows]:
        """Yield the rows of the hashes part by part of the page, each recorded as used.

        Every second call goes from the last part to the first. Calls touch all parts, and those used last
        are still in memory: in one order each part would be released just before its next use.
        """
        lines = blocked.lines_of(hashes, self.lines)
        numbers = (lines // np.uint64(self._part_lines)).astype(np.uint16)
        order = np.argsort(numbers, kind="stable")  # of small numbers: one pass over them, no comparing
        edges = np.searchsorted(numbers[order], np.arange(1, int(numbers.max(initial=0)) + 1))
        pieces = list(enumerate(np.split(order, edges)))
        self._is_backwards = not self._is_backwards
        for part, rows in reversed(pieces) if self._is_backwards else pieces:
            if len(rows):
                self._touched[self._window(lines[rows].astype(np.int64))] = True
                touched = np.count_nonzero(self._touched[self._windows(part)])
                self._budget.use(self, part, int(touched) * WINDOW_BYTES)
                yield rows

    def _windows(self, part: int) -> slice:
        """Return the windows of a part; the one at its end counts for the next part."""
        start, stop = part * self._part_lines, min((part + 1) * self._part_lines, self.lines)
        return slice(self._window(start), self._window(stop) + (stop == self.lines))

    def _window(self, line: Any) -> Any:
        return (line * LINE_BYTES + self._shift_bytes) // WINDOW_BYTES

    def _sealed_head(self, digest: bytes) -> bytes:
        head = bytearray(self._map[:HEADER_BYTES])
        _SEAL.pack_into(head, _SEAL_AT, self.count, digest)
        check = _seal_check(bytes(head[: _FIRST.size]), bytes(head[_SEAL_AT:_SEAL_CHECK_AT]))
        _CHECK.pack_into(head, _SEAL_CHECK_AT, check)
        return bytes(head)

    def _checked_seal(self, head: bytes) -> str | None:
        """Return the digest of the lines if there is a seal; StorageCorrupt if they do not match it."""
        seal = head[_SEAL_AT : _SEAL_AT + _SEAL.size]
        (check,) = _CHECK.unpack_from(head, _SEAL_CHECK_AT)
        if check == 0:
            return None
        count, digest = _SEAL.unpack(seal)
        is_whole = check == _seal_check(head[: _FIRST.size], seal)
        if not is_whole or (count,) != _CHECK.unpack_from(head, _COUNT_AT):
            raise StorageCorrupt(place=str(self.path), reason="the seal in its header is damaged")
        if _digest_of(self._file) != digest:
            raise StorageCorrupt(place=str(self.path), reason="the checksum does not fit its bytes")
        return str(digest.hex())

    def _flush(self, start: int, length: int) -> None:
        with disk_errors(self.path):
            self._map.flush(start, length)


def _checked_head(path: Path, head: bytes) -> tuple[int, int, int, int]:
    if len(head) < HEADER_BYTES:
        raise StorageCorrupt(place=str(path), reason="it was cut")
    magic, format_here, number, bits_per_key, lines, capacity = _FIRST.unpack_from(head)
    if magic != MAGIC:
        raise StorageCorrupt(place=str(path), reason="it is no page of a filter")
    if format_here != FORMAT:
        raise StorageCorrupt(place=str(path), reason=f"format {format_here} is not one that we know")
    if _CHECK.unpack_from(head, _FIRST.size)[0] != xxhash.xxh3_64_intdigest(head[: _FIRST.size]):
        raise StorageCorrupt(place=str(path), reason="its header is damaged")
    return number, bits_per_key, lines, capacity


def _seal_check(first: bytes, seal: bytes) -> int:
    # Zero means that there is no seal.
    return int(xxhash.xxh3_64_intdigest(first + seal)) or 1


def _digest_of(file: int) -> bytes:
    digest = xxhash.xxh3_128()
    for content in _lines_in(file):
        digest.update(content)
    return digest.digest()


def _lines_in(file: int) -> Iterator[bytes]:
    """Yield the lines, read from the file: reads of the mapping would fill the worker's memory."""
    position = HEADER_BYTES
    while content := os.pread(file, READ_BYTES, position):
        yield content
        position += len(content)


def write_all(file: int, content: bytes) -> None:
    """Write all bytes: one system call may write only a part."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]
