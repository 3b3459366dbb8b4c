"""Names: what is taken, what is refused, and that a refusal says why."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import NameInvalid
from tidegate.model.names import (
    SHOWN_CHARS_MAX,
    check_pipeline_name,
    check_table_name,
    check_topic_name,
    shorten,
)

CHECKS = [check_topic_name, check_table_name, check_pipeline_name]


@given(st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,40}(\.[A-Za-z_][A-Za-z0-9_-]{0,40}){0,3}", fullmatch=True))
def test_topic_names_by_the_rule_are_taken(name: str) -> None:
    assert check_topic_name(name) == name


@given(st.from_regex(r"[a-z_][a-z0-9_]{0,62}", fullmatch=True))
def test_table_names_by_the_rule_are_taken(name: str) -> None:
    assert check_table_name(name) == name


@given(st.from_regex(r"[a-z][a-z0-9_-]{0,62}", fullmatch=True))
def test_pipeline_names_by_the_rule_are_taken(name: str) -> None:
    assert check_pipeline_name(name) == name


@pytest.mark.parametrize(
    ("check", "name", "reason"),
    [
        (check_topic_name, "", "it is empty"),
        (check_topic_name, "a..b", "a segment is empty"),
        (check_topic_name, "a.", "a segment is empty"),
        (check_topic_name, "a.b.c.d.e", "it has 5 segments"),
        (check_topic_name, "a." + "b" * 199, "it has 201 characters"),
        (check_topic_name, "a.1b", "segment '1b' breaks the rule"),
        (check_topic_name, "a.-b", "segment '-b' breaks the rule"),
        (check_topic_name, "a/b", "segment 'a/b' breaks the rule"),
        (check_topic_name, "événement", "segment 'événement' breaks the rule"),
        (check_topic_name, "a\n", "segment 'a\n' breaks the rule"),
        (check_table_name, "", "it is empty"),
        (check_table_name, "Events", "it may not begin with 'E'"),
        (check_table_name, "a.b", "'.' is not allowed there"),
        (check_table_name, "a-b", "'-' is not allowed there"),
        (check_table_name, "a\n", r"'\n' is not allowed there"),
        (check_table_name, "t" * 64, "it has 64 characters"),
        (check_pipeline_name, "_a", "it may not begin with '_'"),
        (check_pipeline_name, "../a", "it may not begin with '.'"),
        (check_pipeline_name, "a/b", "'/' is not allowed there"),
        (check_pipeline_name, "a\u0661", "'\u0661' is not allowed there"),
        (check_pipeline_name, "p" * 64, "it has 64 characters"),
    ],
)
def test_a_refusal_says_what_is_wrong_and_the_rule(
    check: Callable[[str], str], name: str, reason: str
) -> None:
    with pytest.raises(NameInvalid) as caught:
        check(name)
    assert caught.value.values["reason"] == reason
    assert "characters at most" in caught.value.hint


@pytest.mark.parametrize(("check", "chars"), list(zip(CHECKS, (200, 63, 63), strict=True)))
def test_longest_names_are_taken(check: Callable[[str], str], chars: int) -> None:
    assert check("a" * chars) == "a" * chars


def test_the_topic_of_dead_letters_has_room_in_its_name_whatever_its_topic_is_called() -> None:
    for name in ("a.b.c.d", "a" * 200, "dead", "a.dead"):
        check_topic_name(name)
        assert check_topic_name(name + ".dead") == name + ".dead"
    for wrong in ("a.b.c.d.e.dead", "a" * 201 + ".dead", ".dead", "a..dead", "a.b.c.d.undead"):
        with pytest.raises(NameInvalid):
            check_topic_name(wrong)


@given(st.text(), st.sampled_from(CHECKS))
def test_any_text_is_given_back_unchanged_or_refused(name: str, check: Callable[[str], str]) -> None:
    try:
        assert check(name) == name
    except NameInvalid as error:
        assert len(error.values["name"]) <= SHOWN_CHARS_MAX


def test_a_refusal_does_not_repeat_a_megabyte() -> None:
    with pytest.raises(NameInvalid) as caught:
        check_topic_name("x" * 1_000_000)
    assert len(str(caught.value)) < 200
    assert shorten("y" * 81) == "y" * 79 + "…"
    assert shorten("y" * 80) == "y" * 80
