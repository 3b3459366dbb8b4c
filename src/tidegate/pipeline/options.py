"""Options of the source `tidegate.topic`: takes what Spark was given, gives checked values, keeps nothing.

Spark passes option names in lower case and every value as text.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tidegate.errors import RequestInvalid
from tidegate.model.names import check_topic_name
from tidegate.pipeline.wire import RETRY_SECONDS_DEFAULT, Place

# Bounds the memory and the time of one micro-batch; about a second of reading on two cores.
MESSAGES_MAX_DEFAULT = 1_000_000
MESSAGES_MAX_CEILING = 1_000_000_000
PARTITIONS_CEILING = 10_000
RETRY_SECONDS_CEILING = 86_400.0

OPTION_NAMES = (
    "topic",
    "url",
    "token",
    "home",
    "caFile",
    "startingOffsets",
    "endingOffsets",
    "maxMessagesPerBatch",
    "minPartitions",
    "retrySeconds",
    "columns",
)
# Spark adds these by itself; they say nothing to us.
OPTIONS_OF_SPARK = frozenset({"path", "paths", "provider"})

StartingOffsets = Literal["earliest", "latest"] | dict[str, int]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a query asked of the source."""

    topic: str
    place: Place
    columns: tuple[str, ...]
    starting_offsets: StartingOffsets = "earliest"
    ending_offsets: Literal["latest"] | dict[str, int] = "latest"
    messages_max: int = MESSAGES_MAX_DEFAULT
    partitions_min: int = 1
    retry_seconds: float = RETRY_SECONDS_DEFAULT


def parse_options(options: Mapping[str, str], columns: Sequence[str]) -> SourceOptions:
    """Check the options of a query against the columns that there are; raise RequestInvalid."""
    given = {name.lower(): value for name, value in options.items() if name.lower() not in OPTIONS_OF_SPARK}
    _refuse_unknown(given)
    topic = given.get("topic")
    if not topic:
        raise RequestInvalid(
            reason="tidegate.topic needs the option 'topic'", hint='Add .option("topic", "<name>").'
        )
    ending = given.get("endingoffsets", "latest").strip()
    return SourceOptions(
        topic=check_topic_name(topic),
        place=Place(given.get("url"), given.get("token"), given.get("home"), given.get("cafile")),
        columns=_columns(given.get("columns"), columns),
        starting_offsets=_starting(given.get("startingoffsets", "earliest").strip()),
        ending_offsets="latest" if ending == "latest" else _offsets("endingOffsets", ending),
        messages_max=int(
            _number(given, "maxMessagesPerBatch", MESSAGES_MAX_DEFAULT, 1, MESSAGES_MAX_CEILING)
        ),
        partitions_min=int(_number(given, "minPartitions", os.cpu_count() or 1, 1, PARTITIONS_CEILING)),
        retry_seconds=_number(given, "retrySeconds", RETRY_SECONDS_DEFAULT, 0, RETRY_SECONDS_CEILING),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTION_NAMES}
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
            guess = f"; did you mean '{known[near[0]]}'?" if near else ""
            raise RequestInvalid(
                reason=f"tidegate.topic has no option '{name}'{guess}",
                hint=f"Its options are {', '.join(OPTION_NAMES)}.",
            )


def _number(given: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text) if name == "retrySeconds" else int(text)
    except ValueError as problem:
        raise RequestInvalid(reason=f"Option {name}: '{text}' is not a number", hint="") from problem
    if not low <= value <= high:
        raise RequestInvalid(reason=f"Option {name}: {text} is not between {low:g} and {high:g}", hint="")
    return value


def _starting(text: str) -> StartingOffsets:
    if text == "earliest":
        return "earliest"
    return "latest" if text == "latest" else _offsets("startingOffsets", text)


def _offsets(name: str, text: str) -> dict[str, int]:
    hint = f'Write {name} as "earliest", "latest" or JSON like {{"0": 42}}: partition and offset.'
    try:
        parsed = json.loads(text)
    except ValueError as problem:
        raise RequestInvalid(reason=f"Option {name}: '{text}' is not JSON", hint=hint) from problem
    if not isinstance(parsed, dict) or not parsed:
        raise RequestInvalid(reason=f"Option {name}: '{text}' is not a JSON object of offsets", hint=hint)
    for partition, offset in parsed.items():
        fits = partition.isdecimal() and type(offset) is int and offset >= 0
        if not fits:
            reason = f"Option {name}: {partition!r}: {offset!r} is not a partition and an offset"
            raise RequestInvalid(reason=reason, hint=hint)
    return {str(int(partition)): offset for partition, offset in parsed.items()}


def _columns(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    if text is None:
        return tuple(known)
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted or len(set(wanted)) != len(wanted):
        wrong = f"there is no column '{unknown[0]}'" if unknown else "name each column once, and at least one"
        raise RequestInvalid(reason=f"Option columns: {wrong}", hint=f"The columns are {', '.join(known)}.")
    return tuple(wanted)
