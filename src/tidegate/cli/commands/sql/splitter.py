"""Statements in a stretch of text: takes what was typed, gives whole statements and the rest. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.sdk.statements import PIECES, pieces

# Of a line with a mistake in it this much is shown, around the mistake: with its number it fits 80 columns.
EXCERPT_CHARACTERS_MAX = 64
_BACKSLASH_LINE = re.compile(r"^[^\S\n]*\\", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Placed:
    """A stretch of a text, and where its first character stands: line and column from 1."""

    text: str
    line: int = 1
    column: int = 1


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements that a semicolon ends, without it, and the text after the last one."""
    spans, end = _spans(text)
    return [text[start:stop] for start, stop in spans], text[end:]


def placed_statements(text: str) -> list[Placed]:
    """Return all statements of a whole text, the last one with or without its semicolon."""
    spans, end = _spans(text)
    rest = text[end:]
    if is_statement(rest):
        spans.append((end + len(rest) - len(rest.lstrip()), len(text.rstrip())))
    return [_placed(text, start, stop) for start, stop in spans]


def stretches(text: str) -> list[Placed]:
    """Return each line that begins with a backslash, and all statements between two of them as one text."""
    if _BACKSLASH_LINE.search(text) is None:
        return [Placed(text)] if is_statement(text) else []
    found: list[tuple[int, int]] = []
    start = position = 0
    while (match := PIECES.match(text, position)) is not None and match.lastgroup != "open":
        line_start = text.rfind("\n", 0, position) + 1
        if match.group() == "\\" and not text[line_start:position].strip():
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            found += [(start, line_start), (position, end)]
            start = position = min(end + 1, len(text))
        else:
            position = match.end()
    found.append((start, len(text)))
    return [_placed(text, start, stop) for start, stop in found if is_statement(text[start:stop])]


def is_statement(text: str) -> bool:
    """Return whether there is anything but blanks and comments."""
    return next(pieces(text), None) is not None


def excerpt(statement: Placed, line: int, column: int) -> str:
    """Return a line of a statement with a mark below a place in it; nothing where there is no such line.

    Line and column count from the statement's beginning; the excerpt names the text's own line.
    """
    lines = statement.text.split("\n")
    if not 1 <= line <= len(lines):
        return ""
    shown = lines[line - 1].rstrip("\r").replace("\t", " ")
    place = min(max(column - 1, 0), len(shown))
    start = max(0, min(place - EXCERPT_CHARACTERS_MAX // 2, len(shown) - EXCERPT_CHARACTERS_MAX))
    cut = shown[start : start + EXCERPT_CHARACTERS_MAX]
    front = "…" if start else ""
    back = "…" if start + len(cut) < len(shown) else ""
    label = f"{statement.line + line - 1} | "
    from rich.cells import cell_len

    columns = cell_len(label + front + shown[start:place])
    return f"{label}{front}{cut}{back}\n{' ' * columns}^"


def _spans(text: str) -> tuple[list[tuple[int, int]], int]:
    """Return where each ended statement begins and ends, and where the rest begins."""
    found: list[tuple[int, int]] = []
    start = 0
    for match in PIECES.finditer(text):
        if match.lastgroup == "open":
            break
        if match.group() == ";":
            inside = text[start : match.start()]
            if is_statement(inside):
                begin = start + len(inside) - len(inside.lstrip())
                found.append((begin, start + len(inside.rstrip())))
            start = match.end()
    return found, start


def _placed(text: str, start: int, stop: int) -> Placed:
    before = text[:start]
    return Placed(text[start:stop], before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1)
