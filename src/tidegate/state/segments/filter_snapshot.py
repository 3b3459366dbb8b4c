"""Snapshots of a filter: takes its pages, gives files whose names say what is in them, and opens those again.

Full pages get a second name; they never change again. The page that takes hashes is copied while it is
small: less work than a journal, and not much to upload. A large one is copied now and then, and its tails
(filter_tail.py) say what came since: a page for 100 million keys is copied about ten times until it is full,
not with every snapshot.

Stem, tails and journal must say all that the page holds, or a restored filter would deny a hash. So a
journal that is cut or given up loses its name before anything else is changed: until the new record is
written, the old one names a journal that is missing, and then the stem does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tidegate.errors import StorageCorrupt
from tidegate.state.segments.bloom import Hashes
from tidegate.state.segments.filter_budget import FilterBudget
from tidegate.state.segments.filter_index import (
    FilterIndex,
    page_name,
    snapshot_name,
    stem_name,
    tail_name,
)
from tidegate.state.segments.filter_page import Page
from tidegate.state.segments.filter_tail import Journal, read_tail
from tidegate.storage.files import copy_file, link_or_copy

# Tails that are together larger than this part of their page give way to a new stem.
TAILS_PART_MAX = 0.5


class Stem:
    """The stem and the tails of the page that takes hashes; without them nothing is written beside it."""

    def __init__(self, folder: Path, index: FilterIndex, stem_bytes_min: int) -> None:
        self.folder = folder
        self.number = index.last
        self.stem_bytes_min = stem_bytes_min
        self.digest: str | None = None
        self.tails: tuple[str, ...] = ()
        self._journal: Journal | None = None
        self._stale: list[Path] = []
        # They serve the next snapshot only: where one is missing, that makes a new stem.
        if index.stem is not None and all((folder / name).exists() for name in index.names()):
            self._begin(index.last, index.stem, index.tails)

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
        if self._journal is not None and self._tail_bytes() <= page.size_bytes * TAILS_PART_MAX:
            if self._journal.size_bytes:
                tail = self._journal.cut()
                tails = self.tails if tail in self.tails else (*self.tails, tail)
                self._begin(self.number, self.digest or "", tails)
            return
        self._drop_journal()
        self._stale += self._files()
        self._begin(page.number, page.copy_into(self.folder), ())

    def clear(self) -> None:
        """Remove what the record does not name any more."""
        for path in self._stale:
            path.unlink(missing_ok=True)
        self._stale = []

    def forget(self) -> None:
        """Stop: the page is full, or a snapshot failed. The next one begins with a new stem."""
        self._drop_journal()
        self._stale += self._files()
        self.digest, self.tails = None, ()
        self.clear()

    def link_into(self, folder: Path) -> list[Path]:
        """Give the stem and the tails a second name."""
        for path in self._files():
            link_or_copy(path, folder / path.name, sync=False)
        return [folder / path.name for path in self._files()]

    def close(self) -> None:
        """Let go of the journal."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _begin(self, number: int, digest: str, tails: tuple[str, ...]) -> None:
        self.number, self.digest, self.tails = number, digest, tails
        self._journal = Journal(self.folder, number, tails[-1] if tails else digest)

    def _drop_journal(self) -> None:
        if self._journal is not None:
            self._journal.path.unlink(missing_ok=True)
        self.close()

    def _files(self) -> list[Path]:
        if self.digest is None:
            return []
        names = [stem_name(self.number, self.digest), *(tail_name(self.number, tail) for tail in self.tails)]
        return [self.folder / name for name in names]

    def _tail_bytes(self) -> int:
        written = self._journal.size_bytes if self._journal is not None else 0
        return written + sum(path.stat().st_size for path in self._files()[1:])


def snapshot(
    folder: Path, pages: Sequence[Page], stem: Stem, write_down: Callable[[], FilterIndex]
) -> list[Path]:
    """Put a synced filter's files into a folder; `write_down` writes the record after the stem moved on."""
    files: list[Path] = []
    copied: str | None = None
    last = pages[-1] if pages and not pages[-1].is_full else None
    if last is not None and last.size_bytes < stem.stem_bytes_min:
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
    content = (index if copied is None else replace(index, stem=copied, tails=())).encoded()
    record = folder / snapshot_name(content)
    record.write_bytes(content)
    return sorted([*files, record])


def take_over(folder: Path, index: FilterIndex, budget: FilterBudget, stem_bytes_min: int) -> FilterIndex:
    """Make a filter's own files of those of a snapshot; give the record to write. Can be done again.

    The names that the files had in the snapshot go later, when the record is there.
    """
    for number, digest in enumerate(index.pages):
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
    Journal(folder, index.last, index.tails[-1] if index.tails else index.stem).close()
    return index


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
        page.sync()
    finally:
        page.close()
