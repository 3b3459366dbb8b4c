"""The one table that every benchmark prints: our figure beside a peer's, same work, same run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: ours, the peer's, how they compare, and what was promised."""

    name: str
    ours: str
    peer: str
    ratio: str
    target: str


def per_second(count: float, seconds: float) -> str:
    """Return a rate for people: 1.52 M/s, 24.6 k/s, 310 /s."""
    rate = count / seconds
    for size, unit in ((1e6, " M/s"), (1e3, " k/s")):
        if rate >= size:
            return f"{rate / size:.3g}{unit}"
    return f"{rate:.3g} /s"


def milliseconds(seconds: float) -> str:
    """Return a duration for people: 1.24 ms."""
    return f"{seconds * 1e3:.3g} ms"


def times(ours: float, peer: float) -> str:
    """Return how many times the first is the second: 2.1 ×."""
    return f"{ours / peer:.2g} ×" if peer else "–"


def print_rows(rows: Sequence[Row]) -> None:
    """Print the rows as a Markdown table with even columns."""
    heads = [field.name for field in fields(Row)]
    lines = [heads, *[[getattr(row, head) for head in heads] for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        cells = " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write(f"| {cells} |\n")
