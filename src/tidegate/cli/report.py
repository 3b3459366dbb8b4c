"""Errors for the caller: takes an error in its wire form, gives two lines or one of JSON on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import typer

from tidegate.cli.wrapping import columns_of, wrapped

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
    """Say whether stderr is a terminal that shows colours, and whose user wants them (no-color.org)."""
    wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in TERMINALS_WITHOUT_COLOUR
    return sys.stderr.isatty() and wanted
