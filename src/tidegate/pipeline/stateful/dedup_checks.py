"""What a deduplication is asked to do: takes options and a DataFrame, gives a refusal of what cannot run.

Nothing is written, in the checkpoint or elsewhere.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tidegate.checkpoint.settings import StateSettings
from tidegate.dedup.settings import SegmentRule
from tidegate.errors import StateInvalid
from tidegate.pipeline.stateful.arguments import (
    COLUMN,
    COUNT,
    FLAG,
    ROCKS,
    Kinds,
    alike,
    check_frame,
    check_kinds,
    length_us,
    shown,
)
from tidegate.pipeline.stateful.driver import quoted
from tidegate.pipeline.stateful.key_digests import ContentHash
from tidegate.pipeline.stateful.keyed_checks import check_event_time, check_name, check_start_options, invalid

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Shorter ones would be made and removed with every batch.
INTERVAL_US_MIN = 1_000_000
FIRST_TIME_SUFFIX = "_first_time"
# Rows a second. No disk takes more; filters are made for as many as are expected.
EXPECTED_RATE_MAX = 100_000_000

_A_KEY = (
    "it is the name of a column, an expression, a list of them in an order that stays, or content_hash(…)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupOptions:
    """How a deduplication runs; what `deduplicate` takes, checked one by one."""

    name: str
    event_time: str
    rule: SegmentRule
    settings: StateSettings
    checkpoint: str | None = None
    savepoint: str | None = None
    partitions: int | None = None
    max_parallelism: int | None = None
    outcome: str | None = None
    exact_keys: bool = False
    offset: str | None = None
    # Rows a second; None: not known.
    expected_rate: float | None = None
    # The name of this run of a batch job.
    run: str | None = None


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a key: its expression, type and name, and its place where it is the caller's column."""

    column: Column
    kind: DataType
    name: str
    place: int | None


@dataclass(frozen=True, slots=True)
class DedupKey:
    """What rows are compared by; `is_content` when it is the hash of its columns' content."""

    parts: tuple[KeyPart, ...]
    is_content: bool = False


def check_given(given: Mapping[str, Any]) -> None:
    """Refuse what is of another type than `deduplicate` takes, by the names of its arguments."""
    check_name(given["name"])
    name = str(given["name"])
    if not _may_be_key(given["on"]):
        raise StateInvalid(operator=name, reason=f"on is {shown(given['on'])}; {_A_KEY}")
    check_kinds(name, given, _KINDS)
    check_frame(name, given["df"])


def _is_name_or_none(found: object) -> bool:
    return found is None or isinstance(found, str)


def _is_rate(found: object) -> bool:
    if found is None:
        return True
    is_number = isinstance(found, numbers.Real) and not isinstance(found, bool)
    return is_number and 0 < float(found) <= EXPECTED_RATE_MAX  # type: ignore[arg-type]


_KINDS: Kinds = {
    "event_time": COLUMN,
    "outcome": (_is_name_or_none, "the name of a new column, as text, or None"),
    "offset": (_is_name_or_none, "the name of a bigint column, or None"),
    "exact_keys": FLAG,
    "partitions": COUNT,
    "max_parallelism": COUNT,
    "snapshot_every": COUNT,
    "rocks": ROCKS,
    "expected_rate": (
        _is_rate,
        f"a number of rows a second, more than 0 and {EXPECTED_RATE_MAX:,} at most, or None",
    ),
}


def _may_be_key(on: object) -> bool:
    """Return whether a key may be of this type; a set's order changes, and text's letters are no columns."""
    from pyspark.sql import Column

    if isinstance(on, str | Column | ContentHash):
        return True
    return isinstance(on, Sequence) and not isinstance(on, bytes | bytearray | memoryview)


def find_rule(name: str, retention: str | timedelta, interval: str | timedelta | None) -> SegmentRule:
    """Return the rule that a retention and an interval say; StateInvalid with what is wrong."""
    retention_us = length_us(name, "retention", retention)
    interval_us = None if interval is None else length_us(name, "interval", interval)
    if retention_us == 0:
        raise StateInvalid(operator=name, reason=f"its retention is '{retention}'; it is more than nothing")
    if interval_us is not None and interval_us < INTERVAL_US_MIN:
        raise StateInvalid(operator=name, reason=f"its interval is '{interval}'; it is a second or more")
    try:
        return SegmentRule.of(retention_us, interval_us)
    except StateInvalid as problem:
        raise StateInvalid(operator=name, reason=str(problem.values["reason"])) from problem


def find_key(df: DataFrame, name: str, on: str | Column | ContentHash | Sequence[str | Column]) -> DedupKey:
    """Return what rows are compared by.

    StateInvalid for a column that is not there, or stands there twice.
    """
    from pyspark.sql import Column

    if isinstance(on, ContentHash):
        wanted: list[str | Column] = list(on.columns or df.columns)
    else:
        wanted = [on] if isinstance(on, str | Column) else list(on)
    if not wanted:
        raise StateInvalid(operator=name, reason="it has no key; name one column or several")
    parts = tuple(_part(df, name, one) for one in wanted)
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise StateInvalid(operator=name, reason="a column stands in its key twice")
    return DedupKey(parts, isinstance(on, ContentHash))


def _part(df: DataFrame, name: str, one: str | Column) -> KeyPart:
    from pyspark.sql import Column

    if isinstance(one, Column):
        return _expression(df, name, one)
    if not isinstance(one, str):
        reason = f"its key has {one!r}; a key is columns, by their names or as expressions"
        raise StateInvalid(operator=name, reason=reason)
    found = alike(df, one)
    if len(found) != 1:
        many = "more than one column" if found else "no column"
        reason = f"there is {many} '{one}' to be its key; there are {df.columns}"
        raise StateInvalid(operator=name, reason=reason)
    one = found[0]
    return KeyPart(quoted(one), df.schema[one].dataType, one, df.columns.index(one))


def _expression(df: DataFrame, name: str, one: Column) -> KeyPart:
    """Return the part of a key that is an expression; what makes rows, or needs many, is none."""
    from pyspark.errors import AnalysisException

    try:
        found = df.select(one).schema.fields
        # Inside an expression, beside all columns, Spark takes what has one value for each row.
        is_single = len(found) == 1 and len(df.select("*", one.isNull()).schema.fields) == len(df.columns) + 1
    except AnalysisException as problem:
        first = str(problem).strip().partition("\n")[0]
        raise StateInvalid(operator=name, reason=f"its key has {shown(one)}. {first}") from problem
    if not is_single:
        reason = f"its key has {shown(one)}, which is not one column; name the columns, or use content_hash()"
        raise StateInvalid(operator=name, reason=reason)
    return KeyPart(one, found[0].dataType, found[0].name, None)


def check_dedup(df: DataFrame, options: DedupOptions, key: DedupKey, max_parallelism: int) -> None:
    """Refuse what cannot run."""
    check_start_options(df, options, max_parallelism)
    check_event_time(df, options, options.event_time)
    for option, column in (("event_time", options.event_time), ("offset", options.offset)):
        if column is not None and df.columns.count(column) > 1:
            raise invalid(options, f"more than one column is named '{column}', which {option} names")
    _check_offset(df, options)
    _check_outcome(df, options)
    _check_types(df, options)
    if options.exact_keys and key.is_content:
        raise invalid(options, "exact_keys stores keys themselves, and a content hash is none; leave one out")


def _check_offset(df: DataFrame, options: DedupOptions) -> None:
    from pyspark.sql.types import LongType

    if options.offset is None:
        return
    if options.offset not in df.columns:
        reason = f"there is no column '{options.offset}' to be its offset; there are {df.columns}"
        raise invalid(options, reason)
    kind = df.schema[options.offset].dataType
    if not isinstance(kind, LongType):
        raise invalid(options, f"offset '{options.offset}' is {kind.simpleString()}; cast it to bigint")


def _check_outcome(df: DataFrame, options: DedupOptions) -> None:
    """Refuse names of columns that are there already; Spark takes no notice of upper case."""
    if options.outcome is None:
        return
    if not options.outcome:
        raise invalid(options, "outcome is empty; it is the name of a new column, or None")
    taken = {column.lower() for column in df.columns}
    for new in (options.outcome, options.outcome + FIRST_TIME_SUFFIX):
        if new.lower() in taken:
            raise invalid(options, f"outcome needs a column '{new}', and there is one; give another name")


def _check_types(df: DataFrame, options: DedupOptions) -> None:
    """Refuse columns that Spark cannot bring to Python and back."""
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type

    for field in df.schema.fields:
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkTypeError as problem:
            kind = field.dataType.simpleString()
            reason = (
                f"column '{field.name}' is {kind}, which Spark does not bring to Python; cast it to string"
            )
            raise invalid(options, reason) from problem
