"""`tidegate topic publish` and `tidegate topic consume`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.advice import UsageRefused
from tidegate.cli.completion import complete_groups, complete_starts
from tidegate.cli.interrupts import HeldInterrupts
from tidegate.cli.invocation import Invocation, command, console
from tidegate.cli.payloads import messages_of, parse_payload, read_batches, read_stdin
from tidegate.cli.show import cell_text, plural
from tidegate.cli.topic_words import (
    MemberOption,
    PartitionOption,
    TopicArgument,
    check_one_partition,
    parse_milliseconds,
    parse_start,
    worded,
)
from tidegate.errors import LeaseLost

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tidegate.sdk.client import Client

CONSUME_LIMIT = 100
PAGE_MESSAGES = 1000  # messages asked for at a time
FOLLOW_WAIT_MS = 5000  # how long the server holds a question that finds nothing; Ctrl-C ends it at once
# In a group fewer: what is taken and not printed yet is held, and nobody else gets it meanwhile.
GROUP_PAGE_MESSAGES = 100
# In a group Ctrl-C waits for the answer under way, so that nothing is taken that nobody gives back.
GROUP_WAIT_MS = 1000

MembershipOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        metavar="GROUP",
        help="Take messages as a member of this group.",
        autocompletion=complete_groups,
    ),
]
StartOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="WHERE",
        help="earliest, latest, an offset, or a time (2026-01-31T12:00Z).",
        autocompletion=complete_starts,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to `tidegate topic`."""
    command(app, "publish", tenant=True)(publish)
    command(app, "consume", tenant=True)(consume)


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
    producer: Annotated[
        str | None, typer.Option(metavar="ID", help="Name under which a repeat is recognised.")
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="The producer's number of the first message.")
    ] = None,
) -> None:
    """Publish messages; they are on disk when the command answers."""
    if (producer is None) != (sequence is None):
        raise UsageRefused(
            "--producer and --sequence go together: the number of the first message, 0 for a new producer."
        )
    count = 0
    with call.client() as client:
        for batch in _payload_batches(payloads):
            number = None if sequence is None else sequence + count
            messages = messages_of(batch, key, partition)
            offsets = client.topic(topic).publish(messages, producer_id=producer, sequence=number)
            count += len(offsets)
            if call.as_json:
                call.line({"offsets": offsets})
    if not call.as_json:
        follows = "" if sequence is None else f" Next: --sequence {sequence + count}."
        typer.echo(f"Published {plural(count, 'message')} to {topic}.{follows}")


@dataclass(frozen=True, slots=True)
class Reading:
    """What consume was asked for."""

    topic: str
    start: str
    partition: int | None
    limit: int | None
    wait_ms: int
    follow: bool


@dataclass(frozen=True, slots=True)
class Membership:
    """As whom a group's messages are taken, and whether what was printed counts as done."""

    group: str
    member: str | None
    lease_ms: int | None
    ack: bool


def consume(  # noqa: PLR0913 - one parameter for each option
    call: Invocation,
    *,
    topic: TopicArgument,
    group: MembershipOption = None,
    member: MemberOption = None,
    start: StartOption = "earliest",
    partition: PartitionOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most messages; 100, or no limit with --follow.")
    ] = None,
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="Wait so long for the first message, such as '5 s'.")
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long the group holds them for you, such as '30 s'."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until Ctrl-C.")] = False,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge what was printed.")] = False,
) -> None:
    """Read messages, which changes nothing; or take them as a member of a group. With --json one a line."""
    wait_ms = parse_milliseconds(wait, "--wait") or 0
    lease_ms = parse_milliseconds(lease, "--lease")
    if follow and wait is not None:
        raise UsageRefused("--follow waits without end: leave out --wait.")
    if limit is None and not follow:
        limit = CONSUME_LIMIT
    reading = Reading(topic, start, partition, limit, wait_ms, follow)
    if group is None:
        if member is not None or lease is not None or ack:
            raise UsageRefused("--member, --lease and --ack are about a group: add --group GROUP.")
        _read(call, reading)
        return
    if follow and not ack:
        raise UsageRefused(
            "--follow with --group needs --ack: what is not acknowledged comes again, and again."
        )
    _take(call, reading, Membership(group, member, lease_ms, ack))


class Lines:
    """Prints messages, each as one line, at once."""

    def __init__(self, call: Invocation, *, with_leases: bool = False) -> None:
        self._call = call
        self._with_leases = with_leases
        self._out: Console | None = None

    def show(self, message: Mapping[str, Any]) -> None:
        """Print one message."""
        if self._call.as_json:
            self._call.line(message)
            return
        if self._out is None:
            self._out = console()
        self._out.print(_message_line(message, with_lease=self._with_leases), soft_wrap=True)


def _read(call: Invocation, reading: Reading) -> None:
    """Print messages from a place on; nothing is remembered."""
    question = _question(reading)
    lines = Lines(call)
    shown = 0
    with call.client() as client:
        if reading.partition is None and reading.start.isdecimal():
            check_one_partition(client, reading.topic, "--from", reading.start)
        for messages in _pages(client, reading, question):
            shown += len(messages)
            for message in messages:
                lines.show(message)
    if not shown and not call.as_json:
        typer.echo(f"No messages in {reading.topic} from {reading.start} on.", err=True)


def _take(call: Invocation, reading: Reading, membership: Membership) -> None:
    """Print messages that the group gives; acknowledge them if so asked, give back what was not printed."""
    lines = Lines(call, with_leases=not membership.ack)
    shown = 0
    with call.client() as client, HeldInterrupts() as stop:
        if reading.partition is None and reading.start.isdecimal():
            check_one_partition(client, reading.topic, "--from", reading.start)
        for messages in _taken_pages(call, client, reading, membership, stop):
            printed = 0
            try:
                for message in messages:
                    if stop.asked:
                        break
                    lines.show(message)
                    printed += 1
            finally:
                _settle(client, reading, membership, messages, printed)
            shown += printed
    if not shown and not call.as_json:
        typer.echo(f"Nothing to give to {membership.group} from {reading.topic} now.", err=True)


def _settle(
    client: Client,
    reading: Reading,
    membership: Membership,
    messages: Sequence[Mapping[str, Any]],
    printed: int,
) -> None:
    """Give back what was not printed, and acknowledge what was, if so asked."""
    topic = client.topic(reading.topic)
    leases = [message["lease"] for message in messages]
    if leases[printed:]:
        try:
            topic.nack(membership.group, leases[printed:], release=True, member=membership.member)
        except LeaseLost:
            pass  # their time is over, which gives them back as well
    if not membership.ack or not printed:
        return
    try:
        topic.ack(membership.group, leases=leases[:printed], member=membership.member)
    except LeaseLost as lost:
        if not reading.follow:
            raise
        typer.echo(f"{lost.message} {lost.hint}", err=True)


def _question(reading: Reading) -> dict[str, Any]:
    question: dict[str, Any] = {"start": parse_start(reading.start)}
    if reading.partition is not None:
        question["partition"] = reading.partition
    return question


def _pages(
    client: Client, reading: Reading, question: dict[str, Any]
) -> Iterator[Sequence[Mapping[str, Any]]]:
    left = reading.limit
    waited_ms = 0
    while left is None or left > 0:
        page = PAGE_MESSAGES if left is None else min(PAGE_MESSAGES, left)
        step_ms = FOLLOW_WAIT_MS if reading.follow else min(FOLLOW_WAIT_MS, reading.wait_ms - waited_ms)
        answer = client.topic(reading.topic).consume(**question, limit=page, wait_ms=step_ms)
        messages = answer["messages"]
        waited_ms = reading.wait_ms if messages else waited_ms + step_ms
        if not messages and not reading.follow and waited_ms >= reading.wait_ms:
            return
        yield messages
        left = None if left is None else left - len(messages)
        question["start"] = {"offsets": answer["nextOffsets"]}


def _taken_pages(
    call: Invocation, client: Client, reading: Reading, membership: Membership, stop: HeldInterrupts
) -> Iterator[Sequence[Mapping[str, Any]]]:
    who = {"group": membership.group, "member": membership.member, "lease_ms": membership.lease_ms}
    question = {**_question(reading), **who}
    left = reading.limit
    waited_ms = 0
    while not stop.asked and (left is None or left > 0):
        page = GROUP_PAGE_MESSAGES if left is None else min(GROUP_PAGE_MESSAGES, left)
        step_ms = GROUP_WAIT_MS if reading.follow else min(GROUP_WAIT_MS, reading.wait_ms - waited_ms)
        with worded("leaseMs", "--lease"):
            answer = client.topic(reading.topic).consume(**question, limit=page, wait_ms=step_ms)
        messages = answer["messages"]
        _tell_missed(call, answer.get("missed") or {})
        waited_ms = reading.wait_ms if messages else waited_ms + step_ms
        if not messages and not reading.follow and waited_ms >= reading.wait_ms:
            return
        yield messages
        left = None if left is None else left - len(messages)


def _tell_missed(call: Invocation, missed: Mapping[str, int]) -> None:
    """Say on stderr what the group can no longer get."""
    if not any(missed.values()):
        return
    if call.as_json:
        import json

        typer.echo(json.dumps({"missed": dict(missed)}), err=True)
        return
    for partition, count in missed.items():
        typer.echo(
            f"Missed {plural(count, 'message')} of partition {partition}: removed before the group had them.",
            err=True,
        )


def _message_line(message: Mapping[str, Any], *, with_lease: bool) -> Text:
    from rich.text import Text

    place = f"{message['partition']}:{message['offset']}"
    routed = f"{message['op']} {message['source']}  " if message["source"] is not None else ""
    deliveries = message.get("deliveries") or 1
    return Text.assemble(
        (f"{place:>8}  ", "cyan"),
        (f"{message['ts']}  ", "dim"),
        (f"lease {message['lease']}  " if with_lease else "", "magenta"),
        (f"delivery {deliveries}  " if deliveries > 1 else "", "red"),
        (routed, "green"),
        (f"{message['key']}  " if message["key"] is not None else "", "yellow"),
        cell_text(message["payload"]),
    )


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
