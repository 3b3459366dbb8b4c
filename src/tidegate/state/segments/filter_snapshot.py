"""Snapshots of a filter: takes its pages, gives files whose names say what is in them, and opens those again.

Full pages get a second name; they never change again. The page that takes hashes is copied while it is
small: less work than a journal, and not much to upload. A large one is copied now and then, and its tails
(filter_tail.py) say what came since: a page for 100 million keys is copied about ten times until it is full,
not with every snapshot.

Base, tails and journal must say all that the page holds, or a restored filter would deny a hash. So a
journal that is cut or given up loses its name before anything else is changed: until the new record is
written, the old one names a journal that is missing, and then the base does not count.
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
    base_name,
    page_name,
    snapshot_name,
    tail_name,
)
from tidegate.state.segments.filter_page import Page
from tidegate.state.segments.filter_tail import Journal, read_tail
from tidegate.storage.files import copy_file, link_or_copy

# Tails that are together larger than this part of their page give way to a new base.
TAILS_PART_MAX = 0.5


class Base:
    """The base and the tails of the page that takes hashes; without them nothing is written beside it."""

    def __init__(self, folder: Path, index: FilterIndex, base_bytes_min: int) -> None:
        self.folder = folder
        self.number = index.last
        self.base_bytes_min = base_bytes_min
        self.digest: str | None = None
        self.tails: tuple[str, ...] = ()
        self._journal: Journal | None = None
        self._stale: list[Path] = []
        # They serve the next snapshot only: where one is missing, that makes a new base.
        if index.base is not None and all((folder / name).exists() for name in index.names()):
            self._begin(index.last, index.base, index.tails)

    def append(self, hashes: Hashes) -> None:
        """Write hashes down before they are added; no room: StorageFull, and none was taken."""
        if self._journal is not None:
            self._journal.append(hashes)

    def sync(self) -> None:
        """Put the journal on the disk."""
        if self._journal is not None:
            self._journal.sync()

    def advance(self, page: Page) -> None:
        """Make base and tails say all that the page holds now: cut a tail, or copy the page.

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
        """Stop: the page is full, or a snapshot failed. The next one begins with a new base."""
        self._drop_journal()
        self._stale += self._files()
        self.digest, self.tails = None, ()
        self.clear()

    def link_into(self, folder: Path) -> list[Path]:
        """Give the base and the tails a second name."""
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
        names = [base_name(self.number, self.digest), *(tail_name(self.number, tail) for tail in self.tails)]
        return [self.folder / name for name in names]

    def _tail_bytes(self) -> int:
        written = self._journal.size_bytes if self._journal is not None else 0
        return written + sum(path.stat().st_size for path in self._files()[1:])


def snapshot(
    folder: Path, pages: Sequence[Page], base: Base, write_down: Callable[[], FilterIndex]
) -> list[Path]:
    """Put a synced filter's files into a folder; `write_down` writes the record after the base moved on."""
    files: list[Path] = []
    copied: str | None = None
    last = pages[-1] if pages and not pages[-1].is_full else None
    if last is not None and last.size_bytes < base.base_bytes_min:
        copied = last.copy_into(folder)
        files.append(folder / base_name(last.number, copied))
    elif last is not None:
        base.advance(last)
    index = write_down()
    base.clear()
    for page, digest in zip(pages, index.pages, strict=True):
        if digest is not None:
            link_or_copy(page.path, folder / page_name(page.number, digest), sync=False)
            files.append(folder / page_name(page.number, digest))
    files += base.link_into(folder)
    content = (index if copied is None else replace(index, base=copied, tails=())).encoded()
    record = folder / snapshot_name(content)
    record.write_bytes(content)
    return sorted([*files, record])


def take_over(folder: Path, index: FilterIndex, budget: FilterBudget, base_bytes_min: int) -> FilterIndex:
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
    if index.base is None:
        return index
    if (folder / page_name(index.last)).stat().st_size < base_bytes_min:
        return replace(index, base=None, tails=())
    Journal(folder, index.last, index.tails[-1] if index.tails else index.base).close()
    return index


def _join(folder: Path, index: FilterIndex, own: Path, budget: FilterBudget) -> None:
    """Make the page that takes hashes from its base and its tails."""
    if index.base is None:
        raise StorageCorrupt(place=str(own), reason="the snapshot has no base of this page")
    base = folder / base_name(index.last, index.base)
    if not base.exists():
        raise StorageCorrupt(place=str(base), reason="the file is missing")
    copy_file(base, own)
    page = Page(own, budget)
    try:
        if page.digest != index.base or page.number != index.last:
            raise StorageCorrupt(place=str(base), reason="its bytes are not those that its name says")
        for tail in index.tails:
            page.add(read_tail(folder / tail_name(index.last, tail), tail))
        page.sync()
    finally:
        page.close()
