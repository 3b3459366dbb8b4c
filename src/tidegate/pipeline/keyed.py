"""Keyed operators on Spark: take a DataFrame and an operator, give the DataFrame of what comes out.

Rows are brought to the instance that owns their key group, and each instance works in one task a batch
(`keyed_task`). The plan is three steps that any sink can stand behind:

    key group    pmod(xxhash64(key columns), max_parallelism), computed by the JVM
    placement    repartitionById(parallelism, key group * parallelism div max_parallelism)
    work         mapInArrow, which Spark calls for empty partitions too
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tidegate.errors import StateInvalid, StateMismatch
from tidegate.model.clock import Clock, SystemClock
from tidegate.model.durations import parse_duration
from tidegate.pipeline.keyed_checks import KeyedOptions, check_events, check_options, invalid
from tidegate.pipeline.keyed_task import KeyedTask
from tidegate.pipeline.planned import PLAN_ID_BYTES, Planned, newest_committed
from tidegate.pipeline.ticks import LOOK_MS_DEFAULT, TickSettings, ticked_before, with_ticks
from tidegate.pipeline.travelling import prepare_to_travel
from tidegate.state.batch import StateSettings
from tidegate.state.checking import StartPlan, check_start
from tidegate.state.depot import checkpoint_path, operator_depot
from tidegate.state.epochs import begin_anew
from tidegate.state.instance import GROUP_COLUMN
from tidegate.state.keys import KeyType
from tidegate.state.local import ROOT_VARIABLE
from tidegate.state.operator import KeyedOperator
from tidegate.state.plans import OperatorPlan, checked
from tidegate.state.rocks_settings import RocksSettings
from tidegate.state.savepoint_record import read_savepoint
from tidegate.state.schemas import Wanted, newest_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger("tidegate.keyed")

# Flink's default too: enough to grow to, few enough that a key group is worth moving.
MAX_PARALLELISM_DEFAULT = 128
# For caches and write buffers of all partitions of an executor; taken as they are needed.
MEMORY_BYTES_DEFAULT = 1 << 30

# A call is told apart from those of the same run alone.
CALL_BYTES = 8
_CALLS = itertools.count()

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
    lateness: str = "0 s",
    ticks: str | None = "auto",
    backend: Literal["rocksdb", "heap"] = "rocksdb",
    rocks: RocksSettings | None = None,
    dead_letters: str | os.PathLike[str] | None = None,
    savepoint: str | os.PathLike[str] | None = None,
    ordered: bool = False,
    snapshot_every: int | None = None,
    local_dir: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Run an operator with state for each key over a streaming or batch DataFrame, exactly once.

    `checkpoint` is the query's own checkpointLocation; a batch DataFrame may go without, and forgets its
    state afterwards. `partitions` is how many instances work side by side, and may change from start to
    start; `max_parallelism` is fixed at the first. Without `withWatermark` the watermark is the newest event
    time of the batches before, less `lateness`. `ticks` is how soon a due timer is noticed while no rows come
    ("auto", a duration, or None for never). With `dead_letters`, the path of a Delta table, rows on which the
    operator fails are written there instead of stopping the query. `savepoint` is where a new checkpoint
    begins from. `ordered` sorts each partition's rows of a batch by event time. `local_dir` is where
    executors keep their copies of the state. Refuses what cannot run before any row is touched.
    """
    settings = StateSettings(
        backend=backend,
        rocks=rocks or RocksSettings.production(memory_bytes_max=MEMORY_BYTES_DEFAULT),
        local_root=_local_root(df, local_dir),
    )
    if snapshot_every is not None:
        settings = replace(settings, snapshot_every_batches=snapshot_every)
    options = KeyedOptions(
        name=name,
        key=(key,) if isinstance(key, str) else tuple(key),
        event_time=event_time,
        checkpoint=_location(name, "checkpoint", checkpoint),
        partitions=partitions,
        max_parallelism=max_parallelism,
        lateness_ms=parse_duration(lateness).us // 1000,
        tick_ms=_tick_ms(ticks),
        dead_letters=_location(name, "dead_letters", dead_letters),
        savepoint=_location(name, "savepoint", savepoint),
        ordered=ordered,
        settings=settings,
    )
    return keyed_rows(df, operator, options, SystemClock())


def keyed_rows(
    df: DataFrame, operator: KeyedOperator[Any, Any], options: KeyedOptions, clock: Clock
) -> DataFrame:
    """Give the DataFrame of what comes out of an operator; see `process`."""
    if not hasattr(df, "_jdf"):
        raise invalid(
            options, "its DataFrame is one of Spark Connect; state needs a session of its own driver"
        )
    plan = checked(operator, options.name)
    check_events(df, plan)
    wanted = _wanted(df, plan, options)
    check_options(df, options, wanted.max_parallelism)
    start = _start(df, wanted, options)
    parallelism = _parallelism(df, start, wanted)
    delay = _watermark_delay_ms(df, options)
    task = KeyedTask(
        operator=operator,
        call=_call_mark(df, clock),
        wanted=wanted,
        parallelism=parallelism,
        settings=_shared_out(df, options.settings),
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
        task = _planned_here(df, task, start, clock)
    placed = _placed(df, options, task)
    # Spark takes a dot in a name for a step into a struct here: such columns go by number.
    if any(set(column) & set(".`") for column in placed.columns):
        task = replace(task, columns=tuple(placed.columns))
        placed = placed.toDF(*(f"c{number}" for number in range(len(placed.columns))))
    prepare_to_travel(plan)
    return placed.mapInArrow(task, _spark_schema(plan.out_schema))


def _ticking(df: DataFrame, plan: OperatorPlan, options: KeyedOptions, lateness_ms: int | None) -> DataFrame:
    """Put ticks beside a stream whose operator has timers; a checkpoint keeps the sources it began with."""
    checkpoint = str(options.checkpoint)
    wanted = plan.has_timers and options.tick_ms is not None
    had = ticked_before(checkpoint, options.name)
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
    """Say what the code wants to find in the checkpoint."""
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
        max_parallelism=_max_parallelism(options),
        specs=plan.specs,
        migrations={
            state.name: tuple(state.options.migrations)
            for state in plan.states.values()
            if state.options.migrations
        },
    )


def _max_parallelism(options: KeyedOptions) -> int:
    """Give the number of key groups: as asked, as the checkpoint or the savepoint has it, or the default."""
    if options.max_parallelism is not None:
        return options.max_parallelism
    if options.checkpoint is not None:
        stored = newest_schema(operator_depot(options.checkpoint, options.name), options.name)
        if stored is not None:
            return stored.max_parallelism
    if options.savepoint is not None:
        return read_savepoint(Path(options.savepoint)).max_parallelism
    return MAX_PARALLELISM_DEFAULT


def _start(df: DataFrame, wanted: Wanted, options: KeyedOptions) -> StartPlan | None:
    """Ask the checkpoint how the operator may begin; nothing is changed in it."""
    if options.checkpoint is None:
        return None
    start = check_start(options.checkpoint, wanted, options.partitions, options.savepoint)
    for change in start.changes:
        log.info("operator=%s %s", options.name, change)
    return _left_behind(df, options.checkpoint, wanted, start)


def _left_behind(df: DataFrame, checkpoint: str, wanted: Wanted, start: StartPlan) -> StartPlan:
    """Begin an epoch with a batch whose rows came to the wrong instances: nothing counts of what it did."""
    if not df.isStreaming or not start.moved:
        return start
    done = newest_committed(checkpoint_path(checkpoint))
    batch = start.moved[-1]
    if done is not None and batch <= done.number:
        return start
    epoch = begin_anew(operator_depot(checkpoint, wanted.operator), wanted.operator, batch)
    return replace(start, seen_epoch=epoch.number)


def _parallelism(df: DataFrame, start: StartPlan | None, wanted: Wanted) -> int:
    """Give how many instances work: as asked, as before, or one for each core that Spark has."""
    if start is not None and start.parallelism is not None:
        return start.parallelism
    cores = int(df.sparkSession.sparkContext.defaultParallelism)
    return max(1, min(cores, wanted.max_parallelism))


def _watermark_delay_ms(df: DataFrame, options: KeyedOptions) -> int | None:
    """Give the delay of `withWatermark` on the event time; None where there is none, or in a batch job."""
    if options.event_time is None or not df.isStreaming:
        return None
    delay = df.schema[options.event_time].metadata.get(_WATERMARK_MARK)
    return None if delay is None else int(delay)


def _shared_out(df: DataFrame, settings: StateSettings) -> StateSettings:
    """Divide an executor's memory among the tasks that run in it at once."""
    return replace(settings, rocks=replace(settings.rocks or RocksSettings(), slots=slots_of(df)))


def slots_of(df: DataFrame) -> int:
    """Give how many tasks run in one executor at once."""
    context = df.sparkSession.sparkContext
    conf, master = context.getConf(), context.master
    if master.startswith("local"):
        cores = master.partition("[")[2].rstrip("]").partition(",")[0]
        count = os.cpu_count() if cores == "*" else int(cores or 1)
    else:
        count = int(conf.get("spark.executor.cores", "0")) or os.cpu_count()
    return max(1, (count or 1) // int(conf.get("spark.task.cpus", "1")))


def _planned_here(df: DataFrame, task: KeyedTask, start: StartPlan | None, clock: Clock) -> KeyedTask:
    """Plan the one batch of a batch job; what an earlier job did of it in part is left behind."""
    now_us = clock.now_us()
    number, seen = 0, None
    if start is not None and task.checkpoint is not None:
        number, seen = start.next_batch, start.seen_epoch
        if start.torn or number in start.moved:
            depot = operator_depot(task.checkpoint, task.wanted.operator)
            seen = begin_anew(depot, task.wanted.operator, number).number
    marks = (df.sparkSession.sparkContext.applicationId, task.wanted.operator, number, now_us)
    plan_id = hashlib.blake2b(repr(marks).encode(), digest_size=PLAN_ID_BYTES).hexdigest()
    return replace(task, planned=Planned(number, plan_id, None, now_us // 1000), seen_epoch=seen)


def _call_mark(df: DataFrame, clock: Clock) -> str:
    """Give a text that no other call of `process` has, in this driver or in another one."""
    marks = (df.sparkSession.sparkContext.applicationId, next(_CALLS), clock.now_us())
    return hashlib.blake2b(repr(marks).encode(), digest_size=CALL_BYTES).hexdigest()


def _placed(df: DataFrame, options: KeyedOptions, task: KeyedTask) -> DataFrame:
    """Bring each row to the instance that owns its key group."""
    from pyspark.sql import functions as sql

    parallelism, max_parallelism = task.parallelism, task.wanted.max_parallelism
    keys = [_quoted(column) for column in options.key]
    group = sql.pmod(sql.xxhash64(*keys), sql.lit(max_parallelism)).cast("int").alias(GROUP_COLUMN)
    instance = sql.expr(f"cast(`{GROUP_COLUMN}` * {parallelism} div {max_parallelism} as int)")
    # Spark drops a shuffle of what it knows to be empty, and with it all tasks behind. It does not look
    # through what is observed: every instance has its task in every batch, where timers fire, and whose state
    # the next batch begins with.
    label = options.name if df.isStreaming else f"{options.name}.{task.call}"
    seen = df.select("*", group).observe(f"tidegate.{label}", sql.lit(True).alias("present"))
    return seen.repartitionById(parallelism, instance)


def _quoted(column: str) -> Column:
    """Give a column by its very name, whatever stands in it."""
    from pyspark.sql import functions as sql

    return sql.col("`" + column.replace("`", "``") + "`")


def _spark_schema(schema: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _tick_ms(ticks: str | None) -> int | None:
    if ticks is None or ticks == "auto":
        return None if ticks is None else LOOK_MS_DEFAULT
    return max(1, parse_duration(ticks).us // 1000)


def _location(name: str, option: str, path: str | os.PathLike[str] | None) -> str | None:
    """Give an absolute path: tasks run in other folders than the driver."""
    if path is None:
        return None
    given = os.fspath(path)
    if not given.strip():
        raise StateInvalid(operator=name, reason=f"{option} is empty; it is the path of a folder, or None")
    return str(checkpoint_path(given).absolute())


def _local_root(df: DataFrame, given: str | os.PathLike[str] | None) -> str | None:
    """Give where copies are kept; None leaves it to the environment of each executor."""
    if given is not None:
        return os.fspath(given)
    is_here = df.sparkSession.sparkContext.master.startswith("local")
    return os.environ.get(ROOT_VARIABLE) if is_here else None
