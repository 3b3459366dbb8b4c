"""`tidegate open`: a one-time link that signs a browser in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated

import typer

from tidegate.cli.invocation import Invocation, command
from tidegate.cli.output.format import time_text


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "open")(open_page)


def open_page(
    call: Invocation,
    only_print: Annotated[bool, typer.Option("--print", help="Print the link and open nothing.")] = False,
) -> None:
    """Open the server's page in a browser; without a display, print the link that does it, once."""
    with call.client() as client:
        link = client.open_link()
    if call.as_json:
        call.line(link)
        return
    has_browser = not only_print and has_display(os.environ, sys.platform) and _open_browser(link["url"])
    typer.echo(link["url"])
    verb = "A browser opens it" if has_browser else "Open it in a browser"
    typer.echo(f"{verb}. It works once, until {time_text(link['expiresAt'])}.", err=True)


def has_display(environ: Mapping[str, str], platform: str) -> bool:
    """True if there is a display for a browser."""
    if platform == "darwin":
        return "SSH_CONNECTION" not in environ
    return bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def _open_browser(url: str) -> bool:
    import webbrowser

    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False  # the link is printed all the same
