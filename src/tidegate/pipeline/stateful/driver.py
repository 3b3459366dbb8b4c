"""The driver's part of a stateful operator: how many instances there are, and with which batch they begin.

Keyed operators and deduplication share it: the start is checked against the checkpoint, the one batch of a
batch job is planned, and rows are shuffled to the instances that own their key groups.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.checkpoint.epochs import begin_epoch
from tidegate.checkpoint.local.store import ROOT_VARIABLE
from tidegate.checkpoint.savepoints.record import read_savepoint
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.store import checkpoint_path, operator_store
from tidegate.model.clock import Clock
from tidegate.pipeline.stateful.completed_runs import check_is_new, runs_before, store_runs
from tidegate.pipeline.stateful.options import OperatorOptions, absolute_path
from tidegate.pipeline.stateful.spark_log import PLAN_ID_BYTES, PlannedBatch, newest_committed
from tidegate.pipeline.stateful.task_context import StatefulTaskContext
from tidegate.state.schema.schema import SchemaRequest, newest_schema
from tidegate.state.schema.start_check import StartPlan, check_start

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("tidegate.keyed")

# Flink's default too: enough to grow to, few enough that a key group is worth moving.
MAX_PARALLELISM_DEFAULT = 128
# For caches and write buffers of all partitions of an executor; allocated as they are needed.
MEMORY_BYTES_DEFAULT = 1 << 30

# An id tells a call apart from the others of the same run alone.
CALL_BYTES = 8
_CALLS = itertools.count()


def find_max_parallelism(options: OperatorOptions) -> int:
    """Return the number of key groups: of the options, the checkpoint or the savepoint, or the default."""
    if options.max_parallelism is not None:
        return options.max_parallelism
    if options.checkpoint is not None:
        stored = newest_schema(operator_store(options.checkpoint, options.name), options.name)
        if stored is not None:
            return stored.max_parallelism
    if options.savepoint is not None:
        return read_savepoint(Path(options.savepoint)).max_parallelism
    return MAX_PARALLELISM_DEFAULT


def plan_tasks(
    df: DataFrame, options: OperatorOptions, request: SchemaRequest, clock: Clock, function: str
) -> StatefulTaskContext:
    """Return what the tasks of an operator share, planned against its checkpoint.

    `function` is the public function that was called: hints of errors speak of it.
    """
    start = _find_start(df, request, options)
    context = StatefulTaskContext(
        operator=options.name,
        parallelism=_find_parallelism(df, start, options, request.max_parallelism),
        max_parallelism=request.max_parallelism,
        settings=_with_task_slots(df, options.settings),
        checkpoint=options.checkpoint,
        seen_epoch=start.seen_epoch if start else None,
        savepoint=options.savepoint,
        call=new_call_id(df, clock),
        function=function,
    )
    if df.isStreaming:
        return context
    planned, seen_epoch = _plan_batch_job(df, options, start, clock)
    # A named run is the same whichever call makes it: in foreachBatch too, it may be tried again.
    call = context.call if options.run is None else planned.plan_id
    return replace(context, planned=planned, seen_epoch=seen_epoch, call=call)


def _find_start(df: DataFrame, request: SchemaRequest, options: OperatorOptions) -> StartPlan | None:
    """Return how the operator may begin, by its checkpoint; None where there is no checkpoint."""
    if options.checkpoint is None:
        return None
    start = check_start(options.checkpoint, request, options.partitions, options.savepoint)
    for change in start.changes:
        log.info("operator changed operator=%s change=%r", options.name, change)
    return _abandon_moved_batch(df, options.checkpoint, request, start)


def _abandon_moved_batch(
    df: DataFrame, checkpoint: str, request: SchemaRequest, start: StartPlan
) -> StartPlan:
    """Begin an epoch with a batch whose rows came to the wrong instances: it is run again as a whole."""
    if not df.isStreaming or not start.moved:
        return start
    done = newest_committed(checkpoint_path(checkpoint))
    batch = start.moved[-1]
    if done is not None and batch <= done.number:
        return start
    epoch = begin_epoch(operator_store(checkpoint, request.operator), request.operator, batch)
    return replace(start, seen_epoch=epoch.number)


def _find_parallelism(
    df: DataFrame, start: StartPlan | None, options: OperatorOptions, max_parallelism: int
) -> int:
    """Return the number of instances: of the options, as before, or one for each core that Spark has."""
    if start is not None and start.parallelism is not None:
        return start.parallelism
    if start is None and options.partitions is not None:
        return options.partitions
    cores = int(df.sparkSession.sparkContext.defaultParallelism)
    return max(1, min(cores, max_parallelism))


def _with_task_slots(df: DataFrame, settings: StateSettings) -> StateSettings:
    """Divide an executor's memory among the tasks that run in it at once."""
    return replace(settings, backend=settings.backend.with_slots(_tasks_per_executor(df)))


def _tasks_per_executor(df: DataFrame) -> int:
    """Return how many tasks run in one executor at once."""
    context = df.sparkSession.sparkContext
    conf, master = context.getConf(), context.master
    if master.startswith("local"):
        cores = master.partition("[")[2].rstrip("]").partition(",")[0]
        count = os.cpu_count() if cores == "*" else int(cores or 1)
    else:
        count = int(conf.get("spark.executor.cores", "0")) or os.cpu_count()
    return max(1, (count or 1) // int(conf.get("spark.task.cpus", "1")))


def _plan_batch_job(
    df: DataFrame, options: OperatorOptions, start: StartPlan | None, clock: Clock
) -> tuple[PlannedBatch, int | None]:
    """Return the one batch of a batch job, and the epoch that was seen.

    What an earlier job committed of it in part is abandoned. A run with the name of the newest complete batch
    is that batch: what was committed holds, and is output again. StateMismatch for the name of an older one.
    """
    now_us = clock.now_us()
    run_id = None if options.run is None else _plan_id("run", options.name, options.run)
    number, seen_epoch = 0, None
    if start is not None and options.checkpoint is not None:
        store = operator_store(options.checkpoint, options.name)
        number, seen_epoch = start.next_batch, start.seen_epoch
        runs = runs_before(store, number)
        is_repeated = run_id is not None and runs.get(number - 1) == run_id
        if options.run is not None and run_id is not None and not is_repeated:
            check_is_new(options.name, options.run, run_id, runs)
        store_runs(store, runs)
        number -= is_repeated
        if number in start.moved or (start.torn and not is_repeated):
            seen_epoch = begin_epoch(store, options.name, number).number
    application = df.sparkSession.sparkContext.applicationId
    plan_id = run_id or _plan_id(application, options.name, number, now_us)
    return PlannedBatch(number, plan_id, None, now_us // 1000), seen_epoch


def _plan_id(*marks: str | int) -> str:
    return hashlib.blake2b(repr(marks).encode(), digest_size=PLAN_ID_BYTES).hexdigest()


def new_call_id(df: DataFrame, clock: Clock) -> str:
    """Return a text that no other call on a driver has, in this one or in another one."""
    marks = (df.sparkSession.sparkContext.applicationId, next(_CALLS), clock.now_us())
    return hashlib.blake2b(repr(marks).encode(), digest_size=CALL_BYTES).hexdigest()


def shuffle_by_key_group(
    df: DataFrame, group: str, context: StatefulTaskContext, label: str, metric: Column
) -> DataFrame:
    """Shuffle rows to the instances that own their key groups, which are in a column.

    Spark drops a shuffle of what it knows to be empty, and with it all tasks after it. It does not look
    through an observation: so every instance has its task in every batch, where timers fire, and whose state
    the next batch begins with.
    """
    from pyspark.sql import functions as sql

    parallelism, max_parallelism = context.parallelism, context.max_parallelism
    instance = sql.expr(f"cast(`{group}` * {parallelism} div {max_parallelism} as int)")
    return df.observe(label, metric).repartitionById(parallelism, instance)


def observation_name(df: DataFrame, name: str, clock: Clock) -> str:
    """Return the name under which Spark counts an operator's rows.

    Batch jobs of one session never share it.
    """
    return f"tidegate.{name}" if df.isStreaming else f"tidegate.{name}.{new_call_id(df, clock)}"


def quoted(column: str) -> Column:
    """Return a column by its very name, whatever characters are in it."""
    from pyspark.sql import functions as sql

    return sql.col("`" + column.replace("`", "``") + "`")


def find_local_root(df: DataFrame, name: str, local_dir: str | os.PathLike[str] | None) -> str | None:
    """Return the folder of local stores; None leaves it to the environment of each executor."""
    if local_dir is not None:
        return absolute_path(name, "local_dir", local_dir)
    is_here = df.sparkSession.sparkContext.master.startswith("local")
    return os.environ.get(ROOT_VARIABLE) if is_here else None
