"""The options that all stateful operators have, and the checks of arguments of the public functions.

Python checks no types. What is not refused here would fail later, in a worker, with a message of Spark's.
Nothing is written, in the checkpoint or elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.checkpoint import epochs
from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.keys.layout import PARALLELISM_MAX
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.store import checkpoint_path, operator_store
from tidegate.errors import DurationInvalid, StateInvalid, StateMismatch
from tidegate.model.durations import parse_duration
from tidegate.pipeline.stateful.task_context import task_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# An argument that is refused is shown up to this length.
SHOWN_CHARS_MAX = 80
# A name is a folder beside those of Spark's own operators, which are numbers.
NAME_CHARS_MAX = 63
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_FROM_A_SAVEPOINT = (
    "Make a savepoint of it (`tidegate state savepoint`), and begin a new checkpoint: savepoint=PATH."
)

# Whether an argument has the right type, and what it has to be.
ArgumentType = tuple[Callable[[object], bool], str]


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


COUNT: ArgumentType = (_is_count, "a whole number, 1 or more, or None")
FLAG: ArgumentType = (lambda value: isinstance(value, bool), "True or False")
COLUMN: ArgumentType = (
    lambda value: isinstance(value, str),
    "the name of a column; add one for an expression (withColumn)",
)
COLUMN_OR_NONE: ArgumentType = (
    lambda value: value is None or isinstance(value, str),
    "the name of a column, or None; add one for an expression (withColumn)",
)
ROCKS: ArgumentType = (
    lambda value: value is None or isinstance(value, RocksSettings),
    "tide.RocksSettings, or None",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """How a stateful operator runs; each kind of operator adds options of its own."""

    name: str
    checkpoint: str | None = None
    savepoint: str | None = None
    partitions: int | None = None
    max_parallelism: int | None = None
    # The name of this run of a batch job.
    run: str | None = None
    settings: StateSettings = field(default_factory=StateSettings)

    def invalid(self, reason: str) -> StateInvalid:
        """Return the refusal of the operator."""
        return StateInvalid(operator=self.name, reason=reason)


def check_types(name: str, types: Mapping[str, ArgumentType], **arguments: object) -> None:
    """Refuse a wrong name of the operator, and arguments of a wrong type, by their names."""
    check_name(name)
    for option, value in arguments.items():
        is_right, expected = types[option]
        if not is_right(value):
            raise StateInvalid(operator=name, reason=f"{option} is {shown(value)}; it is {expected}")


def check_counts(name: str, partitions: object, max_parallelism: object, snapshot_every: object) -> None:
    """Refuse numbers of another type; their ranges are checked with the checkpoint."""
    counts = {"partitions": partitions, "max_parallelism": max_parallelism, "snapshot_every": snapshot_every}
    check_types(name, dict.fromkeys(counts, COUNT), **counts)


def check_paths(name: str, **paths: object) -> None:
    """Refuse what is no path of a folder, by the names of the arguments."""
    for option, path in paths.items():
        path_text(name, option, path)


def check_frame(name: str, df: object) -> None:
    """Refuse what is no DataFrame of this driver."""
    from pyspark.sql import DataFrame

    if not isinstance(df, DataFrame):
        raise StateInvalid(operator=name, reason=f"it is given {shown(df)}; it takes a DataFrame of Spark")
    if not hasattr(df, "_jdf"):
        reason = "its DataFrame is one of Spark Connect; state needs a session of its own driver"
        raise StateInvalid(operator=name, reason=reason)


def check_name(name: object) -> None:
    """Refuse what is no name of an operator."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        reason = (
            f"its name is {name!r}; a name has letters, digits, '_' and '-', begins with a letter, and is "
            f"{NAME_CHARS_MAX} characters long at most"
        )
        raise StateInvalid(operator=str(name), reason=reason)


def check_options(df: DataFrame, options: OperatorOptions, max_parallelism: int) -> None:
    """Refuse a name, a checkpoint or a number of instances with which no stateful operator can run."""
    check_name(options.name)
    every = options.settings.snapshot_every_batches
    if every < 1:
        raise options.invalid(f"snapshot_every is {every}; it is 1 or more")
    _check_run(df, options)
    if options.checkpoint is not None:
        _check_checkpoint(df, options, options.checkpoint)
    if df.isStreaming and options.checkpoint is None:
        raise options.invalid(
            "a streaming query needs checkpoint=, the same folder as its checkpointLocation"
        )
    if not 1 <= max_parallelism <= PARALLELISM_MAX:
        raise options.invalid(
            f"max_parallelism is {max_parallelism}; it lies between 1 and {PARALLELISM_MAX}"
        )
    if options.partitions is not None and not 1 <= options.partitions <= max_parallelism:
        raise options.invalid(
            f"partitions is {options.partitions}; it lies between 1 and {max_parallelism} (max_parallelism)"
        )
    if options.checkpoint is None and options.savepoint is not None:
        raise options.invalid("a savepoint is where a checkpoint begins, and there is no checkpoint=")


def _check_run(df: DataFrame, options: OperatorOptions) -> None:
    """Refuse the name of a run that is no text, and one of a stream, whose batches Spark counts."""
    run: object = options.run
    if run is None:
        return
    if not isinstance(run, str) or not run.strip():
        raise options.invalid(
            f"run is {run!r}; it is the name of this run of a batch job, such as '2026-01-01', or None"
        )
    if df.isStreaming:
        raise options.invalid("run names the run of a batch job, and its DataFrame is a stream; leave it out")


def _check_checkpoint(df: DataFrame, options: OperatorOptions, checkpoint: str) -> None:
    """Refuse a checkpoint of the other kind of job, and one that an operator before has under this name."""
    has_offsets = Path(checkpoint, "offsets").exists()
    if has_offsets and not df.isStreaming:
        reason = "it belongs to a streaming query, whose batches a batch job would break."
        raise StateMismatch(operator=options.name, reason=reason, hint=_FROM_A_SAVEPOINT)
    if df.isStreaming and not has_offsets and epochs.list_epochs(operator_store(checkpoint, options.name)):
        reason = "it belongs to a batch job, and a streaming query begins with a batch 0 of its own."
        raise StateMismatch(operator=options.name, reason=reason, hint=_FROM_A_SAVEPOINT)
    # Spark's plan names the function of each step; views and everything else are in it.
    if f"{task_name(options.name, checkpoint)}(" in df._jdf.queryExecution().analyzed().toString():
        raise options.invalid("its rows come from an operator of the same name; give each its own")


def check_event_time(df: DataFrame, options: OperatorOptions, event_time: str) -> None:
    """Refuse an event time that is no column, or no time."""
    from pyspark.sql.types import LongType, TimestampNTZType, TimestampType

    if event_time not in df.columns:
        raise options.invalid(
            f"there is no column '{event_time}' to be its event time; there are {df.columns}"
        )
    kind = df.schema[event_time].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType | LongType):
        raise options.invalid(
            f"event time '{event_time}' is {kind.simpleString()}; it must be a timestamp, or a "
            "bigint of milliseconds since 1970"
        )


def matching_columns(df: DataFrame, column: str) -> list[str]:
    """Return the columns that Spark resolves a name to: case is ignored unless it is set otherwise."""
    if df.sparkSession.conf.get("spark.sql.caseSensitive") == "true":
        return [name for name in df.columns if name == column]
    return [name for name in df.columns if name.lower() == column.lower()]


def resolve_column(df: DataFrame, column: str) -> str:
    """Return the name of a column as the DataFrame spells it; unchanged where it is not one column."""
    columns = matching_columns(df, column)
    return columns[0] if len(columns) == 1 else column


def duration_us(name: str, option: str, value: object) -> int:
    """Return a duration in microseconds; StateInvalid, with the option's name, for what is none."""
    if isinstance(value, timedelta):
        if value < timedelta():
            raise StateInvalid(operator=name, reason=f"its {option} is {value}, which is negative")
        return value // timedelta(microseconds=1)
    if not isinstance(value, str):
        reason = f"its {option} is {shown(value)}; write it as '100 days' or 'PT5S', or give a timedelta"
        raise StateInvalid(operator=name, reason=reason)
    try:
        return parse_duration(value).us
    except DurationInvalid as problem:
        reason = f"its {option} is no duration. {problem.message}"
        raise StateInvalid(operator=name, reason=reason, hint=problem.hint) from problem


def absolute_path(name: str, option: str, path: str | os.PathLike[str] | None) -> str | None:
    """Return an absolute path: tasks run in other folders than the driver."""
    text = path_text(name, option, path)
    return None if text is None else str(checkpoint_path(text).absolute())


def path_text(name: str, option: str, path: object) -> str | None:
    """Return the text of a path; StateInvalid for what is no path of a folder."""
    if path is None:
        return None
    text: object = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        reason = f"{option} is {path!r}; it is the path of a folder, as text or a Path, or None"
        raise StateInvalid(operator=name, reason=reason)
    if not text.strip():
        raise StateInvalid(operator=name, reason=f"{option} is empty; it is the path of a folder, or None")
    return text


def shown(value: object) -> str:
    """Return an argument as an error shows it, cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
