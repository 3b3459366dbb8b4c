"""Incremental snapshots of a filter, and the restore of a filter from their files.

Full pages are linked; they never change again. The page that takes hashes is copied while it is small: less
work than a journal, and not much to upload. A large one is copied rarely, and its deltas (journal.py) have
the hashes added since: a page for 100 million keys is copied about ten times until it is full, not with every
snapshot.

Base, deltas and journal contain all hashes of the page, or a restored filter would give false negatives. The
manifest names them, and how much of the journal was synced; with a missing or damaged file among them nothing
is known of the page. Each step keeps this: a delta or a base is written before the manifest that names it,
and files that the manifest no longer names are removed after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tidegate.dedup.bloom.blocked import Hashes
from tidegate.dedup.bloom.journal import Journal, read_delta, read_journal
from tidegate.dedup.bloom.manifest import (
    NEW_PAGE,
    FilterManifest,
    copy_name,
    delta_name,
    journal_name,
    page_name,
    snapshot_name,
)
from tidegate.dedup.bloom.memory import FilterBudget
from tidegate.dedup.bloom.page import FilterPage
from tidegate.errors import StorageCorrupt
from tidegate.storage.files import copy_file, link_or_copy

log = logging.getLogger(__name__)

# Deltas and a journal that are together larger than this share of their page are replaced by a new base.
DELTAS_SHARE_MAX = 0.5


class PageCopy:
    """The incremental copy of the page that takes hashes: base, deltas and journal."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.folder = folder
        self.number = number
        self.digest: str | None = None
        self.deltas: tuple[str, ...] = ()
        self._journal: Journal | None = None
        self._deltas_bytes = 0
        self._stale: list[Path] = []

    @classmethod
    def of_manifest(cls, folder: Path, manifest: FilterManifest) -> PageCopy:
        """Return the copy that a manifest names; an empty one if a file is missing or damaged."""
        found = cls(folder, manifest.last)
        if manifest.journal is None or not all((folder / name).exists() for name in manifest.names()):
            return found
        try:
            read_journal(folder / journal_name(manifest.last, manifest.journal_after), manifest.journal)
        except StorageCorrupt as problem:
            # The page itself is intact; the next snapshot copies it.
            log.warning("filter journal damaged, the next snapshot copies the page error=%s", problem)
        else:
            found._begin(manifest.base, manifest.deltas)
        return found

    @classmethod
    def of_page(cls, folder: Path, page: FilterPage, base_bytes_min: int) -> PageCopy:
        """Return the copy of a page: a journal if it is empty, else a base; nothing for a small page."""
        copy = cls(folder, page.number)
        if page.size_bytes >= base_bytes_min:
            copy._begin(page.copy_into(folder) if page.count else None, ())
        return copy

    @property
    def synced(self) -> tuple[int, str] | None:
        """Return the synced length of the journal and its digest, for the manifest."""
        return None if self._journal is None else self._journal.synced

    def is_long(self, page: FilterPage) -> bool:
        """True if deltas and journal are so large that the page should be copied again."""
        if self._journal is None:
            return False
        return self._deltas_bytes + self._journal.size_bytes > page.size_bytes * DELTAS_SHARE_MAX

    def append(self, hashes: Hashes) -> None:
        """Append hashes to the journal before they are added; StorageFull without room: none was appended."""
        if self._journal is not None:
            self._journal.append(hashes)

    def sync(self) -> None:
        """Sync the journal."""
        if self._journal is not None:
            self._journal.sync()

    def advance(self, page: FilterPage) -> None:
        """Bring base and deltas up to date with the page: turn the journal into a delta, or copy the page.

        The manifest is written next, then `clear` is called; `forget` after any failure between.
        """
        if self._journal is not None and self.digest is not None and not self.is_long(page):
            if self._journal.size_bytes:
                self._cut()
            return
        self._leave()
        self.number = page.number
        self._begin(page.copy_into(self.folder), ())

    def clear(self) -> None:
        """Remove files that the manifest no longer names."""
        named = {*self._files(), *([self._journal.path] if self._journal is not None else [])}
        for path in self._stale:
            if path not in named:
                path.unlink(missing_ok=True)
        self._stale = []

    def forget(self) -> None:
        """Remove the copy: the page is full, or a snapshot failed. The next one begins with a base."""
        self._leave()
        self.clear()

    def link_into(self, folder: Path) -> list[Path]:
        """Link base and deltas into a folder; return the new paths."""
        for path in self._files():
            link_or_copy(path, folder / path.name, sync=False)
        return [folder / path.name for path in self._files()]

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
        self._journal = None

    def _begin(self, digest: str | None, deltas: tuple[str, ...]) -> None:
        self.digest, self.deltas = digest, deltas
        self._journal = Journal(self.folder, self.number, deltas[-1] if deltas else digest or NEW_PAGE)
        self._deltas_bytes = sum(path.stat().st_size for path in self._files()[1:])

    def _cut(self) -> None:
        """Turn the journal into a delta, and begin the next journal."""
        if self._journal is None:
            return
        old = self._journal.path
        delta = self._journal.cut()
        if delta in self.deltas:
            old.unlink()  # the same hashes again: the next journal has the same name, and another file
        else:
            self._stale.append(old)
            self.deltas = (*self.deltas, delta)
        self._begin(self.digest, self.deltas)

    def _leave(self) -> None:
        if self._journal is not None:
            self._stale.append(self._journal.path)
        self._stale += self._files()
        self.close()
        self.digest, self.deltas = None, ()

    def _files(self) -> list[Path]:
        if self.digest is None:
            return []
        names = [
            copy_name(self.number, self.digest),
            *(delta_name(self.number, delta) for delta in self.deltas),
        ]
        return [self.folder / name for name in names]


def restore_page(folder: Path, manifest: FilterManifest, page: FilterPage, budget: FilterBudget) -> None:
    """Set all bits that a page left by a killed worker had at the last sync, whatever its bytes are.

    They come from files with checksums; StorageCorrupt if one is missing or damaged, or there is none.
    Additional bits stay: at worst the filter has more false positives.
    """
    if manifest.journal is None:
        raise StorageCorrupt(place=str(page.path), reason="it was not closed, and nothing says what it held")
    count = 0
    if manifest.base is not None:
        base = folder / copy_name(manifest.last, manifest.base)
        copy = FilterPage(base, budget, is_read_only=True)
        try:
            if copy.digest != manifest.base or (copy.number, copy.lines) != (page.number, page.lines):
                raise StorageCorrupt(place=str(base), reason="its bytes are not those that its name says")
            page.merge(copy)
            count = copy.count
        finally:
            copy.close()
    for delta in manifest.deltas:
        count += page.restore(read_delta(folder / delta_name(manifest.last, delta), delta))
    journal = folder / journal_name(manifest.last, manifest.journal_after)
    count += page.restore(read_journal(journal, manifest.journal))
    page.trust(count)


def write_snapshot(
    folder: Path,
    pages: Sequence[FilterPage],
    copy: PageCopy,
    base_bytes_min: int,
    write_manifest: Callable[[], FilterManifest],
) -> list[Path]:
    """Write the files of a synced filter into a folder; return their paths.

    `write_manifest` is called after `copy` was brought up to date.
    """
    files: list[Path] = []
    copied: str | None = None
    last = pages[-1] if pages and not pages[-1].is_full else None
    if last is not None and last.size_bytes < base_bytes_min:
        copied = last.copy_into(folder)
        files.append(folder / copy_name(last.number, copied))
    elif last is not None:
        copy.advance(last)
    manifest = write_manifest()
    copy.clear()
    for page, digest in zip(pages, manifest.pages, strict=True):
        if digest is not None:
            link_or_copy(page.path, folder / page_name(page.number, digest), sync=False)
            files.append(folder / page_name(page.number, digest))
    files += copy.link_into(folder)
    if copied is not None:
        manifest = replace(manifest, base=copied, deltas=())
    content = replace(manifest, journal=None).encoded()
    record = folder / snapshot_name(content)
    record.write_bytes(content)
    return sorted([*files, record])


def adopt_snapshot(
    folder: Path, manifest: FilterManifest, budget: FilterBudget, base_bytes_min: int
) -> FilterManifest:
    """Turn the files of a snapshot into those of a filter; return the manifest to write. Idempotent.

    The names of the files in the snapshot are removed later, after the manifest is written.
    """
    for number, digest in zip(manifest.numbers, manifest.pages, strict=True):
        own = folder / page_name(number)
        if digest is None:
            _join_page(folder, manifest, own, budget)
            continue
        stored = folder / page_name(number, digest)
        if not stored.exists():
            raise StorageCorrupt(place=str(stored), reason="the file is missing")
        link_or_copy(stored, own)
    if manifest.base is None:
        return manifest
    if (folder / page_name(manifest.last)).stat().st_size < base_bytes_min:
        return replace(manifest, base=None, deltas=())
    journal = Journal(folder, manifest.last, manifest.journal_after)
    journal.close()
    return replace(manifest, journal=journal.synced)


def _join_page(folder: Path, manifest: FilterManifest, own: Path, budget: FilterBudget) -> None:
    """Write the page that takes hashes from its base and its deltas."""
    if manifest.base is None:
        raise StorageCorrupt(place=str(own), reason="the snapshot has no stem of this page")
    base = folder / copy_name(manifest.last, manifest.base)
    if not base.exists():
        raise StorageCorrupt(place=str(base), reason="the file is missing")
    copy_file(base, own)
    page = FilterPage(own, budget)
    try:
        if page.digest != manifest.base or page.number != manifest.last:
            raise StorageCorrupt(place=str(base), reason="its bytes are not those that its name says")
        for delta in manifest.deltas:
            page.add(read_delta(folder / delta_name(manifest.last, delta), delta))
        page.seal()
    finally:
        page.close()
