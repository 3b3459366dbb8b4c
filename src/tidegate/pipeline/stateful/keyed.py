"""Keyed operators on Spark: the DataFrame of an operator's output, from that of its input.

Rows are shuffled to the instance that owns their key group, and each instance runs in one task per batch
(`keyed_task`). The plan is three steps, followed by any sink:

    key group    pmod(xxhash64(key columns), max_parallelism), computed by the JVM
    shuffle      repartitionById(parallelism, key group * parallelism div max_parallelism)
    task         mapInArrow, which Spark calls for empty partitions too
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from tidegate.checkpoint.backends.rocksdb_options import RocksSettings
from tidegate.checkpoint.keys.codec import KeyType
from tidegate.checkpoint.settings import StateSettings, backend_factory
from tidegate.errors import StateMismatch
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.stateful.driver import (
    MEMORY_BYTES_DEFAULT,
    find_local_root,
    find_max_parallelism,
    observation_name,
    plan_tasks,
    quoted,
    shuffle_by_key_group,
)
from tidegate.pipeline.stateful.keyed_options import (
    KEYED_TYPES,
    KeyedOptions,
    check_events,
    check_key,
    check_keyed,
)
from tidegate.pipeline.stateful.keyed_task import KeyedTask
from tidegate.pipeline.stateful.options import (
    absolute_path,
    check_counts,
    check_frame,
    check_paths,
    check_types,
    duration_us,
    resolve_column,
)
from tidegate.pipeline.stateful.pickling import prepare_pickling
from tidegate.pipeline.stateful.timer_source import LOOK_MS_DEFAULT, TickSettings, has_ticks, with_ticks
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan, plan_operator
from tidegate.state.runtime.chunks import GROUP_COLUMN
from tidegate.state.schema.schema import redistribution_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WATERMARK_MARK = "spark.watermarkDelayMs"


def process(  # noqa: PLR0913 - the one call of the public door: keywords, each with a default
    df: DataFrame,
    name: str,
    key: str | Sequence[str],
    operator: KeyedOperator[Any, Any],
    event_time: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    *,
    partitions: int | None = None,
    max_parallelism: int | None = None,
    lateness: str | timedelta = "0 s",
    ticks: str | timedelta | None = "auto",
    backend: Literal["rocksdb", "heap"] = "rocksdb",
    rocks: RocksSettings | None = None,
    dead_letters: str | os.PathLike[str] | None = None,
    savepoint: str | os.PathLike[str] | None = None,
    ordered: bool = False,
    snapshot_every: int | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    run: str | None = None,
) -> DataFrame:
    """Run an operator with state for each key over a streaming or batch DataFrame, exactly once.

    `checkpoint` is the query's own checkpointLocation; a batch DataFrame may go without, and forgets its
    state afterwards. `partitions` is how many instances work side by side, and may change from start to
    start; `max_parallelism` is fixed at the first. Without `withWatermark` the watermark is the newest event
    time of the batches before, less `lateness`. `ticks` is how soon a due timer is noticed while no rows come
    ("auto", a duration, or None for never). With `dead_letters`, the path of a Delta table, rows on which the
    operator fails are written there instead of stopping the query. `savepoint` is where a new checkpoint
    begins from. `ordered` sorts each partition's rows of a batch by event time. `local_dir` is where
    executors keep their local stores. `run` names the run of a batch job: one that failed is run again under
    its name, with the same output; the name of one before the last is refused. What cannot run is refused
    before any row is touched.
    """
    check_types(name, KEYED_TYPES, key=key, event_time=event_time, ordered=ordered, rocks=rocks)
    check_counts(name, partitions, max_parallelism, snapshot_every)
    check_paths(
        name, checkpoint=checkpoint, savepoint=savepoint, local_dir=local_dir, dead_letters=dead_letters
    )
    check_frame(name, df)
    settings = StateSettings(
        backend=backend_factory(backend, rocks or default_rocks(), operator=name),
        redistribution=redistribution_of,
        local_root=find_local_root(df, name, local_dir),
    )
    if snapshot_every is not None:
        settings = replace(settings, snapshot_every_batches=snapshot_every)
    options = KeyedOptions(
        name=name,
        key=tuple(resolve_column(df, column) for column in ((key,) if isinstance(key, str) else key)),
        event_time=None if event_time is None else resolve_column(df, event_time),
        checkpoint=absolute_path(name, "checkpoint", checkpoint),
        partitions=partitions,
        max_parallelism=max_parallelism,
        lateness_ms=duration_us(name, "lateness", lateness) // 1000,
        tick_ms=_tick_ms(name, ticks),
        dead_letters=absolute_path(name, "dead_letters", dead_letters),
        savepoint=absolute_path(name, "savepoint", savepoint),
        ordered=ordered,
        run=run,
        settings=settings,
    )
    return keyed_rows(df, operator, options, SystemClock())


def default_rocks() -> RocksSettings:
    """Return how RocksDB stores state unless the caller sets it otherwise.

    A batch changes keys all over the state. Leveled compaction then rewrites all of it for a few small files,
    and every block of the block cache becomes another one; universal compaction merges the small files first.
    """
    rocks = RocksSettings.production(memory_bytes_max=MEMORY_BYTES_DEFAULT)
    return replace(rocks, compaction_style="universal")


def keyed_rows(
    df: DataFrame, operator: KeyedOperator[Any, Any], options: KeyedOptions, clock: Clock
) -> DataFrame:
    """Return the DataFrame of an operator's output; see `process`."""
    plan = plan_operator(operator, options.name)
    check_events(df, plan)
    check_key(df, options)
    request = plan.schema_request(_key_type(df, options), find_max_parallelism(options))
    check_keyed(df, plan, options, request.max_parallelism)
    task = KeyedTask(
        operator=operator,
        schema_request=request,
        context=plan_tasks(df, options, request, clock, "process"),
        event_time=options.event_time,
        lateness_ms=options.lateness_ms if _watermark_delay_ms(df, options) is None else None,
        dead_letters=options.dead_letters,
        ordered=options.ordered,
    )
    if df.isStreaming:
        df = _add_ticks(df, plan, options, task.lateness_ms)
    shuffled = _shuffle(df, options, task, observation_name(df, options.name, clock))
    # Spark reads a dot in a name as a field of a struct here: such columns are named by their numbers.
    if any(set(column) & set(".`") for column in shuffled.columns):
        task = replace(task, columns=tuple(shuffled.columns))
        shuffled = shuffled.toDF(*(f"c{number}" for number in range(len(shuffled.columns))))
    prepare_pickling(plan)
    return _map(shuffled, task, plan, options)


def _map(df: DataFrame, task: KeyedTask, plan: OperatorPlan, options: KeyedOptions) -> DataFrame:
    """Add the task to the plan of Spark, which pickles the operator for its workers."""
    from pyspark.errors import AnalysisException
    from pyspark.sql.pandas.types import from_arrow_schema

    try:
        return df.mapInArrow(task, from_arrow_schema(plan.out_schema))
    except AnalysisException:
        raise
    except Exception as problem:  # an attribute of an operator may raise anything when it is pickled
        first = str(problem).partition("\n")[0]
        raise options.invalid(
            f"its operator cannot be sent to Spark's workers ({first}); make what cannot in open(ctx)"
        ) from problem


def _add_ticks(
    df: DataFrame, plan: OperatorPlan, options: KeyedOptions, lateness_ms: int | None
) -> DataFrame:
    """Add ticks to a stream whose operator has timers; a checkpoint keeps the sources it began with."""
    checkpoint = str(options.checkpoint)
    is_awake = plan.has_timers and options.tick_ms is not None
    had_ticks = has_ticks(checkpoint, options.name)
    if is_awake and had_ticks is False:
        reason = "its checkpoint began without ticks, and Spark adds no source to a checkpoint"
        hint = "Set ticks=None: timers fire with the next rows; or start a new checkpoint from a savepoint."
        raise StateMismatch(operator=options.name, reason=reason, hint=hint)
    if not is_awake and not had_ticks:
        return df
    every_ms = LOOK_MS_DEFAULT if options.tick_ms is None else options.tick_ms
    return with_ticks(df, TickSettings(checkpoint, options.name, lateness_ms, every_ms, is_awake=is_awake))


def _key_type(df: DataFrame, options: KeyedOptions) -> KeyType:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = to_arrow_schema(StructType([df.schema[column] for column in options.key]), timezone="UTC")
    return KeyType.from_arrow(options.key, schema, operator=options.name)


def _watermark_delay_ms(df: DataFrame, options: KeyedOptions) -> int | None:
    """Return the delay of `withWatermark` on the event time; None where there is none, or in a batch job."""
    if options.event_time is None or not df.isStreaming:
        return None
    delay = df.schema[options.event_time].metadata.get(_WATERMARK_MARK)
    return None if delay is None else int(delay)


def _shuffle(df: DataFrame, options: KeyedOptions, task: KeyedTask, label: str) -> DataFrame:
    """Add the key group, and shuffle rows to the instances that own theirs."""
    from pyspark.sql import functions as sql

    keys = [quoted(column) for column in options.key]
    group = sql.pmod(sql.xxhash64(*keys), sql.lit(task.context.max_parallelism)).cast("int")
    rows = df.select("*", group.alias(GROUP_COLUMN))
    return shuffle_by_key_group(rows, GROUP_COLUMN, task.context, label, sql.lit(True).alias("present"))


def _tick_ms(name: str, ticks: str | timedelta | None) -> int | None:
    if ticks is None or ticks == "auto":
        return None if ticks is None else LOOK_MS_DEFAULT
    return max(1, duration_us(name, "ticks", ticks) // 1000)
