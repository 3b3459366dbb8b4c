"""What is typed after the options of the topic commands."""

from __future__ import annotations

import pytest

from tidegate.cli.commands.topic.arguments import (
    parse_milliseconds,
    parse_retention,
    parse_size,
    parse_start,
    places_text,
)
from tidegate.errors import RequestInvalid


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1000", 1000),
        ("500MB", 500_000_000),
        ("500 mb", 500_000_000),
        ("10GB", 10_000_000_000),
        ("1.1GB", 1_100_000_000),
        ("1GiB", 1 << 30),
        ("none", None),
        (None, None),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str | None, size_bytes: int | None) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "10 apples", "GB", "0.5", "1e9"])
def test_what_is_no_size_is_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        parse_size(text)
    assert "--max-bytes" in caught.value.message
    assert "10GB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "seconds"), [("7 days", 604_800), ("PT90S", 90), ("1h", 3600), ("None", None), (None, None)]
)
def test_retention_is_whole_seconds(text: str | None, seconds: int | None) -> None:
    assert parse_retention(text) == seconds


@pytest.mark.parametrize("text", ["0 s", "250 ms", "7", "a while", "1 month"])
def test_a_retention_that_is_none_is_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(RequestInvalid) as caught:
        parse_retention(text)
    assert "--retention" in caught.value.message


def test_waits_are_whole_milliseconds() -> None:
    assert parse_milliseconds("1.5 s", "--wait") == 1500
    assert parse_milliseconds(None, "--wait") is None
    for text in ("10 us", "soon"):
        with pytest.raises(RequestInvalid) as caught:
            parse_milliseconds(text, "--wait")
        assert "--wait" in caught.value.message


def test_places_are_words_offsets_and_times() -> None:
    assert parse_start("latest") == "latest"
    assert parse_start("42") == {"offset": 42}
    assert parse_start("2026-01-31T12:00Z") == {"timestamp": "2026-01-31T12:00:00Z"}
    with pytest.raises(RequestInvalid) as caught:
        parse_start("yesterday", "--to")
    assert caught.value.hint.startswith("--to takes")


def test_offsets_are_written_by_partition_in_their_order() -> None:
    assert places_text({"10": 3, "2": 7}) == "2:7, 10:3"
