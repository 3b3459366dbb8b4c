"""Snapshots of a filter: takes its pages, gives files whose names say what is in them, and opens those again.

Full pages get a second name; they never change again. The page that takes hashes is copied while it is
small: less work than a journal, and not much to upload. A large one is copied now and then, and its tails
(filter_tail.py) say what came since: a page for 100 million keys is copied about ten times until it is full,
not with every snapshot.

Stem, tails and journal say all that the page holds, or a restored filter would deny a hash. The record names
them, and how much of the journal was synced; a record that names one that is missing or damaged says nothing
of the page. Each step keeps it so: a tail is cut, or a stem made, before the record that names it is written,
and what the record does not name any more goes afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tidegate.dedup.bloom.blocked import Hashes
from tidegate.dedup.bloom.journal import Journal, read_journal, read_tail
from tidegate.dedup.bloom.manifest import (
    NEW_PAGE,
    FilterIndex,
    journal_name,
    page_name,
    snapshot_name,
    stem_name,
    tail_name,
)
from tidegate.dedup.bloom.memory import FilterBudget
from tidegate.dedup.bloom.page import Page
from tidegate.errors import StorageCorrupt
from tidegate.storage.files import copy_file, link_or_copy

log = logging.getLogger(__name__)

# Tails and a journal that are together larger than this part of their page give way to a new stem.
TAILS_PART_MAX = 0.5


class Stem:
    """What the page that takes hashes is made of: stem, tails and journal, or nothing while it is small."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.folder = folder
        self.number = number
        self.digest: str | None = None
        self.tails: tuple[str, ...] = ()
        self._journal: Journal | None = None
        self._tails_bytes = 0
        self._stale: list[Path] = []

    @classmethod
    def of_index(cls, folder: Path, index: FilterIndex) -> Stem:
        """Go on with what a record names, where all of it is there; else the next snapshot begins anew."""
        found = cls(folder, index.last)
        if index.journal is None or not all((folder / name).exists() for name in index.names()):
            return found
        try:
            read_journal(folder / journal_name(index.last, index.journal_after), index.journal)
        except StorageCorrupt as problem:
            # The page itself is whole; the next snapshot copies it.
            log.warning("a filter is copied anew: %s", problem)
        else:
            found._begin(index.stem, index.tails)
        return found

    @classmethod
    def of_page(cls, folder: Path, page: Page, stem_bytes_min: int) -> Stem:
        """Begin for a page: empty ones have a journal alone, others are copied; small ones have nothing."""
        made = cls(folder, page.number)
        if page.size_bytes >= stem_bytes_min:
            made._begin(page.copy_into(folder) if page.count else None, ())
        return made

    @property
    def synced(self) -> tuple[int, str] | None:
        """Return how much of the journal is on the disk, for the record."""
        return None if self._journal is None else self._journal.synced

    def is_long(self, page: Page) -> bool:
        """Return whether the page had better be copied anew: tails and journal are too large beside it."""
        if self._journal is None:
            return False
        return self._tails_bytes + self._journal.size_bytes > page.size_bytes * TAILS_PART_MAX

    def append(self, hashes: Hashes) -> None:
        """Write hashes down before they are added; no room: StorageFull, and none was taken."""
        if self._journal is not None:
            self._journal.append(hashes)

    def sync(self) -> None:
        """Put the journal on the disk."""
        if self._journal is not None:
            self._journal.sync()

    def advance(self, page: Page) -> None:
        """Make stem and tails say all that the page holds now: cut a tail, or copy the page.

        The record is written next, then `clear`. Whatever fails between is followed by `forget`.
        """
        if self._journal is not None and self.digest is not None and not self.is_long(page):
            if self._journal.size_bytes:
                self._cut()
            return
        self._leave()
        self.number = page.number
        self._begin(page.copy_into(self.folder), ())

    def clear(self) -> None:
        """Remove what the record does not name any more."""
        named = {*self._files(), *([self._journal.path] if self._journal is not None else [])}
        for path in self._stale:
            if path not in named:
                path.unlink(missing_ok=True)
        self._stale = []

    def forget(self) -> None:
        """Stop: the page is full, or a snapshot failed. The next one begins with a new stem."""
        self._leave()
        self.clear()

    def link_into(self, folder: Path) -> list[Path]:
        """Return the stem and the tails a second name."""
        for path in self._files():
            link_or_copy(path, folder / path.name, sync=False)
        return [folder / path.name for path in self._files()]

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _begin(self, digest: str | None, tails: tuple[str, ...]) -> None:
        self.digest, self.tails = digest, tails
        self._journal = Journal(self.folder, self.number, tails[-1] if tails else digest or NEW_PAGE)
        self._tails_bytes = sum(path.stat().st_size for path in self._files()[1:])

    def _cut(self) -> None:
        """Make a tail of the journal, and begin the next."""
        if self._journal is None:
            return
        over = self._journal.path
        tail = self._journal.cut()
        if tail in self.tails:
            over.unlink()  # hashes that came before: the next journal has the same name, and another file
        else:
            self._stale.append(over)
            self.tails = (*self.tails, tail)
        self._begin(self.digest, self.tails)

    def _leave(self) -> None:
        if self._journal is not None:
            self._stale.append(self._journal.path)
        self._stale += self._files()
        self.close()
        self.digest, self.tails = None, ()

    def _files(self) -> list[Path]:
        if self.digest is None:
            return []
        names = [stem_name(self.number, self.digest), *(tail_name(self.number, tail) for tail in self.tails)]
        return [self.folder / name for name in names]


def mend(folder: Path, index: FilterIndex, page: Page, budget: FilterBudget) -> None:
    """Give a page that a killed worker left all bits that it had at the last sync, whatever its bytes are.

    They come from files that have checksums; StorageCorrupt where one is missing or damaged, or there is
    none. Bits beyond those stay: at worst the filter says "maybe" too often.
    """
    if index.journal is None:
        raise StorageCorrupt(place=str(page.path), reason="it was not closed, and nothing says what it held")
    count = 0
    if index.stem is not None:
        stem = folder / stem_name(index.last, index.stem)
        taken = Page(stem, budget, is_read_only=True)
        try:
            if taken.digest != index.stem or (taken.number, taken.lines) != (page.number, page.lines):
                raise StorageCorrupt(place=str(stem), reason="its bytes are not those that its name says")
            page.unite(taken)
            count = taken.count
        finally:
            taken.close()
    for tail in index.tails:
        count += page.restore(read_tail(folder / tail_name(index.last, tail), tail))
    journal = folder / journal_name(index.last, index.journal_after)
    count += page.restore(read_journal(journal, index.journal))
    page.trust(count)


def snapshot(
    folder: Path,
    pages: Sequence[Page],
    stem: Stem,
    stem_bytes_min: int,
    write_down: Callable[[], FilterIndex],
) -> list[Path]:
    """Put a synced filter's files into a folder; `write_down` writes the record after the stem moved on."""
    files: list[Path] = []
    copied: str | None = None
    last = pages[-1] if pages and not pages[-1].is_full else None
    if last is not None and last.size_bytes < stem_bytes_min:
        copied = last.copy_into(folder)
        files.append(folder / stem_name(last.number, copied))
    elif last is not None:
        stem.advance(last)
    index = write_down()
    stem.clear()
    for page, digest in zip(pages, index.pages, strict=True):
        if digest is not None:
            link_or_copy(page.path, folder / page_name(page.number, digest), sync=False)
            files.append(folder / page_name(page.number, digest))
    files += stem.link_into(folder)
    if copied is not None:
        index = replace(index, stem=copied, tails=())
    content = replace(index, journal=None).encoded()
    record = folder / snapshot_name(content)
    record.write_bytes(content)
    return sorted([*files, record])


def take_over(folder: Path, index: FilterIndex, budget: FilterBudget, stem_bytes_min: int) -> FilterIndex:
    """Make a filter's own files of those of a snapshot; give the record to write. Can be done again.

    The names that the files had in the snapshot go later, when the record is there.
    """
    for number, digest in zip(index.numbers, index.pages, strict=True):
        own = folder / page_name(number)
        if digest is None:
            _join(folder, index, own, budget)
            continue
        taken = folder / page_name(number, digest)
        if not taken.exists():
            raise StorageCorrupt(place=str(taken), reason="the file is missing")
        link_or_copy(taken, own)
    if index.stem is None:
        return index
    if (folder / page_name(index.last)).stat().st_size < stem_bytes_min:
        return replace(index, stem=None, tails=())
    journal = Journal(folder, index.last, index.journal_after)
    journal.close()
    return replace(index, journal=journal.synced)


def _join(folder: Path, index: FilterIndex, own: Path, budget: FilterBudget) -> None:
    """Make the page that takes hashes from its stem and its tails."""
    if index.stem is None:
        raise StorageCorrupt(place=str(own), reason="the snapshot has no stem of this page")
    stem = folder / stem_name(index.last, index.stem)
    if not stem.exists():
        raise StorageCorrupt(place=str(stem), reason="the file is missing")
    copy_file(stem, own)
    page = Page(own, budget)
    try:
        if page.digest != index.stem or page.number != index.last:
            raise StorageCorrupt(place=str(stem), reason="its bytes are not those that its name says")
        for tail in index.tails:
            page.add(read_tail(folder / tail_name(index.last, tail), tail))
        page.seal()
    finally:
        page.close()
