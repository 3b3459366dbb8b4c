"""`tidegate topic groups`, `reset` and `forget`: the consumer groups of a topic and their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.topic.arguments import (
    GroupOption,
    PartitionOption,
    TopicArgument,
    check_one_partition,
    parse_start,
    places_text,
)
from tidegate.cli.completion import complete_starts
from tidegate.cli.invocation import Invocation, YesOption, command, confirm
from tidegate.cli.output.format import count_text, plural, time_text
from tidegate.errors import Forbidden, TopicNotFound
from tidegate.model.names import DEAD_SUFFIX

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.sdk.client import Client


def register(app: typer.Typer) -> None:
    """Add the commands to `tidegate topic`."""
    command(app, "groups", tenant=True)(groups)
    command(app, "reset", tenant=True)(reset)
    command(app, "forget", tenant=True)(forget)


def groups(call: Invocation, topic: TopicArgument) -> None:
    """Show the consumer groups: lag, position and last messages by partition, and who holds what."""
    with call.client() as client:
        found = client.topic(topic).groups()
        dead = dead_letters(client, topic)
    today = datetime.now(UTC).date().isoformat()
    call.answer({"groups": found, "deadLetters": dead}, lambda: groups_view(topic, found, today, dead))


def reset(
    call: Invocation,
    topic: TopicArgument,
    group: GroupOption,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, or a time (2026-01-31T12:00Z).",
            autocompletion=complete_starts,
        ),
    ],
    partition: PartitionOption = None,
) -> None:
    """Move a group to another position; the leases of its members are revoked."""
    place = parse_start(to, "--to")
    with call.client() as client:
        if partition is None and to.isdecimal():
            check_one_partition(client, topic, "--to", to)
        position = client.topic(topic).reset(group, place, partition=partition)
    call.answer({"position": position}, lambda: f"{group} continues from {places_text(position)}.")


def forget(
    call: Invocation,
    topic: TopicArgument,
    group: GroupOption,
    yes: YesOption = False,
) -> None:
    """Forget a group with its position and leases; asks first, and without a terminal needs --yes."""
    if not yes:
        call.require_terminal(f"whether group {group} may be forgotten: add --yes to forget it.")
        confirm(f"Forget group {group} of topic {topic}?", "Nothing was forgotten.")
    with call.client() as client:
        client.topic(topic).delete_group(group)
    call.answer({"deleted": group}, lambda: f"Group {group} of {topic} is forgotten.")


def dead_letters(client: Client, topic: str) -> int | None:
    """Return how many messages of a topic are dead letters; None where the caller has no permission."""
    try:
        return int(client.topics.show(f"{topic}{DEAD_SUFFIX}")["messages"])
    except TopicNotFound:
        return 0
    except Forbidden:
        return None


def dead_line(topic: str, count: int) -> str:
    """Return the number of dead letters, and their topic."""
    return f"dead letters: {count_text(count)} in {topic}{DEAD_SUFFIX}"


def groups_view(
    topic: str, found: Sequence[Mapping[str, Any]], today: str, dead: int | None = None
) -> RenderableType:
    """Return groups for people; times of `today` (UTC) are without their date."""
    from rich.console import Group

    if not found:
        return f"No groups yet. The first consume makes one: tidegate topic consume {topic} --group NAME"
    parts: list[RenderableType] = []
    for entry in found:
        parts += [*([""] if parts else []), *_group_parts(entry, today)]
    if dead:
        parts += ["", dead_line(topic, dead)]
    return Group(*parts)


def brief_table(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of one line for each group."""
    from tidegate.cli.output.tables import Listing

    rows = [
        (
            entry["group"],
            count_text(entry["lag"]),
            count_text(entry["inFlight"]),
            count_text(entry["waiting"]),
            str(len(entry["members"])),
        )
        for entry in found
    ]
    figures = (1, 2, 3, 4)
    return Listing(
        ("group", "lag", "held", "waiting", "members"),
        rows,
        right=figures,
        whole=(0, *figures),
        spare=(3, 2),
    )


def _group_parts(entry: Mapping[str, Any], today: str) -> list[RenderableType]:
    from rich.text import Text

    from tidegate.cli.output.tables import Listing

    facts = [f"lag {count_text(entry['lag'])}", f"{count_text(entry['inFlight'])} held"]
    if entry["waiting"]:
        facts.append(f"{count_text(entry['waiting'])} waiting for redelivery")
    if entry["missed"]:
        facts.append(f"{count_text(entry['missed'])} missed")
    title = Text.assemble((entry["group"], "bold cyan"), f": {', '.join(facts)}")
    rows = [
        (
            str(part["partition"]),
            str(part["position"]),
            str(part["end"]),
            str(part["lag"]),
            str(part["inFlight"]),
            _moment(part["lastDelivered"], today),
            _moment(part["lastAcked"], today),
        )
        for part in entry["partitions"]
    ]
    figures = tuple(range(7))
    headings = ("part", "position", "end", "lag", "held", "last delivered", "last acked")
    table = Listing(headings, rows, right=figures, whole=figures, spare=(2, 4))
    return [title, table, *_counters_text(entry), _members_text(entry["members"], today)]


def _counters_text(entry: Mapping[str, Any]) -> list[RenderableType]:
    """Return the line of a group's counters; a server of an earlier version has none."""
    from rich.text import Text

    if "delivered" not in entry:
        return []
    delivered = f"{count_text(entry['delivered'])} delivered ({count_text(entry['redelivered'])} again)"
    rest = f"{count_text(entry['acked'])} acked, {count_text(entry['nacked'])} nacked"
    return [Text(f"since the server started: {delivered}, {rest}", style="dim")]


def _members_text(members: Sequence[Mapping[str, Any]], today: str) -> RenderableType:
    from rich.text import Text

    if not members:
        return Text("no member now", style="dim")
    lines = []
    for member in members:
        doing = f"holds {plural(member['holds'], 'message')}"
        if member["waits"]:
            doing += ", waits for more"
        seen = _time(member["lastSeenAt"], today)
        lines.append(f"{member['member']} {doing}" + (f", seen {seen}" if seen else ""))
    return Text("\n".join(lines), style="dim")


def _moment(place: Mapping[str, Any] | None, today: str) -> str:
    return "–" if place is None else f"{place['offset']} {_time(place['at'], today)}"


def _time(value: str | None, today: str) -> str:
    """Return a time of today without its date, an earlier one as a date (UTC)."""
    text = time_text(value).removesuffix(" UTC")
    day, _, clock = text.partition(" ")
    return clock if day == today else day
