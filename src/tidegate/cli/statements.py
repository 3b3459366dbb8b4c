"""Statements in a stretch of text: takes what was typed, gives whole statements and the rest. Pure."""

from __future__ import annotations

import re

# What a semicolon may hide in: '…' and "…" (a doubled quote stays inside), -- to the line's end, /* … */.
_PIECES = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | /\* | .""",
    re.VERBOSE | re.DOTALL,
)
# An opening that matches alone has no end in the text.
UNCLOSED = frozenset({"'", '"', "/*"})


def split_statements(text: str) -> tuple[list[str], str]:
    """Give the statements that a semicolon ends, without it, and the text after the last one."""
    statements: list[str] = []
    start = 0
    position = 0
    while position < len(text):
        match = _PIECES.match(text, position)
        if match is None:
            break
        piece = match.group()
        position = match.end()
        if piece in UNCLOSED:
            return statements, text[start:]
        if piece == ";":
            if is_statement(text[start : match.start()]):
                statements.append(text[start : match.start()].strip())
            start = position
    return statements, text[start:]


def is_statement(text: str) -> bool:
    """Say whether there is anything but blanks and comments."""
    return bool(re.sub(r"--[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).strip())
