"""The lines of the console view between its tables: rates as bars, dropped duplicates, and the demo. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tidegate.cli.console.status_feed import CounterHistory, GroupLag
from tidegate.cli.demo.feeds import (
    AGENT_GROUP,
    ANSWERS_TOPIC,
    QUESTIONS_TOPIC,
    Exchange,
    Person,
    Visit,
    Visits,
)
from tidegate.cli.output.format import count_text, rate_text, seconds_text

SPARKS = "▁▂▃▄▅▆▇█"
SPARKS_ASCII = "_.-=+*#@"
SPARK_WIDTH_MAX = 60
SPARK_LABEL_COLUMNS = 30  # labels and rates before the bars, which are never cut
EXCHANGES_SHOWN = 2
TALL_LINES_MIN = 30  # on a lower screen one exchange is shown


class Sparkline:
    """A row of small bars, the newest on the right, the highest as tall as a line."""

    def __init__(self, values: Sequence[float], style: str) -> None:
        self.values = values
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, SPARK_WIDTH_MAX)
        yield Text(spark_text(self.values[-width:], ascii_only=options.ascii_only), style=self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = min(options.max_width, SPARK_WIDTH_MAX, len(self.values))
        return Measurement(min(1, width), width)


def spark_text(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """Return values as bars between zero and the largest of them."""
    bars = SPARKS_ASCII if ascii_only else SPARKS
    top = max(values, default=0.0)
    if top <= 0:
        return bars[0] * len(values)
    return "".join(bars[min(len(bars) - 1, int(value / top * len(bars)))] for value in values)


def traffic(history: CounterHistory, status: Mapping[str, Any], width: int) -> RenderableType:
    """Return the rates of incoming messages and outgoing rows, with their history as bars."""
    bars = max(1, width - SPARK_LABEL_COLUMNS)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True, min_width=9)
    grid.add_column(no_wrap=True)
    incoming = history.message_rate()
    shown = status["messagesPerSecond"] if incoming is None else incoming
    outgoing = history.row_rate()
    if outgoing is None:
        outgoing = sum(line["rowsPerSecond"] or 0 for line in status["pipelines"])
    grid.add_row(
        "messages in", Text(rate_text(shown), "bold"), Sparkline(history.message_steps()[-bars:], "cyan")
    )
    grid.add_row(
        "rows out", Text(rate_text(outgoing), "bold"), Sparkline(history.row_steps()[-bars:], "magenta")
    )
    return grid


def presence(users: Sequence[Person], width: int) -> RenderableType:
    """Return a line of those who are here, with those who type in bold; the ones without room are counted."""
    line = Text("who is here", no_wrap=True, overflow="ellipsis")
    for number, person in enumerate(users):
        one = Text(f"  {person.who}@{person.room}{' types…' if person.typing else ''}")
        one.stylize("bold yellow" if person.typing else "green")
        left = len(users) - number
        # Room for the count is reserved unless this is the last one.
        count = f"  and {left - 1} more" if left > 1 else ""
        if line.cell_len + one.cell_len + len(count) > width:
            line.append(f"  and {left} more" if number else f"  {left} in all", "dim")
            break
        line.append_text(one)
    if not users:
        line.append("  nobody", "dim")
    return line


def session_words(visits: Visits) -> str:
    """Return how many sessions are open, and how many were closed."""
    return f"sessions {count_text(len(visits.open))} open, {count_text(visits.closed)} closed"


def session_line(visits: Visits, width: int) -> RenderableType:
    """Return a line of the open sessions, the longest first, as many as fit."""
    head = f"sessions     {count_text(len(visits.open))} open, {count_text(visits.closed)} closed"
    line = Text(head, no_wrap=True, overflow="ellipsis")
    for visit in visits.open:
        one = _visit(visit)
        if line.cell_len + one.cell_len > width:
            break
        line.append_text(one)
    return line


def _visit(visit: Visit) -> Text:
    most = f", {visit.feature} most" if visit.feature else ""
    return Text.assemble(
        (" · ", "dim"), (visit.who, "cyan"), f" {visit.clicks} in {seconds_text(visit.seconds)}{most}"
    )


def agent_lines_shown(height: int) -> int:
    """Return how many lines the agent takes on a screen of this height."""
    return 1 + (EXCHANGES_SHOWN if height >= TALL_LINES_MIN else 1)


def agent_lines(
    exchanges: Sequence[Exchange], lags: Sequence[GroupLag], history: CounterHistory, size: tuple[int, int]
) -> list[RenderableType]:
    """Return the lines of the demo's agent: its rates, its lag and the newest answers."""
    group = next((one for one in lags if (one.topic, one.group) == (QUESTIONS_TOPIC, AGENT_GROUP)), None)
    head = Text("agent", no_wrap=True, overflow="ellipsis")
    head.append(f"        {' · '.join(agent_words(history))}")
    if group is not None:
        behind = Text(f" · lag {count_text(group.lag)}", "bold yellow" if group.lag else "")
        head.append_text(behind)
        head.append(f" · {count_text(group.held)} in work")
    answers = agent_lines_shown(size[1]) - 1
    lines: list[RenderableType] = [head, *(_exchange(one) for one in exchanges[-answers:])]
    # Always as many lines, so that nothing below jumps when the first answer comes.
    return [*lines, *(Text("") for _ in range(answers + 1 - len(lines)))]


def agent_words(history: CounterHistory) -> list[str]:
    """Return the rates of questions and of answers."""
    return [
        f"asked {rate_text(history.topic_rate(QUESTIONS_TOPIC))}",
        f"answered {rate_text(history.topic_rate(ANSWERS_TOPIC))}",
    ]


def _exchange(one: Exchange) -> Text:
    line = Text.assemble(
        (f"  {one.who}: ", "yellow"),
        one.question,
        ("  →  ", "dim"),
        (one.answer, "green"),
        (f"  {seconds_text(one.seconds)}", "dim"),
    )
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


PERCENT_DIGITS = 2


@dataclass(frozen=True, slots=True)
class DedupCounts:
    """The duplicates and late rows that one operator dropped, of all its rows."""

    name: str
    duplicates: int
    late: int
    rows: int


def dedup_counts(status: Mapping[str, Any]) -> list[DedupCounts]:
    """Return the counts of the operators that deduplicate, as the worker reported them last."""
    return [
        DedupCounts(
            f"{pipeline['name']}/{operator['name']}",
            found["duplicates"],
            found["late"],
            found["unique"] + found["duplicates"] + found["late"],
        )
        for pipeline in status["pipelines"]
        for operator in pipeline.get("operators") or ()
        if (found := operator.get("dedup"))
    ]


def dedup_words(counts: DedupCounts) -> str:
    """Return the duplicates that one operator dropped."""
    share = 100 * counts.duplicates / counts.rows if counts.rows else 0.0
    late = f", {count_text(counts.late)} late" if counts.late else ""
    rows = count_text(counts.rows)
    return f"{count_text(counts.duplicates)} of {rows} ({share:.{PERCENT_DIGITS}f} %) in {counts.name}{late}"


def dedup_line(found: list[DedupCounts], width: int) -> Text:
    """Return a line of the dropped duplicates by operator; the operators without room are counted."""
    line = Text("duplicates  ", no_wrap=True, overflow="ellipsis")
    for number, one in enumerate(sorted(found, key=lambda counts: -counts.duplicates)):
        words = f" {'· ' if number else ''}{dedup_words(one)}"
        if number and line.cell_len + len(words) > width:
            line.append(f" · and {len(found) - number} more", "dim")
            break
        line.append(words, "yellow" if one.duplicates else "")
    return line
