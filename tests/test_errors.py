"""Errors: stable codes, statuses, hints, and the same class on both sides of the wire."""

from __future__ import annotations

import pickle

import pytest

from tidegate import errors
from tidegate.errors import OffsetOutOfRange, TidegateError, TopicNotFound, every_error, from_wire


def test_codes_are_unique_and_statuses_are_http() -> None:
    kinds = every_error()
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(400 <= kind.status <= 599 for kind in kinds)


def test_every_class_is_drawn_in_the_tree_at_the_top() -> None:
    tree = errors.__doc__ or ""
    missing = [kind.__name__ for kind in every_error() if kind.__name__ not in tree.split()]
    assert not missing


@pytest.mark.parametrize("kind", every_error())
def test_an_error_comes_back_over_the_wire_as_what_it_was(kind: type[TidegateError]) -> None:
    error = kind(hint="do this", reason="because", topic="t")
    again = from_wire(error.to_wire())
    assert type(again) is kind
    assert (again.hint, str(again)) == ("do this", str(error))


def test_an_unknown_code_keeps_its_message() -> None:
    error = from_wire({"error": {"code": "FROM_THE_FUTURE", "message": "something new", "hint": "update"}})
    assert type(error) is TidegateError
    assert (str(error), error.hint) == ("something new", "update")


def test_an_error_survives_pickling_between_processes() -> None:
    error = pickle.loads(pickle.dumps(TopicNotFound(topic="a.b")))
    assert isinstance(error, TopicNotFound)
    assert str(error) == "There is no topic 'a.b'."


def test_values_fill_the_message_and_the_hint() -> None:
    error = OffsetOutOfRange(topic="a", partition=1, offset=9, earliest=2, latest=5)
    assert "offset 9 is not between 2 and 5" in str(error)
    assert "2" in error.hint
