"""Errors for the caller: takes an error in its wire form, gives two lines or one of JSON on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import typer

MARK = "_TIDEGATE_CHILD"  # set for the children of `up`; not TIDEGATE_…: those are settings


def report_error(wire: Mapping[str, Any], *, as_json: bool) -> None:
    """Say on stderr what went wrong and what to do next."""
    if as_json:
        line: dict[str, Any] = {"error": dict(wire)}
        if MARK in os.environ:  # a log has many writers: the supervisor asks whose error this is
            line["pid"] = os.getpid()
        typer.echo(json.dumps(line, ensure_ascii=False, default=str), err=True)
        return
    colour = sys.stderr.isatty()
    typer.secho("Error: ", err=True, nl=False, fg="red" if colour else None, bold=colour)
    typer.echo(wire["message"], err=True)
    if wire.get("hint"):
        typer.echo(f"  {wire['hint']}", err=True)
