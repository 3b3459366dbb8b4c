"""The screen of the console view: live on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from tidegate.cli.invocation import Invocation, console

if TYPE_CHECKING:
    from tidegate.cli.console.view import Picture

LINE_SECONDS = 5.0  # between two lines where there is no terminal


def can_draw(call: Invocation) -> bool:
    """True if stdout is a terminal that can be redrawn, and the answer is for people."""
    out = console()
    return out.is_terminal and not out.is_dumb_terminal and not call.as_json


def show_live(call: Invocation, draw: Callable[[], Picture], step: Callable[[], object]) -> None:
    """Call `step` in a loop, and show what `draw` returns, until either raises."""
    if not can_draw(call):
        show_lines(call, draw, step)
        return
    from rich.live import Live

    from tidegate.cli.console.view import render

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(render(draw()), refresh=True)
            step()


def show_lines(call: Invocation, draw: Callable[[], Picture], step: Callable[[], object]) -> None:
    """Call `step` in a loop; print a line every few seconds, and when the server comes or goes."""
    due = time.monotonic()
    answered = False
    while True:
        picture = draw()
        if time.monotonic() >= due or (picture.status is not None) != answered:
            due = time.monotonic() + LINE_SECONDS
            answered = picture.status is not None
            _print_line(call, picture)
        step()


def _print_line(call: Invocation, picture: Picture) -> None:
    from tidegate.cli.console.view import summary_line

    if call.as_json:
        call.line(picture.status if picture.status is not None else {"event": picture.trouble})
    else:
        typer.echo(f"{time.strftime('%H:%M:%S')}  {summary_line(picture)}")
