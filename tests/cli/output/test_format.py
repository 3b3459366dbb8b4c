from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli.output.format import (
    CELL_CHARACTERS_MAX,
    bytes_text,
    cell_text,
    count_text,
    path_text,
    rate_text,
    seconds_text,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (999, "999 B"),
        (1_000, "1.0 KB"),
        (9_960, "10 KB"),
        (1_234_567, "1.2 MB"),
        (999_600, "1.0 MB"),
        (34_000_000_000, "34 GB"),
        (5e18, "5000 PB"),
        (None, "–"),
    ],
)
def test_sizes_have_three_digits_and_a_unit(value: float | None, text: str) -> None:
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.0 s"),
        (0.82, "0.8 s"),
        (45, "45 s"),
        (59.7, "1 min"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (3600, "1 h"),
        (7800, "2 h 10 min"),
        (86_400, "1 d"),
        (360_000, "4 d 4 h"),
        (None, "–"),
    ],
)
def test_durations_have_their_two_largest_units(value: float | None, text: str) -> None:
    assert seconds_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0/s"), (0.42, "0.4/s"), (203.4, "203/s"), (12_345, "12,345/s"), (None, "–")]
)
def test_rates_below_ten_have_a_digit_more(value: float | None, text: str) -> None:
    assert rate_text(value) == text


def test_counts_have_separators() -> None:
    assert count_text(1_234_567) == "1,234,567"
    assert count_text(None) == "–"


def test_cells_show_null_as_nothing_and_structures_as_json() -> None:
    assert cell_text(None) == ""
    assert cell_text({"a": "é"}) == '{"a": "é"}'
    assert cell_text(True) == "true"
    assert cell_text("text") == "text"


def test_paths_in_the_users_folder_begin_with_a_tilde() -> None:
    assert path_text(Path.home() / ".tidegate") == "~/.tidegate"
    assert path_text(Path("/srv/tide")) == "/srv/tide"


def test_long_cells_are_cut() -> None:
    shown = cell_text("x" * (CELL_CHARACTERS_MAX + 1))
    assert len(shown) == CELL_CHARACTERS_MAX
    assert shown.endswith("…")
