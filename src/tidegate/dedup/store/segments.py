"""The shelf: takes a copy's folder, gives its segments opened and checked, keeps few of them open.

A segment is opened when it is first used, and compared with what the copy's mark says of it:

    as the mark says         it is what it should be
    a later batch            it is ahead: RocksDB wrote to the disk by itself before a kill. It takes no batch
                             twice, and nobody looks into it until the copy has come as far
    anything else            it is damaged, or of another run: it is set aside, and is a missing part

A missing part is known by the mark, and its folder is not there, or is being filled again.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.checkpoint.backend import Version
from tidegate.checkpoint.local.lock import GONE
from tidegate.dedup.store.manifest import NO_VERSION, Listed, Mark, Record
from tidegate.dedup.store.segment import Segment, SegmentFacts, Workshop
from tidegate.dedup.store.table import Pair
from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFailed, TidegateError
from tidegate.storage.files import disk_error

# Segments whose RocksDB is open at once: each has some ten files and a few MiB of memory.
OPEN_SEGMENTS_MAX = 64
DAMAGED = ".damaged."
# In the folder of a part that is being filled from a snapshot: not whole yet.
MENDING_NAME = "mending"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Slot:
    """One segment of a copy: what it should be, and the open segment when it is in use.

    `listed` is what the mark may say of it: never more than the copy's version covers. `is_taking` says that
    it has taken its part of a batch that the copy has not taken whole.
    """

    number: int
    listed: Listed | None
    opened: Segment | None = None
    is_ahead: bool = False
    is_taking: bool = False
    is_missing: bool = False


class Shelf:
    """The segments of one copy, by number; one thread at a time."""

    def __init__(self, folder: Path, workshop: Workshop) -> None:
        self.folder = folder
        self._workshop = workshop
        self._settings, self._rule = workshop.settings, workshop.settings.rule
        self.slots: dict[int, Slot] = {}
        self._is_marked = False
        self._gone = 0

    def fill(self, mark: Mark | None) -> None:
        """Find the segments that are there and those that should be; remove what an earlier end left."""
        self._is_marked = mark is not None
        listed = mark.segments if mark else {}
        first_live = mark.first_live if mark else None
        for own, one in listed.items():
            self.slots[own] = Slot(own, one, is_missing=not self._is_there(own))
        try:
            for place in sorted(self.folder.iterdir()):
                number = self._rule.segment_of_folder(self._settings.store, place.name)
                if GONE in place.name:
                    shutil.rmtree(place, ignore_errors=True)
                elif number is None or number in self.slots or not place.is_dir():
                    continue
                elif first_live is not None and number < first_live:
                    self._remove(place)
                else:
                    self.slots[number] = Slot(number, None, is_missing=not self._is_there(number))
        except OSError as problem:
            raise disk_error(self.folder, problem) from problem

    def unmark(self) -> None:
        """Note that the copy has no mark any more: segments are taken as they are."""
        self._is_marked = False

    def list_all(self, version: Version) -> dict[int, Listed]:
        """Return what the mark of a version says of each segment, and note that it is written."""
        for slot in list(self.slots.values()):
            is_settled = not slot.is_missing and not slot.is_ahead
            if slot.listed is None and is_settled and not self._is_marked:
                self._open(slot, version)
                slot.listed = self.listed_now(slot)
        self._is_marked = True
        return {slot.number: slot.listed for slot in self.slots.values() if slot.listed is not None}

    def numbers(self) -> list[int]:
        """Return the segments, oldest first."""
        return sorted(self.slots)

    def place(self, number: int) -> Path:
        """Return the folder of a segment."""
        return self.folder / self._rule.folder_name(self._settings.store, number)

    def name(self, number: int) -> str:
        """Return the name of a segment's folder."""
        return self._rule.folder_name(self._settings.store, number)

    def use(self, number: int, version: Version | None) -> Segment:
        """Return a segment to read from: StorageCorrupt when it is missing, damaged or ahead of the copy."""
        slot = self.slots[number]
        opened = self._open(slot, version)
        if slot.is_taking:
            reason = "it has taken part of a batch; the batch is to be applied again"
            raise StorageFailed(path=str(self.place(number)), reason=reason)
        if slot.is_ahead:
            reason = f"it stands at batch {opened.record.version.batch}, which its copy never came to"
            raise StorageCorrupt(place=str(self.place(number)), reason=reason)
        return opened

    def slot_for_writing(self, number: int, version: Version | None) -> Slot:
        """Return a segment to write to, opened; made if it is not there."""
        slot = self.slots.get(number)
        if slot is None:
            slot = self.slots[number] = Slot(number, None)
        self._open(slot, version)
        return slot

    @contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Set a segment aside when what is read from it turns out damaged."""
        try:
            yield
        except StorageCorrupt as problem:
            self.set_aside(number, problem)
            raise

    def set_aside(self, number: int, problem: TidegateError) -> None:
        """Put a damaged segment out of the way, for a person to look at; the last one alone is kept."""
        slot, place = self.slots[number], self.place(number)
        slot.is_missing, opened, slot.opened = True, slot.opened, None
        if opened is not None:
            opened.abandon()
        log.warning("the segment in %s is set aside: %s", place, problem)
        if not place.exists():
            return
        old = sorted(self.folder.glob(f"{place.name}{DAMAGED}*"))
        aside = place.with_name(f"{place.name}{DAMAGED}{len(old)}")
        try:
            for one in old:
                shutil.rmtree(one, ignore_errors=True)
            place.rename(aside if not aside.exists() else place.with_name(f"{place.name}{DAMAGED}x"))
        except OSError as fault:
            raise disk_error(place, fault) from fault

    def settle(self) -> None:
        """Note that the copy has come to the batch that was applied last: all that was written counts."""
        for slot in self.slots.values():
            slot.is_ahead, slot.is_taking = slot.is_ahead and not slot.is_taking, False
            if slot.opened is not None and not slot.is_ahead and not slot.is_missing:
                slot.listed = self.listed_now(slot)

    def listed_now(self, slot: Slot) -> Listed | None:
        """Return what a mark says of a segment as it is now."""
        opened = slot.opened
        if opened is None:
            return slot.listed
        return Listed(opened.record, opened.size_bytes, opened.filter_bytes)

    def facts(self, number: int) -> SegmentFacts:
        """Return what is known of a segment; it is not opened for it."""
        slot = self.slots[number]
        opened, listed = slot.opened, self.listed_now(slot)
        record = listed.record if listed else Record(NO_VERSION)
        return SegmentFacts(
            number=number,
            start_ms=self._rule.start_ms(number),
            keys=record.keys,
            size_bytes=listed.size_bytes if listed else 0,
            filter_bytes=listed.filter_bytes if listed else 0,
            oldest_us=record.oldest_us,
            newest_us=record.newest_us,
            filter_probes=opened.filter_probes if opened else 0,
            filter_maybe=opened.filter_maybe if opened else 0,
            filter_false=opened.filter_false if opened else 0,
        )

    def absorb(self, number: int, chunks: Iterator[list[Pair]]) -> None:
        """Put entries of another copy's segment into a segment, which is made if it is not there."""
        for pairs in chunks:
            slot = self.slot_for_writing(number, None)
            slot.is_ahead = slot.is_taking = False
            self._open(slot, None).absorb(pairs)

    def flush(self) -> None:
        """Put everything that was written on the disk."""
        for slot in self.slots.values():
            if slot.opened is not None:
                slot.opened.flush()

    def drop(self, number: int) -> None:
        """Remove a segment: it goes under another name first, which is all that others wait for."""
        slot = self.slots.pop(number)
        if slot.opened is not None:
            slot.opened.abandon()
        place = self.place(number)
        if place.exists():
            self._remove(place)

    def close(self) -> None:
        """Let go of all segments."""
        for slot in self.slots.values():
            if slot.opened is not None:
                slot.opened.close()
                slot.opened = None

    def lay(self, number: int, files: Path) -> None:
        """Fill the folder of a missing part with files of a snapshot; it stays missing until `end`."""
        slot, place = self.slots[number], self.place(number)
        if slot.opened is not None:
            slot.opened.abandon()
            slot.opened = None
        slot.is_missing = True
        try:
            if place.exists():
                self._remove(place)
            place.mkdir()
            (place / MENDING_NAME).touch()
            for file in sorted(files.iterdir()) if files.is_dir() else ():
                shutil.move(file, place / file.name)
        except OSError as problem:
            raise disk_error(place, problem) from problem

    def mending(self, number: int) -> Segment:
        """Return the segment of a part that is being filled."""
        slot = self.slots[number]
        if not slot.is_missing or not (self.place(number) / MENDING_NAME).exists():
            raise InvariantBroken(reason=f"{self.place(number)} is not being filled")
        if slot.opened is None:
            slot.opened = Segment(self.place(number), self._workshop, self._rest_others)
        return slot.opened

    def end(self, number: int) -> None:
        """Take a part that was filled as whole: it must stand where the mark says."""
        slot, opened = self.slots[number], self.mending(number)
        wanted = slot.listed.record.version if slot.listed else None
        if wanted is not None and opened.record.version != wanted:
            reason = f"it was brought to batch {opened.record.version.batch}, not to {wanted.batch}"
            raise StorageCorrupt(place=str(self.place(number)), reason=reason)
        opened.flush()
        (self.place(number) / MENDING_NAME).unlink()
        slot.is_missing, slot.listed = False, self.listed_now(slot)
        slot.is_ahead = slot.is_taking = False  # it stands where the copy does

    def _open(self, slot: Slot, version: Version | None) -> Segment:
        place = self.place(slot.number)
        if slot.is_missing:
            raise StorageCorrupt(place=str(place), reason="the segment is missing, or was set aside")
        if slot.opened is None:
            listed = slot.listed.record if slot.listed else None
            is_new = self._is_marked and listed is None
            try:
                slot.opened = Segment(place, self._workshop, self._rest_others, listed, is_new=is_new)
                self._compare(slot, slot.opened.record, version)
            except StorageCorrupt as problem:
                self.set_aside(slot.number, problem)
                raise
        self.slots[slot.number] = self.slots.pop(slot.number)  # the last one to rest
        return slot.opened

    def _compare(self, slot: Slot, record: Record, version: Version | None) -> None:
        """Compare a segment with what the mark says of it."""
        wanted = slot.listed.record.version if slot.listed else None
        if not self._is_marked or version is None or record.version == wanted:
            return
        if wanted is None and record.version.batch < 0:
            return  # new: nothing was written to it yet, or nothing that lasted
        if record.version.epoch == version.epoch and record.version.batch > version.batch:
            slot.is_ahead = True
            return
        place = self.place(slot.number)
        reason = f"it stands at batch {record.version.batch}, and not where its copy says"
        raise StorageCorrupt(place=str(place), reason=reason)

    def _rest_others(self) -> None:
        """Close the RocksDB of the segments whose turn was longest ago, when too many are open."""
        awake = [slot for slot in self.slots.values() if slot.opened and not slot.opened.is_resting]
        for slot in awake[: max(0, len(awake) - OPEN_SEGMENTS_MAX + 1)]:
            if slot.opened is not None:
                slot.opened.rest()

    def _is_there(self, number: int) -> bool:
        place = self.place(number)
        return place.is_dir() and not (place / MENDING_NAME).exists()

    def _remove(self, place: Path) -> None:
        gone = place.with_name(f"{place.name}{GONE}{self._gone}")
        self._gone += 1
        try:
            place.rename(gone)
        except OSError as problem:
            raise disk_error(place, problem) from problem
        shutil.rmtree(gone, ignore_errors=True)
