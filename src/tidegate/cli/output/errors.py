"""Errors on stderr: two paragraphs for people, wrapped for the terminal, or one line of JSON."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Mapping
from typing import Any, TextIO

import typer

MARK = "_TIDEGATE_CHILD"  # set for the children of `up`; not TIDEGATE_…: those are settings
LABEL = "Error: "
INDENT = "  "
TERMINALS_WITHOUT_COLOUR = ("dumb", "unknown")
_FILLER = "\0"


def report_error(wire: Mapping[str, Any], *, as_json: bool) -> None:
    """Print on stderr what went wrong and what to do next."""
    if as_json:
        line: dict[str, Any] = {"error": dict(wire)}
        if MARK in os.environ:  # a log has several writers: the supervisor looks for the errors of its child
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
    """True if stderr is a terminal that shows colours, and its user wants them (no-color.org)."""
    allows_colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in TERMINALS_WITHOUT_COLOUR
    return sys.stderr.isatty() and allows_colour


def columns_of(stream: TextIO) -> int | None:
    """Return the width of the terminal behind a stream; None where there is none, or it reports none."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def wrapped(text: str, width: int | None, *, taken: int = 0, indent: str = "") -> str:
    """Return the text with line breaks between words; a word that is longer than a line stays whole.

    `taken` columns of the first line are used already; `indent` is put before each line that is added. Lines
    that fit are returned as they are, blanks too.
    """
    from rich.cells import cell_len

    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        if taken + cell_len(line) > width:
            # `textwrap` counts letters: a wide one is followed by a filler.
            letters = "".join(letter + _FILLER * (cell_len(letter) - 1) for letter in line)
            parts = textwrap.wrap(
                letters,
                width,
                initial_indent=" " * taken,
                subsequent_indent=indent,
                expand_tabs=False,
                replace_whitespace=False,
                break_long_words=False,
                break_on_hyphens=False,
            )
            lines.append("\n".join(parts)[taken:].replace(_FILLER, ""))
        else:
            lines.append(line)
        taken = 0
    return "\n".join(lines)
