"""Statements in a text: where each begins and ends, as the server's lexer reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.sql.parser.lexer import END, OPEN, SPACES, next_token, tokens_of

# Characters that are shown of a line with a mistake, around it: with the line's number they fit 80 columns.
EXCERPT_CHARACTERS_MAX = 64
_BACKSLASH_LINE = re.compile(r"^[^\S\n]*\\", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A part of a text, and the position of its first character: line and column from 1."""

    text: str
    line: int = 1
    column: int = 1


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements that a semicolon ends, without it, and the text after the last one."""
    spans, end = _ended_statements(text)
    return [text[start:stop] for start, stop in spans], text[end:]


def locate_statements(text: str) -> list[TextSpan]:
    """Return all statements of a whole text, the last one with or without its semicolon."""
    spans, end = _ended_statements(text)
    if is_statement(text[end:]):
        spans.append(_stripped(text, end, len(text)))
    return _locate(text, spans)


def script_parts(text: str) -> list[TextSpan]:
    """Return each line that begins with a backslash, and all statements between two of them as one text."""
    if _BACKSLASH_LINE.search(text) is None:
        return [TextSpan(text)] if is_statement(text) else []
    spans: list[tuple[int, int]] = []
    start = previous = 0
    token = next_token(text, 0)
    while token.kind not in (END, OPEN):
        gap = text[previous : token.start]
        indent = gap[gap.rfind("\n") + 1 :]
        begins_line = previous == start or len(indent) < len(gap)
        if token.key == "\\" and begins_line and not indent.strip(SPACES):
            end = text.find("\n", token.start)
            end = len(text) if end < 0 else end
            spans += [(start, token.start - len(indent)), (token.start, end)]
            start = previous = min(end + 1, len(text))
        else:
            previous = token.stop
        token = next_token(text, previous)
    spans.append((start, len(text)))
    return _locate(text, [(start, stop) for start, stop in spans if is_statement(text[start:stop])])


def is_statement(text: str) -> bool:
    """Return whether there is anything but spaces and comments."""
    return next_token(text, 0).kind != END


def excerpt(statement: TextSpan, line: int, column: int) -> str:
    """Return a line of a statement with a mark below a position; nothing where there is no such line.

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


def _ended_statements(text: str) -> tuple[list[tuple[int, int]], int]:
    """Return where each ended statement begins and ends, and where the rest begins."""
    found: list[tuple[int, int]] = []
    start, has_tokens = 0, False
    for token in tokens_of(text):
        if token.kind == OPEN:
            break
        if token.key != ";":
            has_tokens = True
            continue
        if has_tokens:
            found.append(_stripped(text, start, token.start))
        start, has_tokens = token.stop, False
    return found, start


def _stripped(text: str, start: int, stop: int) -> tuple[int, int]:
    """Return a span without the spaces at its ends."""
    part = text[start:stop]
    return start + len(part) - len(part.lstrip(SPACES)), start + len(part.rstrip(SPACES))


def _locate(text: str, spans: Iterable[tuple[int, int]]) -> list[TextSpan]:
    """Return the parts of a text at some spans, which come in their order."""
    found: list[TextSpan] = []
    line, line_start, counted = 1, 0, 0
    for start, stop in spans:
        line += text.count("\n", counted, start)
        line_start = text.rfind("\n", counted, start) + 1 or line_start
        counted = start
        found.append(TextSpan(text[start:stop], line, start - line_start + 1))
    return found
