"""The supervisor of pipelines: one running streaming query for each file in the folder of pipelines.

A new file is started, a changed one is restarted from its checkpoint, one that is stopped or removed is
ended, and one that fails is restarted after a pause that doubles. One thread calls `tick` and `stop`;
`statuses` may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import PipelineInvalid
from tidegate.model.clock import Clock
from tidegate.pipeline.worker.definitions import PipelineContext, build_writer, line_in, load_pipeline
from tidegate.pipeline.worker.failures import full_reason, java_failure, short_reason
from tidegate.pipeline.worker.progress import ProgressCounter, committed_offsets
from tidegate.pipeline.worker.reports import StateReports
from tidegate.storage.home.home import Home
from tidegate.storage.home.pipeline_files import installed_path, list_pipeline_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger("tidegate.worker")

BACKOFF_SECONDS_MIN = 0.5
# A query that ran this long before it failed starts at the first pause again.
STABLE_SECONDS = 60.0

# Modification time, size and inode of a file: the same content written again is another stamp.
Stamp = tuple[int, int, int]
# Of a pipeline that is stopped: no file has it, so a file that is installed next is started.
NO_STAMP: Stamp = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """The trigger interval and the pauses before restarts."""

    trigger_interval_seconds: float = 1.0
    backoff_seconds_max: float = 30.0


@dataclass(slots=True)
class PipelineRun:
    """One pipeline file: its state, its query, and its failures."""

    name: str
    path: Path
    stamp: Stamp
    counter: ProgressCounter
    states: StateReports
    state: str = "starting"
    error: str | None = None
    restarts: int = 0
    topics: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    query: StreamingQuery | None = field(default=None, repr=False)
    started_seconds: float = 0.0
    pause_seconds: float = BACKOFF_SECONDS_MIN
    # When the next start is due; None while a query runs.
    due_seconds: float | None = 0.0

    def reset(self, stamp: Stamp) -> None:
        """Reset failures and pauses: the file was written again, even if with the same content."""
        self.stamp, self.error, self.restarts = stamp, None, 0
        self.pause_seconds, self.started_seconds = BACKOFF_SECONDS_MIN, 0.0

    def status(self) -> dict[str, Any]:
        """Return the status of the pipeline for the server."""
        totals = self.counter.totals()
        offsets = self.counter.offsets
        paired = zip(self.topics, offsets, strict=True) if len(self.topics) == len(offsets) else ()
        return {
            "name": self.name,
            "state": self.state,
            "batches": totals.batches,
            "rows": totals.rows,
            "rowsPerSecond": totals.rows_per_second,
            "lastBatchSeconds": totals.last_batch_seconds,
            "error": self.error,
            "restarts": self.restarts,
            "topic": self.topics[0] if self.topics else None,
            # The last one: tables of dead letters and of lookups are named before the sink.
            "table": self.tables[-1] if self.tables else None,
            "offsets": {topic: reached for topic, reached in paired if reached},
            "operators": self.states.reports,
        }


class PipelineSupervisor:
    """Every pipeline of a home, on one Spark session."""

    def __init__(self, spark: SparkSession, home: Home, settings: RestartSettings, clock: Clock) -> None:
        self._spark = spark
        self._home = home
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, PipelineRun] = {}

    def tick(self) -> None:
        """Start and stop queries by the files; never raises for a mistake in a pipeline."""
        self._follow_folder()
        for run in list(self._runs.values()):
            if run.query is not None:
                self._watch(run, run.query)
            if run.due_seconds is not None and self._clock.monotonic_seconds() >= run.due_seconds:
                self._start(run)

    def statuses(self) -> list[dict[str, Any]]:
        """Return the status of every pipeline, by name."""
        with self._lock:
            runs = sorted(self._runs.values(), key=lambda run: run.name)
        return [run.status() for run in runs]

    def stop(self) -> None:
        """Stop all queries at once and wait for them; an interrupted batch runs again later."""
        threads = [threading.Thread(target=self._end, args=(run,)) for run in self._runs.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _follow_folder(self) -> None:
        files = list_pipeline_files(self._home.pipelines_path)
        for name in [name for name in self._runs if name not in (*files.installed, *files.stopped)]:
            log.info("pipeline removed pipeline=%s", name)
            self._end(self._runs[name])
            with self._lock:
                del self._runs[name]
        for name in files.stopped:
            stopped = self._runs.get(name) or self._add(name, NO_STAMP)
            if stopped.stamp != NO_STAMP:
                log.info("pipeline stopped pipeline=%s", name)
                self._end(stopped)
                stopped.reset(NO_STAMP)
            stopped.due_seconds = None
        for name in files.installed:
            stamp = _stamp(installed_path(self._home.pipelines_path, name))
            run = self._runs.get(name)
            if stamp is None or (run is not None and run.stamp == stamp):
                continue
            if run is None:
                run = self._add(name, stamp)
            else:
                log.info("pipeline changed pipeline=%s", name)
                self._end(run)
                run.reset(stamp)
            run.state, run.due_seconds = "starting", 0.0

    def _add(self, name: str, stamp: Stamp) -> PipelineRun:
        path = installed_path(self._home.pipelines_path, name)
        states = StateReports(self._home.checkpoints_path / name)
        state = "stopped" if stamp == NO_STAMP else "starting"
        run = PipelineRun(name, path, stamp, ProgressCounter(self._clock), states, state)
        with self._lock:
            self._runs[name] = run
        return run

    def _start(self, run: PipelineRun) -> None:
        if run.error is not None:
            run.restarts += 1
        run.due_seconds = None
        try:
            writer, run.topics, run.tables = self._build(run)
            checkpoint = self._home.checkpoints_path / run.name
            run.counter.begin(committed_offsets(checkpoint))
            interval_ms = round(self._settings.trigger_interval_seconds * 1000)
            run.query = (
                writer.option("checkpointLocation", str(checkpoint))
                .queryName(run.name)
                .trigger(processingTime=f"{interval_ms} milliseconds")
                .start()
            )
        except Exception as problem:  # noqa: BLE001 - a pipeline is the user's code and may raise anything
            self._fail(run, problem)
        else:
            run.started_seconds = self._clock.monotonic_seconds()
            run.state = "starting"

    def _build(self, run: PipelineRun) -> tuple[DataStreamWriter, tuple[str, ...], tuple[str, ...]]:
        pipeline = load_pipeline(run.path)
        if pipeline.name != run.name:
            reason = (
                f"line {pipeline.line}: it defines '{pipeline.name}', so the file must be {pipeline.name}.py."
            )
            raise PipelineInvalid(file=str(run.path), line=pipeline.line, reason=reason)
        context = PipelineContext(own_session(self._spark), self._home, run.name)
        writer = build_writer(pipeline, context)
        return writer, topics_of(writer), context.tables

    def _watch(self, run: PipelineRun, query: StreamingQuery) -> None:
        run.counter.look(query)
        run.states.look(run.counter.totals().batches)
        if query.isActive:
            if run.state == "starting" and _has_run_trigger(query):
                run.state, run.error = "running", None
                topics = ",".join(run.topics)
                log.info("pipeline running pipeline=%s topic=%s restarts=%d", run.name, topics, run.restarts)
            return
        problem = query.exception() or RuntimeError("the query ended by itself")
        java = java_failure(query)
        run.query = None
        self._fail(run, problem, java)

    def _fail(self, run: PipelineRun, problem: BaseException, java: Any = None) -> None:
        now_seconds = self._clock.monotonic_seconds()
        if run.started_seconds and now_seconds - run.started_seconds >= STABLE_SECONDS:
            run.pause_seconds = BACKOFF_SECONDS_MIN
        line = line_in(run.path, problem)
        where = f"{run.path.name}, line {line}: " if line and not isinstance(problem, PipelineInvalid) else ""
        run.state, run.error, run.started_seconds = "failed", where + full_reason(problem, java), 0.0
        run.due_seconds = now_seconds + run.pause_seconds
        short = run.error.partition("\n")[0]
        log.warning(
            "pipeline failed pipeline=%s again_in_seconds=%g error=%r", run.name, run.pause_seconds, short
        )
        run.pause_seconds = min(run.pause_seconds * 2, self._settings.backoff_seconds_max)

    def _end(self, run: PipelineRun) -> None:
        query, run.query, run.due_seconds = run.query, None, None
        try:
            if query is not None:
                query.stop()
                run.counter.look(query)
        except _spark_errors() as problem:
            log.warning("pipeline did not stop in time pipeline=%s error=%r", run.name, short_reason(problem))
        run.state = "stopped"


def own_session(spark: SparkSession) -> SparkSession:
    """Return a session on the same Spark with the same sources; its settings and views are its own."""
    from pyspark.sql import SparkSession as Session

    return Session(spark.sparkContext, spark._jsparkSession.cloneSession())


def topics_of(writer: DataStreamWriter) -> tuple[str, ...]:
    """Return the topics that a stream reads, in the order in which Spark reports its sources."""
    from tidegate.pipeline.topic.source import SOURCE_NAME

    leaves = writer._df._jdf.queryExecution().analyzed().collectLeaves()
    found = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName() == SOURCE_NAME:
            found.append(leaf.extraOptions().get("topic"))
    return tuple(found)


def _has_run_trigger(query: StreamingQuery) -> bool:
    """True if a query has completed a trigger, with rows or without: only then it counts as running."""
    return query.lastProgress is not None or query.status["message"].startswith("Waiting for")


def _stamp(path: Path) -> Stamp | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None  # stopped or removed since it was listed; the next tick sees that
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JJavaError)
