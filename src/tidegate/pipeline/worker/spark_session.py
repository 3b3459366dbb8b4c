"""The Spark session of the worker, with Delta and the topic source, on a JVM that this process starts.

The JVM is started here and not by Spark, for two reasons. It inherits the descriptors in `keep_open_fds`: a
lock on one of them stays held until both processes are dead, so that no second driver touches a checkpoint
that a dying one still writes. And it runs in a process session of its own, so that Ctrl-C reaches this
process alone, which then stops queries in order. The JVM ends by itself when this process dies: its standard
input closes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import InvariantBroken, SparkGone
from tidegate.pipeline.jars import delta_jars
from tidegate.pipeline.java import find_java
from tidegate.pipeline.worker.spark_security import make_private_folder, remove_private_folder, security_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A cleanly stopped JVM is gone in well under a second; after this it is killed.
JVM_GRACE_SECONDS = 10.0
# A query that does not end its batch within this time at a stop is abandoned; the batch runs again later.
QUERY_STOP_SECONDS = 10
# This many files below half of 128 MiB are compacted at once: rarely enough to cost little, often enough that
# reads of a table stay fast.
COMPACT_FILES_MIN = 50

# Spark logs many details at WARN; these are nothing that a user can act on.
QUIET_LOGGERS = {
    "org.apache.spark.SparkConf": "error",
    "org.apache.hadoop.util.NativeCodeLoader": "error",
    "org.apache.spark.util.Utils": "error",
    "org.apache.spark.util.SparkStringUtils": "error",
    # Says after each batch that runs longer than the trigger that it ran longer than the trigger.
    "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor": "error",
    # Warns that adaptive execution is off for streams, at each start.
    "org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream": "error",
    # Repeats, with its stack, each failure that the worker logs itself.
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution": "off",
    "org.apache.spark.scheduler.TaskSetManager": "error",
    # Says at each stop of an idle query that there was no job to stop.
    "org.apache.spark.scheduler.DAGScheduler": "error",
}


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a session; `scratch` is a folder that the session may empty."""

    master: str = "local[*,4]"
    driver_memory_mb: int = 2048
    shuffle_partitions: int = 2
    app_name: str = "tidegate"
    scratch: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)


def build_session(
    settings: SessionSettings | None = None, *, keep_open_fds: tuple[int, ...] = ()
) -> SparkSession:
    """Start a JVM and return a session on it; later calls in the process return one on the same JVM.

    Takes about five seconds and no network. The JVM inherits `keep_open_fds`, which is refused when a JVM
    runs already.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    settings = settings or SessionSettings()
    active = SparkSession.getActiveSession()
    if SparkContext._gateway is not None and keep_open_fds:
        raise InvariantBroken(reason="a JVM runs already and cannot inherit a descriptor any more")
    if active is not None:
        return _registered(active)
    scratch = _fresh_scratch(settings.scratch)
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(session_conf(settings, scratch, make_private_folder(scratch)).items()))
    with _kill_jvm_on_error():
        gateway = SparkContext._gateway or _launch(conf, settings, keep_open_fds)
        context = SparkContext(conf=conf, gateway=gateway)
    return _registered(SparkSession(context))


def session_conf(settings: SessionSettings, scratch: Path, private: Path) -> dict[str, str]:
    """Return Spark's configuration for a session; `private` is a folder that only this user may enter."""
    log_settings = _write_log_settings(scratch)
    master = settings.extra.get("spark.master", settings.master)
    conf = {
        "spark.master": settings.master,
        "spark.app.name": settings.app_name,
        "spark.driver.memory": f"{settings.driver_memory_mb}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={log_settings} -Djava.io.tmpdir={private}"
        ),
        # URIs, not paths: a comma separates jars, a space separates options of Java.
        "spark.jars": ",".join(jar.absolute().as_uri() for jar in delta_jars()),
        "spark.local.dir": str(scratch / "local"),
        # A path: Spark would read %20 of a URI as three letters of a name.
        "spark.sql.warehouse.dir": str(scratch.absolute() / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # One machine: more partitions than cores only add tasks of ten milliseconds each.
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.default.parallelism": str(settings.shuffle_partitions),
        "spark.databricks.delta.snapshotPartitions": "2",
        # A stream commits small files without end; some batches compact them, or reads would slow down.
        "spark.databricks.delta.autoCompact.enabled": "true",
        "spark.databricks.delta.autoCompact.minNumFiles": str(COMPACT_FILES_MIN),
        # With it, a table is checked for compaction after every batch once the JVM was restarted, however few
        # its files are.
        "spark.databricks.delta.autoCompact.modifiedPartitionsOnly.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stopTimeout": f"{QUERY_STOP_SECONDS}s",
        # A task that waits for a dead server fails by itself; Spark need not watch the Python side closely.
        "spark.python.worker.reuse": "true",
    }
    return conf | security_conf(master, private) | dict(settings.extra)


def jvm_of(spark: SparkSession) -> subprocess.Popen[bytes]:
    """Return the JVM behind a session."""
    proc = spark.sparkContext._gateway.proc
    if not isinstance(proc, subprocess.Popen):
        raise InvariantBroken(reason="this session's JVM was not started by build_session")
    return proc


def end_session(spark: SparkSession) -> None:
    """Stop a session and its JVM; on return both are gone."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    jvm = jvm_of(spark)
    gateway = SparkContext._gateway
    try:
        if jvm.poll() is None:
            spark.stop()
            gateway.shutdown()
    except (Py4JError, OSError):
        jvm.kill()
    finally:
        SparkContext._gateway = None
        SparkContext._jvm = None
    if jvm.stdin is not None:
        jvm.stdin.close()
    try:
        jvm.wait(JVM_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait(JVM_GRACE_SECONDS)


def _launch(conf: Any, settings: SessionSettings, keep_open_fds: tuple[int, ...]) -> Any:
    from pyspark.java_gateway import launch_gateway

    python = sys.executable
    os.environ.pop("SPARK_LOCAL_DIRS", None)  # it would win over our scratch folder
    os.environ.update(settings.environ)
    os.environ.update(
        {
            "JAVA_HOME": str(find_java().path),
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "PYTHONPATH": _python_path(),
        }
    )
    return launch_gateway(conf, {"pass_fds": keep_open_fds, "start_new_session": True})


@contextlib.contextmanager
def _kill_jvm_on_error() -> Iterator[None]:
    """Kill the JVM of a start that was interrupted: half started, it would wait without end."""
    import psutil
    from pyspark.errors import PySparkRuntimeError

    here = psutil.Process()
    before = {child.pid for child in here.children()}
    try:
        yield
    except BaseException as problem:
        for child in here.children():
            if child.pid not in before:
                child.kill()
        if isinstance(problem, PySparkRuntimeError) and problem.getCondition() == "JAVA_GATEWAY_EXITED":
            raise SparkGone(exit_code="unknown") from problem
        raise


def _python_path() -> str:
    """Return a PYTHONPATH with which Spark's Python workers import from the same folders as this process."""
    package = Path(__file__).resolve().parents[2]
    ours = [str(package.parent), str(package / "pipeline" / "python_path")]
    rest = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*ours, *(entry for entry in rest if entry and entry not in ours)])


def _fresh_scratch(folder: Path | None) -> Path:
    if folder is None:
        made = Path(tempfile.mkdtemp(prefix="tidegate-spark-"))
        atexit.register(_remove_scratch, made)
        return made
    _remove_scratch(folder)
    folder.mkdir(parents=True, mode=0o700)
    atexit.register(remove_private_folder, folder)  # after a kill, the next session does it
    return folder


def _remove_scratch(folder: Path) -> None:
    remove_private_folder(folder)
    shutil.rmtree(folder, ignore_errors=True)


def _write_log_settings(scratch: Path) -> str:
    """Return the URI of the file: without the spaces and quotes at which Spark would split its options."""
    lines = [
        "status = error",
        "rootLogger.level = warn",
        "rootLogger.appenderRef.stderr.ref = stderr",
        "appender.stderr.type = Console",
        "appender.stderr.name = stderr",
        "appender.stderr.target = SYSTEM_ERR",
        "appender.stderr.layout.type = PatternLayout",
        "appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p spark.%c{1} %m%n%ex{3}",
    ]
    for number, (logger, level) in enumerate(QUIET_LOGGERS.items()):
        lines += [f"logger.quiet{number}.name = {logger}", f"logger.quiet{number}.level = {level}"]
    path = scratch / "log4j2.properties"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path.absolute().as_uri()


def _registered(spark: SparkSession) -> SparkSession:
    from pyspark.sql import SparkSession as Sessions

    from tidegate.pipeline.topic.source import register_source

    register_source(spark)
    Sessions._instantiatedSession = spark
    return spark
