"""The worker process: runs every pipeline of a home on Spark until it is stopped.

One worker runs in a home: its lock is held by this process and by its JVM, and is free when both are gone.
Everything that must survive is in Spark's checkpoints and in the Delta tables, so the worker may be killed at
any moment.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tidegate.checkpoint.local.store import ROOT_VARIABLE
from tidegate.errors import SparkGone
from tidegate.model.clock import Clock, SystemClock
from tidegate.pipeline.topic.client import ServerClient, ServerLocation
from tidegate.pipeline.worker.pipeline_account import PipelineAccount
from tidegate.pipeline.worker.reports import REPORT_TIMEOUT_SECONDS, Reporter, state_disk
from tidegate.pipeline.worker.spark_session import SessionSettings, build_session, end_session, jvm_of
from tidegate.pipeline.worker.supervisor import PipelineSupervisor, RestartSettings
from tidegate.settings import Settings
from tidegate.storage.home.address import PIPELINE_TOKEN_VARIABLE
from tidegate.storage.home.home import Home
from tidegate.storage.home.locks import HomeLock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tidegate.worker")

# How soon a new, changed, removed or failed pipeline is noticed.
TICK_SECONDS = 0.5
# Spark's orderly stop takes a second or two; after this its JVM is killed, which loses nothing.
STOP_SECONDS_MAX = 12.0
LOG_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
LOG_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


class StartInterrupted(BaseException):
    """Leaves the start of Spark when a signal comes during it."""


@dataclass(slots=True)
class _WorkerStatus:
    """The status of the worker; written by the main thread, read by the reporter."""

    state_path: Path
    state: str = "starting"
    spark_version: str = field(default_factory=lambda: importlib.metadata.version("pyspark"))
    supervisor: PipelineSupervisor | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def body(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "memoryBytes": memory_bytes(os.getpid()),
            "sparkVersion": self.spark_version,
            "state": self.state,
            **state_disk(self.state_path),
            "pipelines": self.supervisor.statuses() if self.supervisor else [],
        }


def run_worker(
    settings: Settings, home: Home, clock: Clock | None = None, supervisor: int | None = None
) -> int:
    """Run the pipelines of a home until SIGTERM or SIGINT; return the exit code.

    Raises HomeLocked when another worker runs there, JavaMissing or JarsMissing when Spark cannot start,
    SparkGone when its JVM dies. Call it from the main thread: it sets signal handlers. `supervisor` is the
    pid of the process that started this one and stops it.
    """
    clock = clock or SystemClock()
    _log_to_stderr()
    lock = home.lock("worker")
    if supervisor is not None:
        lock.mark_supervised(supervisor)
    status = _WorkerStatus(_state_path(home))
    # The reporter runs first, so that a slow start shows as one.
    location = ServerLocation(home=str(home.path), as_admin=True)
    reporter = Reporter(
        ServerClient(location, 0, REPORT_TIMEOUT_SECONDS, clock),
        status.body,
        PipelineAccount(home, clock).renew,
    )
    try:
        _listen(status, lock)
        reporter.start()
        log.info("worker starting home=%s pid=%d", home.path, os.getpid())
        spark = _start_spark(settings, home, lock.fd)
        _listen(status, lock)  # Spark sets a handler of SIGINT of its own
        try:
            _supervise(settings, home, clock, spark, status)
        finally:
            status.state = "stopping"
            _stop_spark(spark, status)
    except StartInterrupted:
        log.info("worker stopped during its start")
    finally:
        status.state = "stopping"
        reporter.stop()
        lock.release()
    log.info("worker stopped")
    return 0


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process and of all its descendants.

    A program that Java starts is Java itself for a moment, with the same pages: it is not counted twice.
    """
    import psutil

    total, java = 0, set[int]()
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for one in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess), one.oneshot():
                if one.name() == "java":
                    if one.ppid() in java:
                        continue
                    java.add(one.pid)
                total += one.memory_info().rss
    return total


def _state_path(home: Home) -> Path:
    """Return the folder of local stores: the one that the environment names, else one in the home."""
    folder = os.environ.get(ROOT_VARIABLE)
    return Path(folder).absolute() if folder else home.run_path / "state"


def _start_spark(settings: Settings, home: Home, lock_fd: int) -> SparkSession:
    # Pipelines read from the server of this home, whatever server the environment names.
    for name in ("TIDEGATE_URL", "TIDEGATE_TOKEN"):
        os.environ.pop(name, None)
    token_file = str(home.pipeline_token_path)
    session = SessionSettings(
        master=settings.worker.spark_master,
        driver_memory_mb=settings.worker.driver_memory_mb,
        scratch=home.run_path / "spark",
        # Local stores outlive the worker, so that the next one need not restore them.
        environ={
            "TIDEGATE_HOME": str(home.path),
            ROOT_VARIABLE: str(_state_path(home)),
            PIPELINE_TOKEN_VARIABLE: token_file,
        },
        extra={f"spark.executorEnv.{PIPELINE_TOKEN_VARIABLE}": token_file},
    )
    return build_session(session, keep_open_fds=(lock_fd,))


def _supervise(
    settings: Settings, home: Home, clock: Clock, spark: SparkSession, status: _WorkerStatus
) -> None:
    restarts = RestartSettings(settings.worker.trigger_interval_seconds, settings.worker.backoff_seconds_max)
    supervisor = PipelineSupervisor(spark, home, restarts, clock)
    jvm = jvm_of(spark)
    status.supervisor = supervisor
    status.state = "running"
    log.info("worker running spark=%s jvm=%d", spark.version, jvm.pid)
    while not status.stop.is_set():
        with _spark_gone_on_exit(jvm):
            supervisor.tick()
        status.stop.wait(TICK_SECONDS)


@contextlib.contextmanager
def _spark_gone_on_exit(jvm: subprocess.Popen[bytes]) -> Iterator[None]:
    """Raise SparkGone for every error of a call to a dead JVM."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as problem:
        try:
            code = jvm.wait(REPORT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise problem from None
        raise SparkGone(exit_code=code) from problem
    if jvm.poll() is not None:
        raise SparkGone(exit_code=jvm.returncode)


def _stop_spark(spark: SparkSession, status: _WorkerStatus) -> None:
    jvm = jvm_of(spark)
    guard = threading.Timer(STOP_SECONDS_MAX, jvm.kill)
    guard.start()
    try:
        if status.supervisor is not None and jvm.poll() is None:
            status.supervisor.stop()
        end_session(spark)
    finally:
        guard.cancel()


def _listen(status: _WorkerStatus, lock: HomeLock) -> None:
    """Stop the worker at SIGTERM and SIGINT; while Spark starts, they interrupt the start."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        first = not status.stop.is_set()
        status.stop.set()
        lock.mark_stopping()
        if first:
            log.info("worker stops signal=%s", signal.Signals(number).name)
        if first and status.state == "starting":
            raise StartInterrupted

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def _log_to_stderr() -> None:
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        formatter = logging.Formatter(LOG_FORMAT, LOG_TIME_FORMAT)
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        logging.getLogger().addHandler(handler)
        logging.getLogger().setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
