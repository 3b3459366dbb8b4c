"""A segment's filter: takes 64-bit hashes of keys, says which of them were certainly never added.

It is made of pages (filter_page.py) in files of one folder (filter_index.py names them). A page has a fixed
size; when it is full, another is begun. Each page costs a probe and adds its share of false answers, so a
page is made for all keys that are still to come, by the caller's estimate; where there is none, or it was too
low, for half as many as are there already (three times as many while they are few): at 12 bits a key all
pages together then take at most 2.25 bytes a key.

What a kill leaves: pages that hold at least what they held at the last `sync` (filter_page.py), files that
the record does not name, which go at the next open, or files without a record, while a filter is rebuilt:
StorageCorrupt then, as for any damage, and it is rebuilt again. A filter is never trusted further than that:
one that is empty although the segment is not must be noticed by the segment, which knows its keys' number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tidegate.errors import InvariantBroken, StorageCorrupt
from tidegate.state.segments import bloom
from tidegate.state.segments.bloom import Flags, Hashes
from tidegate.state.segments.filter_budget import FilterBudget
from tidegate.state.segments.filter_index import (
    INDEX_NAME,
    FilterIndex,
    files_of,
    found_index,
    page_name,
    read_index,
)
from tidegate.state.segments.filter_page import Page, refusal
from tidegate.state.segments.filter_snapshot import Stem, snapshot, take_over
from tidegate.storage.files import write_file_atomically

# Below so many keys a new page is made for three times as many as are there: few pages, and little memory.
FEW_KEYS = 4_000_000
# An estimate from the rate so far is believed up to so many times what is there: it begins with one batch.
GROWTH_MAX = 8


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """How a filter is laid out: bits a key when a page is full, and how many keys a page is made for."""

    bits_per_key: int = 12
    page_keys_min: int = 1 << 16
    page_keys_max: int = 1 << 28  # 400 MB at 12 bits
    stem_bytes_min: int = 8 << 20  # a smaller page is copied with every snapshot (filter_snapshot.py)


@dataclass(frozen=True, slots=True)
class FilterRates:
    """What a filter did since it was opened: hashes asked, those that may be there, the rate to expect."""

    probes: int
    maybe: int
    expected_false_rate: float


def estimated_keys(count: int, passed: float, previous: int | None = None) -> int:
    """Give how many keys a segment will hold: what the one before it held, else by the rate so far.

    `passed` is the part of the segment's interval that is over, from 0 to 1.
    """
    if previous is not None and previous > count:
        return previous
    if passed <= 0:
        return count
    return min(int(count / min(passed, 1.0)), count * GROWTH_MAX)


class FilterFiles:
    """The filter of one segment in files of a folder: never says no to a hash that was added.

    An empty or absent folder begins an empty filter; files of a snapshot are taken over. A file that is cut,
    changed or missing, or fewer hashes than `count_min`, which is what the segment knows of its keys:
    StorageCorrupt that names it; the caller then calls `rebuild` with every hash of the segment. Used by one
    thread at a time, and by one worker. Read only, it changes nothing in the folder.
    """

    def __init__(
        self,
        folder: Path,
        settings: FilterSettings | None = None,
        budget: FilterBudget | None = None,
        *,
        count_min: int = 0,
        is_read_only: bool = False,
    ) -> None:
        self.folder = folder
        self.settings = settings or FilterSettings()
        self._budget = budget or FilterBudget()
        self._is_read_only = is_read_only
        self._is_building = False
        self._pages: list[Page] = []
        self._sealed: tuple[str | None, ...] = ()
        self._expected_keys = 0
        self._probes = self._maybe = 0
        try:
            self._stem = self._opened()
            if self.count < count_min:
                reason = f"it has {self.count} hashes, {count_min} keys are known"
                raise StorageCorrupt(place=str(folder), reason=reason)
        except BaseException:
            self._close_pages()
            raise
        self.was_clean = all(page.was_clean for page in self._pages)

    @classmethod
    def rebuild(
        cls,
        folder: Path,
        hashes: Iterable[Hashes],
        *,
        expected_keys: int,
        settings: FilterSettings | None = None,
        budget: FilterBudget | None = None,
    ) -> FilterFiles:
        """Make the filter anew, as one page, from all hashes of the segment; what lay there goes first.

        Cut short, the folder has no record: StorageCorrupt at the next open, and it is rebuilt again.
        """
        remove_filter(folder)
        made = cls(folder, settings, budget)
        made._is_building = True
        made.expect(expected_keys)
        try:
            for chunk in hashes:
                made.add(chunk)
            made._is_building = False
            made.sync()
        except BaseException:
            made.abandon()
            raise
        return made

    @property
    def count(self) -> int:
        """Give how many hashes were added; one that was added twice counts twice."""
        return sum(page.count for page in self._pages)

    @property
    def size_bytes(self) -> int:
        """Give the bytes of all pages: what the filter takes in memory when all of it is in use."""
        return sum(page.size_bytes for page in self._pages)

    @property
    def pages(self) -> int:
        """Give the number of pages; each costs a probe."""
        return len(self._pages)

    @property
    def rates(self) -> FilterRates:
        """Give what was asked and answered since the filter was opened."""
        missed = 1.0
        for page in self._pages:
            missed *= 1 - bloom.expected_false_rate(page.count, page.lines)
        return FilterRates(self._probes, self._maybe, 1 - missed)

    def expect(self, keys: int) -> None:
        """Say how many keys the segment will hold in the end: the next page is made for those to come."""
        self._expected_keys = keys

    def contains(self, hashes: Hashes) -> Flags:
        """Say of each hash whether it may have been added; False is certain."""
        found = np.zeros(len(hashes), np.bool_)
        for page in self._pages:
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
        pages = self._pages[-1:]
        room = sum(page.room for page in pages)
        if room < len(hashes):
            pages += self._grow(len(hashes) - room)
        else:
            self._stem.append(hashes)
        start = 0
        for page in pages:
            stop = min(start + page.room, len(hashes))
            if stop > start:  # a full page keeps its seal
                page.add(hashes[start:stop])
            start = stop

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
        sealed = tuple(page.digest if page.is_full else None for page in self._pages)
        if sealed != self._sealed or not (self.folder / INDEX_NAME).exists():
            self._write_index(sealed)

    def snapshot_into(self, folder: Path) -> list[Path]:
        """Put files into a folder from which the filter opens again; give them.

        Names say the content: a file that an earlier snapshot had under the same name has the same bytes.
        The folder may hold other files. Everything that was added is in it; `sync` is done on the way.
        """
        self.sync()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return snapshot(folder, self._pages, self._stem, lambda: self._write_index(self._sealed))
        except BaseException as problem:
            # The record may be older than the journal: the next snapshot begins with a new stem.
            self._stem.forget()
            if isinstance(problem, OSError):
                raise refusal(folder, problem) from problem
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
        self._close_pages()
        self._stem.close()
        self._is_read_only = True

    def _opened(self) -> Stem:
        """Open the pages that the record names; remove what it does not name."""
        path = found_index(self.folder)
        if path is None:
            return Stem(self.folder, FilterIndex(), self.settings.stem_bytes_min)
        index = read_index(path)
        if path.name != INDEX_NAME:
            if self._is_read_only:
                raise InvariantBroken(reason=f"a snapshot in {self.folder} was opened to be read only")
            index = take_over(self.folder, index, self._budget, self.settings.stem_bytes_min)
            write_file_atomically(self.folder / INDEX_NAME, index.encoded())
        self._sealed = index.pages
        for number, digest in enumerate(index.pages):
            page = Page(self.folder / page_name(number), self._budget, is_read_only=self._is_read_only)
            self._pages.append(page)
            page.check_is(number, digest)
        if self._is_read_only:
            return Stem(self.folder, FilterIndex(), self.settings.stem_bytes_min)
        _remove_unnamed(self.folder, index)
        return Stem(self.folder, index, self.settings.stem_bytes_min)

    def _grow(self, more: int) -> list[Page]:
        """Make the pages that so many more hashes need, and name them in the record; or change nothing."""
        made: list[Page] = []
        count = sum(page.count + page.room for page in self._pages)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            while more > 0:
                capacity = self._capacity(count, more)
                number = len(self._pages) + len(made)
                path = self.folder / page_name(number)
                made.append(Page.make(path, number, capacity, self.settings.bits_per_key, self._budget))
                count, more = count + capacity, more - capacity
            sealed = (*self._sealed, *(None for _ in made))
            self._write_index(sealed, has_stem=False)
        except BaseException:
            for page in made:
                page.close()
                page.path.unlink(missing_ok=True)
            raise
        self._stem.forget()
        self._pages += made
        return made

    def _capacity(self, count: int, more: int) -> int:
        growth = count * 3 if count < FEW_KEYS else count // 2
        to_come = self._expected_keys - count
        by_need = max(growth, more if count else 2 * more)
        wanted = max(to_come, more, growth // 4) if to_come > 0 else by_need
        wanted = max(wanted, self.settings.page_keys_min)
        return min(wanted, self.settings.page_keys_max, bloom.keys_max(self.settings.bits_per_key))

    def _write_index(self, sealed: tuple[str | None, ...], *, has_stem: bool = True) -> FilterIndex:
        """Replace the record: which pages never change again, and what the next snapshot starts from."""
        stem = (self._stem.digest, self._stem.tails) if has_stem else (None, ())
        index = FilterIndex(sealed, *stem)
        if not self._is_building and not self._is_read_only:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                write_file_atomically(self.folder / INDEX_NAME, index.encoded())
            except OSError as problem:
                raise refusal(self.folder, problem) from problem
        self._sealed = sealed
        return index

    def _close_pages(self) -> None:
        for page in self._pages:
            page.close()
        self._pages = []


def _remove_unnamed(folder: Path, index: FilterIndex) -> None:
    named = set(index.names())
    for file in list(files_of(folder)):
        if file.name not in named:
            file.unlink(missing_ok=True)


def remove_filter(folder: Path) -> None:
    """Remove the files of a filter from a folder, whatever their state; the record first."""
    (folder / INDEX_NAME).unlink(missing_ok=True)
    for file in list(files_of(folder)):
        file.unlink(missing_ok=True)
