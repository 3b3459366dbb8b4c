"""The start of an operator with state: takes its options and a DataFrame, gives how its tasks begin.

What every such operator needs on the driver: how many instances there are, where they find their state, which
batch a batch job works on, and the step that brings each row to the instance that owns its key group.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidegate.checkpoint.epochs import begin_anew
from tidegate.checkpoint.local.store import ROOT_VARIABLE
from tidegate.checkpoint.savepoints.record import read_savepoint
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.store import checkpoint_path, operator_depot
from tidegate.errors import StateInvalid
from tidegate.model.clock import Clock
from tidegate.pipeline.stateful.completed_runs import check_is_new, runs_before, store_runs
from tidegate.pipeline.stateful.spark_log import PLAN_ID_BYTES, PlannedBatch, newest_committed
from tidegate.state.schema.schema import Wanted, newest_schema
from tidegate.state.schema.start_check import StartPlan, check_start

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger("tidegate.keyed")

# Flink's default too: enough to grow to, few enough that a key group is worth moving.
MAX_PARALLELISM_DEFAULT = 128
# For caches and write buffers of all partitions of an executor; taken as they are needed.
MEMORY_BYTES_DEFAULT = 1 << 30

# A call is told apart from those of the same run alone.
CALL_BYTES = 8
_CALLS = itertools.count()


class StartOptions(Protocol):
    """What the start of every operator with state needs to know."""

    @property
    def name(self) -> str: ...
    @property
    def checkpoint(self) -> str | None: ...
    @property
    def savepoint(self) -> str | None: ...
    @property
    def partitions(self) -> int | None: ...
    @property
    def max_parallelism(self) -> int | None: ...
    @property
    def settings(self) -> StateSettings: ...
    @property
    def run(self) -> str | None: ...


def find_max_parallelism(options: StartOptions) -> int:
    """Return number of key groups: as asked, as the checkpoint or the savepoint has it, or the default."""
    if options.max_parallelism is not None:
        return options.max_parallelism
    if options.checkpoint is not None:
        stored = newest_schema(operator_depot(options.checkpoint, options.name), options.name)
        if stored is not None:
            return stored.max_parallelism
    if options.savepoint is not None:
        return read_savepoint(Path(options.savepoint)).max_parallelism
    return MAX_PARALLELISM_DEFAULT


def find_start(df: DataFrame, wanted: Wanted, options: StartOptions) -> StartPlan | None:
    """Ask the checkpoint how the operator may begin; None where there is no checkpoint."""
    if options.checkpoint is None:
        return None
    start = check_start(options.checkpoint, wanted, options.partitions, options.savepoint)
    for change in start.changes:
        log.info("operator=%s %s", options.name, change)
    return _abandon_moved_batch(df, options.checkpoint, wanted, start)


def _abandon_moved_batch(df: DataFrame, checkpoint: str, wanted: Wanted, start: StartPlan) -> StartPlan:
    """Begin an epoch with a batch whose rows came to the wrong instances: nothing counts of what it did."""
    if not df.isStreaming or not start.moved:
        return start
    done = newest_committed(checkpoint_path(checkpoint))
    batch = start.moved[-1]
    if done is not None and batch <= done.number:
        return start
    epoch = begin_anew(operator_depot(checkpoint, wanted.operator), wanted.operator, batch)
    return replace(start, seen_epoch=epoch.number)


def find_parallelism(
    df: DataFrame, start: StartPlan | None, options: StartOptions, max_parallelism: int
) -> int:
    """Return how many instances work: as asked, as before, or one for each core that Spark has."""
    if start is not None and start.parallelism is not None:
        return start.parallelism
    if start is None and options.partitions is not None:
        return options.partitions
    cores = int(df.sparkSession.sparkContext.defaultParallelism)
    return max(1, min(cores, max_parallelism))


def with_task_slots(df: DataFrame, settings: StateSettings) -> StateSettings:
    """Divide an executor's memory among the tasks that run in it at once."""
    return replace(settings, backend=settings.backend.with_slots(tasks_per_executor(df)))


def tasks_per_executor(df: DataFrame) -> int:
    """Return how many tasks run in one executor at once."""
    context = df.sparkSession.sparkContext
    conf, master = context.getConf(), context.master
    if master.startswith("local"):
        cores = master.partition("[")[2].rstrip("]").partition(",")[0]
        count = os.cpu_count() if cores == "*" else int(cores or 1)
    else:
        count = int(conf.get("spark.executor.cores", "0")) or os.cpu_count()
    return max(1, (count or 1) // int(conf.get("spark.task.cpus", "1")))


def plan_batch_job(
    df: DataFrame, options: StartOptions, start: StartPlan | None, clock: Clock
) -> tuple[PlannedBatch, int | None]:
    """Plan the one batch of a batch job, and say which epoch was seen.

    What an earlier job did of it in part is left behind. A run that is named as the newest complete batch was
    is that batch: what was published holds, and comes out again. StateMismatch for the name of an older one.
    """
    now_us = clock.now_us()
    named = None if options.run is None else _plan_id("run", options.name, options.run)
    number, seen = 0, None
    if start is not None and options.checkpoint is not None:
        depot = operator_depot(options.checkpoint, options.name)
        number, seen = start.next_batch, start.seen_epoch
        runs = runs_before(depot, number)
        is_again = named is not None and runs.get(number - 1) == named
        if options.run is not None and named is not None and not is_again:
            check_is_new(options.name, options.run, named, runs)
        store_runs(depot, runs)
        number -= is_again
        if number in start.moved or (start.torn and not is_again):
            seen = begin_anew(depot, options.name, number).number
    application = df.sparkSession.sparkContext.applicationId
    plan_id = named or _plan_id(application, options.name, number, now_us)
    return PlannedBatch(number, plan_id, None, now_us // 1000), seen


def _plan_id(*marks: str | int) -> str:
    return hashlib.blake2b(repr(marks).encode(), digest_size=PLAN_ID_BYTES).hexdigest()


def new_call_id(df: DataFrame, clock: Clock) -> str:
    """Return a text that no other call on a driver has, in this one or in another one."""
    marks = (df.sparkSession.sparkContext.applicationId, next(_CALLS), clock.now_us())
    return hashlib.blake2b(repr(marks).encode(), digest_size=CALL_BYTES).hexdigest()


def repartition_by_key_group(df: DataFrame, group: str, parallelism: int, max_parallelism: int) -> DataFrame:
    """Bring each row to the instance that owns its key group, which stands in a column."""
    from pyspark.sql import functions as sql

    instance = sql.expr(f"cast(`{group}` * {parallelism} div {max_parallelism} as int)")
    return df.repartitionById(parallelism, instance)


def observation_name(df: DataFrame, name: str, call: str) -> str:
    """Return the name under which Spark counts an operator's rows.

    Batch jobs of one session never share it.
    """
    return f"tidegate.{name}" if df.isStreaming else f"tidegate.{name}.{call}"


def quoted(column: str) -> Column:
    """Return a column by its very name, whatever stands in it."""
    from pyspark.sql import functions as sql

    return sql.col("`" + column.replace("`", "``") + "`")


def absolute_path(name: str, option: str, path: str | os.PathLike[str] | None) -> str | None:
    """Return an absolute path: tasks run in other folders than the driver."""
    given = path_text(name, option, path)
    return None if given is None else str(checkpoint_path(given).absolute())


def path_text(name: str, option: str, path: str | os.PathLike[str] | None) -> str | None:
    """Return the text of a path; StateInvalid for what is no path of a folder."""
    if path is None:
        return None
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str) or "\0" in given:
        reason = f"{option} is {path!r}; it is the path of a folder, as text or a Path, or None"
        raise StateInvalid(operator=name, reason=reason)
    if not given.strip():
        raise StateInvalid(operator=name, reason=f"{option} is empty; it is the path of a folder, or None")
    return given


def find_local_root(df: DataFrame, name: str, given: str | os.PathLike[str] | None) -> str | None:
    """Return where copies are kept; None leaves it to the environment of each executor."""
    if given is not None:
        return path_text(name, "local_dir", given)
    is_here = df.sparkSession.sparkContext.master.startswith("local")
    return os.environ.get(ROOT_VARIABLE) if is_here else None
