"""The manifest of a filter: a sealed list of its files, in a segment's folder and in a snapshot.

In a segment's folder the manifest is `filter.index`, replaced atomically; without it no other file counts.

    page-<number>.bloom             a page (page.py)
    page-<number>-<digest>.stem     the base: a sealed copy of the page that takes hashes
    page-<number>-<digest>.tail     a delta: hashes that were added to the page after the base (journal.py)
    page-<number>-<digest>.journal  the journal: hashes added since the delta of that digest, or the base
    page-<number>-new.journal       the journal of a page without a base: hashes added since it was created

Pages are numbered in the order of their creation; pages that are merged into one are replaced by the next
number. In a snapshot the manifest is `<digest>.filters`, a full page is `page-<number>-<digest>.bloom`, and
the page that takes hashes is its base and its deltas. All names in a snapshot follow from the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tidegate.errors import StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

MANIFEST_FORMAT = 2  # 1 had neither the first number nor the journal
MANIFEST_NAME = "filter.index"
SNAPSHOT_SUFFIX = ".filters"
# In the name of a journal of a page without a base, in the place of a digest.
NEW_PAGE = "new"

_PAGE_FILES = ("page-*.bloom", "page-*.stem", "page-*.tail", "page-*.journal", "page-*.new")
_OURS = (*_PAGE_FILES, f"{MANIFEST_NAME}.*", f"*{SNAPSHOT_SUFFIX}")


@dataclass(frozen=True, slots=True)
class FilterManifest:
    """The digests of the pages in their order, None for one that still changes; and the files of the last.

    `journal` is the synced length of the journal when the manifest was written, and the digest of these
    bytes; None without a journal. Without a base the journal has all hashes of the last page.
    """

    pages: tuple[str | None, ...] = ()
    base: str | None = None
    deltas: tuple[str, ...] = ()
    first: int = 0
    journal: tuple[int, str] | None = None

    @property
    def last(self) -> int:
        """Return the number of the page that takes hashes."""
        return self.first + len(self.pages) - 1

    @property
    def numbers(self) -> range:
        """Return the numbers of the pages."""
        return range(self.first, self.first + len(self.pages))

    @property
    def journal_after(self) -> str:
        """Return what the journal follows, as in its name: the last delta, the base, or a new page."""
        return self.deltas[-1] if self.deltas else self.base or NEW_PAGE

    def encoded(self) -> bytes:
        """Return the bytes of the manifest's file."""
        fields = {"format": MANIFEST_FORMAT, "pages": self.pages, "stem": self.base, "tails": self.deltas}
        return seal(fields | {"first": self.first, "journal": self.journal})

    def names(self) -> Iterator[str]:
        """Yield the names of the files of the filter in a segment's folder, without the manifest."""
        yield from (page_name(number) for number in self.numbers)
        if self.base is not None:
            yield copy_name(self.last, self.base)
        if self.journal is not None:
            yield journal_name(self.last, self.journal_after)
        yield from (delta_name(self.last, digest) for digest in self.deltas)


def page_name(number: int, digest: str | None = None) -> str:
    """Return the name of a page in a segment's folder; with its digest, in a snapshot."""
    return f"page-{number}.bloom" if digest is None else f"page-{number}-{digest}.bloom"


def copy_name(number: int, digest: str) -> str:
    """Return the name of a base: a copy of the page that takes hashes."""
    return f"page-{number}-{digest}.stem"


def delta_name(number: int, digest: str) -> str:
    """Return the name of a delta: hashes that were added after the base."""
    return f"page-{number}-{digest}.tail"


def journal_name(number: int, after: str) -> str:
    """Return the name of the journal that follows a delta or the base.

    The name includes that digest: a journal that was created for a manifest that was never written is not
    mistaken for the one of the older manifest.
    """
    return f"page-{number}-{after}.journal"


def snapshot_name(content: bytes) -> str:
    """Return the name of a manifest in a snapshot."""
    return f"{xxhash.xxh3_128_hexdigest(content)}{SNAPSHOT_SUFFIX}"


def read_manifest(path: Path) -> FilterManifest:
    """Return the manifest of a file; StorageCorrupt names the file if it is damaged."""
    document = unseal(path.read_bytes(), str(path), MANIFEST_FORMAT)
    try:
        pages, deltas = tuple(document["pages"]), tuple(document["tails"])
        journal = document.get("journal")  # format 1 has no journal, and its pages begin at 0
        if journal is not None:
            journal = int(journal[0]), str(journal[1])
        return FilterManifest(pages, document["stem"], deltas, document.get("first", 0), journal)
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise StorageCorrupt(place=str(path), reason="fields are missing or unknown") from problem


def manifest_file(folder: Path) -> Path | None:
    """Return the file of the manifest: the folder's own, else that of a snapshot; None without a filter.

    StorageCorrupt if there are files of a filter and no manifest.
    """
    own = folder / MANIFEST_NAME
    if own.exists():
        return own
    snapshots = sorted(folder.glob(f"*{SNAPSHOT_SUFFIX}"))
    if len(snapshots) > 1:
        raise StorageCorrupt(place=str(folder), reason=f"it holds {len(snapshots)} filters, one was expected")
    if snapshots:
        return snapshots[0]
    if any(filter_files(folder)):
        raise StorageCorrupt(place=str(own), reason="the file is missing")
    return None


def filter_files(folder: Path) -> Iterator[Path]:
    """Yield every file of a filter in a folder, without the folder's own manifest."""
    for pattern in _OURS:
        yield from folder.glob(pattern)


def remove_unnamed(folder: Path, manifest: FilterManifest) -> None:
    """Remove the files of a filter that its manifest does not name."""
    named = set(manifest.names())
    for file in list(filter_files(folder)):
        if file.name not in named:
            file.unlink(missing_ok=True)


def remove_filter(folder: Path) -> None:
    """Remove the files of a filter from a folder, whatever their state; the manifest first."""
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    for file in list(filter_files(folder)):
        file.unlink(missing_ok=True)
