"""Sentences on a terminal: takes text and a width, gives lines that end between words."""

from __future__ import annotations

import os
from typing import TextIO


def columns_of(stream: TextIO) -> int | None:
    """Give how wide the terminal behind a stream is; None where there is none, or where it does not say."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrapped(text: str, width: int | None, *, taken: int = 0, indent: str = "") -> str:
    """Give the text with breaks between words; a word that is longer than a line stays whole.

    `taken` columns of the first line are used already; `indent` stands before each line that is made. Lines
    that fit are left as they are, blanks and all.
    """
    if width is None:
        return text
    lines = []
    for number, line in enumerate(text.split("\n")):
        lines += _wrapped_line(line, width, taken if number == 0 else 0, indent)
    return "\n".join(lines)


def _wrapped_line(line: str, width: int, taken: int, indent: str) -> list[str]:
    from rich.cells import cell_len

    if taken + cell_len(line) <= width:
        return [line]
    found: list[str] = []
    words = line.lstrip(" ")
    current, room = line[: len(line) - len(words)], width - taken
    for word in words.split(" "):
        longer = f"{current} {word}" if current.strip() else current + word
        if current.strip() and cell_len(longer) > room:
            found.append(current)
            current, room = indent + word, width
        else:
            current = longer
    return [*found, current]
