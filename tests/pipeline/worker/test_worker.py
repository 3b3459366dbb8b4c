"""The worker: follows the folder, starts what failed again, survives kill -9, stops when asked."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pipeline.topic.topics import TopicClient
from tests.pipeline.worker.workers import children_named, counted, running_worker, wait_until, write_pipeline
from tidegate.errors import HomeLocked
from tidegate.model.clock import SystemClock
from tidegate.pipeline.worker.supervisor import PipelineSupervisor, RestartSettings
from tidegate.storage.home.home import Home
from tidegate.storage.home.pipeline_files import remove_pipeline_file, start_pipeline_file, stop_pipeline_file
from tidegate.testing.server import running_server


@pytest.fixture
def topics(home: Path) -> Iterator[TopicClient]:
    with running_server(home) as server:
        client = TopicClient(server)
        client.create("app.events", 2)
        client.publish("app.events", range(100))
        yield client


@pytest.fixture
def supervision(spark: Any, topics: TopicClient) -> Iterator[PipelineSupervisor]:
    settings = RestartSettings(trigger_interval_seconds=0.1, backoff_seconds_max=0.5)
    made = PipelineSupervisor(spark, Home.existing(topics.server.home), settings, SystemClock())
    yield made
    made.stop()


def status_of(supervision: PipelineSupervisor, name: str) -> dict[str, Any]:
    supervision.tick()
    return next((one for one in supervision.statuses() if one["name"] == name), {})


@pytest.mark.spark
def test_files_are_started_changed_and_removed(supervision: PipelineSupervisor, topics: TopicClient) -> None:
    home = topics.server.home
    path = write_pipeline(home, "events", "app.events")
    first = wait_until(
        lambda: (one := status_of(supervision, "events")) and one["rows"] == 100 and one, "100 rows counted"
    )
    assert first["state"] == "running"
    assert (first["topic"], first["table"], first["restarts"], first["error"]) == (
        "app.events",
        "events",
        0,
        None,
    )
    assert sum(first["offsets"]["app.events"].values()) == 100
    assert first["lastBatchSeconds"] > 0

    # Changed: goes on from its checkpoint, so the other table gets only what is new.
    write_pipeline(home, "events", "app.events", table="others")
    supervision.tick()  # the old query has ended, and takes nothing of what comes
    topics.publish("app.events", range(100, 130))
    wait_until(lambda: status_of(supervision, "events")["rows"] == 130, "30 more rows counted")
    assert topics.sql("SELECT count(*) FROM lake.others") == [[30]]
    assert topics.sql("SELECT count(*) FROM lake.events") == [[100]]

    # Stopped: it is shown with what it did; started: it goes on with what came meanwhile.
    assert stop_pipeline_file(home / "pipelines", "events")
    stopped = status_of(supervision, "events")
    assert (stopped["state"], stopped["rows"], stopped["topic"]) == ("stopped", 130, "app.events")
    topics.publish("app.events", range(130, 140))
    later = status_of(supervision, "events")
    # A rate is of the last seconds: it falls by itself.
    assert later | {"rowsPerSecond": 0} == stopped | {"rowsPerSecond": 0}
    assert start_pipeline_file(home / "pipelines", "events")
    wait_until(lambda: status_of(supervision, "events")["rows"] == 140, "10 more rows counted")
    assert topics.sql("SELECT count(*) FROM lake.others") == [[40]]

    path.unlink()
    supervision.tick()
    assert supervision.statuses() == []


def test_what_was_stopped_before_the_worker_came_is_shown_and_not_run(
    spark: Any, topics: TopicClient
) -> None:
    home = Home.existing(topics.server.home)
    (home.pipelines_path / "broken.py").write_text("def run(:\n", encoding="utf-8")
    stop_pipeline_file(home.pipelines_path, "broken")
    supervision = PipelineSupervisor(spark, home, RestartSettings(), StandingClock())
    shown = [status_of(supervision, "broken") for _ in range(2)]
    assert [(one["state"], one["error"], one["restarts"]) for one in shown] == [("stopped", None, 0)] * 2
    start_pipeline_file(home.pipelines_path, "broken")
    assert "invalid syntax" in status_of(supervision, "broken")["error"]
    stop_pipeline_file(home.pipelines_path, "broken")
    stopped = status_of(supervision, "broken")
    assert (stopped["state"], stopped["error"]) == ("stopped", None)
    remove_pipeline_file(home.pipelines_path, "broken")
    assert status_of(supervision, "broken") == {}


@pytest.mark.spark
def test_failed_pipeline_is_shown_and_started_again(
    supervision: PipelineSupervisor, topics: TopicClient
) -> None:
    home = topics.server.home
    write_pipeline(home, "late", "app.late")
    (home / "pipelines" / "broken.py").write_text("def run(:\n", encoding="utf-8")
    failed = wait_until(
        lambda: (one := status_of(supervision, "late")) and one["restarts"] > 0 and one["error"] and one,
        "a restart",
    )
    assert failed["state"] in ("failed", "starting")
    assert "There is no topic 'app.late'." in failed["error"]
    assert "tidegate topic create app.late" in failed["error"]
    assert "line 1: invalid syntax" in status_of(supervision, "broken")["error"]

    topics.create("app.late")
    topics.publish("app.late", range(7))
    healed = wait_until(
        lambda: (one := status_of(supervision, "late"))["state"] == "running" and one["rows"] == 7 and one,
        "the pipeline to heal",
    )
    assert healed["error"] is None


UNIQUE = """
from tidegate import spark as tide

@tide.pipeline(name="once")
def run(ctx):
    rows = ctx.spark.readStream.format("tidegate.topic").option("topic", "app.events")
    rows = rows.option("home", str(ctx.home.path)).load()
    rows = tide.deduplicate(rows, "once", "key", "ts", "1 day", ctx.checkpoint, partitions=2)
    return rows.writeStream.format("delta").option("path", ctx.lake("once"))
"""


@pytest.mark.spark
def test_pipeline_without_duplicates_goes_on_after_its_file_changed(
    supervision: PipelineSupervisor, topics: TopicClient
) -> None:
    path = topics.server.home / "pipelines" / "once.py"
    path.write_text(UNIQUE, encoding="utf-8")
    wait_until(
        lambda: status_of(supervision, "once") and counted(topics, "once") == (100, 100), "the first rows"
    )
    path.write_text(UNIQUE + "# changed", encoding="utf-8")
    topics.publish("app.events", range(50, 120))
    wait_until(
        lambda: status_of(supervision, "once") and counted(topics, "once") == (120, 120), "the new keys alone"
    )
    assert topics.sql("SELECT count(DISTINCT key) FROM lake.once") == [[120]]


FAILING = """
from pyspark.sql import functions as F
from tidegate import spark as tide

@F.udf("int")
def crooked(number):
    return 1 // (number - number)

@tide.pipeline(name="NAME")
def run(ctx):
    rows = ctx.spark.readStream.format("tidegate.topic").option("topic", "app.events")
    rows = rows.option("home", str(ctx.home.path)).load().withColumn("n", EXPRESSION)
    return rows.writeStream.format("delta").option("path", ctx.lake("NAME"))
"""


def failure_of(supervision: PipelineSupervisor, home: Path, name: str, expression: str) -> str:
    """Run a pipeline that cannot go well and give its first error."""
    text = FAILING.replace("NAME", name).replace("EXPRESSION", expression)
    (home / "pipelines" / f"{name}.py").write_text(text, encoding="utf-8")
    return str(wait_until(lambda: status_of(supervision, name).get("error"), "a failure"))


@pytest.mark.spark
def test_failed_cast_in_a_task_is_named(supervision: PipelineSupervisor, topics: TopicClient) -> None:
    error = failure_of(supervision, topics.server.home, "cast", "F.col('key').cast('int')")
    assert "[CAST_INVALID_INPUT]" in error.splitlines()[0]
    assert "\tat " not in error


@pytest.mark.spark
def test_python_error_in_a_task_is_named_with_its_line(
    supervision: PipelineSupervisor, topics: TopicClient
) -> None:
    error = failure_of(supervision, topics.server.home, "udf", "crooked('partition')")
    first = error.splitlines()[0]
    assert "ZeroDivisionError" in first
    assert "udf.py, line 7" in first


@pytest.mark.spark
def test_other_columns_than_the_table_has_are_named_with_a_way_out(
    spark: Any, supervision: PipelineSupervisor, topics: TopicClient
) -> None:
    home = topics.server.home
    spark.range(1).write.format("delta").save(str(home / "lake" / "narrow"))
    error = failure_of(supervision, home, "narrow", "F.lit(1)")
    assert "payload_mode string" in error.splitlines()[0]
    assert "mergeSchema" in error
    assert len(error.splitlines()[0]) <= 600
    assert len(error) <= 4_100


@pytest.mark.spark
def test_file_written_again_with_the_same_content_starts_afresh(spark: Any, topics: TopicClient) -> None:
    home = Home.existing(topics.server.home)
    path = write_pipeline(home.path, "late", "app.late")
    # A pause that no test waits for: only the rewrite can end it.
    settings = RestartSettings(trigger_interval_seconds=0.1, backoff_seconds_max=0.5)
    supervision = PipelineSupervisor(spark, home, settings, clock := StandingClock())
    wait_until(lambda: status_of(supervision, "late")["error"], "a failure")
    clock.now_seconds += 1
    failed = wait_until(
        lambda: (one := status_of(supervision, "late"))["restarts"] and one["state"] == "failed" and one,
        "a second failure",
    )
    assert failed["restarts"] == 1
    path.write_bytes(path.read_bytes())
    fresh = status_of(supervision, "late")
    assert (fresh["state"], fresh["error"], fresh["restarts"]) == ("starting", None, 0)
    supervision.stop()


class StandingClock(SystemClock):
    """A clock whose seconds pass only when told."""

    now_seconds = 1.0

    def monotonic_seconds(self) -> float:
        return self.now_seconds


def test_file_must_bear_the_name_of_its_pipeline(spark: Any, topics: TopicClient) -> None:
    home = Home.existing(topics.server.home)
    write_pipeline(home.path, "events", "app.events").rename(home.pipelines_path / "other.py")
    supervision = PipelineSupervisor(spark, home, RestartSettings(), SystemClock())
    assert "the file must be events.py" in status_of(supervision, "other")["error"]


def is_gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.spark
@pytest.mark.crash
def test_killed_worker_frees_its_lock_with_its_jvm_and_the_next_goes_on(topics: TopicClient) -> None:
    home = Home.existing(topics.server.home)
    write_pipeline(home.path, "events", "app.events")
    with running_worker(home.path) as worker:
        wait_until(lambda: counted(topics, "events") == (100, 100), "the first rows")
        with pytest.raises(HomeLocked):
            home.lock("worker")
        (jvm,) = children_named(worker, "SparkSubmit")
        topics.publish("app.events", range(100, 200))
        jvm.suspend()  # as if it were slow to die
        worker.kill()
        worker.wait()
        with pytest.raises(HomeLocked):
            home.lock("worker", wait_seconds=0.5)
        jvm.resume()
        home.lock("worker", wait_seconds=60).release()
        # Its descriptors go a moment before it does.
        wait_until(lambda: is_gone(jvm), "the end of the JVM")

    with running_worker(home.path) as worker:
        topics.publish("app.events", range(200, 300))
        wait_until(lambda: counted(topics, "events")[0] >= 300, "all rows")
        assert counted(topics, "events") == (300, 300)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
