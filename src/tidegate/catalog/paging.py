"""Pages of long lists, with cursors."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidegate.errors import RequestInvalid

if TYPE_CHECKING:
    from sqlalchemy import Column, Connection, Row, Select

PAGE_ROWS_MAX = 1_000  # a page is read whole into memory, and once more as JSON
PAGE_ROWS_DEFAULT = 100
_CURSOR_CHARS_MAX = 1_000  # real ones are far shorter
_NUMBER_MAX = (1 << 63) - 1

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for at most `limit` rows of a list behind the cursor `after`."""

    after: str | None = None
    limit: int = PAGE_ROWS_DEFAULT

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= PAGE_ROWS_MAX:
            raise RequestInvalid(reason=f"A page has 1 to {PAGE_ROWS_MAX} rows, not {self.limit}.")

    def after_text(self, noun: str) -> str | None:
        """Return the name in the cursor of a list of `noun`s."""
        key = self._key(noun)
        if key is not None and (not isinstance(key, str) or "\0" in key or not key.isprintable()):
            raise _bad_cursor()
        return key

    def after_number(self, noun: str) -> int | None:
        """Return the number in the cursor of a list of `noun`s."""
        key = self._key(noun)
        if key is not None and (type(key) is not int or not 0 <= key <= _NUMBER_MAX):
            raise _bad_cursor()
        return key

    def _key(self, noun: str) -> Any:
        if self.after is None:
            return None
        try:
            if len(self.after) > _CURSOR_CHARS_MAX:
                raise _bad_cursor()
            text = base64.urlsafe_b64decode(self.after.encode("ascii") + b"==")
            found_noun, key = json.loads(text)
        except (ValueError, TypeError, binascii.Error, RecursionError) as problem:
            raise _bad_cursor() from problem
        if found_noun != noun or key is None:
            raise _bad_cursor()
        return key


@dataclass(frozen=True, slots=True)
class PageResult(Generic[T]):
    """One page: its rows, and the cursor of the next page, None at the end."""

    rows: list[T]
    next: str | None


def read_page(
    connection: Connection,
    query: Select[Any],
    page: PageRequest,
    noun: str,
    key: Column[Any],
    shape: Callable[[Row[Any]], T],
) -> PageResult[T]:
    """Return a page of the rows of a query by a unique key: texts in order, numbers from the highest down."""
    is_text = key.type.python_type is str
    after = page.after_text(noun) if is_text else page.after_number(noun)
    if after is not None:
        query = query.where(key > after if is_text else key < after)
    ordered = query.order_by(key if is_text else key.desc())
    found = connection.execute(ordered.limit(page.limit + 1)).all()
    return page_of(found, page, noun, lambda row: getattr(row, key.name), shape)


def page_of(
    found: Sequence[R],
    page: PageRequest,
    noun: str,
    key_of: Callable[[R], str | int],
    shape: Callable[[R], T],
) -> PageResult[T]:
    """Return a page of rows, read with one more than the limit: the extra row means that there are more."""
    rows = found[: page.limit]
    cursor = None
    if len(found) > page.limit:
        text = json.dumps([noun, key_of(rows[-1])], separators=(",", ":"))
        cursor = base64.urlsafe_b64encode(text.encode()).decode("ascii").rstrip("=")
    return PageResult([shape(row) for row in rows], cursor)


def _bad_cursor() -> RequestInvalid:
    return RequestInvalid(
        reason="The cursor in 'after' is not one of this list.",
        hint="Take 'next' of the page before as it is, or leave 'after' out to begin at the beginning.",
    )
