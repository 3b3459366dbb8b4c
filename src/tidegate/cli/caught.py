"""Duplicates that operators caught, as the console view tells of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from tidegate.cli.show import count_text

PERCENT_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Caught:
    """What one operator of one pipeline caught, of so many rows that it judged."""

    place: str
    duplicates: int
    late: int
    rows: int


def caught_by(status: Mapping[str, Any]) -> list[Caught]:
    """Give the operators that deduplicate, as the worker reported them last."""
    return [
        Caught(
            f"{pipeline['name']}/{operator['name']}",
            found["duplicates"],
            found["late"],
            found["unique"] + found["duplicates"] + found["late"],
        )
        for pipeline in status["pipelines"]
        for operator in pipeline.get("operators") or ()
        if (found := operator.get("dedup"))
    ]


def caught_words(caught: Caught) -> str:
    """Say what one operator caught."""
    share = 100 * caught.duplicates / caught.rows if caught.rows else 0.0
    late = f", {count_text(caught.late)} late" if caught.late else ""
    rows = count_text(caught.rows)
    return f"{count_text(caught.duplicates)} of {rows} ({share:.{PERCENT_DIGITS}f} %) in {caught.place}{late}"


def caught_line(found: list[Caught], width: int) -> Text:
    """Draw how many duplicates were caught, and where; what does not fit is counted."""
    line = Text("duplicates  ", no_wrap=True, overflow="ellipsis")
    for number, one in enumerate(sorted(found, key=lambda caught: -caught.duplicates)):
        words = f" {'· ' if number else ''}{caught_words(one)}"
        if number and line.cell_len + len(words) > width:
            line.append(f" · and {len(found) - number} more", "dim")
            break
        line.append(words, "yellow" if one.duplicates else "")
    return line
