"""What a keyed operator is asked to do: takes options and a DataFrame, gives a refusal of what cannot run.

Nothing is written, in the checkpoint or elsewhere.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.checkpoint import epochs
from tidegate.checkpoint.keys.layout import PARALLELISM_MAX
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.snapshot import read_manifest, snapshot_batches
from tidegate.checkpoint.store import Depot, operator_depot
from tidegate.errors import StateInvalid, StateMismatch, StorageCorrupt
from tidegate.pipeline.stateful.arguments import (
    COLUMN_OR_NONE,
    COUNT,
    FLAG,
    ROCKS,
    Kinds,
    alike,
    check_frame,
    check_kinds,
)
from tidegate.pipeline.stateful.driver import StartOptions
from tidegate.pipeline.stateful.task_context import task_name
from tidegate.pipeline.stateful.timer_source import LOOK_MS_DEFAULT
from tidegate.state.arrow.types import record_builder
from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.runtime.chunks import GROUP_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("tidegate.keyed")

# A name is a folder beside those of Spark's own operators, which are numbers.
NAME_CHARS_MAX = 63
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_FROM_A_SAVEPOINT = (
    "Make a savepoint of it (`tidegate state savepoint`), and begin a new checkpoint: savepoint=PATH."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedOptions:
    """How a keyed operator runs; what `process` takes, checked one by one."""

    name: str
    key: tuple[str, ...]
    event_time: str | None = None
    checkpoint: str | None = None
    partitions: int | None = None
    max_parallelism: int | None = None
    lateness_ms: int = 0
    # None: no ticks.
    tick_ms: int | None = LOOK_MS_DEFAULT
    dead_letters: str | None = None
    savepoint: str | None = None
    ordered: bool = False
    run: str | None = None
    settings: StateSettings = field(default_factory=StateSettings)


def check_given(given: Mapping[str, Any]) -> None:
    """Refuse what is of another type than `process` takes, by the names of its arguments."""
    check_name(given["name"])
    check_kinds(given["name"], given, _KINDS)
    check_frame(given["name"], given["df"])


def _may_be_key(key: object) -> bool:
    """Return whether a key may be of this type; a set's order changes, and bytes are no columns."""
    if isinstance(key, str):
        return True
    if not isinstance(key, Sequence) or isinstance(key, bytes | bytearray | memoryview):
        return False
    return all(isinstance(one, str) for one in key)


_KINDS: Kinds = {
    "key": (
        _may_be_key,
        "the name of a column, or a list of names in an order that stays; add a column for an expression "
        "(withColumn)",
    ),
    "event_time": COLUMN_OR_NONE,
    "partitions": COUNT,
    "max_parallelism": COUNT,
    "snapshot_every": COUNT,
    "ordered": FLAG,
    "rocks": ROCKS,
}


def check_options(df: DataFrame, options: KeyedOptions, max_parallelism: int) -> None:
    """Refuse what cannot run."""
    check_start_options(df, options, max_parallelism)
    for column in df.columns:
        if len(found := alike(df, column)) > 1:
            raise invalid(options, f"two columns have one name, {' and '.join(map(repr, found))}; rename one")
    if GROUP_COLUMN in df.columns:
        raise invalid(options, f"'{GROUP_COLUMN}' is a column of ours; drop it")
    if options.checkpoint is None and options.dead_letters is not None:
        raise invalid(
            options, "dead letters are written once for each batch of a checkpoint=, which is missing"
        )
    if options.event_time is not None:
        check_event_time(df, options, options.event_time)


def check_clocks(plan: OperatorPlan, options: KeyedOptions) -> None:
    """Refuse a TTL by event time where rows have none."""
    for state in plan.states.values():
        if options.event_time is None and state.ttl is not None and state.ttl.clock == "event":
            reason = f"the TTL of state '{state.name}' goes by event time; give event_time=…"
            raise invalid(options, reason)


def check_backend(options: StartOptions) -> None:
    """Refuse another backend than made the newest snapshot: it cannot read what that one wrote.

    Where there is no snapshot yet, every batch is there as a file of changes, which any backend takes.
    """
    if options.checkpoint is None:
        return
    depot = operator_depot(options.checkpoint, options.name)
    whose, made = "its state", _newest_backend(depot)
    if options.savepoint is not None and not epochs.listed(depot):
        whose, made = f"the savepoint {options.savepoint}", _newest_backend(Depot(Path(options.savepoint)))
    asked = options.settings.backend.kind
    if made is not None and made != asked:
        reason = f"{whose} is kept by backend '{made}', and the code has '{asked}'."
        hint = f"Set backend={made!r}: state is not carried over from one backend to the other."
        raise StateMismatch(operator=options.name, reason=reason, hint=hint)


def _newest_backend(depot: Depot) -> str | None:
    """Return the backend that made the newest snapshot; None where there is none that reads well."""
    for epoch in reversed(epochs.listed(depot)):
        for batch in reversed(snapshot_batches(depot, epoch.number, 0)):
            try:
                manifest = read_manifest(depot, epoch.number, 0, batch)
            except StorageCorrupt as problem:
                log.warning("a snapshot does not say which backend made it: %s", problem)
                continue
            if manifest is not None:
                return manifest.backend
    return None


def check_start_options(df: DataFrame, options: StartOptions, max_parallelism: int) -> None:
    """Refuse a name, a checkpoint or a number of instances with which no operator with state can run."""
    check_name(options.name)
    every = options.settings.snapshot_every_batches
    if every < 1:
        raise invalid(options, f"snapshot_every is {every}; it is 1 or more")
    check_run(df, options)
    if options.checkpoint is not None:
        _check_checkpoint(df, options, options.checkpoint)
    if df.isStreaming and options.checkpoint is None:
        reason = "a streaming query needs checkpoint=, the same folder as its checkpointLocation"
        raise invalid(options, reason)
    if not 1 <= max_parallelism <= PARALLELISM_MAX:
        reason = f"max_parallelism is {max_parallelism}; it lies between 1 and {PARALLELISM_MAX}"
        raise invalid(options, reason)
    if options.partitions is not None and not 1 <= options.partitions <= max_parallelism:
        reason = (
            f"partitions is {options.partitions}; it lies between 1 and {max_parallelism} (max_parallelism)"
        )
        raise invalid(options, reason)
    if options.checkpoint is None and options.savepoint is not None:
        raise invalid(options, "a savepoint is where a checkpoint begins, and there is no checkpoint=")


def check_name(name: object) -> None:
    """Refuse what is no name of an operator."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        reason = (
            f"its name is {name!r}; a name has letters, digits, '_' and '-', begins with a letter, and is "
            f"{NAME_CHARS_MAX} characters long at most"
        )
        raise StateInvalid(operator=str(name), reason=reason)


def check_run(df: DataFrame, options: StartOptions) -> None:
    """Refuse the name of a run that is no text, and one of a stream, whose batches Spark counts."""
    run: object = options.run
    if run is None:
        return
    if not isinstance(run, str) or not run.strip():
        reason = f"run is {run!r}; it is the name of this run of a batch job, such as '2026-01-01', or None"
        raise invalid(options, reason)
    if df.isStreaming:
        raise invalid(
            options, "run names the run of a batch job, and its DataFrame is a stream; leave it out"
        )


def check_event_time(df: DataFrame, options: StartOptions, event_time: str) -> None:
    """Refuse an event time that is no column, or no time."""
    from pyspark.sql.types import LongType, TimestampNTZType, TimestampType

    if event_time not in df.columns:
        reason = f"there is no column '{event_time}' to be its event time; there are {df.columns}"
        raise invalid(options, reason)
    kind = df.schema[event_time].dataType
    if not isinstance(kind, TimestampType | TimestampNTZType | LongType):
        reason = (
            f"event time '{event_time}' is {kind.simpleString()}; it must be a timestamp, or a "
            "bigint of milliseconds since 1970"
        )
        raise invalid(options, reason)


def _check_checkpoint(df: DataFrame, options: StartOptions, checkpoint: str) -> None:
    """Refuse a checkpoint of the other kind of job, and one that an operator before has under this name."""
    has_offsets = Path(checkpoint, "offsets").exists()
    if has_offsets and not df.isStreaming:
        reason = "it belongs to a streaming query, whose batches a batch job would break."
        raise StateMismatch(operator=options.name, reason=reason, hint=_FROM_A_SAVEPOINT)
    if df.isStreaming and not has_offsets and epochs.listed(operator_depot(checkpoint, options.name)):
        reason = "it belongs to a batch job, and a streaming query begins with a batch 0 of its own."
        raise StateMismatch(operator=options.name, reason=reason, hint=_FROM_A_SAVEPOINT)
    # Spark shows in a plan what a step calls; views and everything else are in it.
    if f"{task_name(options.name, checkpoint)}(" in df._jdf.queryExecution().analyzed().toString():
        raise invalid(options, "its rows come from an operator of the same name; give each its own")


def check_events(df: DataFrame, plan: OperatorPlan) -> None:
    """Refuse columns from which the operator's events cannot be built."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if plan.form != "rows" or plan.in_type is None or plan.in_type is dict:
        return
    names = {one.name for one in fields(plan.in_type)}
    for one in fields(plan.in_type):
        if one.init and one.default is one.default_factory is MISSING and one.name not in df.columns:
            reason = (
                f"field '{one.name}' of {plan.in_type.__name__} has no default, and the rows have no such"
            )
            raise StateInvalid(operator=plan.name, reason=f"{reason} column; there are {df.columns}")
    columns = StructType([one for one in df.schema.fields if one.name in names])
    record_builder(plan.in_type, to_arrow_schema(columns, timezone="UTC"), operator=plan.name)


def invalid(options: StartOptions, reason: str) -> StateInvalid:
    """Return the refusal of an operator."""
    return StateInvalid(operator=options.name, reason=reason)
