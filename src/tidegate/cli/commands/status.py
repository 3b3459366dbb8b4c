"""`tidegate status`: what runs, where and how far; once, live, as a picture, or the settings."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.console.status_feed import group_lags
from tidegate.cli.demo.feeds import ANSWERS_TOPIC, DEMO_TOPIC, PRESENCE_SQL
from tidegate.cli.hints import UsageRefused
from tidegate.cli.installed_pipelines import installed_names, with_waiting
from tidegate.cli.invocation import Invocation, command, console
from tidegate.cli.output.format import home_flag, path_text, program_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.cli.console.view import Picture
    from tidegate.sdk.client import Client
    from tidegate.settings import Settings

WATCH_DRAW_SECONDS = 0.5
DEMO_QUERY = "SELECT entity, avg(voltage) FROM lake.readings GROUP BY 1 ORDER BY 1 LIMIT 5"
FOOTER_INDENT_COLUMNS = 2
TOPICS_TRIED_MAX = 3  # of the fullest topics one is named, if its command fits on a line
SVG_SAMPLES = 40  # seconds of history in the picture
SVG_WIDTH_COLUMNS = 112
SVG_HEIGHT_LINES = 40


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "status", tenant=True)(status)


def status(
    call: Invocation,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Live, until Ctrl-C.")] = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="Every setting, its value and its origin.")
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Watch for 40 s and save the view as an SVG picture."),
    ] = None,
) -> None:
    """Show what runs, where and how fresh."""
    if settings:
        chosen = call.settings()
        call.answer(settings_wire(chosen), lambda: settings_table(chosen))
        return
    if svg is not None:
        _check_writable(svg)
    with call.client() as client:
        if svg is not None:
            _save_svg(call, client, svg)
        elif watch:
            _watch(call, client)
        else:
            _print_once(call, client)


def _check_writable(path: Path) -> None:
    """Raise UsageRefused for a file that cannot be written, before 40 s of watching."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageRefused(f"Cannot write {path}: there is no folder {folder}.")
    if path.is_dir():
        raise UsageRefused(f"Cannot write {path}: it is a folder.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageRefused(f"Cannot write {path}: it is not allowed.")


def settings_wire(chosen: Settings) -> dict[str, Any]:
    """Return every setting with its value and its origin."""
    from tidegate.settings import describe_settings

    return {
        "settings": [
            {"key": note.key, "value": chosen.shown(note.key), "origin": chosen.origin(note.key)}
            for note in describe_settings()
        ]
    }


def settings_table(chosen: Settings) -> RenderableType:
    """Return a table of every setting; those that are not a default are bold."""
    from rich.text import Text

    from tidegate.cli.output.tables import Listing
    from tidegate.settings import describe_settings

    rows: list[Sequence[Any]] = []
    for note in describe_settings():
        origin = chosen.origin(note.key)
        style = "dim" if origin == "default" else "bold"
        rows.append((note.key, Text(str(chosen.shown(note.key)), style), Text(origin, style), note.doc))
    return Listing(("setting", "value", "from", "meaning"), rows, spare=(3,))


def commands_to_try(
    home_path: Path, status_seen: Mapping[str, Any] | None, width: int, tenant_flag: str = ""
) -> list[str]:
    """Return three commands that work on what is there, each on one line of the width if possible."""
    program, flag = program_name(), home_flag(home_path) + tenant_flag
    tables = [entry["name"] for entry in (status_seen or {}).get("tables", ())]
    topics = (status_seen or {}).get("topics", ())
    if not topics:
        return [
            f"{program} topic create app.events{flag}",
            f"""{program} topic publish app.events '{{"a": 1}}'{flag}""",
            f"{program} topic consume app.events{flag}",
        ]
    # In the demo the answers are readable; else the fullest topic has most to show.
    fullest = sorted(topics, key=lambda entry: (entry["name"] != ANSWERS_TOPIC, -entry.get("messages", 0)))
    reads = [f"{program} topic consume {entry['name']} --from latest --follow{flag}" for entry in fullest]
    queries = [DEMO_QUERY] if "readings" in tables else []
    queries += [f"FROM lake.{name} LIMIT 10" for name in sorted(tables, key=lambda name: name != "readings")]
    asks = [f'{program} sql "{query}"{flag}' for query in (queries or ["SELECT 1"])]
    is_demo = any(entry["name"] == DEMO_TOPIC for entry in topics)
    follow = f'{program} subscribe "{PRESENCE_SQL}"{flag}'
    return [
        _first_that_fits(asks, width, min(asks, key=len)),
        _first_that_fits(reads[:TOPICS_TRIED_MAX], width, f"{program} topic list{flag}"),
        follow if is_demo else f"{program} pipeline list{home_flag(home_path)}",
    ]


def _first_that_fits(lines: Sequence[str], width: int, otherwise: str) -> str:
    return next((line for line in lines if len(line) + FOOTER_INDENT_COLUMNS <= width), otherwise)


def picture_of(call: Invocation, url: str, seen: Mapping[str, Any] | None) -> Picture:
    """Return the picture of one answer, without history."""
    from tidegate.cli.console.status_feed import CounterHistory
    from tidegate.cli.console.view import Picture

    out = console()
    commands = commands_to_try(call.home_path, seen, out.width, call.tenant_flag)
    if seen is not None and not call.elsewhere and is_instance(seen):
        seen = {**seen, "pipelines": with_waiting(seen["pipelines"], installed_names(call.home_path))}
    return Picture(
        path_text(call.home_path),
        url,
        seen,
        CounterHistory(),
        commands=commands,
        size=(out.width, out.height),
    )


def is_instance(seen: Mapping[str, Any]) -> bool:
    """True if an answer is about the whole instance; tenants other than the first see only their own part."""
    return seen["pid"] is not None


def _print_once(call: Invocation, client: Client) -> None:
    from tidegate.cli.console.view import render

    seen = client.status()
    if call.as_json:
        call.line(seen)
        return
    # Printed text scrolls, so every row is shown.
    picture = replace(picture_of(call, client.url, seen), lags=group_lags(client))
    tall = replace(picture, commands=(), size=(_printed_width(), 10_000))
    console().print(render(tall), width=tall.size[0])


def _printed_width() -> int:
    return min(console().width, SVG_WIDTH_COLUMNS)


def _watch(call: Invocation, client: Client) -> None:
    from tidegate.cli.console.screen import show_live
    from tidegate.cli.console.status_feed import StatusFeed
    from tidegate.cli.console.view import with_demo
    from tidegate.cli.demo.feeds import DemoFeeds
    from tidegate.model.clock import SystemClock

    clock = SystemClock()
    feed = StatusFeed(client.status, clock, lambda: group_lags(client))
    demo = DemoFeeds(call.connect, clock)
    feed.start()

    def draw() -> Picture:
        seen, failure, history = feed.read()
        known = call.advise(failure) if failure else None
        trouble = f"{known.message} {known.hint}" if known else "asking the server"
        picture = picture_of(call, client.url, seen)
        picture = replace(picture, history=history, trouble=trouble, lags=feed.lags())
        return with_demo(picture, demo)

    try:
        show_live(call, draw, lambda: time.sleep(WATCH_DRAW_SECONDS))
    finally:
        feed.stop()
        demo.stop()


def _save_svg(call: Invocation, client: Client, path: Path) -> None:
    from tidegate.cli.console.status_feed import POLL_SECONDS, CounterHistory
    from tidegate.cli.console.view import with_demo
    from tidegate.cli.demo.feeds import DemoFeeds
    from tidegate.model.clock import SystemClock

    history = CounterHistory()
    demo = DemoFeeds(call.connect, SystemClock())
    picture = picture_of(call, client.url, None)
    for _ in range(SVG_SAMPLES):
        seen = client.status()
        history.add(seen, time.monotonic())
        picture = with_demo(picture_of(call, client.url, seen), demo)
        time.sleep(POLL_SECONDS)
    demo.stop()
    size = (SVG_WIDTH_COLUMNS, SVG_HEIGHT_LINES)
    write_svg(replace(picture, history=history, size=size, lags=group_lags(client)), path)
    call.answer({"svg": str(path)}, lambda: f"Wrote {path}.")


def write_svg(picture: Picture, path: Path) -> None:
    """Write a picture as an SVG file."""
    from rich.console import Console

    from tidegate.cli.console.view import render

    recorder = Console(
        record=True, width=picture.size[0], file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    recorder.print(render(picture))
    drawn = recorder.export_svg(title="tidegate up")
    # Rich refers to fonts on the web; a picture in a repository must not fetch anything.
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")
