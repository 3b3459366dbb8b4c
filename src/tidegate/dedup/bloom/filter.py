"""The Bloom filter of a segment, in page files of one folder.

It consists of pages (page.py) that a manifest names (manifest.py). A page has a fixed size; when it is full,
another one is created. Each page costs a probe and adds its share of false positives, and unused capacity
costs memory. So:

    a new page         has room for at most GROWTH times the present keys, for fewer if the caller expects
                       fewer: at 12 bits per key all pages take at most 2.4 bytes per key
    a fourth page      is never created: all hashes are read again and merged into one page. That happens each
                       time that the number of keys has quadrupled; the hashes come from a temporary file
                       while they are few (`HashLog`), then from the keys of the segment
    a number of keys   that is sure: all pages are created at once. One page, or up to three if it would take
                       more than half of the memory, so that the page which takes hashes stays in memory

What a kill leaves: pages that hold at least what they held at the last `sync` (page.py); files that the
manifest does not name, which the next open removes; or, during a rebuild, files without a manifest:
StorageCorrupt then, as for any damage, and it is rebuilt again. A large page that was being filled is
restored from its base, deltas and journal (snapshot.py). `was_clean` says whether the filter can be trusted;
that an empty filter belongs to a segment with keys must be detected by the segment, which knows their number.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from tidegate.dedup.bloom.blocked import Flags, Hashes
from tidegate.dedup.bloom.manifest import (
    MANIFEST_NAME,
    FilterManifest,
    manifest_file,
    page_name,
    read_manifest,
    remove_filter,
    remove_unnamed,
)
from tidegate.dedup.bloom.memory import PAGES_MAX, FilterBudget, FilterGrowth, FilterSettings
from tidegate.dedup.bloom.page import FilterPage, write_all
from tidegate.dedup.bloom.snapshot import PageCopy, adopt_snapshot, restore_page, write_snapshot
from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFull
from tidegate.storage.files import disk_error, disk_errors, write_file_atomically

log = logging.getLogger(__name__)

StoredHashes = Callable[[], Iterator[Hashes]]


class BloomFilter:
    """The filter of one segment in files of a folder; it has no false negatives.

    An empty or absent folder is an empty filter; files of a snapshot are adopted. StorageCorrupt names a file
    that is cut, changed or missing, and is raised if there are fewer hashes than `count_min`, the number of
    keys that the segment knows; the caller then calls `rebuild` with every hash of the segment. `stored`
    returns every hash of the segment except those of the running call of `add`; without it pages are never
    merged. Used by one thread at a time, and by one worker. Read-only, nothing in the folder changes.
    """

    def __init__(
        self,
        folder: Path,
        settings: FilterSettings | None = None,
        budget: FilterBudget | None = None,
        *,
        count_min: int = 0,
        is_read_only: bool = False,
        stored: StoredHashes | None = None,
    ) -> None:
        self.folder = folder
        self.settings = settings or FilterSettings()
        self._budget = budget or FilterBudget()
        self._is_read_only = is_read_only
        self._is_building = False
        self._stored = stored
        self._log: HashLog | None = None
        self._pages: list[FilterPage] = []
        self._copy = PageCopy(folder)
        self._written = FilterManifest()
        self._room = FilterGrowth(self.settings, self._budget.bytes_max)
        self._is_backwards = False

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
        stored: StoredHashes,
        *,
        expected_keys: int,
        settings: FilterSettings | None = None,
        budget: FilterBudget | None = None,
    ) -> BloomFilter:
        """Create the filter, of exact size, from all hashes of the segment; existing files are removed first.

        If interrupted, the folder has no manifest: StorageCorrupt at the next open, and it is rebuilt again.
        """
        remove_filter(folder)
        rebuilt = cls(folder, settings, budget)
        rebuilt._is_building = True
        rebuilt.expect(expected_keys, is_sure=True)
        try:
            for chunk in stored():
                rebuilt.add(chunk)
            rebuilt._is_building, rebuilt._stored = False, stored
            rebuilt.sync()
        except BaseException:
            rebuilt.abandon()
            raise
        return rebuilt

    @property
    def count(self) -> int:
        """Return the number of hashes that were added; one that was added twice counts twice."""
        return sum(page.count for page in self._pages)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all pages: the memory of the filter when all of it is in use."""
        return sum(page.size_bytes for page in self._pages)

    @property
    def pages(self) -> int:
        """Return the number of pages; each costs a probe."""
        return len(self._pages)

    def expect(self, keys: int, *, is_sure: bool = False) -> None:
        """Set the number of keys that the segment will hold; if sure, room is made for all of them."""
        self._room.expected_keys, self._room.is_sure = keys, is_sure

    def contains(self, hashes: Hashes) -> Flags:
        """Return for each hash whether it may have been added; False is certain."""
        found = np.zeros(len(hashes), np.bool_)
        # Forwards and backwards in turn, as within a page: the part used last is still in memory.
        self._is_backwards = not self._is_backwards
        for page in self._pages[:: -1 if self._is_backwards else 1]:
            np.logical_or(found, page.contains(hashes), out=found)
        return found

    def add(self, hashes: Hashes) -> None:
        """Add hashes; StorageFull if there is no room for a new page, and nothing was added."""
        if self._is_read_only:
            raise InvariantBroken(reason=f"the filter in {self.folder} was opened to be read only")
        if not len(hashes):
            return
        if self._pages and self._pages[-1].room >= len(hashes):
            self._copy.append(hashes)
            self._pages[-1].add(hashes)
            self._shorten_journal()
        elif self._can_be_one(self.count + len(hashes)):
            self._make_one(hashes)
        else:
            self._extend(hashes)
        self._log_hashes(hashes)

    def sync(self) -> None:
        """Sync everything that was added; pages that became full are sealed."""
        if self._is_read_only:
            return
        for page in self._pages:
            if page.is_full:
                page.seal()
            else:
                page.sync()
        self._copy.sync()
        is_sealed = bool(self._pages) and self._pages[-1].is_full  # a sealed page needs no copy
        manifest = self._manifest(PageCopy(self.folder) if is_sealed else self._copy)
        if manifest != self._written or not (self.folder / MANIFEST_NAME).exists():
            self._write_manifest(manifest)
        if is_sealed:
            self._copy.forget()

    def snapshot_into(self, folder: Path) -> list[Path]:
        """Write files into a folder from which the filter can be opened; return their paths.

        Names follow from the content: a file of the same name in an earlier snapshot has the same bytes.
        The folder may hold other files. The snapshot has everything that was added; `sync` is called first.
        """
        self.sync()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return write_snapshot(
                folder,
                self._pages,
                self._copy,
                self.settings.base_bytes_min,
                lambda: self._write_manifest(self._manifest(self._copy)),
            )
        except BaseException as problem:
            # The manifest may be older than the journal: the next snapshot begins with a new copy.
            self._copy.forget()
            if isinstance(problem, OSError):
                raise disk_error(folder, problem) from problem
            raise

    def close(self) -> None:
        """Sync, seal every page and close the mappings; only `close` may be called afterwards."""
        try:
            self.sync()
            if not self._is_read_only:
                for page in self._pages:
                    page.seal()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the mappings without a sync: for a folder that is about to be removed."""
        for page in self._pages:
            page.close()
        self._pages = []
        self._copy.close()
        if self._log is not None:
            self._log.close()
        self._is_read_only = True

    def _open(self) -> None:
        """Open the pages that the manifest names; remove files that it does not name."""
        path = manifest_file(self.folder)
        if path is None:
            return
        manifest = read_manifest(path)
        if path.name != MANIFEST_NAME:
            if self._is_read_only:
                raise InvariantBroken(reason=f"a snapshot in {self.folder} was opened to be read only")
            manifest = adopt_snapshot(self.folder, manifest, self._budget, self.settings.base_bytes_min)
            write_file_atomically(self.folder / MANIFEST_NAME, manifest.encoded())
        self._written = manifest
        for number, digest in zip(manifest.numbers, manifest.pages, strict=True):
            page = FilterPage(self.folder / page_name(number), self._budget, is_read_only=self._is_read_only)
            self._pages.append(page)
            page.check_is(number, digest)
        if self._is_read_only:
            return
        self._restore_last_page(manifest)
        remove_unnamed(self.folder, manifest)
        if all(page.is_trusted for page in self._pages):
            self._copy = PageCopy.of_manifest(self.folder, manifest)

    def _restore_last_page(self, manifest: FilterManifest) -> None:
        """Restore the page that was being filled, if it has a journal."""
        page = self._pages[-1] if self._pages else None
        if page is None or page.is_trusted or manifest.journal is None:
            return
        try:
            restore_page(self.folder, manifest, page, self._budget)
        except StorageCorrupt as problem:
            log.warning("filter page left open by a kill cannot be restored error=%s", problem)

    def _can_be_one(self, need: int) -> bool:
        is_small = self._room.keys(need) <= self._room.page_keys_max
        return len(self._pages) >= PAGES_MAX and is_small and self._stored is not None

    def _make(self, number: int, capacity: int) -> FilterPage:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / page_name(number)
        return FilterPage.make(path, number, capacity, self.settings.bits_per_key, self._budget)

    def _make_one(self, hashes: Hashes) -> None:
        """Merge all hashes and those to be added into one page; nothing is changed on an error."""
        page = self._make(self._written.last + 1, self._room.keys(self.count + len(hashes)))
        copy = PageCopy(self.folder)
        try:
            for old in self._pages:
                old.release()  # not both in memory
            for chunk in self._all_hashes():
                page.add(chunk)
            page.add(hashes)
            page.seal()
            copy = PageCopy.of_page(self.folder, page, self.settings.base_bytes_min)
            self._write_manifest(self._manifest(copy, [page]))
        except BaseException:
            _discard([page], copy)
            raise
        _discard(self._pages, self._copy)
        self._pages, self._copy = [page], copy

    def _all_hashes(self) -> Iterator[Hashes]:
        if self._log is not None and self._log.is_whole:
            return self._log.chunks()
        if self._stored is None:
            raise InvariantBroken(reason=f"the filter in {self.folder} has no source of its hashes")
        return self._stored()

    def _extend(self, hashes: Hashes) -> None:
        """Create the pages for more hashes, name them in the manifest, and add; an error loses no hash."""
        last = self._pages[-1:]
        present = sum(max(page.capacity, page.count) for page in self._pages)
        left = len(hashes) - sum(page.room for page in last)
        missing = max(self._room.keys(self.count + len(hashes)) - present, left)
        new: list[FilterPage] = []
        copy = PageCopy(self.folder)
        try:
            while left > 0:
                capacity = min(max(missing, self.settings.page_keys_min), self._room.page_keys_max)
                new.append(self._make(self._written.first + len(self._pages) + len(new), capacity))
                missing, left = missing - capacity, left - capacity
            if not self._is_building:
                copy = PageCopy.of_page(self.folder, new[-1], self.settings.base_bytes_min)
            self._spread(hashes, [*last, *new], copy)
            self._write_manifest(self._manifest(copy, [*self._pages, *new]))
        except BaseException:
            _discard(new, copy)
            raise
        self._copy.forget()
        self._pages, self._copy = [*self._pages, *new], copy

    def _spread(self, hashes: Hashes, pages: list[FilterPage], copy: PageCopy) -> None:
        """Fill pages in their order: all but the last are full, and sealed before the manifest is written.

        Until then the old manifest names the copy of the first of them; afterwards its seal suffices.
        """
        for page in pages[:-1]:
            fitting, hashes = hashes[: page.room], hashes[page.room :]
            if len(fitting):  # a full page keeps its seal
                page.add(fitting)
            if not self._is_building:
                page.seal()
        copy.append(hashes)
        pages[-1].add(hashes)

    def _shorten_journal(self) -> None:
        """Copy the last page when its journal has grown too long; without room the journal is dropped."""
        if not self._copy.is_long(self._pages[-1]):
            return
        try:
            self._copy.advance(self._pages[-1])
            self._write_manifest(self._manifest(self._copy))
            self._copy.clear()
        except StorageFull as problem:
            log.warning("filter journal dropped, a kill now costs a rebuild of the filter error=%s", problem)
            self._copy.forget()

    def _log_hashes(self, hashes: Hashes) -> None:
        """Append hashes to the hash log, for a later merge; only a log since the first hash is complete."""
        if self._is_building or self._stored is None:
            return
        if self._log is None and self.count == len(hashes):
            self._log = HashLog(self.folder)
        if self._log is not None:
            self._log.append(hashes)

    def _manifest(self, copy: PageCopy, pages: list[FilterPage] | None = None) -> FilterManifest:
        """Return the manifest of the pages and of the copy of the last."""
        pages = self._pages if pages is None else pages
        sealed = tuple(page.digest if page.is_full else None for page in pages)
        first = pages[0].number if pages else 0
        return FilterManifest(sealed, copy.digest, copy.deltas, first, copy.synced)

    def _write_manifest(self, manifest: FilterManifest) -> FilterManifest:
        if not self._is_building and not self._is_read_only:
            self.folder.mkdir(parents=True, exist_ok=True)
            with disk_errors(self.folder):
                write_file_atomically(self.folder / MANIFEST_NAME, manifest.encoded())
        self._written = manifest
        return manifest


def _discard(pages: list[FilterPage], copy: PageCopy) -> None:
    """Remove pages that the manifest does not name, and their copy."""
    for page in pages:
        page.close()
        page.path.unlink(missing_ok=True)
    copy.forget()


# 64 MB of disk; beyond, a filter grows by millions of keys before its pages are merged.
LOG_KEYS_MAX = 8_000_000
CHUNK_BYTES = 1 << 20
HASH_BYTES = 8


class HashLog:
    """All hashes of a growing filter in a temporary file; useless as soon as one is missing.

    Pages are merged from all hashes of the filter, and reading these from RocksDB costs five times as much.
    The file has no name and is never synced: nothing depends on it, and it ends with the worker. It is kept
    while keys are few, when merges are most frequent.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # Unbuffered: a failed write is known at once, not when the hashes are read.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed by `close`
        self._count = 0
        self._is_whole = True

    @property
    def is_whole(self) -> bool:
        """True if all hashes that were added can be read."""
        return self._is_whole

    def append(self, hashes: Hashes) -> None:
        """Append hashes; without room for them, or when there are too many, the log is closed."""
        if not self._is_whole:
            return
        self._count += len(hashes)
        if self._count > LOG_KEYS_MAX:
            self.close()
            return
        try:
            write_all(self._file.fileno(), np.ascontiguousarray(hashes, np.uint64).tobytes())
        except OSError as problem:
            log.info(
                "hash log closed, hashes will be read from keys folder=%s error=%s", self._folder, problem
            )
            self.close()

    def chunks(self) -> Iterator[Hashes]:
        """Yield all hashes in chunks; may be left before the end."""
        # pread: the position of the file stays at its end, where the next hashes go.
        for start in range(0, self._count * HASH_BYTES, CHUNK_BYTES):
            size_bytes = min(CHUNK_BYTES, self._count * HASH_BYTES - start)
            content = os.pread(self._file.fileno(), size_bytes, start)
            if len(content) != size_bytes:
                raise InvariantBroken(reason=f"the hashes in {self._folder} end at {start + len(content)}")
            yield np.frombuffer(content, np.uint64)

    def close(self) -> None:
        """Close the file."""
        self._is_whole = False
        self._file.close()
