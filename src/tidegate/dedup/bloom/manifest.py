"""Which files a filter is made of: takes its pages, gives a sealed record of them, here and in a snapshot.

In a segment's folder the record is `filter.index`, replaced as a whole; without it nothing else counts.

    page-<number>.bloom             a page (filter_page.py)
    page-<number>-<digest>.stem     what the page that takes hashes was at some moment, sealed
    page-<number>-<digest>.tail     hashes that were added to it after that (filter_tail.py)
    page-<number>-<digest>.journal  those that were added since the tail of that digest, or the stem, was made
    page-<number>-new.journal       those that were added since the page was made, while it has no stem

Pages are numbered as they are made; when some are made into one, its number is the next, and theirs are gone.
In a snapshot the record is `<digest>.filters`, a full page is `page-<number>-<digest>.bloom`, and the page
that takes hashes is its stem and its tails. All names say the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tidegate.errors import StorageCorrupt
from tidegate.storage.sealed_json import seal, unseal

INDEX_FORMAT = 2  # 1 had neither the first number nor the journal
INDEX_NAME = "filter.index"
SNAPSHOT_SUFFIX = ".filters"
# In the name of a journal that begins with its page, where others have a digest.
NEW_PAGE = "new"

_PAGE_FILES = ("page-*.bloom", "page-*.stem", "page-*.tail", "page-*.journal", "page-*.new")
_OURS = (*_PAGE_FILES, f"{INDEX_NAME}.*", f"*{SNAPSHOT_SUFFIX}")


@dataclass(frozen=True, slots=True)
class FilterIndex:
    """The pages by their digests, in order, None for one that still changes; and what the last is made of.

    `journal` are the bytes of the journal that were on the disk when the record was written, and their
    digest; None when there is no journal. Without a stem it has all hashes of the last page.
    """

    pages: tuple[str | None, ...] = ()
    stem: str | None = None
    tails: tuple[str, ...] = ()
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
        """Return what the journal comes after, as its name says it."""
        return self.tails[-1] if self.tails else self.stem or NEW_PAGE

    def encoded(self) -> bytes:
        """Return the bytes of the record's file."""
        fields = {"format": INDEX_FORMAT, "pages": self.pages, "stem": self.stem, "tails": self.tails}
        return seal(fields | {"first": self.first, "journal": self.journal})

    def names(self) -> Iterator[str]:
        """Yield the names of the files that belong to it in a segment's folder, without the record."""
        yield from (page_name(number) for number in self.numbers)
        if self.stem is not None:
            yield stem_name(self.last, self.stem)
        if self.journal is not None:
            yield journal_name(self.last, self.journal_after)
        yield from (tail_name(self.last, digest) for digest in self.tails)


def page_name(number: int, digest: str | None = None) -> str:
    """Return the name of a page here, or with its digest that in a snapshot."""
    return f"page-{number}.bloom" if digest is None else f"page-{number}-{digest}.bloom"


def stem_name(number: int, digest: str) -> str:
    """Return the name of a copy of the page that takes hashes."""
    return f"page-{number}-{digest}.stem"


def tail_name(number: int, digest: str) -> str:
    """Return the name of a file of hashes that came after the stem."""
    return f"page-{number}-{digest}.tail"


def journal_name(number: int, after: str) -> str:
    """Return the name of the file for the hashes that come after a tail, or after the stem.

    It says after which: a journal that was begun for a record that was never written is not taken for the
    one that the older record means.
    """
    return f"page-{number}-{after}.journal"


def snapshot_name(content: bytes) -> str:
    """Return the name of a record in a snapshot."""
    return f"{xxhash.xxh3_128_hexdigest(content)}{SNAPSHOT_SUFFIX}"


def read_index(path: Path) -> FilterIndex:
    """Return the record that a file holds; StorageCorrupt names the file when it is damaged."""
    document = unseal(path.read_bytes(), str(path), INDEX_FORMAT)
    try:
        pages, tails = tuple(document["pages"]), tuple(document["tails"])
        journal = document.get("journal")  # records from before there was one have none, and begin at 0
        if journal is not None:
            journal = int(journal[0]), str(journal[1])
        return FilterIndex(pages, document["stem"], tails, document.get("first", 0), journal)
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise StorageCorrupt(place=str(path), reason="fields are missing or unknown") from problem


def found_index(folder: Path) -> Path | None:
    """Return the file of the record: the folder's own, else that of a snapshot; None where no filter is.

    Files of a filter without a record: StorageCorrupt.
    """
    own = folder / INDEX_NAME
    if own.exists():
        return own
    taken = sorted(folder.glob(f"*{SNAPSHOT_SUFFIX}"))
    if len(taken) > 1:
        raise StorageCorrupt(place=str(folder), reason=f"it holds {len(taken)} filters, one was expected")
    if taken:
        return taken[0]
    if any(files_of(folder)):
        raise StorageCorrupt(place=str(own), reason="the file is missing")
    return None


def files_of(folder: Path) -> Iterator[Path]:
    """Yield every file in a folder that is of a filter, but for the folder's own record."""
    for pattern in _OURS:
        yield from folder.glob(pattern)


def remove_unnamed(folder: Path, index: FilterIndex) -> None:
    """Remove the files of a filter that its record does not name."""
    named = set(index.names())
    for file in list(files_of(folder)):
        if file.name not in named:
            file.unlink(missing_ok=True)


def remove_filter(folder: Path) -> None:
    """Remove the files of a filter from a folder, whatever their state; the record first."""
    (folder / INDEX_NAME).unlink(missing_ok=True)
    for file in list(files_of(folder)):
        file.unlink(missing_ok=True)
