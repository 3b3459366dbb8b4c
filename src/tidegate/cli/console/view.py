"""The console view: one picture of the system, drawn with Rich. Pure.

The same function draws `tidegate up`, `tidegate status`, `tidegate status --watch` and the SVG of the README.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidegate.cli.console.panels import (
    agent_lines,
    agent_lines_shown,
    agent_words,
    dedup_counts,
    dedup_line,
    dedup_words,
    presence,
    session_line,
    session_words,
    traffic,
)
from tidegate.cli.console.status_feed import CounterHistory, GroupLag, lag_of
from tidegate.cli.demo.feeds import DemoFeeds, Exchange, Person, Visits
from tidegate.cli.output.format import bytes_text, count_text, first_line, rate_text, seconds_text
from tidegate.cli.output.tables import Listing
from tidegate.cli.supervision.supervisor import ChildState

# Lines beside the rows of the tables: heading 1, panels 4, traffic 2, three table headings of 2.
FIXED_LINES = 13
ROOMY_ROWS_MIN = 3  # blank lines are left out when a table would show fewer rows than this
SPACE_LINES = 4  # blank lines between the parts, where there is room for them
SIDE_BY_SIDE_COLUMNS_MIN = 104  # topics and lake tables are side by side from this width on
NOTES_MAX = 2
GROUPS_MAX = 3  # consumer groups in a line for logs
WORKER_SILENT_SECONDS = 5.0  # the worker reports every second; after this long it is called silent

STATE_STYLES = {
    "running": "green",
    "ready": "green",
    "starting": "yellow",
    "stopping": "yellow",
    "waiting": "yellow",
    "silent": "red",
    "lost": "red",
    "failed": "red",
    "stopped": "dim",
    "not running": "red",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that the view shows."""

    home: str
    url: str
    status: Mapping[str, Any] | None
    history: CounterHistory
    children: Sequence[ChildState] = ()
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    trouble: str = ""
    users: Sequence[Person] | None = None
    exchanges: Sequence[Exchange] | None = None
    visits: Visits | None = None
    lags: Sequence[GroupLag] = ()
    size: tuple[int, int] = field(default=(100, 40))


def with_demo(picture: Picture, feeds: DemoFeeds) -> Picture:
    """Return the picture with the demo in it; as it is where the server has no demo."""
    panels = feeds.panels(picture.status)
    if panels is None:
        return picture
    return replace(picture, users=panels.users, exchanges=panels.exchanges, visits=panels.visits)


def render(picture: Picture) -> RenderableType:
    """Return the picture in as many lines as its size allows; rows without room are counted."""
    parts: list[RenderableType] = [_heading(picture), _machines(picture)]
    status = picture.status
    space: list[RenderableType] = []
    if status is not None:
        rows_max, roomy = _rows_that_fit(picture, status)
        space = [Text("")] if roomy else []
        parts.append(traffic(picture.history, status, picture.size[0]))
        if picture.users is not None:
            parts.append(presence(picture.users, picture.size[0]))
        if picture.visits is not None:
            parts.append(session_line(picture.visits, picture.size[0]))
        counts = dedup_counts(status)
        if counts:
            parts.append(dedup_line(counts, picture.size[0]))
        if picture.exchanges is not None:
            parts.extend(agent_lines(picture.exchanges, picture.lags, picture.history, picture.size))
        for table in _tables(picture, status, rows_max):
            parts.extend([*space, table])
    elif picture.trouble:
        parts.append(Text(f"\n  {picture.trouble}\n", style="yellow"))
    parts.extend(
        Text(f"! {note}", style="yellow", no_wrap=True, overflow="ellipsis")
        for note in picture.notes[-NOTES_MAX:]
    )
    if picture.commands:
        parts.extend([*space, _footer(picture.commands)])
    return Group(*parts)


def _rows_that_fit(picture: Picture, status: Mapping[str, Any]) -> tuple[int, bool]:
    """Return how many rows each table may show, and whether blank lines fit between the parts."""
    width, height = picture.size
    footer = sum(-(-(len(line) + 2) // width) for line in picture.commands) + (1 if picture.commands else 0)
    left = height - FIXED_LINES - footer - len(picture.notes[-NOTES_MAX:])
    left -= 0 if picture.users is None else 1
    left -= 0 if picture.visits is None else 1
    left -= 1 if dedup_counts(status) else 0
    left -= 0 if picture.exchanges is None else agent_lines_shown(height)
    most = max(ROOMY_ROWS_MIN, *(len(status[part]) for part in ("topics", "pipelines", "tables")))
    for roomy in (True, False):
        for rows_max in range(most, 0, -1):
            if _table_lines(status, rows_max) <= left - (SPACE_LINES if roomy else 0):
                return rows_max, roomy
            if roomy and rows_max <= ROOMY_ROWS_MIN:
                break
    return 1, False


def _table_lines(status: Mapping[str, Any], rows_max: int) -> int:
    counts = [len(status[part]) for part in ("topics", "pipelines", "tables")]
    shown = sum(min(max(count, 1), rows_max) + (1 if count > rows_max else 0) for count in counts)
    return shown + len(_failures(status["pipelines"], rows_max))


def _heading(picture: Picture) -> RenderableType:
    grid = Table.grid(expand=True, padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    status = picture.status or {}
    version = f" {status['version']}" if status.get("version") else ""
    name = Text.assemble(("≈ Tidegate", "bold cyan"), (version, "cyan"))
    place = Text.assemble((picture.url, "bold"), ("  ", ""), (picture.home, "dim"))
    since = f"up {seconds_text(status['uptimeSeconds'])}" if status else ""
    grid.add_row(name, place, Text(since, style="dim"))
    return grid


def _machines(picture: Picture) -> RenderableType:
    grid = Table.grid(expand=True)
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    children = {child.name: child for child in picture.children}
    grid.add_row(
        _server_panel(picture.status, children.get("server")),
        _worker_panel(picture.status, children.get("worker")),
    )
    return grid


def _server_panel(status: Mapping[str, Any] | None, child: ChildState | None) -> RenderableType:
    if status is None:
        return _panel("server", _child_word(child), _child_lines(child))
    if status["pid"] is None:  # a tenant other than the first sees only its own part of the instance
        return _panel("server", "ready", [f"tenant {status['tenant']}", "its topics and tables are shown"])
    line = f"memory {bytes_text(status['memoryBytes'])} · {bytes_text(status['diskFreeBytes'])} free on disk"
    return _panel("server", "ready", [f"process {status['pid']}{_restarts(child)}", line])


def _worker_panel(status: Mapping[str, Any] | None, child: ChildState | None) -> RenderableType:
    if status is not None and status["pid"] is None:
        return _panel("worker", "not shown", ["it is the instance's", ""])
    worker = status["worker"] if status is not None else None
    replaced = worker is not None and child is not None and worker["pid"] != child.pid
    if worker is None or replaced:  # the server remembers the last report of a worker that ended
        word = _child_word(child)
        return _panel("worker", "starting" if word == "running" else word, _child_lines(child))
    silent = worker["seenSecondsAgo"] > WORKER_SILENT_SECONDS
    lines = [
        f"process {worker['pid']}{_restarts(child)}",
        f"memory {bytes_text(worker['memoryBytes'])} · Spark {worker['sparkVersion'] or '–'}",
    ]
    if silent:
        lines[0] = f"last heard of {seconds_text(worker['seenSecondsAgo'])} ago"
    return _panel("worker", "silent" if silent else worker["state"], lines)


def _child_word(child: ChildState | None) -> str:
    if child is None:
        return "not running"
    return "starting" if child.state == "running" else child.state


def _child_lines(child: ChildState | None) -> list[str]:
    if child is None:
        return ["", ""]
    if child.state == "waiting":
        return [
            f"starts again in {seconds_text(child.next_start_seconds)}{_restarts(child)}",
            f"{child.log_path}",
        ]
    return [f"process {child.pid or '–'}{_restarts(child)}", ""]


def _restarts(child: ChildState | None) -> str:
    return f" · started again {child.restarts} ×" if child is not None and child.restarts else ""


def _panel(name: str, state: str, lines: Sequence[str]) -> Panel:
    style = STATE_STYLES.get(state, "")
    title = Text.assemble((f" {name} ", "bold"), (f"{state} ", style))
    body = Text("\n".join(lines), overflow="ellipsis", no_wrap=True)
    return Panel(body, title=title, title_align="left", box=box.ROUNDED, border_style="dim", padding=(0, 1))


def _tables(picture: Picture, status: Mapping[str, Any], rows_max: int) -> list[RenderableType]:
    topics = _topics(status["topics"], picture, rows_max)
    lake = _lake(status["tables"], rows_max)
    pipelines = _pipelines(status["pipelines"], rows_max)
    if picture.size[0] < SIDE_BY_SIDE_COLUMNS_MIN:
        return [topics, pipelines, lake]
    grid = Table.grid(expand=True, padding=(0, 2))
    grid.add_column(ratio=4)
    grid.add_column(ratio=3)
    grid.add_row(topics, lake)
    return [grid, pipelines]


def _topics(topics: Sequence[Mapping[str, Any]], picture: Picture, rows_max: int) -> RenderableType:
    # The largest lag of a topic's groups; without groups there is no such column.
    shows_lag = bool(picture.lags)
    rows = [
        (
            topic["name"],
            count_text(topic["messages"]),
            rate_text(picture.history.topic_rate(topic["name"])),
            *([count_text(lag_of(topic["name"], picture.lags))] if shows_lag else []),
            str(len(topic["partitions"])),
            bytes_text(topic["bytes"]),
        )
        for topic in _busiest(topics, picture.history, rows_max)
    ]
    headings = ("topics", "messages", "msg/s", *(["lag"] if shows_lag else []), "partitions", "size")
    return _table(headings, rows, len(topics), "no topic yet")


def _busiest(
    topics: Sequence[Mapping[str, Any]], history: CounterHistory, rows_max: int
) -> list[Mapping[str, Any]]:
    """Return the topics with traffic, then the fullest, in the order of the list, so that no row jumps."""
    if len(topics) <= rows_max:
        return list(topics)
    chosen = sorted(
        topics, key=lambda topic: (not history.topic_rate(topic["name"]), -topic["messages"], topic["name"])
    )
    names = {topic["name"] for topic in chosen[:rows_max]}
    return [topic for topic in topics if topic["name"] in names]


def _pipelines(pipelines: Sequence[Mapping[str, Any]], rows_max: int) -> RenderableType:
    rows = [
        (
            line["name"],
            Text(line["state"], STATE_STYLES.get(line["state"], "")),
            count_text(line["batches"]),
            count_text(line["rows"]),
            rate_text(line["rowsPerSecond"]),
            count_text(line["lag"]),
            seconds_text(line["lastBatchSeconds"]),
        )
        for line in pipelines[:rows_max]
    ]
    headings = ("pipelines", "state", "batches", "rows out", "rows/s", "lag", "last batch")
    failures = [
        Text(text, style="red", overflow="ellipsis", no_wrap=True) for text in _failures(pipelines, rows_max)
    ]
    return Group(_table(headings, rows, len(pipelines), "no pipeline yet"), *failures)


def _failures(pipelines: Sequence[Mapping[str, Any]], rows_max: int) -> list[str]:
    failed = [line for line in pipelines[:rows_max] if line["error"] and line["state"] != "running"]
    return [f"  {line['name']}: {first_line(line['error'])}" for line in failed]


def _lake(tables: Sequence[Mapping[str, Any]], rows_max: int) -> RenderableType:
    rows = [
        (
            f"lake.{entry['name']}",
            count_text(entry["version"]),
            count_text(entry["files"]),
            bytes_text(entry["bytes"]),
        )
        for entry in tables[:rows_max]
    ]
    return _table(("lake tables", "version", "files", "size"), rows, len(tables), "no table yet")


def _table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]], count: int, empty: str) -> Listing:
    """Return a table whose names are cut in the middle; figures are whole, or the rightmost are left out."""
    figures = range(1, len(headings))
    return Listing(
        headings,
        rows or [[Text(empty, style="dim")]],
        right=[index for index in figures if headings[index] != "state"],
        whole=figures,
        spare=figures[::-1],
        note=f"and {count - len(rows)} more" if rows and count > len(rows) else "",
        compact=True,
    )


def _footer(commands: Sequence[str]) -> RenderableType:
    lines = [Text("Try, in another terminal (Ctrl-C here stops):", style="dim")]
    lines.extend(Text(f"  {line}", style="cyan", overflow="fold") for line in commands)
    return Group(*lines)


def summary_line(picture: Picture) -> str:
    """Return the picture as one line, for a log or a terminal that cannot be redrawn."""
    status = picture.status
    if status is None:
        return picture.trouble or "starting"
    worker = status["worker"]
    pipelines = status["pipelines"]
    lags = [line["lag"] for line in pipelines if line["lag"] is not None]
    states = ", ".join(f"{line['name']} {line['state']}" for line in pipelines) or "no pipeline"
    parts = [
        f"messages in {rate_text(picture.history.message_rate())}",
        f"rows out {rate_text(picture.history.row_rate())}",
        f"lag {count_text(sum(lags)) if lags else '–'}",
        *([] if picture.exchanges is None else agent_words(picture.history)),
        *([] if picture.visits is None else [session_words(picture.visits)]),
        *(f"duplicates {dedup_words(one)}" for one in dedup_counts(status)),
        *(f"{group.topic} {group.group} lag {count_text(group.lag)}" for group in picture.lags[:GROUPS_MAX]),
        f"batches {count_text(sum(line['batches'] or 0 for line in pipelines))}",
        *(_machine_words(status, worker) if status["pid"] is not None else [f"tenant {status['tenant']}"]),
        states,
    ]
    return " · ".join(parts)


def _machine_words(status: Mapping[str, Any], worker: Mapping[str, Any] | None) -> list[str]:
    known = (
        f"worker {worker['state']} {bytes_text(worker['memoryBytes'])}" if worker else "worker not there yet"
    )
    return [f"server {bytes_text(status['memoryBytes'])}", known]
