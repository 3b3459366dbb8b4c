"""Which files a filter is made of: takes its pages, gives a sealed record of them, here and in a snapshot.

In a segment's folder the record is `filter.index`, replaced as a whole; without it nothing else counts.

    page-<number>.bloom             a page (filter_page.py)
    page-<number>-<digest>.stem     what the page that takes hashes was at some moment, sealed
    page-<number>-<digest>.tail     hashes that were added to it after that (filter_tail.py)
    page-<number>-<digest>.journal  those that were added since the tail of that digest, or the stem, was made

In a snapshot the record is `<digest>.filters`, a full page is `page-<number>-<digest>.bloom`, and the page
that takes hashes is its stem and its tails. All names say the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tidegate.errors import StorageCorrupt
from tidegate.state.heads import sealed, unsealed

INDEX_FORMAT = 1
INDEX_NAME = "filter.index"
SNAPSHOT_SUFFIX = ".filters"

_PAGE_FILES = ("page-*.bloom", "page-*.stem", "page-*.tail", "page-*.journal", "page-*.new")
_OURS = (*_PAGE_FILES, f"{INDEX_NAME}.*", f"*{SNAPSHOT_SUFFIX}")


@dataclass(frozen=True, slots=True)
class FilterIndex:
    """The pages by their digests, in order, None for one that still changes; and the stem of the last."""

    pages: tuple[str | None, ...] = ()
    stem: str | None = None
    tails: tuple[str, ...] = ()

    @property
    def last(self) -> int:
        """Give the number of the page that takes hashes."""
        return len(self.pages) - 1

    def encoded(self) -> bytes:
        """Give the bytes of the record's file."""
        fields = {"format": INDEX_FORMAT, "pages": self.pages, "stem": self.stem, "tails": self.tails}
        return sealed(fields)

    def names(self) -> Iterator[str]:
        """Give the names of the files that belong to it in a segment's folder, without the record."""
        yield from (page_name(number) for number in range(len(self.pages)))
        if self.stem is not None:
            yield stem_name(self.last, self.stem)
            yield journal_name(self.last, self.tails[-1] if self.tails else self.stem)
        yield from (tail_name(self.last, digest) for digest in self.tails)


def page_name(number: int, digest: str | None = None) -> str:
    """Give the name of a page here, or with its digest that in a snapshot."""
    return f"page-{number}.bloom" if digest is None else f"page-{number}-{digest}.bloom"


def stem_name(number: int, digest: str) -> str:
    """Give the name of a copy of the page that takes hashes."""
    return f"page-{number}-{digest}.stem"


def tail_name(number: int, digest: str) -> str:
    """Give the name of a file of hashes that came after the stem."""
    return f"page-{number}-{digest}.tail"


def journal_name(number: int, after: str) -> str:
    """Give the name of the file for the hashes that come after a tail, or after the stem.

    It says after which: a journal that was begun for a record that was never written is not taken for the
    one that the older record means.
    """
    return f"page-{number}-{after}.journal"


def snapshot_name(content: bytes) -> str:
    """Give the name of a record in a snapshot."""
    return f"{xxhash.xxh3_128_hexdigest(content)}{SNAPSHOT_SUFFIX}"


def read_index(path: Path) -> FilterIndex:
    """Give the record that a file holds; StorageCorrupt names the file when it is damaged."""
    document = unsealed(path.read_bytes(), str(path), INDEX_FORMAT)
    try:
        return FilterIndex(tuple(document["pages"]), document["stem"], tuple(document["tails"]))
    except (KeyError, TypeError) as problem:
        raise StorageCorrupt(place=str(path), reason="fields are missing or unknown") from problem


def found_index(folder: Path) -> Path | None:
    """Give the file of the record: the folder's own, else that of a snapshot; None where no filter is.

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
    """Give every file in a folder that is of a filter, but for the folder's own record."""
    for pattern in _OURS:
        yield from folder.glob(pattern)
