"""`tidegate topic`: list, show, create, change, clear, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.topic import ack, publish_consume, redrive
from tidegate.cli.commands.topic import groups as topic_groups
from tidegate.cli.commands.topic.arguments import (
    NewTopicArgument,
    TopicArgument,
    parse_dedup,
    parse_retention,
    parse_size,
)
from tidegate.cli.hints import UsageRefused
from tidegate.cli.invocation import Invocation, YesOption, command, confirm
from tidegate.cli.output.format import bytes_text, count_text, plural, seconds_text
from tidegate.errors import TopicExists

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer(name="topic", help="Topics: durable logs of messages.", no_args_is_help=True)

RetentionOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Keep messages this long, such as '7 days'; none: whatever their age."),
]
MaxBytesOption = Annotated[
    str | None,
    typer.Option(
        "--max-bytes", metavar="SIZE", help="Keep this much of each partition, such as 10GB; none: no limit."
    ),
]
DedupOption = Annotated[
    str | None,
    typer.Option(
        "--dedup",
        metavar="TIME",
        help="Take dedup keys, and store one message of each in this time, such as '1 day'; none: take none.",
    ),
]


@command(app, "list", tenant=True)
def list_topics(call: Invocation) -> None:
    """List the topics."""
    with call.client() as client:
        topics = client.topics.list()
    call.answer({"topics": topics}, lambda: topics_table(topics))


@command(app, "show", tenant=True)
def show_topic(call: Invocation, topic: TopicArgument) -> None:
    """Show one topic: what it keeps, the tables that feed it, and the groups that read it."""
    with call.client() as client:
        found = client.topics.show(topic)
        groups = [] if call.as_json else client.topic(topic).groups()
        dead = topic_groups.dead_letters(client, topic)
    call.answer({**found, "deadLetters": dead}, lambda: topic_table(found, groups, dead))


@command(app, "create", tenant=True)
def create_topic(
    call: Invocation,
    topic: NewTopicArgument,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions (1); more can be added.")
    ] = None,
    retention: RetentionOption = None,
    max_bytes: MaxBytesOption = None,
    dedup: DedupOption = None,
    if_not_exists: Annotated[
        bool,
        typer.Option("--if-not-exists", help="Accept a topic that already exists, and leave it as it is."),
    ] = False,
) -> None:
    """Create a topic."""
    seconds, size_bytes = parse_retention(retention), parse_size(max_bytes)
    dedup_seconds = parse_dedup(dedup)
    existed = False
    with call.client() as client:
        try:
            client.topics.create(
                topic,
                partitions=partitions or 1,
                retention_seconds=seconds,
                retention_max_bytes=size_bytes,
                dedup_seconds=dedup_seconds,
            )
        except TopicExists:
            if not if_not_exists:
                raise
            existed = True
        made = client.topics.show(topic)
    options: dict[str, int | None] = {} if partitions is None else {"partitions": partitions}
    options |= {} if retention is None else {"retentionSeconds": seconds}
    options |= {} if max_bytes is None else {"retentionMaxBytes": size_bytes}
    options |= {} if dedup is None else {"dedupSeconds": dedup_seconds}
    notice = _difference(made, options) if existed else ""

    def sentence() -> str:
        there = f"Topic {topic} {'already exists' if existed else 'created'}"
        text = f"{there}, with {plural(len(made['partitions']), 'partition')}. {_retention_text(made)}"
        return f"{text}\n{notice}" if notice else text

    call.answer({**made, "notice": notice} if notice else made, sentence)


@command(app, "change", tenant=True)
def change_topic(
    call: Invocation,
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions from now on; never fewer.")
    ] = None,
    retention: RetentionOption = None,
    max_bytes: MaxBytesOption = None,
    dedup: DedupOption = None,
) -> None:
    """Change how long a topic keeps messages and dedup keys, or add partitions; what is not named stays."""
    changes: dict[str, int | None] = {}
    if partitions is not None:
        changes["partitions"] = partitions
    if retention is not None:
        changes["retention_seconds"] = parse_retention(retention)
    if max_bytes is not None:
        changes["retention_max_bytes"] = parse_size(max_bytes)
    if dedup is not None:
        changes["dedup_seconds"] = parse_dedup(dedup)
    if not changes:
        raise UsageRefused("Nothing to change: give --partitions, --retention, --max-bytes or --dedup.")
    with call.client() as client:
        changed = client.topics.change(topic, **changes)
    call.answer(changed, lambda: _changed_text(changed))


@command(app, "clear", tenant=True)
def clear_topic(call: Invocation, topic: TopicArgument, yes: YesOption = False) -> None:
    """Remove all messages and keep the topic, its groups and sources; asks first, or needs --yes."""
    if not yes:
        call.require_terminal(f"whether all messages of {topic} may go: add --yes to clear it.")
    with call.client() as client:
        if not yes:
            held = plural(client.topics.show(topic)["messages"], "message")
            confirm(f"Remove the {held} of topic {topic}?", "Nothing was removed.")
        cleared = client.topics.clear(topic)
    call.answer(
        {"cleared": cleared},
        lambda: f"Removed {plural(cleared, 'message')} of {topic}. Offsets continue where they were.",
    )


@command(app, "delete", tenant=True)
def delete_topic(call: Invocation, topic: TopicArgument, yes: YesOption = False) -> None:
    """Delete a topic with all its messages; asks first, and without a terminal needs --yes."""
    if not yes:
        call.require_terminal(f"whether topic {topic} may go with all its messages: add --yes to delete it.")
    with call.client() as client:
        if not yes:
            held = plural(client.topics.show(topic)["messages"], "message")
            confirm(f"Delete topic {topic} and its {held}?", "Nothing was deleted.")
        client.topics.delete(topic)
    call.answer({"deleted": topic}, lambda: f"Topic {topic} is deleted.")


publish_consume.register(app)
ack.register(app)
redrive.register(app)
topic_groups.register(app)


def topics_table(topics: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of topics."""
    from tidegate.cli.output.tables import Listing

    if not topics:
        return "No topics yet. Make one: tidegate topic create app.events"
    rows = [
        (t["name"], count_text(t["messages"]), str(len(t["partitions"])), bytes_text(t["bytes"]))
        for t in topics
    ]
    figures = (1, 2, 3)
    headings = ("topic", "messages", "partitions", "size")
    return Listing(headings, rows, right=figures, whole=(0, *figures), spare=(2, 3))


def topic_table(
    topic: Mapping[str, Any], groups: Sequence[Mapping[str, Any]] = (), dead: int | None = None
) -> RenderableType:
    """Return a topic for people: its partitions, its sources, its groups, and its dead letters."""
    from rich.console import Group
    from rich.text import Text

    from tidegate.cli.output.tables import Listing

    size = f"{plural(topic['messages'], 'message')}, {bytes_text(topic['bytes'])}"
    title = Text(f"{topic['name']}: {size}. {_retention_text(topic)}{_dropped_text(topic)}")
    rows = [
        (str(p["partition"]), str(p["start"]), str(p["end"]), bytes_text(p["bytes"]))
        for p in topic["partitions"]
    ]
    figures = (0, 1, 2, 3)
    headings = ("partition", "earliest offset", "next offset", "size")
    parts: list[RenderableType] = [title, Listing(headings, rows, right=figures, whole=figures, spare=(3,))]
    if topic["sources"]:
        parts += ["", sources_table(topic["sources"])]
    if groups:
        parts += ["", topic_groups.brief_table(groups)]
    if dead:
        parts += ["", topic_groups.dead_line(topic["name"], dead)]
    return Group(*parts)


def sources_table(sources: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return a table of the tables whose changes go to a topic."""
    from tidegate.cli.output.tables import Listing

    rows = [
        (
            source["table"],
            source["op"].upper(),
            source["payload"],
            ", ".join(source["partitionBy"]) or "primary key",
            source["where"] or "",
        )
        for source in sources
    ]
    headings = ("source", "on", "payload", "partition by", "where")
    return Listing(headings, rows, whole=(0, 1, 2), spare=(3,))


def _retention_text(topic: Mapping[str, Any]) -> str:
    """Return sentences about the retention of messages and dedup keys."""
    seconds, size_bytes = topic["retentionSeconds"], topic["retentionMaxBytes"]
    dedup_seconds = topic.get("dedupSeconds")
    once = f" Dedup keys are kept for {seconds_text(dedup_seconds)}." if dedup_seconds else ""
    if seconds is None and size_bytes is None:
        return f"Messages are kept for good.{once}"
    age = "" if seconds is None else f" after {seconds_text(seconds)}"
    size = "" if size_bytes is None else f" beyond {bytes_text(size_bytes)} a partition"
    return f"Messages go{age}{' and' if age and size else ''}{size}.{once}"


def _dropped_text(topic: Mapping[str, Any]) -> str:
    """Return a sentence about dropped duplicates; "" where none was dropped."""
    count = topic.get("duplicates")
    return f" {plural(count, 'duplicate')} dropped since the server started." if count else ""


def _difference(topic: Mapping[str, Any], options: Mapping[str, int | None]) -> str:
    """Return what of an existing topic differs from the options; "" where nothing does."""
    found = {**topic, "partitions": len(topic["partitions"])}
    words = {
        "partitions": ("partitions", count_text),
        "retentionSeconds": ("retention", lambda value: _limit_text(value, seconds_text)),
        "retentionMaxBytes": ("max-bytes", lambda value: _limit_text(value, bytes_text)),
        "dedupSeconds": ("dedup", lambda value: _limit_text(value, seconds_text)),
    }
    differences = []
    for field, value in options.items():
        if found[field] != value:
            word, text = words[field]
            differences.append(f"{word} {text(found[field])} instead of {text(value)}")
    return f"It has {', '.join(differences)}. 'tidegate topic change' changes that." if differences else ""


def _limit_text(value: float | None, text: Callable[[float | None], str]) -> str:
    return "none" if value is None else text(value)


def _changed_text(changed: Mapping[str, Any]) -> str:
    count = plural(len(changed["partitions"]), "partition")
    notice = f"\n{changed['notice']}" if changed.get("notice") else ""
    return f"Topic {changed['name']} has {count}. {_retention_text(changed)}{notice}"
