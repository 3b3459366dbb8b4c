"""Errors for the caller: takes an error in its wire form, gives two lines or one of JSON on stderr.

Sentences on a terminal: takes text and a width, gives lines that end between words.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import typer

MARK = "_TIDEGATE_CHILD"  # set for the children of `up`; not TIDEGATE_…: those are settings
LABEL = "Error: "
INDENT = "  "
TERMINALS_WITHOUT_COLOUR = ("dumb", "unknown")


def report_error(wire: Mapping[str, Any], *, as_json: bool) -> None:
    """Say on stderr what went wrong and what to do next."""
    if as_json:
        line: dict[str, Any] = {"error": dict(wire)}
        if MARK in os.environ:  # a log has many writers: the supervisor asks whose error this is
            line["pid"] = os.getpid()
        typer.echo(json.dumps(line, ensure_ascii=False, default=str), err=True)
        return
    colour = _has_colour()
    width = columns_of(sys.stderr)
    typer.echo(typer.style(LABEL, fg="red", bold=True) if colour else LABEL, err=True, nl=False)
    typer.echo(wrapped(wire["message"], width, taken=len(LABEL)), err=True)
    if wire.get("hint"):
        typer.echo(wrapped(f"{INDENT}{wire['hint']}", width, indent=INDENT), err=True)


def _has_colour() -> bool:
    """Return whether stderr is a terminal that shows colours, and whose user wants them (no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in TERMINALS_WITHOUT_COLOUR
    return sys.stderr.isatty() and wanted


def columns_of(stream: TextIO) -> int | None:
    """Return how wide the terminal behind a stream is; None where there is none, or where it does not say."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrapped(text: str, width: int | None, *, taken: int = 0, indent: str = "") -> str:
    """Return the text with breaks between words; a word that is longer than a line stays whole.

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
