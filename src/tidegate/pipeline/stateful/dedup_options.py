"""The options of a deduplication, and the refusal of those with which it cannot run.

Nothing is written, in the checkpoint or elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from tidegate.dedup.settings import EXPECTED_RATE_MAX, SegmentRule, is_rate
from tidegate.errors import StateInvalid
from tidegate.pipeline.stateful.driver import quoted
from tidegate.pipeline.stateful.key_digests import ContentHash
from tidegate.pipeline.stateful.options import (
    COLUMN,
    FLAG,
    ROCKS,
    ArgumentType,
    OperatorOptions,
    check_event_time,
    check_options,
    duration_us,
    matching_columns,
    shown,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# Shorter ones would be made and removed with every batch.
INTERVAL_US_MIN = 1_000_000
FIRST_TIME_SUFFIX = "_first_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupOptions(OperatorOptions):
    """How a deduplication runs: the arguments of `deduplicate`, each of the right type."""

    event_time: str
    rule: SegmentRule
    outcome: str | None = None
    exact_keys: bool = False
    offset: str | None = None
    # Rows a second; None: not known.
    expected_rate: float | None = None


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One column of a key; `column_index` is None for an expression."""

    column: Column
    kind: DataType
    name: str
    column_index: int | None


@dataclass(frozen=True, slots=True)
class DedupKey:
    """What rows are compared by; `is_content` when it is the hash of its columns' content."""

    parts: tuple[KeyPart, ...]
    is_content: bool = False


def _is_name_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _may_be_key(on: object) -> bool:
    """True if a key may be of this type; the order of a set changes, and bytes are no columns."""
    from pyspark.sql import Column

    if isinstance(on, str | Column | ContentHash):
        return True
    return isinstance(on, Sequence) and not isinstance(on, bytes | bytearray | memoryview)


DEDUP_TYPES: Mapping[str, ArgumentType] = {
    "on": (
        _may_be_key,
        "the name of a column, an expression, a list of them in an order that stays, or content_hash(…)",
    ),
    "event_time": COLUMN,
    "outcome": (_is_name_or_none, "the name of a new column, as text, or None"),
    "offset": (_is_name_or_none, "the name of a bigint column, or None"),
    "exact_keys": FLAG,
    "rocks": ROCKS,
    "expected_rate": (
        lambda value: value is None or is_rate(value),
        f"a number of rows a second, more than 0 and {EXPECTED_RATE_MAX:,} at most, or None",
    ),
}


def find_rule(name: str, retention: str | timedelta, interval: str | timedelta | None) -> SegmentRule:
    """Return the rule of a retention and an interval; StateInvalid with what is wrong."""
    retention_us = duration_us(name, "retention", retention)
    interval_us = None if interval is None else duration_us(name, "interval", interval)
    if retention_us == 0:
        raise StateInvalid(operator=name, reason=f"its retention is '{retention}'; it is more than nothing")
    if interval_us is not None and interval_us < INTERVAL_US_MIN:
        raise StateInvalid(operator=name, reason=f"its interval is '{interval}'; it is a second or more")
    try:
        return SegmentRule.of(retention_us, interval_us)
    except StateInvalid as problem:
        raise StateInvalid(operator=name, reason=str(problem.values["reason"])) from problem


def find_key(df: DataFrame, name: str, on: str | Column | ContentHash | Sequence[str | Column]) -> DedupKey:
    """Return the key that rows are compared by; StateInvalid for an unknown or ambiguous column."""
    from pyspark.sql import Column

    if isinstance(on, ContentHash):
        columns: list[str | Column] = list(on.columns or df.columns)
    else:
        columns = [on] if isinstance(on, str | Column) else list(on)
    if not columns:
        raise StateInvalid(operator=name, reason="it has no key; name one column or several")
    parts = tuple(_key_part(df, name, column) for column in columns)
    names = [part.name for part in parts]
    if len(set(names)) < len(names):
        raise StateInvalid(operator=name, reason="a column occurs twice in its key")
    return DedupKey(parts, isinstance(on, ContentHash))


def _key_part(df: DataFrame, name: str, column: str | Column) -> KeyPart:
    from pyspark.sql import Column

    if isinstance(column, Column):
        return _expression(df, name, column)
    if not isinstance(column, str):
        reason = f"its key has {column!r}; a key is columns, by their names or as expressions"
        raise StateInvalid(operator=name, reason=reason)
    columns = matching_columns(df, column)
    if len(columns) != 1:
        many = "more than one column" if columns else "no column"
        reason = f"there is {many} '{column}' to be its key; there are {df.columns}"
        raise StateInvalid(operator=name, reason=reason)
    column = columns[0]
    return KeyPart(quoted(column), df.schema[column].dataType, column, df.columns.index(column))


def _expression(df: DataFrame, name: str, column: Column) -> KeyPart:
    """Return the key part of an expression; refuse generators and aggregates, which change the rows."""
    from pyspark.errors import AnalysisException

    try:
        fields = df.select(column).schema.fields
        # Inside an expression, beside all columns, Spark allows what has one value for each row.
        is_single = len(fields) == 1 and len(df.select("*", column.isNull()).columns) == len(df.columns) + 1
    except AnalysisException as problem:
        first = str(problem).strip().partition("\n")[0]
        raise StateInvalid(operator=name, reason=f"its key has {shown(column)}. {first}") from problem
    if not is_single:
        reason = (
            f"its key has {shown(column)}, which is not one column; name the columns, or use content_hash()"
        )
        raise StateInvalid(operator=name, reason=reason)
    return KeyPart(column, fields[0].dataType, fields[0].name, None)


def check_dedup(df: DataFrame, options: DedupOptions, key: DedupKey, max_parallelism: int) -> None:
    """Refuse options with which a deduplication cannot run."""
    check_options(df, options, max_parallelism)
    check_event_time(df, options, options.event_time)
    for option, column in (("event_time", options.event_time), ("offset", options.offset)):
        if column is not None and df.columns.count(column) > 1:
            raise options.invalid(f"more than one column is named '{column}', which {option} names")
    _check_offset(df, options)
    _check_outcome(df, options)
    _check_types(df, options)
    if options.exact_keys and key.is_content:
        raise options.invalid("exact_keys stores keys themselves, and a content hash is none; leave one out")


def _check_offset(df: DataFrame, options: DedupOptions) -> None:
    from pyspark.sql.types import LongType

    if options.offset is None:
        return
    if options.offset not in df.columns:
        reason = f"there is no column '{options.offset}' to be its offset; there are {df.columns}"
        raise options.invalid(reason)
    kind = df.schema[options.offset].dataType
    if not isinstance(kind, LongType):
        raise options.invalid(f"offset '{options.offset}' is {kind.simpleString()}; cast it to bigint")


def _check_outcome(df: DataFrame, options: DedupOptions) -> None:
    """Refuse names of columns that are there already; Spark ignores the case of names."""
    if options.outcome is None:
        return
    if not options.outcome:
        raise options.invalid("outcome is empty; it is the name of a new column, or None")
    taken = {column.lower() for column in df.columns}
    for new in (options.outcome, options.outcome + FIRST_TIME_SUFFIX):
        if new.lower() in taken:
            raise options.invalid(f"outcome needs a column '{new}', and there is one; give another name")


def _check_types(df: DataFrame, options: DedupOptions) -> None:
    """Refuse columns that Spark cannot pass to Python and back."""
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
            raise options.invalid(reason) from problem
