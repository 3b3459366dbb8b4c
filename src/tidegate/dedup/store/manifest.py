"""The manifest of a segmented store: its batch, and the record of each of its segments at that batch.

`copy.mark` in the store's folder is a sealed JSON document. It is written after everything it lists is on the
disk, and replaced atomically. In a snapshot its name follows from its content: `<digest>.mark`. A segment has
a record of its own among its entries, written with them: the batch that wrote to it last. The manifest lists
these records, so that a segment that is ahead of the manifest, behind it, or missing is detected.
"""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from tidegate.checkpoint.backend import Version
from tidegate.checkpoint.commit_record import loaded_fields, stored_fields
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.dedup.settings import SegmentSettings
from tidegate.errors import StateMismatch, StorageCorrupt
from tidegate.storage.files import disk_error, disk_errors, write_file_atomically
from tidegate.storage.sealed_json import seal, unseal

MANIFEST_NAME = "copy.mark"
MANIFEST_SUFFIX = ".mark"
MANIFEST_FORMAT = 1

RECORD_KEY = META_GROUP + b"segment"
RECORD_FORMAT = 1
_RECORD = struct.Struct(">BBiqQqq")
_WHOLE = 1
_HAS_TIMES = 2

# The version of a segment written outside of a batch.
NO_VERSION = Version(-1, -1, "")


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The record in a segment: the batch that wrote to it last, the number of its keys, and their times.

    `is_whole` is False while only a part of that batch's changes is written.
    """

    version: Version
    is_whole: bool = True
    keys: int = 0
    oldest_us: int | None = None
    newest_us: int | None = None

    def encoded(self) -> bytes:
        """Return the bytes of the record."""
        times = self.oldest_us or 0, self.newest_us or 0
        flags = (_WHOLE if self.is_whole else 0) | (_HAS_TIMES if self.oldest_us is not None else 0)
        version = self.version
        head = _RECORD.pack(RECORD_FORMAT, flags, version.epoch, version.batch, self.keys, *times)
        return head + version.commit_id.encode()

    def has(self, version: Version) -> bool:
        """True if a segment that is ahead has all changes of a batch."""
        return self.version.batch > version.batch or (self.version == version and self.is_whole)

    def seen(self, oldest_us: int | None, newest_us: int | None) -> SegmentRecord:
        """Return the record extended by the times of new entries."""
        if oldest_us is None or newest_us is None:
            return self
        if self.oldest_us is None or self.newest_us is None:
            return replace(self, oldest_us=oldest_us, newest_us=newest_us)
        return replace(
            self, oldest_us=min(self.oldest_us, oldest_us), newest_us=max(self.newest_us, newest_us)
        )


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """A segment as the manifest lists it."""

    record: SegmentRecord
    size_bytes: int = 0
    filter_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """The batch of a store, its segments at that batch, and the first segment that is not expired."""

    version: Version
    first_live: int | None = None
    segments: dict[int, ListedSegment] = field(default_factory=dict)
    retention_us: int = field(default=0, compare=False)

    def first_writable(self, retention_us: int) -> int | None:
        """Return the first segment that takes keys with a retention; None: all do.

        With a longer retention than that of the manifest, expired segments are live again.
        """
        return self.first_live if retention_us <= self.retention_us else None


def decode_record(stored: bytes, place: Path) -> SegmentRecord:
    """Return the record of a segment; StorageCorrupt names the segment if the bytes are no record."""
    if len(stored) < _RECORD.size or stored[0] != RECORD_FORMAT:
        raise StorageCorrupt(place=str(place), reason=f"its record is not one that we know: {stored[:40]!r}")
    _, flags, epoch, batch, keys, oldest_us, newest_us = _RECORD.unpack_from(stored)
    version = Version(epoch, batch, stored[_RECORD.size :].decode())
    if not flags & _HAS_TIMES:
        return SegmentRecord(version, bool(flags & _WHOLE), keys)
    return SegmentRecord(version, bool(flags & _WHOLE), keys, oldest_us, newest_us)


def encode_manifest(manifest: StoreManifest, settings: SegmentSettings) -> bytes:
    """Return the bytes of a manifest's file."""
    rows = [_row(number, manifest.segments[number]) for number in sorted(manifest.segments)]
    shape = _shape(settings)
    version = stored_fields(asdict(manifest.version))
    return seal(
        {"format": MANIFEST_FORMAT, "version": version, "first_live": manifest.first_live}
        | {"retention_us": settings.retention_us, "shape": shape, "segments": rows}
    )


def read_manifest(folder: Path, settings: SegmentSettings) -> StoreManifest | None:
    """Return the manifest of a store, or None; a snapshot's manifest is renamed to the store's first.

    StorageCorrupt if it is damaged, StateMismatch if it has another interval or kind of key.
    """
    place = folder / MANIFEST_NAME
    try:
        for other in sorted(folder.glob(f"*{MANIFEST_SUFFIX}")):
            if other.name != MANIFEST_NAME:
                other.replace(place)
        content = place.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise disk_error(place, problem) from problem
    document = unseal(content, str(place), MANIFEST_FORMAT)
    if document.get("shape") != _shape(settings):
        reason = f"{folder} was made with {document.get('shape')}, not with {_shape(settings)}."
        raise StateMismatch(operator=settings.store, reason=reason)
    try:
        segments = {row["number"]: _segment_of(row) for row in document["segments"]}
        retention_us = document["retention_us"]
        version = Version(**loaded_fields(document["version"]))
        return StoreManifest(version, document["first_live"], segments, retention_us)
    except (KeyError, TypeError) as problem:
        raise StorageCorrupt(place=str(place), reason="fields are missing or unknown") from problem


def write_manifest(folder: Path, manifest: StoreManifest, settings: SegmentSettings) -> None:
    """Replace the manifest of a store durably; after StorageFull or StorageFailed the old one stays."""
    with disk_errors(folder / MANIFEST_NAME):
        write_file_atomically(folder / MANIFEST_NAME, encode_manifest(manifest, settings))


def remove_manifest(folder: Path) -> None:
    """Remove the manifest: the store has no version from now on."""
    with disk_errors(folder / MANIFEST_NAME):
        (folder / MANIFEST_NAME).unlink(missing_ok=True)


def snapshot_manifest(folder: Path, manifest: StoreManifest, settings: SegmentSettings) -> Path:
    """Write a manifest into a snapshot's folder, under a name that follows from its content."""
    content = encode_manifest(manifest, settings)
    place = folder / f"{xxhash.xxh3_128_hexdigest(content)}{MANIFEST_SUFFIX}"
    with disk_errors(place):
        place.write_bytes(content)
    return place


def _shape(settings: SegmentSettings) -> dict[str, Any]:
    """Return the settings that must be the same at every open: name, interval, and kind of key."""
    return {
        "store": settings.store,
        "interval_us": settings.interval_us,
        "exact_keys": settings.exact_keys,
        "with_offsets": settings.with_offsets,
    }


def _row(number: int, listed: ListedSegment) -> dict[str, Any]:
    row = {"number": number, **asdict(listed)}
    row["record"]["version"] = stored_fields(row["record"]["version"])
    return row


def _segment_of(row: dict[str, Any]) -> ListedSegment:
    record = dict(row["record"])
    version = Version(**loaded_fields(record.pop("version")))
    return ListedSegment(SegmentRecord(version=version, **record), row["size_bytes"], row["filter_bytes"])
