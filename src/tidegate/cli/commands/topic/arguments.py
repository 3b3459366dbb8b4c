"""The arguments and options of the topic commands, parsed into parameters of requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.completion import complete_groups, complete_topics
from tidegate.errors import DurationInvalid, RequestInvalid

if TYPE_CHECKING:
    from tidegate.model.durations import Duration
    from tidegate.sdk.client import Client

NO_LIMIT = "none"  # the text that removes a limit
SIZE_BYTES = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
# How to name the partition of an offset: with another option, or in front of it.
ADD_FLAG = "Name it: --partition N (0 to {last}) {option} {offset}."
ADD_PREFIX = "Name it: {option} PARTITION:{offset}, with a partition from 0 to {last}."
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)")
_UPTO = re.compile(r"(?:([0-9]+):)?([0-9]+)")

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
GroupOption = Annotated[
    str,
    typer.Option("--group", "-g", metavar="GROUP", help="Consumer group.", autocompletion=complete_groups),
]
MemberOption = Annotated[
    str | None,
    typer.Option("--member", metavar="NAME", help="Name within the group; else the user of the token."),
]
LeasesOption = Annotated[
    list[str] | None,
    typer.Option("--lease", metavar="ID", help="A lease that consume printed; again for several."),
]


def parse_start(text: str, option: str = "--from") -> str | dict[str, Any]:
    """Return the start of a request, from the text of --from or --to."""
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal():
        return {"offset": int(text)}
    from tidegate.errors import TimeRangeInvalid
    from tidegate.model.times import format_time, parse_time

    try:
        return {"timestamp": format_time(parse_time(text))}
    except TimeRangeInvalid as problem:
        raise RequestInvalid(
            reason=f"'{text}' is not a place in a topic.",
            hint=f"{option} takes earliest, latest, an offset (42) or a time (2026-01-31T12:00:00Z).",
        ) from problem


def check_one_partition(client: Client, topic: str, option: str, offset: str, hint: str = ADD_FLAG) -> None:
    """Raise RequestInvalid for an offset without a partition where there are several; name the flag."""
    count = len(client.topics.show(topic)["partitions"])
    if count > 1:
        raise RequestInvalid(
            reason=f"Topic '{topic}' has {count} partitions, and an offset belongs to one.",
            hint=hint.format(last=count - 1, option=option, offset=offset),
        )


def parse_milliseconds(text: str | None, option: str) -> int | None:
    """Return the duration of an option in whole milliseconds; None for None."""
    if text is None:
        return None
    duration = _duration(text, option)
    if duration.us % 1000:
        raise RequestInvalid(
            reason=f"{option} '{text}' is finer than a millisecond.", hint=f"Such as {option} '250 ms'."
        )
    return duration.us // 1000


def parse_retention(text: str | None) -> int | None:
    """Return the duration of --retention in whole seconds; None, for no limit, where it is `none`."""
    hint = "Such as --retention '7 days', or --retention none to keep messages whatever their age."
    return _whole_seconds(text, "--retention", hint)


def parse_dedup(text: str | None) -> int | None:
    """Return the duration of --dedup in whole seconds; None, for no dedup keys, where it is `none`."""
    return _whole_seconds(text, "--dedup", "Such as --dedup '1 day', or --dedup none to take no dedup keys.")


def _whole_seconds(text: str | None, option: str, hint: str) -> int | None:
    if text is None or text.strip().lower() == NO_LIMIT:
        return None
    duration = _duration(text, option)
    if duration.us % 1_000_000 or not duration.us:
        raise RequestInvalid(reason=f"{option} '{text}' is not one whole second or more.", hint=hint)
    return duration.us // 1_000_000


def parse_size(text: str | None) -> int | None:
    """Return the size of --max-bytes (500 MB, 1GiB) in bytes; None, for no limit, where it is `none`."""
    if text is None or text.strip().lower() == NO_LIMIT:
        return None
    matched = _SIZE.fullmatch(text.strip().lower())
    unit = SIZE_BYTES.get(matched[2]) if matched else None
    size = Fraction(matched[1]) * unit if matched and unit else Fraction(0)
    if size < 1 or size.denominator != 1:
        raise RequestInvalid(
            reason=f"--max-bytes '{text}' is not a size.",
            hint="Such as --max-bytes 500MB, 10GB or 1GiB, or --max-bytes none for no limit.",
        )
    return int(size)


def parse_upto(client: Client, topic: str, texts: Sequence[str]) -> dict[int, int]:
    """Return the offsets of --upto by partition; without a partition the topic must have only one."""
    upto: dict[int, int] = {}
    for text in texts:
        matched = _UPTO.fullmatch(text)
        if matched is None:
            raise RequestInvalid(
                reason=f"'{text}' is not a place in a topic.",
                hint="--upto takes OFFSET, or PARTITION:OFFSET such as 0:991; that message is included.",
            )
        if matched[1] is None:
            check_one_partition(client, topic, "--upto", text, ADD_PREFIX)
        partition = int(matched[1] or 0)
        if partition in upto:
            raise RequestInvalid(
                reason=f"--upto names partition {partition} twice.", hint="Give the higher offset alone."
            )
        upto[partition] = int(matched[2])
    return upto


@contextmanager
def option_errors(field: str, option: str) -> Iterator[None]:
    """Raise the server's refusal of a field of milliseconds with the option that set it, in durations."""
    try:
        yield
    except RequestInvalid as error:
        message = _in_durations(error.message, field, option)
        if message is None:
            raise
        hint = error.hint or f"Such as {option} '5 min'."
        raise RequestInvalid(reason=message, hint=hint) from error


def _in_durations(message: str, field: str, option: str) -> str | None:
    from tidegate.model.durations import Duration

    matched = re.fullmatch(rf"{field} is ([0-9]+) to ([0-9]+)(?:, not ([0-9]+)| \(.*\))\.", message)
    if matched is None:
        return None
    least, most, value = (number and str(Duration(int(number) * 1000)) for number in matched.groups())
    return f"{option} is {least} to {most}{f', not {value}' if value else ''}."


def places_text(places: Mapping[str, int]) -> str:
    """Return offsets by partition as text: 0:18, 1:4."""
    return ", ".join(f"{partition}:{offset}" for partition, offset in sorted(places.items(), key=_number))


def _number(place: tuple[str, int]) -> int:
    return int(place[0])


def _duration(text: str, option: str) -> Duration:
    from tidegate.model.durations import parse_duration

    try:
        return parse_duration(text)
    except DurationInvalid as problem:
        raise RequestInvalid(reason=f"{option}: {problem.message}", hint=problem.hint) from problem
