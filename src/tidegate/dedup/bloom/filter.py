"""A segment's filter: takes 64-bit hashes of keys, says which of them were certainly never added.

It is made of pages (filter_page.py) in files of one folder (filter_index.py names them). A page has a fixed
size; when it is full, another is begun. Each page costs a probe and adds its share of false answers, and room
that is never filled costs memory. So:

    a new page         makes room for at most GROWTH times the keys that there are, for fewer where the caller
                       expects fewer: at 12 bits a key all pages take at most 2.4 bytes a key
    a fourth page      is never made: all hashes are read once more, and one page is made of them. That
                       happens each time that the keys have become four times as many; the hashes come from a
                       file of their own while they are few (filter_log.py), then from the segment's keys
    for a number that  all are made at once, in one page; in up to three where that is more than half of what
    is sure            may be in memory, so that the page which takes hashes stays there

What a kill leaves: pages that hold at least what they held at the last `sync` (filter_page.py), files that
the record does not name, which go at the next open, or files without a record, while a filter is rebuilt:
StorageCorrupt then, as for any damage, and it is rebuilt again. A large page that was being filled is mended
from its stem, tails and journal (filter_snapshot.py). Whether the filter can be trusted says `was_clean`; it
is never trusted further than that: one that is empty although the segment is not must be noticed by the
segment, which knows its keys' number.

The hashes of a filter that is growing: takes them as they are added, gives all of them once more.

A filter that has too many pages is made anew as one, from all hashes that it has. Reading them from RocksDB
costs five times as much as reading them here. The file has no name and is never synced: nothing depends on
it, and it goes with the worker. It is kept while keys are few, for they are what is made anew most often.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegate.dedup.bloom import blocked
from tidegate.dedup.bloom.blocked import Flags, Hashes
from tidegate.dedup.bloom.manifest import (
    INDEX_NAME,
    FilterIndex,
    found_index,
    page_name,
    read_index,
    remove_filter,
    remove_unnamed,
)
from tidegate.dedup.bloom.memory import PAGES_MAX, FilterBudget, FilterSettings, Room
from tidegate.dedup.bloom.page import Page, write_all
from tidegate.dedup.bloom.snapshot import Stem, mend, snapshot, take_over
from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFull
from tidegate.storage.files import disk_error, write_file_atomically


@dataclass(frozen=True, slots=True)
class FilterRates:
    """What a filter did since it was opened: hashes asked, those that may be there, the rate to expect."""

    probes: int
    maybe: int
    expected_false_rate: float


log = logging.getLogger(__name__)

Source = Callable[[], Iterator[Hashes]]


class FilterFiles:
    """The filter of one segment in files of a folder: never says no to a hash that was added.

    An empty or absent folder begins an empty filter; files of a snapshot are taken over. A file that is cut,
    changed or missing, or fewer hashes than `count_min`, which is what the segment knows of its keys:
    StorageCorrupt that names it; the caller then calls `rebuild` with every hash of the segment. `stored`
    gives every hash of the segment but for those of the call of `add` that asks; without it pages are never
    made into one. Used by one thread at a time, and by one worker. Read only, nothing in the folder changes.
    """

    def __init__(
        self,
        folder: Path,
        settings: FilterSettings | None = None,
        budget: FilterBudget | None = None,
        *,
        count_min: int = 0,
        is_read_only: bool = False,
        stored: Source | None = None,
    ) -> None:
        self.folder = folder
        self.settings = settings or FilterSettings()
        self._budget = budget or FilterBudget()
        self._is_read_only = is_read_only
        self._is_building = False
        self._stored = stored
        self._log: HashLog | None = None
        self._pages: list[Page] = []
        self._stem = Stem(folder)
        self._written = FilterIndex()
        self._room = Room(self.settings, self._budget.bytes_max)
        self._is_backwards = False
        self._probes = self._maybe = 0
        try:
            self._open()
            if self.count < count_min:
                reason = f"it has {self.count} hashes, {count_min} keys are known"
                raise StorageCorrupt(place=str(folder), reason=reason)
        except BaseException:
            self.abandon()
            raise
        self.was_clean = all(page.is_trusted for page in self._pages)

    @classmethod
    def rebuild(
        cls,
        folder: Path,
        stored: Source,
        *,
        expected_keys: int,
        settings: FilterSettings | None = None,
        budget: FilterBudget | None = None,
    ) -> FilterFiles:
        """Make the filter anew, of exact size, from all hashes of the segment; what lay there goes first.

        Cut short, the folder has no record: StorageCorrupt at the next open, and it is rebuilt again.
        """
        remove_filter(folder)
        made = cls(folder, settings, budget)
        made._is_building = True
        made.expect(expected_keys, is_sure=True)
        try:
            for chunk in stored():
                made.add(chunk)
            made._is_building, made._stored = False, stored
            made.sync()
        except BaseException:
            made.abandon()
            raise
        return made

    @property
    def count(self) -> int:
        """Return how many hashes were added; one that was added twice counts twice."""
        return sum(page.count for page in self._pages)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all pages: what the filter takes in memory when all of it is in use."""
        return sum(page.size_bytes for page in self._pages)

    @property
    def pages(self) -> int:
        """Return the number of pages; each costs a probe."""
        return len(self._pages)

    @property
    def rates(self) -> FilterRates:
        """Return what was asked and answered since the filter was opened."""
        missed = 1.0
        for page in self._pages:
            missed *= 1 - blocked.expected_false_rate(page.count, page.lines)
        return FilterRates(self._probes, self._maybe, 1 - missed)

    def expect(self, keys: int, *, is_sure: bool = False) -> None:
        """Say how many keys the segment will hold in the end; room is made for all of them if it is sure."""
        self._room.expected_keys, self._room.is_sure = keys, is_sure

    def contains(self, hashes: Hashes) -> Flags:
        """Return of each hash whether it may have been added; False is certain."""
        found = np.zeros(len(hashes), np.bool_)
        # There and back, as within a page: what was used last is in memory still.
        self._is_backwards = not self._is_backwards
        for page in self._pages[:: -1 if self._is_backwards else 1]:
            np.logical_or(found, page.contains(hashes), out=found)
        self._probes += len(hashes)
        self._maybe += int(np.count_nonzero(found))
        return found

    def add(self, hashes: Hashes) -> None:
        """Add hashes. No room for a new page: StorageFull, and nothing was added."""
        if self._is_read_only:
            raise InvariantBroken(reason=f"the filter in {self.folder} was opened to be read only")
        if not len(hashes):
            return
        if self._pages and self._pages[-1].room >= len(hashes):
            self._stem.append(hashes)
            self._pages[-1].add(hashes)
            self._shorten_journal()
        elif self._can_be_one(self.count + len(hashes)):
            self._make_one(hashes)
        else:
            self._extend(hashes)
        self._log_hashes(hashes)

    def sync(self) -> None:
        """Put everything that was added on the disk; pages that became full are sealed."""
        if self._is_read_only:
            return
        for page in self._pages:
            if page.is_full:
                page.seal()
            else:
                page.sync()
        self._stem.sync()
        is_over = bool(self._pages) and self._pages[-1].is_full  # sealed, it needs no stem to say what it is
        index = self._index(Stem(self.folder) if is_over else self._stem)
        if index != self._written or not (self.folder / INDEX_NAME).exists():
            self._write_index(index)
        if is_over:
            self._stem.forget()

    def snapshot_into(self, folder: Path) -> list[Path]:
        """Put files into a folder from which the filter opens again; give them.

        Names say the content: a file that an earlier snapshot had under the same name has the same bytes.
        The folder may hold other files. Everything that was added is in it; `sync` is done on the way.
        """
        self.sync()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return snapshot(
                folder,
                self._pages,
                self._stem,
                self.settings.stem_bytes_min,
                lambda: self._write_index(self._index(self._stem)),
            )
        except BaseException as problem:
            # The record may be older than the journal: the next snapshot begins with a new stem.
            self._stem.forget()
            if isinstance(problem, OSError):
                raise disk_error(folder, problem) from problem
            raise

    def close(self) -> None:
        """Sync, seal every page and let go of the mappings; no call but `close` afterwards."""
        try:
            self.sync()
            if not self._is_read_only:
                for page in self._pages:
                    page.seal()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the mappings without a sync: for a folder that is about to be removed."""
        for page in self._pages:
            page.close()
        self._pages = []
        self._stem.close()
        if self._log is not None:
            self._log.close()
        self._is_read_only = True

    def _open(self) -> None:
        """Open the pages that the record names; remove what it does not name."""
        path = found_index(self.folder)
        if path is None:
            return
        index = read_index(path)
        if path.name != INDEX_NAME:
            if self._is_read_only:
                raise InvariantBroken(reason=f"a snapshot in {self.folder} was opened to be read only")
            index = take_over(self.folder, index, self._budget, self.settings.stem_bytes_min)
            write_file_atomically(self.folder / INDEX_NAME, index.encoded())
        self._written = index
        for number, digest in zip(index.numbers, index.pages, strict=True):
            page = Page(self.folder / page_name(number), self._budget, is_read_only=self._is_read_only)
            self._pages.append(page)
            page.check_is(number, digest)
        if self._is_read_only:
            return
        self._mend(index)
        remove_unnamed(self.folder, index)
        if all(page.is_trusted for page in self._pages):
            self._stem = Stem.of_index(self.folder, index)

    def _mend(self, index: FilterIndex) -> None:
        """Bring the page that was being filled to what it was, where something says what that is."""
        page = self._pages[-1] if self._pages else None
        if page is None or page.is_trusted or index.journal is None:
            return
        try:
            mend(self.folder, index, page, self._budget)
        except StorageCorrupt as problem:
            log.warning("a filter that was left open cannot be mended: %s", problem)

    def _can_be_one(self, need: int) -> bool:
        is_small = self._room.keys(need) <= self._room.page_keys_max
        return len(self._pages) >= PAGES_MAX and is_small and self._stored is not None

    def _make(self, number: int, capacity: int) -> Page:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / page_name(number)
        return Page.make(path, number, capacity, self.settings.bits_per_key, self._budget)

    def _make_one(self, hashes: Hashes) -> None:
        """Make one page of all hashes, those that are to be added too; or change nothing."""
        page = self._make(self._written.last + 1, self._room.keys(self.count + len(hashes)))
        stem = Stem(self.folder)
        try:
            for old in self._pages:
                old.release()  # not both in memory
            for chunk in self._all_hashes():
                page.add(chunk)
            page.add(hashes)
            page.seal()
            stem = Stem.of_page(self.folder, page, self.settings.stem_bytes_min)
            self._write_index(self._index(stem, [page]))
        except BaseException:
            _give_up([page], stem)
            raise
        _give_up(self._pages, self._stem)
        self._pages, self._stem = [page], stem

    def _all_hashes(self) -> Iterator[Hashes]:
        if self._log is not None and self._log.is_whole:
            return self._log.chunks()
        if self._stored is None:
            raise InvariantBroken(reason=f"nobody says which hashes the filter in {self.folder} has")
        return self._stored()

    def _extend(self, hashes: Hashes) -> None:
        """Make the pages that the hashes need, name them in the record, and add; no room: no hash is lost."""
        last = self._pages[-1:]
        there = sum(max(page.capacity, page.count) for page in self._pages)
        left = len(hashes) - sum(page.room for page in last)
        wanted = max(self._room.keys(self.count + len(hashes)) - there, left)
        made: list[Page] = []
        stem = Stem(self.folder)
        try:
            while left > 0:
                capacity = min(max(wanted, self.settings.page_keys_min), self._room.page_keys_max)
                made.append(self._make(self._written.first + len(self._pages) + len(made), capacity))
                wanted, left = wanted - capacity, left - capacity
            if not self._is_building:
                stem = Stem.of_page(self.folder, made[-1], self.settings.stem_bytes_min)
            self._spread(hashes, [*last, *made], stem)
            self._write_index(self._index(stem, [*self._pages, *made]))
        except BaseException:
            _give_up(made, stem)
            raise
        self._stem.forget()
        self._pages, self._stem = [*self._pages, *made], stem

    def _spread(self, hashes: Hashes, pages: list[Page], stem: Stem) -> None:
        """Fill pages one after the other: all but the last are full, and sealed before the record is written.

        Until then the record names what the first of them is made of, afterwards its seal says it.
        """
        for page in pages[:-1]:
            room, hashes = hashes[: page.room], hashes[page.room :]
            if len(room):  # a full page keeps its seal
                page.add(room)
            if not self._is_building:
                page.seal()
        stem.append(hashes)
        pages[-1].add(hashes)

    def _shorten_journal(self) -> None:
        """Copy the last page when its journal has grown too long; without room it has none for a while."""
        if not self._stem.is_long(self._pages[-1]):
            return
        try:
            self._stem.advance(self._pages[-1])
            self._write_index(self._index(self._stem))
            self._stem.clear()
        except StorageFull as problem:
            log.warning("a filter that is left open now is made again from its keys: %s", problem)
            self._stem.forget()

    def _log_hashes(self, hashes: Hashes) -> None:
        """Keep hashes for the time when all are wanted; a filter that was not begun here lacks some."""
        if self._is_building or self._stored is None:
            return
        if self._log is None and self.count == len(hashes):
            self._log = HashLog(self.folder)
        if self._log is not None:
            self._log.append(hashes)

    def _index(self, stem: Stem, pages: list[Page] | None = None) -> FilterIndex:
        """Return the record: which pages never change again, and what the last of them is made of."""
        pages = self._pages if pages is None else pages
        sealed = tuple(page.digest if page.is_full else None for page in pages)
        first = pages[0].number if pages else 0
        return FilterIndex(sealed, stem.digest, stem.tails, first, stem.synced)

    def _write_index(self, index: FilterIndex) -> FilterIndex:
        if not self._is_building and not self._is_read_only:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                write_file_atomically(self.folder / INDEX_NAME, index.encoded())
            except OSError as problem:
                raise disk_error(self.folder, problem) from problem
        self._written = index
        return index


def _give_up(pages: list[Page], stem: Stem) -> None:
    """Remove pages that the record does not name, and what they are made of."""
    for page in pages:
        page.close()
        page.path.unlink(missing_ok=True)
    stem.forget()


# 64 MB of disk; beyond, a filter grows by millions of keys before it is made anew.
LOG_KEYS_MAX = 8_000_000
CHUNK_BYTES = 1 << 20
HASH_BYTES = 8


class HashLog:
    """All hashes of a filter since it was empty, in their order; useless as soon as it lacks one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Without a buffer: what the disk refuses is known at once, not when all are wanted.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as we are
        self._count = 0
        self._is_whole = True

    @property
    def is_whole(self) -> bool:
        """Return whether all hashes that were added can be read."""
        return self._is_whole

    def append(self, hashes: Hashes) -> None:
        """Take hashes; when there is no room for them, or they are too many, nothing is kept any more."""
        if not self._is_whole:
            return
        self._count += len(hashes)
        if self._count > LOG_KEYS_MAX:
            self.close()
            return
        try:
            write_all(self._file.fileno(), np.ascontiguousarray(hashes, np.uint64).tobytes())
        except OSError as problem:
            log.info("the hashes in %s will be read from its keys: %s", self._folder, problem)
            self.close()

    def chunks(self) -> Iterator[Hashes]:
        """Yield all hashes, some at a time; left in the middle, it changes nothing."""
        # By place: the file's own position stays at its end, where the next hashes go.
        for start in range(0, self._count * HASH_BYTES, CHUNK_BYTES):
            wanted = min(CHUNK_BYTES, self._count * HASH_BYTES - start)
            content = os.pread(self._file.fileno(), wanted, start)
            if len(content) != wanted:
                raise InvariantBroken(reason=f"the hashes in {self._folder} end at {start + len(content)}")
            yield np.frombuffer(content, np.uint64)

    def close(self) -> None:
        """Let go of the file."""
        self._is_whole = False
        self._file.close()
