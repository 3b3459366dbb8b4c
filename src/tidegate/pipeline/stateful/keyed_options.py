"""The options of a keyed operator, and the refusal of those with which it cannot run.

Nothing is written, in the checkpoint or elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.checkpoint import epochs
from tidegate.checkpoint.inspect import newest_backend
from tidegate.checkpoint.store import CheckpointStore, operator_store
from tidegate.errors import StateInvalid, StateMismatch
from tidegate.pipeline.stateful.options import (
    COLUMN_OR_NONE,
    FLAG,
    ROCKS,
    ArgumentType,
    OperatorOptions,
    check_event_time,
    check_options,
    matching_columns,
)
from tidegate.pipeline.stateful.timer_source import LOOK_MS_DEFAULT
from tidegate.state.arrow.types import RecordBuilder
from tidegate.state.operator_plan import OperatorPlan
from tidegate.state.runtime.chunks import GROUP_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedOptions(OperatorOptions):
    """How a keyed operator runs: the arguments of `process`, each of the right type."""

    key: tuple[str, ...]
    event_time: str | None = None
    lateness_ms: int = 0
    # None: no ticks.
    tick_ms: int | None = LOOK_MS_DEFAULT
    dead_letters: str | None = None
    ordered: bool = False


def _may_be_key(key: object) -> bool:
    """True if a key may be of this type; the order of a set changes, and bytes are no columns."""
    if isinstance(key, str):
        return True
    if not isinstance(key, Sequence) or isinstance(key, bytes | bytearray | memoryview):
        return False
    return all(isinstance(column, str) for column in key)


KEYED_TYPES: Mapping[str, ArgumentType] = {
    "key": (
        _may_be_key,
        "the name of a column, or a list of names in an order that stays; add a column for an expression "
        "(withColumn)",
    ),
    "event_time": COLUMN_OR_NONE,
    "ordered": FLAG,
    "rocks": ROCKS,
}


def check_key(df: DataFrame, options: KeyedOptions) -> None:
    """Refuse a key without columns, of unknown columns, or with a column twice."""
    if not options.key:
        raise options.invalid("it has no key; name one column or several")
    for column in options.key:
        if column not in df.columns:
            raise options.invalid(f"there is no column '{column}' to be its key; there are {df.columns}")
    if len(set(options.key)) < len(options.key):
        raise options.invalid("a column occurs twice in its key")


def check_keyed(df: DataFrame, plan: OperatorPlan, options: KeyedOptions, max_parallelism: int) -> None:
    """Refuse options with which a keyed operator cannot run."""
    check_options(df, options, max_parallelism)
    for column in df.columns:
        if len(same := matching_columns(df, column)) > 1:
            raise options.invalid(f"two columns have one name, {' and '.join(map(repr, same))}; rename one")
    if GROUP_COLUMN in df.columns:
        raise options.invalid(f"'{GROUP_COLUMN}' is reserved; drop it")
    if options.checkpoint is None and options.dead_letters is not None:
        raise options.invalid(
            "dead letters are written once for each batch of a checkpoint=, which is missing"
        )
    if options.event_time is not None:
        check_event_time(df, options, options.event_time)
    for state in plan.states.values():
        if options.event_time is None and state.ttl is not None and state.ttl.clock == "event":
            raise options.invalid(f"the TTL of state '{state.name}' goes by event time; give event_time=…")
    _check_backend(options)


def _check_backend(options: KeyedOptions) -> None:
    """Refuse another backend than made the newest snapshot: it cannot read what that one wrote.

    Where there is no snapshot yet, every batch is there as a changelog file, which any backend reads.
    """
    if options.checkpoint is None:
        return
    store = operator_store(options.checkpoint, options.name)
    noun, before = "its state", newest_backend(store)
    if options.savepoint is not None and not epochs.list_epochs(store):
        noun = f"the savepoint {options.savepoint}"
        before = newest_backend(CheckpointStore(Path(options.savepoint)))
    kind = options.settings.backend.kind
    if before is not None and before != kind:
        reason = f"{noun} is kept by backend '{before}', and the code has '{kind}'."
        hint = f"Set backend={before!r}: state is not carried over from one backend to the other."
        raise StateMismatch(operator=options.name, reason=reason, hint=hint)


def check_events(df: DataFrame, plan: OperatorPlan) -> None:
    """Refuse columns from which the operator's events cannot be built."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if plan.form != "rows" or plan.in_type is None or plan.in_type is dict:
        return
    names = {field.name for field in fields(plan.in_type)}
    for field in fields(plan.in_type):
        if field.init and field.default is field.default_factory is MISSING and field.name not in df.columns:
            reason = (
                f"field '{field.name}' of {plan.in_type.__name__} has no default, and the rows have no such"
            )
            raise StateInvalid(operator=plan.name, reason=f"{reason} column; there are {df.columns}")
    columns = StructType([column for column in df.schema.fields if column.name in names])
    RecordBuilder(plan.in_type, to_arrow_schema(columns, timezone="UTC"), operator=plan.name)
