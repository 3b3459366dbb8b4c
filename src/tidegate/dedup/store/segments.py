"""The segments of one store: each is opened and checked at its first use, and few are open at a time.

A segment that is opened is compared with its record in the store's manifest:

    the same batch           it is complete
    a later batch            it is ahead: RocksDB flushed by itself before a kill. It skips batches that it
                             has, and is not read until the store has reached its batch
    anything else            it is damaged, or of another run: it is set aside, and is a missing part

A missing part is listed in the manifest, and its folder does not exist or is being restored.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.checkpoint.backend import Version
from tidegate.checkpoint.backends.rocksdb_unlogged import Pair
from tidegate.checkpoint.local.lock import GONE
from tidegate.dedup.store.manifest import NO_VERSION, ListedSegment, SegmentRecord, StoreManifest
from tidegate.dedup.store.segment import Segment, SegmentContext, SegmentFacts
from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFailed, TidegateError
from tidegate.storage.files import disk_errors

# The most segments whose RocksDB is open: each has about ten files and a few MiB of memory.
OPEN_SEGMENTS_MAX = 64
DAMAGED = ".damaged."
# A file in the folder of a part that is being restored from a snapshot and is incomplete.
REPAIR_NAME = "mending"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CacheEntry:
    """One segment of a store: its entry for the manifest, and the open segment if it is in use.

    `listed` is at most at the store's version. `is_partial` if the segment has its changes of a batch that
    the store has not applied as a whole.
    """

    number: int
    listed: ListedSegment | None
    segment: Segment | None = None
    is_ahead: bool = False
    is_partial: bool = False
    is_missing: bool = False


class SegmentCache:
    """The segments of one store, by number; one thread at a time."""

    def __init__(self, folder: Path, context: SegmentContext) -> None:
        self.folder = folder
        self._context = context
        self._settings, self._rule = context.settings, context.settings.rule
        self.entries: dict[int, CacheEntry] = {}
        self._has_manifest = False
        self._removed_count = 0

    def fill(self, manifest: StoreManifest | None) -> None:
        """Find the segments on the disk and in the manifest; remove expired ones left by a kill."""
        self._has_manifest = manifest is not None
        listed = manifest.segments if manifest else {}
        first_live = manifest.first_live if manifest else None
        for own, one in listed.items():
            self.entries[own] = CacheEntry(own, one, is_missing=not self._is_there(own))
        with disk_errors(self.folder):
            for folder in sorted(self.folder.iterdir()):
                number = self._rule.segment_of_folder(self._settings.store, folder.name)
                if GONE in folder.name:
                    shutil.rmtree(folder, ignore_errors=True)
                elif number is None or number in self.entries or not folder.is_dir():
                    continue
                elif first_live is not None and number < first_live:
                    self._remove(folder)
                else:
                    self.entries[number] = CacheEntry(number, None, is_missing=not self._is_there(number))

    def forget_manifest(self) -> None:
        """Stop comparing segments with the manifest, which was removed."""
        self._has_manifest = False

    def list_all(self, version: Version) -> dict[int, ListedSegment]:
        """Return the segments for the manifest of a version, which the caller writes."""
        for entry in list(self.entries.values()):
            is_settled = not entry.is_missing and not entry.is_ahead
            if entry.listed is None and is_settled and not self._has_manifest:
                self._open(entry, version)
                entry.listed = self.listed_now(entry)
        self._has_manifest = True
        return {entry.number: entry.listed for entry in self.entries.values() if entry.listed is not None}

    def numbers(self) -> list[int]:
        """Return the segments, oldest first."""
        return sorted(self.entries)

    def folder_of(self, number: int) -> Path:
        """Return the folder of a segment."""
        return self.folder / self._rule.folder_name(self._settings.store, number)

    def name(self, number: int) -> str:
        """Return the name of a segment's folder."""
        return self._rule.folder_name(self._settings.store, number)

    def use(self, number: int, version: Version | None) -> Segment:
        """Return a segment to read; StorageCorrupt if it is missing, damaged or ahead of the store."""
        entry = self.entries[number]
        segment = self._open(entry, version)
        if entry.is_partial:
            reason = "it has taken part of a batch; the batch is to be applied again"
            raise StorageFailed(path=str(self.folder_of(number)), reason=reason)
        if entry.is_ahead:
            reason = f"it is at batch {segment.record.version.batch}, which the manifest never reached"
            raise StorageCorrupt(place=str(self.folder_of(number)), reason=reason)
        return segment

    def entry_for_writing(self, number: int, version: Version | None) -> CacheEntry:
        """Return the entry of a segment to write to, opened; created if it does not exist."""
        entry = self.entries.get(number)
        if entry is None:
            entry = self.entries[number] = CacheEntry(number, None)
        self._open(entry, version)
        return entry

    @contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Set a segment aside if a read in the block finds it damaged."""
        try:
            yield
        except StorageCorrupt as problem:
            self.set_aside(number, problem)
            raise

    def set_aside(self, number: int, problem: TidegateError) -> None:
        """Rename the folder of a damaged segment, to be inspected by hand; only the last one is kept."""
        entry, folder = self.entries[number], self.folder_of(number)
        entry.is_missing, segment, entry.segment = True, entry.segment, None
        if segment is not None:
            segment.abandon()
        log.warning("damaged segment set aside folder=%s error=%s", folder, problem)
        if not folder.exists():
            return
        old = sorted(self.folder.glob(f"{folder.name}{DAMAGED}*"))
        aside = folder.with_name(f"{folder.name}{DAMAGED}{len(old)}")
        with disk_errors(folder):
            for one in old:
                shutil.rmtree(one, ignore_errors=True)
            folder.rename(aside if not aside.exists() else folder.with_name(f"{folder.name}{DAMAGED}x"))

    def settle(self) -> None:
        """Accept everything that was written: the store is at the batch that was applied last."""
        for entry in self.entries.values():
            entry.is_ahead, entry.is_partial = entry.is_ahead and not entry.is_partial, False
            if entry.segment is not None and not entry.is_ahead and not entry.is_missing:
                entry.listed = self.listed_now(entry)

    def listed_now(self, entry: CacheEntry) -> ListedSegment | None:
        """Return the present state of a segment for the manifest."""
        segment = entry.segment
        if segment is None:
            return entry.listed
        return ListedSegment(segment.record, segment.size_bytes, segment.filter_bytes)

    def facts(self, number: int) -> SegmentFacts:
        """Return the facts of a segment without opening it."""
        entry = self.entries[number]
        segment, listed = entry.segment, self.listed_now(entry)
        record = listed.record if listed else SegmentRecord(NO_VERSION)
        return SegmentFacts(
            number=number,
            start_ms=self._rule.start_ms(number),
            keys=record.keys,
            size_bytes=listed.size_bytes if listed else 0,
            filter_bytes=listed.filter_bytes if listed else 0,
            oldest_us=record.oldest_us,
            newest_us=record.newest_us,
            filter_probes=segment.filter_probes if segment else 0,
            filter_maybe=segment.filter_maybe if segment else 0,
            filter_false=segment.filter_false if segment else 0,
        )

    def copy_range(self, number: int, chunks: Iterator[list[Pair]]) -> None:
        """Add entries of another store's segment to a segment, which is created if it does not exist."""
        for pairs in chunks:
            entry = self.entry_for_writing(number, None)
            entry.is_ahead = entry.is_partial = False
            self._open(entry, None).copy_range(pairs)

    def flush(self) -> None:
        """Flush all open segments."""
        for entry in self.entries.values():
            if entry.segment is not None:
                entry.segment.flush()

    def drop(self, number: int) -> None:
        """Remove a segment: its folder is renamed first, which suffices for all others."""
        entry = self.entries.pop(number)
        if entry.segment is not None:
            entry.segment.abandon()
        folder = self.folder_of(number)
        if folder.exists():
            self._remove(folder)

    def close(self) -> None:
        """Close all segments."""
        for entry in self.entries.values():
            if entry.segment is not None:
                entry.segment.close()
                entry.segment = None

    def begin_repair(self, number: int, files: Path) -> None:
        """Fill the folder of a missing part with snapshot files; it is missing until `finish_repair`."""
        entry, folder = self.entries[number], self.folder_of(number)
        if entry.segment is not None:
            entry.segment.abandon()
            entry.segment = None
        entry.is_missing = True
        with disk_errors(folder):
            if folder.exists():
                self._remove(folder)
            folder.mkdir()
            (folder / REPAIR_NAME).touch()
            for file in sorted(files.iterdir()) if files.is_dir() else ():
                shutil.move(file, folder / file.name)

    def part_in_repair(self, number: int) -> Segment:
        """Return the segment of a part that is being restored."""
        entry = self.entries[number]
        if not entry.is_missing or not (self.folder_of(number) / REPAIR_NAME).exists():
            raise InvariantBroken(reason=f"{self.folder_of(number)} is not being filled")
        if entry.segment is None:
            entry.segment = Segment(self.folder_of(number), self._context, self._close_others)
        return entry.segment

    def finish_repair(self, number: int) -> None:
        """Accept a restored part as complete; StorageCorrupt unless it is at the batch of the manifest."""
        entry, segment = self.entries[number], self.part_in_repair(number)
        expected = entry.listed.record.version if entry.listed else None
        if expected is not None and segment.record.version != expected:
            reason = f"it was brought to batch {segment.record.version.batch}, not to {expected.batch}"
            raise StorageCorrupt(place=str(self.folder_of(number)), reason=reason)
        segment.flush()
        (self.folder_of(number) / REPAIR_NAME).unlink()
        entry.is_missing, entry.listed = False, self.listed_now(entry)
        entry.is_ahead = entry.is_partial = False  # it is at the store's batch

    def _open(self, entry: CacheEntry, version: Version | None) -> Segment:
        folder = self.folder_of(entry.number)
        if entry.is_missing:
            raise StorageCorrupt(place=str(folder), reason="the segment is missing, or was set aside")
        if entry.segment is None:
            listed = entry.listed.record if entry.listed else None
            is_new = self._has_manifest and listed is None
            try:
                entry.segment = Segment(folder, self._context, self._close_others, listed, is_new=is_new)
                self._compare(entry, entry.segment.record, version)
            except StorageCorrupt as problem:
                self.set_aside(entry.number, problem)
                raise
        self.entries[entry.number] = self.entries.pop(entry.number)  # most recently used
        return entry.segment

    def _compare(self, entry: CacheEntry, record: SegmentRecord, version: Version | None) -> None:
        """Compare a segment with its entry in the manifest."""
        expected = entry.listed.record.version if entry.listed else None
        if not self._has_manifest or version is None or record.version == expected:
            return
        if expected is None and record.version.batch < 0:
            return  # new: nothing was written to it yet, or nothing that was flushed
        if record.version.epoch == version.epoch and record.version.batch > version.batch:
            entry.is_ahead = True
            return
        folder = self.folder_of(entry.number)
        reason = f"it is at batch {record.version.batch}, the manifest says another"
        raise StorageCorrupt(place=str(folder), reason=reason)

    def _close_others(self) -> None:
        """Close the RocksDB of the least recently used segments, if too many are open."""
        active = [
            entry for entry in self.entries.values() if entry.segment and not entry.segment.is_table_closed
        ]
        for entry in active[: max(0, len(active) - OPEN_SEGMENTS_MAX + 1)]:
            if entry.segment is not None:
                entry.segment.close_table()

    def _is_there(self, number: int) -> bool:
        folder = self.folder_of(number)
        return folder.is_dir() and not (folder / REPAIR_NAME).exists()

    def _remove(self, folder: Path) -> None:
        target = folder.with_name(f"{folder.name}{GONE}{self._removed_count}")
        self._removed_count += 1
        with disk_errors(folder):
            folder.rename(target)
        shutil.rmtree(target, ignore_errors=True)
