"""`tidegate topic publish` and `tidegate topic consume`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.commands.topic.arguments import (
    MemberOption,
    PartitionOption,
    TopicArgument,
    check_one_partition,
    parse_milliseconds,
    parse_start,
)
from tidegate.cli.commands.topic.consume_loop import (
    ConsumeOptions,
    Membership,
    RetryLoop,
    group_pages,
    pages,
    release,
    settle,
)
from tidegate.cli.completion import complete_groups, complete_starts
from tidegate.cli.hints import UsageRefused
from tidegate.cli.invocation import Invocation, command, console
from tidegate.cli.output.format import cell_text, plural, time_text
from tidegate.cli.supervision.child import DeferredInterrupt
from tidegate.errors import RequestInvalid

if TYPE_CHECKING:
    from rich.console import Console

    from tidegate.sdk.client import Client

CONSUME_LIMIT = 100
PLACES_MAX = 10  # first messages that are named; --json has all

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


def publish(  # noqa: PLR0913 - one parameter for each option
    call: Invocation,
    *,
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
    dedup_key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Store it once in the topic's dedup time; one for each payload."),
    ] = None,
) -> None:
    """Publish messages; they are on disk when the command answers."""
    if (producer is None) != (sequence is None):
        raise UsageRefused(
            "--producer and --sequence go together: the number of the first message, 0 for a new producer."
        )
    if dedup_key and (list(payloads) == ["-"] or len(dedup_key) != len(payloads)):
        raise UsageRefused("--dedup-key is given once for each payload, in their order, and not with '-'.")
    count = 0
    firsts: list[Mapping[str, Any]] = []
    with call.client() as client:
        for batch in _payload_batches(payloads):
            number = None if sequence is None else sequence + count
            messages = messages_of(batch, key, partition, dedup_key or ())
            offsets = client.topic(topic).publish(messages, producer_id=producer, sequence=number)
            count += len(offsets)
            firsts += [place for place in offsets if place.get("duplicate", False)]
            if call.as_json:
                call.line({"offsets": offsets})
    if not call.as_json:
        follows = "" if sequence is None else f" Next: --sequence {sequence + count}."
        published = plural(count - len(firsts), "message")
        typer.echo(f"Published {published} to {topic}.{_dropped_text(firsts)}{follows}")


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
    parse_start(start)  # a wrong one is refused before any request
    options = ConsumeOptions(topic, start, partition, limit, wait_ms, follow)
    if group is None:
        if member is not None or lease is not None or ack:
            raise UsageRefused("--member, --lease and --ack are about a group: add --group GROUP.")
        _read(call, options)
        return
    if follow and not ack:
        raise UsageRefused(
            "--follow with --group needs --ack: what is not acknowledged is redelivered again and again."
        )
    _take(call, options, Membership(group, member, lease_ms, ack))


class MessagePrinter:
    """Prints messages, each as one line, and flushes."""

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
        parts = _message_parts(message, with_lease=self._with_leases)
        if self._out.is_terminal:
            from rich.text import Text

            self._out.print(Text.assemble(*parts), soft_wrap=True)
        else:
            # Styles are not shown here, and Rich is slower than the server.
            sys.stdout.write("".join(text for text, _ in parts) + "\n")
            sys.stdout.flush()


def _read(call: Invocation, options: ConsumeOptions) -> None:
    """Print messages from an offset on; no position is stored."""
    printer = MessagePrinter(call)
    shown = 0
    with call.client() as client:
        if options.partition is None and options.start.isdecimal():
            check_one_partition(client, options.topic, "--from", options.start)
        for messages in pages(client, options, RetryLoop(call, follow=options.follow)):
            shown += len(messages)
            for message in messages:
                printer.show(message)
    if not shown and not call.as_json:
        typer.echo(f"No messages in {options.topic} from {options.start} on.", err=True)


def _take(call: Invocation, options: ConsumeOptions, membership: Membership) -> None:
    """Print messages that the group leases; with --ack acknowledge them; release what was not printed."""
    printer = MessagePrinter(call, with_leases=not membership.ack)
    shown = 0
    with call.client() as client, DeferredInterrupt() as stop:
        if options.partition is None and options.start.isdecimal():
            check_one_partition(client, options.topic, "--from", options.start)
        loop = RetryLoop(call, follow=options.follow, stop=stop)
        for messages in group_pages(call, client, options, membership, loop):
            leases = [message["lease"] for message in messages]
            printed = 0
            try:
                for message in messages:
                    if stop.is_set:
                        break
                    printer.show(message)
                    printed += 1
            finally:
                if leases[printed:]:
                    release(client.topic(options.topic), membership, leases[printed:])
                if membership.ack and printed:
                    settle(client, options, membership, leases[:printed], loop)
            shown += printed
        if shown and not membership.ack and not call.as_json:
            typer.echo(f"Nothing was acknowledged; {_again(client, options, membership, shown)}", err=True)
    if not shown and not call.as_json:
        typer.echo(f"No messages for {membership.group} in {options.topic} now.", err=True)


def _again(client: Client, options: ConsumeOptions, membership: Membership, count: int) -> str:
    """Return the text about when unacknowledged messages are delivered again."""
    if membership.lease_ms is not None:
        from tidegate.model.durations import Duration

        when = f"in {Duration(membership.lease_ms * 1000)}"
    else:
        # The server knows the default lease, and its end by its own clock.
        answer = client.topic(options.topic).extend(membership.group, member=membership.member)
        when = f"at {time_text(answer['expiresAt'])}"
    return f"{'it comes' if count == 1 else 'they come'} again {when}. --ack acknowledges."


def _message_parts(message: Mapping[str, Any], *, with_lease: bool) -> list[tuple[str, str]]:
    """Return the texts on the line of a message, each with its style."""
    place = f"{message['partition']}:{message['offset']}"
    routed = f"{message['op']} {message['source']}  " if message["source"] is not None else ""
    deliveries = message.get("deliveries") or 1
    return [
        (f"{place:>8}  ", "cyan"),
        (f"{message['ts']}  ", "dim"),
        (f"lease {message['lease']}  " if with_lease else "", "magenta"),
        (f"delivery {deliveries}  " if deliveries > 1 else "", "red"),
        (routed, "green"),
        (f"{message['key']}  " if message["key"] is not None else "", "yellow"),
        (cell_text(message["payload"]), ""),
        (f"  unreadable: {message['unreadable']}" if "unreadable" in message else "", "red"),
    ]


def _dropped_text(firsts: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of dropped duplicates, and the offsets of the first messages."""
    if not firsts:
        return ""
    places = list(dict.fromkeys((one["partition"], one["offset"]) for one in firsts))
    if len(places) == 1:
        partition, offset = places[0]
        where = f"the first one is in partition {partition} at offset {offset}"
    else:
        shown = ", ".join(f"{partition}:{offset}" for partition, offset in places[:PLACES_MAX])
        more = f" and {len(places) - PLACES_MAX:,} more" if len(places) > PLACES_MAX else ""
        where = f"the first ones are at {shown}{more} (partition:offset)"
    return f" Dropped {plural(len(firsts), 'duplicate')}: {where}."


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


# Most bytes of one read of stdin. A slow writer is read line by line, a fast one in large requests.
READ_BYTES = 256 * 1024
# Most lines in one request, well below the default of server.messages_max.
LINES_PER_REQUEST_MAX = 10_000
STDIN = 0


def parse_payload(text: str | bytes, place: str, published: str = "Nothing was published.") -> Any:
    """Return one payload as JSON; else raise, with its place and what was published before."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        shown = text if isinstance(text, str) else text.decode("utf-8", errors="replace")
        raise RequestInvalid(
            reason=f"{place} is not JSON ({problem}): {shown[:80]}",
            hint=f"Text needs quotes of its own: '\"hello\"'. {published}",
        ) from problem


def read_batches(read: Callable[[int], bytes]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the lines of a stream that are not blank, numbered from 1, as many at a time as have arrived."""
    number = 0
    rest = b""
    while True:
        chunk = read(READ_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        if not chunk:
            lines, rest = [rest], b""
        numbered = [(number + index, line) for index, line in enumerate(lines, start=1) if line.strip()]
        number += len(lines)
        for start in range(0, len(numbered), LINES_PER_REQUEST_MAX):
            yield numbered[start : start + LINES_PER_REQUEST_MAX]
        if not chunk:
            return


def read_stdin(size: int) -> bytes:
    """Return what stdin has, at most `size` bytes."""
    return os.read(STDIN, size)


def messages_of(
    payloads: Sequence[Any], key: str | None, partition: int | None, dedup_keys: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the messages of a publish request; there are as many dedup keys as payloads, or none."""
    message: dict[str, Any] = {}
    if key is not None:
        message["key"] = key
    if partition is not None:
        message["partition"] = partition
    if dedup_keys:
        pairs = zip(payloads, dedup_keys, strict=True)
        return [{**message, "payload": payload, "dedupKey": dedup_key} for payload, dedup_key in pairs]
    return [{**message, "payload": payload} for payload in payloads]
