"""No text crashes the parser, and every error says where it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sql.fuzz import GENERATORS, SOUP, VALID, check, nested

TEXTS = 400


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.__name__)
def test_random_texts_are_read_or_refused_with_their_place(generator: object) -> None:
    chance = random.Random(20260101)
    count = 30 if generator is nested else TEXTS
    outcomes = {check(generator(chance)) for _ in range(count)}  # type: ignore[operator]
    assert False in outcomes


@given(st.lists(st.sampled_from(SOUP) | st.text(max_size=5), max_size=25).map(" ".join))
@settings(max_examples=150, deadline=None)
def test_any_soup_is_read_or_refused_with_its_place(text: str) -> None:
    check(text)


@given(st.sampled_from(VALID), st.data())
@settings(max_examples=150, deadline=None)
def test_any_cut_of_a_statement_is_read_or_refused_with_its_place(text: str, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(text)))
    stop = draw.draw(st.integers(start, len(text)))
    check(text[:start] + text[stop:])


@pytest.mark.parametrize("text", VALID)
def test_the_valid_ones_are_valid(text: str) -> None:
    assert check(text)
