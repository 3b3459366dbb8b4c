"""Cursors and limits of lists."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.catalog.paging import PAGE_ROWS_MAX, PageRequest, page_of
from tidegate.errors import RequestInvalid


def cursor(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@given(st.lists(st.integers(0, 1 << 62), unique=True).map(sorted), st.integers(1, 7))
def test_pages_give_every_row_once(numbers: list[int], limit: int) -> None:
    seen: list[int] = []
    page = PageRequest(limit=limit)
    while True:
        after = page.after_number("row")
        rest = [number for number in numbers if after is None or number > after]
        answer = page_of(rest[: limit + 1], page, "row", lambda number: number, lambda number: number)
        seen += answer.rows
        if answer.next is None:
            break
        page = PageRequest(after=answer.next, limit=limit)
    assert seen == numbers


@given(st.text())
def test_any_other_text_is_refused_in_our_words(text: str) -> None:
    with pytest.raises(RequestInvalid):
        PageRequest(after=text).after_text("user")


@pytest.mark.parametrize(
    "value",
    [
        ["user", 1],
        ["tenant", "bob"],
        ["user", "a\0b"],
        ["user", "\ud800"],
        ["user"],
        {},
        None,
        ["user", None],
    ],
)
def test_a_cursor_of_another_list_is_refused(value: object) -> None:
    with pytest.raises(RequestInvalid):
        PageRequest(after=cursor(value)).after_text("user")


@pytest.mark.parametrize("value", [["job", "1"], ["job", -1], ["job", 1 << 63], ["job", 1.5], ["job", True]])
def test_a_cursor_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(RequestInvalid):
        PageRequest(after=cursor(value)).after_number("job")


@pytest.mark.parametrize("limit", [0, -1, PAGE_ROWS_MAX + 1])
def test_a_page_has_bounds(limit: int) -> None:
    with pytest.raises(RequestInvalid):
        PageRequest(limit=limit)
