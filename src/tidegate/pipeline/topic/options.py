"""The options of `tidegate.topic`, source and sink, and their checks.

Spark passes option names in lower case and every value as text. Source and sink share a name and some of
their options; an option of the other side is refused by name.
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
from tidegate.model.times import parse_time
from tidegate.pipeline.topic.client import RETRY_SECONDS_DEFAULT, ServerLocation

# Bounds the memory and the time of one micro-batch; about a second of reading on two cores.
MESSAGES_MAX_DEFAULT = 1_000_000
MESSAGES_MAX_CEILING = 1_000_000_000
PARTITIONS_CEILING = 10_000
RETRY_SECONDS_CEILING = 86_400.0
BATCH_CEILING = 2**53

SHARED_NAMES = ("topic", "url", "token", "home", "caFile", "retrySeconds")
SOURCE_NAMES = (
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "maxMessagesPerBatch",
    "minPartitions",
    "columns",
    "payload",
    "payloadSchema",
    "badPayload",
    "failOnDataLoss",
)
SINK_NAMES = ("writer", "batch")
OPTION_NAMES = (*SHARED_NAMES, *SOURCE_NAMES, *SINK_NAMES)
# Spark adds these by itself; they mean nothing here.
OPTIONS_OF_SPARK = frozenset({"path", "paths", "provider", "checkpointlocation", "queryname"})

StartingOffsets = Literal["earliest", "latest"] | dict[str, int]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of the source."""

    topic: str
    location: ServerLocation
    columns: tuple[str, ...]
    starting_offsets: StartingOffsets = "earliest"
    starting_timestamp: str | None = None
    ending_offsets: Literal["latest"] | dict[str, int] = "latest"
    messages_max: int = MESSAGES_MAX_DEFAULT
    partitions_min: int = 1
    retry_seconds: float = RETRY_SECONDS_DEFAULT
    fail_on_data_loss: bool = True
    payload: Literal["text", "columns"] = "text"
    payload_schema: str | None = None
    bad_payload: Literal["fail", "null"] = "fail"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of the sink; a writer and a batch are for batch queries that may be run again."""

    topic: str
    location: ServerLocation
    retry_seconds: float = RETRY_SECONDS_DEFAULT
    writer: str | None = None
    batch: int | None = None


def parse_options(options: Mapping[str, str], columns: Sequence[str]) -> SourceOptions:
    """Return the options of a reading query, with columns of messages; raise RequestInvalid."""
    options = _check_known(options)
    topic, location, retry_seconds = _shared_options(options)
    ending = options.get("endingoffsets", "latest").strip()
    payload = _choice(options, "payload", ("text", "columns"))
    if "payloadschema" in options and payload != "columns":
        raise RequestInvalid(
            reason="Option payloadSchema is for payload 'columns'", hint='Add .option("payload", "columns").'
        )
    own = columns if payload == "text" else [f"_{name}" for name in columns if name != "payload"]
    return SourceOptions(
        topic=topic,
        location=location,
        columns=_columns(options.get("columns"), own),
        starting_offsets=_starting(options.get("startingoffsets", "earliest").strip()),
        starting_timestamp=_timestamp(options),
        ending_offsets="latest" if ending == "latest" else _offsets("endingOffsets", ending),
        messages_max=int(
            _number(options, "maxMessagesPerBatch", MESSAGES_MAX_DEFAULT, 1, MESSAGES_MAX_CEILING)
        ),
        partitions_min=int(_number(options, "minPartitions", os.cpu_count() or 1, 1, PARTITIONS_CEILING)),
        retry_seconds=retry_seconds,
        fail_on_data_loss=_choice(options, "failOnDataLoss", ("true", "false")) == "true",
        payload="columns" if payload == "columns" else "text",
        payload_schema=options.get("payloadschema"),
        bad_payload="null" if _choice(options, "badPayload", ("fail", "null")) == "null" else "fail",
    )


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Return the options of a writing query, checked; raise RequestInvalid."""
    options = _check_known(options)
    topic, location, retry_seconds = _shared_options(options)
    _refuse_side(options, SOURCE_NAMES, "reads a topic, and this query writes one")
    writer, batch = options.get("writer"), options.get("batch")
    if streaming and (writer is not None or batch is not None):
        raise RequestInvalid(
            reason="Options writer and batch are for batch queries",
            hint="A streaming query is known by its id and counts its batches itself.",
        )
    if (writer is None) != (batch is None):
        raise RequestInvalid(
            reason="Options writer and batch go together",
            hint="Together they name what is written once, however often the query runs; or give neither.",
        )
    number = None if batch is None else int(_number(options, "batch", 0, 0, BATCH_CEILING))
    return SinkOptions(topic, location, retry_seconds, writer, number)


def refuse_sink_options(options: Mapping[str, str]) -> None:
    """Refuse options of the sink in a query that reads."""
    _refuse_side(_check_known(options), SINK_NAMES, "writes a topic, and this query reads one")


def _check_known(options: Mapping[str, str]) -> dict[str, str]:
    lowered = {name.lower(): value for name, value in options.items()}
    own = {name: value for name, value in lowered.items() if name not in OPTIONS_OF_SPARK}
    _refuse_unknown(own)
    return own


def _shared_options(options: Mapping[str, str]) -> tuple[str, ServerLocation, float]:
    topic = options.get("topic")
    if not topic:
        raise RequestInvalid(
            reason="tidegate.topic needs the option 'topic'", hint='Add .option("topic", "<name>").'
        )
    location = ServerLocation(
        options.get("url"), options.get("token"), options.get("home"), options.get("cafile")
    )
    retry_seconds = _number(options, "retrySeconds", RETRY_SECONDS_DEFAULT, 0, RETRY_SECONDS_CEILING)
    return check_topic_name(topic), location, retry_seconds


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in OPTION_NAMES}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
            guess = f"; did you mean '{known[near[0]]}'?" if near else ""
            raise RequestInvalid(
                reason=f"tidegate.topic has no option '{name}'{guess}",
                hint=f"Its options are {', '.join(OPTION_NAMES)}.",
            )


def _refuse_side(options: Mapping[str, str], names: Sequence[str], why: str) -> None:
    for name in names:
        if name.lower() in options:
            raise RequestInvalid(reason=f"Option {name}: it is for a query that {why}", hint="Leave it out.")


def _choice(options: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return an option that is one of a few words; the first is the default."""
    text = options.get(name.lower(), words[0]).strip().lower()
    if text not in words:
        raise RequestInvalid(reason=f"Option {name}: '{text}' is not {' or '.join(words)}", hint="")
    return text


def _number(options: Mapping[str, str], name: str, default: float, low: float, high: float) -> float:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text) if name == "retrySeconds" else int(text)
    except ValueError as problem:
        raise RequestInvalid(reason=f"Option {name}: '{text}' is not a number", hint="") from problem
    if not low <= value <= high:
        raise RequestInvalid(reason=f"Option {name}: {text} is not between {low:g} and {high:g}", hint="")
    return value


def _timestamp(options: Mapping[str, str]) -> str | None:
    text = options.get("startingtimestamp")
    if text is None:
        return None
    if "startingoffsets" in options:
        raise RequestInvalid(
            reason="Options startingOffsets and startingTimestamp both say where to begin", hint="Give one."
        )
    parse_time(text)
    return text


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
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) != len(names):
        wrong = f"there is no column '{unknown[0]}'" if unknown else "name each column once, and at least one"
        raise RequestInvalid(reason=f"Option columns: {wrong}", hint=f"The columns are {', '.join(known)}.")
    return tuple(names)
