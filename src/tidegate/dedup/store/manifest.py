"""Marks: at which batch a segmented copy stands, and what each of its segments should be there.

`copy.mark` lies in the copy's folder, a sealed JSON document (as a head is). It is written after all that it
speaks of is on the disk, and replaced whole. In a snapshot its name says its content: `<digest>.mark`. A
segment has a record of its own among its entries, written with them: the batch that wrote to it last. The
mark lists these records, so that a segment that is ahead of the mark, behind it, or gone is noticed.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from tidegate.checkpoint.backend import Version
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.dedup.settings import SegmentSettings
from tidegate.errors import StateMismatch, StorageCorrupt
from tidegate.storage.files import disk_error, write_file_atomically
from tidegate.storage.sealed_json import seal, unseal

MARK_NAME = "copy.mark"
MARK_SUFFIX = ".mark"
MARK_FORMAT = 1

RECORD_KEY = META_GROUP + b"segment"
RECORD_FORMAT = 1
_RECORD = struct.Struct(">BBiqQqq")
_WHOLE = 1
_HAS_TIMES = 2

# The record of a segment that a batch wrote to which was not over: it has no version yet.
NO_VERSION = Version(-1, -1, "")


@dataclass(frozen=True, slots=True)
class Record:
    """What a segment knows of itself: who wrote to it last, how many keys it has, and their times.

    `is_whole` is False while only a part of the batch's changes is in.
    """

    version: Version
    is_whole: bool = True
    keys: int = 0
    oldest_us: int | None = None
    newest_us: int | None = None

    def encoded(self) -> bytes:
        """Return the bytes under which it lies in the segment."""
        times = self.oldest_us or 0, self.newest_us or 0
        flags = (_WHOLE if self.is_whole else 0) | (_HAS_TIMES if self.oldest_us is not None else 0)
        version = self.version
        head = _RECORD.pack(RECORD_FORMAT, flags, version.epoch, version.batch, self.keys, *times)
        return head + version.head_id.encode()

    def has(self, version: Version) -> bool:
        """Return whether a segment that is ahead has all that a batch does to it."""
        return self.version.batch > version.batch or (self.version == version and self.is_whole)

    def seen(self, oldest_us: int | None, newest_us: int | None) -> Record:
        """Return the record with times that came."""
        if oldest_us is None or newest_us is None:
            return self
        if self.oldest_us is None or self.newest_us is None:
            return replace(self, oldest_us=oldest_us, newest_us=newest_us)
        return replace(
            self, oldest_us=min(self.oldest_us, oldest_us), newest_us=max(self.newest_us, newest_us)
        )


@dataclass(frozen=True, slots=True)
class Listed:
    """A segment as the mark lists it."""

    record: Record
    size_bytes: int = 0
    filter_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """At which batch a copy stands, its segments there, and the first segment that was not expired."""

    version: Version
    first_live: int | None = None
    segments: dict[int, Listed] = field(default_factory=dict)
    retention_us: int = field(default=0, compare=False)

    def first_writable(self, retention_us: int) -> int | None:
        """Return the first segment that takes keys under a retention; None: all do.

        Under a longer one than the mark was written with, segments live again that were expired.
        """
        return self.first_live if retention_us <= self.retention_us else None


def decode_record(stored: bytes, place: Path) -> Record:
    """Return the record that a segment holds; StorageCorrupt names the segment when it is not one."""
    if len(stored) < _RECORD.size or stored[0] != RECORD_FORMAT:
        raise StorageCorrupt(place=str(place), reason=f"its record is not one that we know: {stored[:40]!r}")
    _, flags, epoch, batch, keys, oldest_us, newest_us = _RECORD.unpack_from(stored)
    version = Version(epoch, batch, stored[_RECORD.size :].decode())
    if not flags & _HAS_TIMES:
        return Record(version, bool(flags & _WHOLE), keys)
    return Record(version, bool(flags & _WHOLE), keys, oldest_us, newest_us)


def encode_mark(mark: Mark, settings: SegmentSettings) -> bytes:
    """Return the bytes of a mark's file."""
    listed = [_row(number, mark.segments[number]) for number in sorted(mark.segments)]
    shape = _shape(settings)
    return seal(
        {"format": MARK_FORMAT, "version": asdict(mark.version), "first_live": mark.first_live}
        | {"retention_us": settings.retention_us, "shape": shape, "segments": listed}
    )


def read_mark(folder: Path, settings: SegmentSettings) -> Mark | None:
    """Return the mark of a copy, or None; a snapshot's mark takes its place first.

    Damaged: StorageCorrupt. Made with another interval or kind of key: StateMismatch.
    """
    place = folder / MARK_NAME
    try:
        for other in sorted(folder.glob(f"*{MARK_SUFFIX}")):
            if other.name != MARK_NAME:
                other.replace(place)
        content = place.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise disk_error(place, problem) from problem
    document = unseal(content, str(place), MARK_FORMAT)
    if document.get("shape") != _shape(settings):
        reason = f"{folder} was made with {document.get('shape')}, not with {_shape(settings)}."
        raise StateMismatch(operator=settings.store, reason=reason)
    try:
        segments = {row["number"]: _listed(row) for row in document["segments"]}
        retention_us = document["retention_us"]
        return Mark(Version(**document["version"]), document["first_live"], segments, retention_us)
    except (KeyError, TypeError) as problem:
        raise StorageCorrupt(place=str(place), reason="fields are missing or unknown") from problem


def write_mark(folder: Path, mark: Mark, settings: SegmentSettings) -> None:
    """Replace the mark of a copy; on the disk on return. StorageFull, StorageFailed: the old one stays."""
    try:
        write_file_atomically(folder / MARK_NAME, encode_mark(mark, settings))
    except OSError as problem:
        raise disk_error(folder / MARK_NAME, problem) from problem


def remove_mark(folder: Path) -> None:
    """Take the mark away: from now on the copy stands nowhere."""
    try:
        (folder / MARK_NAME).unlink(missing_ok=True)
    except OSError as problem:
        raise disk_error(folder / MARK_NAME, problem) from problem


def snapshot_mark(folder: Path, mark: Mark, settings: SegmentSettings) -> Path:
    """Write a mark into a snapshot's folder, under a name that says its content."""
    content = encode_mark(mark, settings)
    place = folder / f"{xxhash.xxh3_128_hexdigest(content)}{MARK_SUFFIX}"
    try:
        place.write_bytes(content)
    except OSError as problem:
        raise disk_error(place, problem) from problem
    return place


def _shape(settings: SegmentSettings) -> dict[str, Any]:
    """Return what two copies must have in common to be one: names, cuts of time, and what a key is."""
    return {
        "store": settings.store,
        "interval_us": settings.interval_us,
        "exact_keys": settings.exact_keys,
        "with_offsets": settings.with_offsets,
    }


def _row(number: int, listed: Listed) -> dict[str, Any]:
    return {"number": number, **asdict(listed)}


def _listed(row: dict[str, Any]) -> Listed:
    record = dict(row["record"])
    version = Version(**record.pop("version"))
    return Listed(Record(version=version, **record), row["size_bytes"], row["filter_bytes"])
