"""`tidegate topic`: list, show, create, delete, publish, consume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.completion import complete_starts, complete_topics
from tidegate.cli.invocation import Invocation, command, confirm, console
from tidegate.cli.payloads import messages_of, parse_payload, read_batches, read_stdin
from tidegate.cli.show import bytes_text, cell_text, count_text, plural, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tidegate.sdk.client import Client

CONSUME_LIMIT = 100
PAGE_MESSAGES = 1000  # messages asked for at a time
FOLLOW_WAIT_MS = 5000  # how long the server holds a question that finds nothing; Ctrl-C ends it at once

app = typer.Typer(name="topic", help="Topics: durable logs of messages.", no_args_is_help=True)

NewTopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic, such as app.events.")
]
TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="Name of the topic, such as app.events.", autocompletion=complete_topics
    ),
]
PartitionOption = Annotated[int | None, typer.Option(min=0, help="One partition only.")]


@command(app, "list", tenant=True)
def list_topics(call: Invocation) -> None:
    """List the topics."""
    with call.client() as client:
        topics = client.topics.list()
    call.answer({"topics": topics}, lambda: topics_table(topics))


@command(app, "show", tenant=True)
def show_topic(call: Invocation, topic: TopicArgument) -> None:
    """Show one topic: its partitions and the offsets that are kept."""
    with call.client() as client:
        found = client.topics.show(topic)
    call.answer(found, lambda: topic_table(found))


@command(app, "create", tenant=True)
def create_topic(
    call: Invocation,
    topic: NewTopicArgument,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions; it stays as it is.")] = 1,
) -> None:
    """Create a topic."""
    with call.client() as client:
        client.topics.create(topic, partitions=partitions)
        made = client.topics.show(topic)
    call.answer(made, lambda: f"Topic {topic} is there, with {plural(partitions, 'partition')}.")


@command(app, "delete", tenant=True)
def delete_topic(
    call: Invocation,
    topic: TopicArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a topic with all its messages; asks first, and without a terminal needs --yes."""
    if not yes:
        call.need_someone_to_ask(
            f"whether topic {topic} may go with all its messages: add --yes to delete it."
        )
    with call.client() as client:
        if not yes:
            held = plural(client.topics.show(topic)["messages"], "message")
            confirm(f"Delete topic {topic} and its {held}?", "Nothing was deleted.")
        client.topics.delete(topic)
    call.answer({"deleted": topic}, lambda: f"Topic {topic} is deleted.")


@command(app, "publish", tenant=True)
def publish(
    call: Invocation,
    topic: TopicArgument,
    payloads: Annotated[
        list[str], typer.Argument(metavar="PAYLOAD", help="JSON; '-' reads a line each from stdin.")
    ],
    key: Annotated[
        str | None, typer.Option(help="Key of the messages; equal keys share a partition.")
    ] = None,
    partition: PartitionOption = None,
) -> None:
    """Publish messages; they are on disk when the command answers."""
    count = 0
    with call.client() as client:
        for batch in _payload_batches(payloads):
            offsets = client.topic(topic).publish(messages_of(batch, key, partition))
            count += len(offsets)
            if call.as_json:
                call.line({"offsets": offsets})
    if not call.as_json:
        typer.echo(f"Published {plural(count, 'message')} to {topic}.")


@command(app, "consume", tenant=True)
def consume(
    call: Invocation,
    topic: TopicArgument,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, an offset, or a time (2026-01-31T12:00Z).",
            autocompletion=complete_starts,
        ),
    ] = "earliest",
    partition: PartitionOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most messages; 100, or no limit with --follow.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until Ctrl-C.")] = False,
) -> None:
    """Read messages; with --json one a line. Reading changes nothing."""
    if limit is None and not follow:
        limit = CONSUME_LIMIT
    question: dict[str, Any] = {"start": parse_start(start)}
    if partition is not None:
        question["partition"] = partition
    shown = 0
    with call.client() as client:
        if partition is None and start.isdecimal():
            _check_one_partition(client, topic, start)
        for messages in _pages(client, topic, question, limit, follow):
            shown += len(messages)
            _print_messages(call, messages)
    if not shown and not call.as_json:
        typer.echo(f"No messages in {topic} from {start} on.", err=True)


def _check_one_partition(client: Client, topic: str, start: str) -> None:
    """Refuse an offset without a partition where there are several, in words of the command line."""
    count = len(client.topics.show(topic)["partitions"])
    if count > 1:
        from tidegate.errors import RequestInvalid

        raise RequestInvalid(
            reason=f"Topic '{topic}' has {count} partitions, and an offset belongs to one.",
            hint=f"Name it: --partition N (0 to {count - 1}) --from {start}.",
        )


def parse_start(text: str) -> str | dict[str, Any]:
    """Turn the word after --from into what the server takes."""
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return {"offset": int(text)}
    from tidegate.errors import RequestInvalid, TimeRangeInvalid
    from tidegate.model.timeranges import format_time, parse_time

    try:
        return {"timestamp": format_time(parse_time(text))}
    except TimeRangeInvalid as problem:
        raise RequestInvalid(
            reason=f"'{text}' is not a place to read from.",
            hint="--from takes earliest, latest, an offset (42) or a time (2026-01-31T12:00:00Z).",
        ) from problem


def topics_table(topics: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Draw topics for people."""
    from tidegate.cli.listing import Listing

    if not topics:
        return "No topics yet. Make one: tidegate topic create app.events"
    rows = [
        (t["name"], count_text(t["messages"]), str(len(t["partitions"])), bytes_text(t["bytes"]))
        for t in topics
    ]
    figures = (1, 2, 3)
    headings = ("topic", "messages", "partitions", "size")
    return Listing(headings, rows, right=figures, whole=(0, *figures), spare=(2, 3))


def topic_table(topic: Mapping[str, Any]) -> RenderableType:
    """Draw the partitions of a topic for people."""
    title = f"{topic['name']}: {plural(topic['messages'], 'message')}, {bytes_text(topic['bytes'])}"
    rows = [(str(p["partition"]), str(p["start"]), str(p["end"])) for p in topic["partitions"]]
    return table_of(("partition", "earliest offset", "next offset"), rows, right=(0, 1, 2), title=title)


def _payload_batches(payloads: Sequence[str]) -> Iterator[list[Any]]:
    if list(payloads) != ["-"]:
        yield [parse_payload(text, f"Payload {number}") for number, text in enumerate(payloads, start=1)]
        return
    count = 0
    published = "Nothing was published."
    for lines in read_batches(read_stdin):
        yield [parse_payload(line, f"Line {number}", published) for number, line in lines]
        # The caller asks for the next batch when this one is on disk.
        if lines:
            count += len(lines)
            published = f"Published: {plural(count, 'message')}, up to line {lines[-1][0]}; nothing after it."


def _pages(
    client: Client, topic: str, question: dict[str, Any], limit: int | None, follow: bool
) -> Iterator[Sequence[Mapping[str, Any]]]:
    left = limit
    while left is None or left > 0:
        page = PAGE_MESSAGES if left is None else min(PAGE_MESSAGES, left)
        answer = client.topic(topic).consume(**question, limit=page, wait_ms=FOLLOW_WAIT_MS if follow else 0)
        messages = answer["messages"]
        if not messages and not follow:
            return
        yield messages
        left = None if left is None else left - len(messages)
        question["start"] = {"offsets": answer["nextOffsets"]}


def _print_messages(call: Invocation, messages: Sequence[Mapping[str, Any]]) -> None:
    if call.as_json:
        for message in messages:
            call.line(message)
        return
    out = console()
    for message in messages:
        from rich.text import Text

        place = f"{message['partition']}:{message['offset']}"
        line = Text.assemble(
            (f"{place:>8}  ", "cyan"),
            (f"{message['ts']}  ", "dim"),
            (f"{message['key']}  " if message["key"] is not None else "", "yellow"),
            cell_text(message["payload"]),
        )
        out.print(line, soft_wrap=True)
