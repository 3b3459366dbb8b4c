"""Keyed operators on Spark: take a DataFrame and an operator, give the DataFrame of what comes out.

Rows are brought to the instance that owns their key group, and each instance works in one task a batch
(`keyed_task`). The plan is three steps that any sink can stand behind:

    key group    pmod(xxhash64(key columns), max_parallelism), computed by the JVM
    placement    repartitionById(parallelism, key group * parallelism div max_parallelism)
    work         mapInArrow, which Spark calls for empty partitions too
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
from tidegate.pipeline.stateful.arguments import length_us, spelled
from tidegate.pipeline.stateful.driver import (
    MEMORY_BYTES_DEFAULT,
    absolute_path,
    find_local_root,
    find_max_parallelism,
    find_parallelism,
    find_start,
    new_call_id,
    observation_name,
    plan_batch_job,
    quoted,
    repartition_by_key_group,
    with_task_slots,
)
from tidegate.pipeline.stateful.keyed_checks import (
    KeyedOptions,
    check_backend,
    check_clocks,
    check_events,
    check_given,
    check_options,
    invalid,
)
from tidegate.pipeline.stateful.keyed_task import KeyedTask
from tidegate.pipeline.stateful.pickling import prepare_pickling
from tidegate.pipeline.stateful.timer_source import LOOK_MS_DEFAULT, TickSettings, has_ticks, with_ticks
from tidegate.state.operator import KeyedOperator
from tidegate.state.operator_plan import OperatorPlan, checked
from tidegate.state.runtime.chunks import GROUP_COLUMN
from tidegate.state.schema.schema import Wanted, redistribution_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

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
    executors keep their copies of the state. `run` names the run of a batch job: one that failed is run again
    under its name, and gives what it would have given; the name of one before the last is refused. Refuses
    what cannot run before any row is touched.
    """
    check_given(locals())
    settings = StateSettings(
        backend=backend_factory(backend, rocks or default_rocks(), operator=name),
        redistribution=redistribution_of,
        local_root=find_local_root(df, name, local_dir),
    )
    if snapshot_every is not None:
        settings = replace(settings, snapshot_every_batches=snapshot_every)
    options = KeyedOptions(
        name=name,
        key=tuple(spelled(df, column) for column in ((key,) if isinstance(key, str) else key)),
        event_time=None if event_time is None else spelled(df, event_time),
        checkpoint=absolute_path(name, "checkpoint", checkpoint),
        partitions=partitions,
        max_parallelism=max_parallelism,
        lateness_ms=length_us(name, "lateness", lateness) // 1000,
        tick_ms=_tick_ms(name, ticks),
        dead_letters=absolute_path(name, "dead_letters", dead_letters),
        savepoint=absolute_path(name, "savepoint", savepoint),
        ordered=ordered,
        run=run,
        settings=settings,
    )
    return keyed_rows(df, operator, options, SystemClock())


def default_rocks() -> RocksSettings:
    """Return how RocksDB keeps state unless the caller says otherwise.

    A batch changes keys all over the state. Compaction by levels then writes all of it anew for a few small
    files, and every block that the cache held is another one; universal merges the small files first.
    """
    rocks = RocksSettings.production(memory_bytes_max=MEMORY_BYTES_DEFAULT)
    return replace(rocks, compaction_style="universal")


def keyed_rows(
    df: DataFrame, operator: KeyedOperator[Any, Any], options: KeyedOptions, clock: Clock
) -> DataFrame:
    """Return the DataFrame of what comes out of an operator; see `process`."""
    plan = checked(operator, options.name)
    check_events(df, plan)
    wanted = _wanted(df, plan, options)
    check_options(df, options, wanted.max_parallelism)
    check_clocks(plan, options)
    check_backend(options)
    start = find_start(df, wanted, options)
    parallelism = find_parallelism(df, start, options, wanted.max_parallelism)
    delay = _watermark_delay_ms(df, options)
    task = KeyedTask(
        operator=operator,
        call=new_call_id(df, clock),
        wanted=wanted,
        parallelism=parallelism,
        settings=with_task_slots(df, options.settings),
        checkpoint=options.checkpoint,
        seen_epoch=start.seen_epoch if start else None,
        savepoint=options.savepoint,
        event_time=options.event_time,
        lateness_ms=options.lateness_ms if delay is None else None,
        dead_letters=options.dead_letters,
        ordered=options.ordered,
    )
    if df.isStreaming:
        df = _ticking(df, plan, options, task.lateness_ms)
    else:
        planned, seen = plan_batch_job(df, options, start, clock)
        # A run is one whichever call makes it: in foreachBatch too, it may be tried again.
        call = task.call if options.run is None else planned.plan_id
        task = replace(task, planned=planned, seen_epoch=seen, call=call)
    placed = _placed(df, options, task, observation_name(df, options.name, new_call_id(df, clock)))
    # Spark takes a dot in a name for a step into a struct here: such columns go by number.
    if any(set(column) & set(".`") for column in placed.columns):
        task = replace(task, columns=tuple(placed.columns))
        placed = placed.toDF(*(f"c{number}" for number in range(len(placed.columns))))
    prepare_pickling(plan)
    return _sent(placed, task, plan, options)


def _sent(placed: DataFrame, task: KeyedTask, plan: OperatorPlan, options: KeyedOptions) -> DataFrame:
    """Return the task to Spark, which takes the operator apart for its workers."""
    from pyspark.errors import AnalysisException

    try:
        return placed.mapInArrow(task, _spark_schema(plan.out_schema))
    except AnalysisException:
        raise
    except Exception as problem:  # what an operator holds may raise anything when it is taken apart
        first = str(problem).partition("\n")[0]
        reason = f"its operator cannot be sent to Spark's workers ({first}); make what cannot in open(ctx)"
        raise invalid(options, reason) from problem


def _ticking(df: DataFrame, plan: OperatorPlan, options: KeyedOptions, lateness_ms: int | None) -> DataFrame:
    """Put ticks beside a stream whose operator has timers; a checkpoint keeps the sources it began with."""
    checkpoint = str(options.checkpoint)
    wanted = plan.has_timers and options.tick_ms is not None
    had = has_ticks(checkpoint, options.name)
    if wanted and had is False:
        reason = "its checkpoint began without ticks, and Spark adds no source to a checkpoint"
        hint = "Set ticks=None: timers fire with the next rows; or start a new checkpoint from a savepoint."
        raise StateMismatch(operator=options.name, reason=reason, hint=hint)
    if not wanted and not had:
        return df
    every_ms = LOOK_MS_DEFAULT if options.tick_ms is None else options.tick_ms
    settings = TickSettings(checkpoint, options.name, lateness_ms, every_ms, is_awake=wanted)
    return with_ticks(df, settings)


def _wanted(df: DataFrame, plan: OperatorPlan, options: KeyedOptions) -> Wanted:
    """Return what the code wants to find in the checkpoint."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if not options.key:
        raise invalid(options, "it has no key; name one column or several")
    for column in options.key:
        if column not in df.columns:
            raise invalid(options, f"there is no column '{column}' to be its key; there are {df.columns}")
    if len(set(options.key)) < len(options.key):
        raise invalid(options, "a column stands in its key twice")
    keys = to_arrow_schema(StructType([df.schema[column] for column in options.key]), timezone="UTC")
    return Wanted(
        operator=options.name,
        key=KeyType.from_arrow(options.key, keys, operator=options.name),
        max_parallelism=find_max_parallelism(options),
        specs=plan.specs,
        migrations={
            state.name: tuple(state.options.migrations)
            for state in plan.states.values()
            if state.options.migrations
        },
    )


def _watermark_delay_ms(df: DataFrame, options: KeyedOptions) -> int | None:
    """Return the delay of `withWatermark` on the event time; None where there is none, or in a batch job."""
    if options.event_time is None or not df.isStreaming:
        return None
    delay = df.schema[options.event_time].metadata.get(_WATERMARK_MARK)
    return None if delay is None else int(delay)


def _placed(df: DataFrame, options: KeyedOptions, task: KeyedTask, label: str) -> DataFrame:
    """Bring each row to the instance that owns its key group."""
    from pyspark.sql import functions as sql

    max_parallelism = task.wanted.max_parallelism
    keys = [quoted(column) for column in options.key]
    group = sql.pmod(sql.xxhash64(*keys), sql.lit(max_parallelism)).cast("int").alias(GROUP_COLUMN)
    # Spark drops a shuffle of what it knows to be empty, and with it all tasks behind. It does not look
    # through what is observed: every instance has its task in every batch, where timers fire, and whose state
    # the next batch begins with.
    seen = df.select("*", group).observe(label, sql.lit(True).alias("present"))
    return repartition_by_key_group(seen, GROUP_COLUMN, task.parallelism, max_parallelism)


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _tick_ms(name: str, ticks: str | timedelta | None) -> int | None:
    if ticks is None or ticks == "auto":
        return None if ticks is None else LOOK_MS_DEFAULT
    return max(1, length_us(name, "ticks", ticks) // 1000)
