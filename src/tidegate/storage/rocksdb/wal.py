"""Checks of RocksDB's log files for damage that RocksDB itself does not report.

They run on the folder of an engine that is not open, and raise StorageCorrupt with the file and the byte.

The write-ahead log and the MANIFEST share one format: blocks of 32 KiB, each filled with records that carry
a masked CRC-32C (4 bytes), a length (2) and a type (1). The checksum covers type and payload, not the
length. RocksDB takes a record that reaches past the end of the file for the tail of a write that was cut
short, and stops reading there: right after a crash, but one flipped bit in a length drops every later record
in silence. A flipped bit that turns a type into one of the recycled kinds ends the log as well, or makes
RocksDB read the same record endlessly.

So the headers are walked before the engine opens. Where the chain of records breaks, what follows decides: a
crash leaves nothing whole behind the break; damage leaves whole records. Cost: one hop a record, no
checksums, unless the chain breaks. A clean close leaves logs that are empty.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from tidegate.errors import StorageCorrupt

BLOCK_BYTES = 32_768  # fixed by the format
SECTOR_BYTES = 512  # the least that a disk writes at once
HEADER_BYTES = 7  # checksum 4, length 2, type 1; fixed by the format
# The checksum runs in Python, some MB a second: more would stall the start.
LOCATE_BYTES_MAX = 64 * 1024 * 1024

# Full, first, middle, last: the types that RocksDB writes with the engine's options.
_RECORD_TYPES = frozenset((1, 2, 3, 4))
_MASK_DELTA = 0xA282EAD8  # fixed by the format
_CASTAGNOLI = 0x82F63B78  # the reflected polynomial of CRC-32C

_header = struct.Struct("<IHB")
_LogBytes = mmap.mmap | bytes


def check_logs(folder: Path) -> None:
    """Raise StorageCorrupt when a log in the folder is broken before its last record."""
    for path in log_files(folder):
        with _MappedLog(path) as log:
            broken_at = _chain_end(log)
            if broken_at is not None and _whole_record_after(log, broken_at):
                reason = f"the record at byte {broken_at} has a broken header, and whole records follow it"
                raise StorageCorrupt(place=str(path), reason=reason)


def cut_unwritten_tail(folder: Path) -> tuple[Path, int] | None:
    """Truncate the newest log before a last record that ends in sectors of zeros; return file and byte.

    A power cut leaves this on some file systems: the length of the file got to the disk, the last bytes did
    not. Zeros of whole sectors up to the end of the file were never synced, so nothing acknowledged is lost.
    A record that ends in zeros and fits its checksum stays.
    """
    logs = [path for path in log_files(folder) if path.suffix == ".log"]
    if not logs:
        return None
    with _MappedLog(logs[-1]) as log:
        written = len(log[-BLOCK_BYTES:].rstrip(b"\x00")) + max(0, len(log) - BLOCK_BYTES)
        zeros_at = -(-written // SECTOR_BYTES) * SECTOR_BYTES
        torn = next(
            (
                at
                for at, length, kind in _records(log)
                if at < zeros_at < at + HEADER_BYTES + length and not _checksum_fits(log, at, length, kind)
            ),
            None,
        )
    if torn is None:
        return None
    os.truncate(logs[-1], torn)
    return logs[-1], torn


def locate_damage(folder: Path) -> tuple[Path, int] | None:
    """Return the file and the byte of the first record that fails its checksum; None when none does."""
    budget_bytes = LOCATE_BYTES_MAX
    for path in log_files(folder):
        with _MappedLog(path) as log:
            for at, length, kind in _records(log):
                budget_bytes -= length
                if budget_bytes < 0:
                    return None
                if not _checksum_fits(log, at, length, kind):
                    return path, at
    return None


def log_files(folder: Path) -> list[Path]:
    """Return the write-ahead logs, oldest first, and the MANIFEST in use."""
    found = sorted(
        (path for path in folder.glob("*.log") if path.stem.isdigit()), key=lambda path: int(path.stem)
    )
    current = folder / "CURRENT"
    if current.is_file():
        manifest = folder / current.read_bytes().decode("ascii", "replace").strip()
        if manifest.parent == folder and manifest.is_file():
            found.append(manifest)
    return found


class _MappedLog:
    """The bytes of a file, mapped into memory; those of an empty file, which cannot be mapped, are b""."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _LogBytes:
        with self._path.open("rb") as file:
            size = self._path.stat().st_size
            self._log: _LogBytes = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else b""
        return self._log

    def __exit__(self, *exc: object) -> None:
        if isinstance(self._log, mmap.mmap):
            self._log.close()


def _records(log: _LogBytes) -> Iterator[tuple[int, int, int]]:
    """Yield position, payload length and type of every record until the chain ends or breaks."""
    at, size = 0, len(log)
    while at + HEADER_BYTES <= size:
        block_left = BLOCK_BYTES - at % BLOCK_BYTES
        if block_left < HEADER_BYTES:
            at += block_left
            continue
        _, length, kind = _header.unpack_from(log, at)
        if kind not in _RECORD_TYPES or HEADER_BYTES + length > min(block_left, size - at):
            return
        yield at, length, kind
        at += HEADER_BYTES + length


def _chain_end(log: _LogBytes) -> int | None:
    """Return the byte at which the chain of records breaks; None when it reaches the end of the file."""
    at, size = 0, len(log)
    for record_at, length, _ in _records(log):
        at = record_at + HEADER_BYTES + length
    block_left = BLOCK_BYTES - at % BLOCK_BYTES
    if block_left < HEADER_BYTES:
        at += block_left
    return at if at + HEADER_BYTES <= size else None


def _whole_record_after(log: _LogBytes, broken_at: int) -> bool:
    """True if only the header of the broken record is damaged, or a whole record is behind it."""
    size = len(log)
    block_end = min(size, broken_at + BLOCK_BYTES - broken_at % BLOCK_BYTES)
    if _whole_but_for_its_header(log, broken_at, block_end):
        return True
    if any(_is_whole(log, at, block_end) for at in range(broken_at + 1, block_end - HEADER_BYTES + 1)):
        return True
    # Every block starts with a record, so that behind this block only block starts are checked.
    starts = range(block_end, size - HEADER_BYTES + 1, BLOCK_BYTES)
    return any(_is_whole(log, at, min(size, at + BLOCK_BYTES)) for at in starts)


def _whole_but_for_its_header(log: _LogBytes, at: int, block_end: int) -> bool:
    """True if the checksum fits with another type, or with another length of a last record."""
    _, length, kind = _header.unpack_from(log, at)
    if kind in _RECORD_TYPES:
        return _checksum_fits(log, at, block_end - at - HEADER_BYTES, kind)
    if at + HEADER_BYTES + length > block_end:
        return False
    return any(_checksum_fits(log, at, length, right) for right in _RECORD_TYPES)


def _is_whole(log: _LogBytes, at: int, block_end: int) -> bool:
    _, length, kind = _header.unpack_from(log, at)
    if kind not in _RECORD_TYPES or at + HEADER_BYTES + length > block_end:
        return False
    return _checksum_fits(log, at, length, kind)


def _checksum_fits(log: _LogBytes, at: int, length: int, kind: int) -> bool:
    stored, _, _ = _header.unpack_from(log, at)
    start = at + HEADER_BYTES
    crc = _crc32c(bytes((kind,)) + log[start : start + length])
    masked = (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
    return bool(masked == stored)


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = (crc >> 1) ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def _crc32c(text: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in text:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
