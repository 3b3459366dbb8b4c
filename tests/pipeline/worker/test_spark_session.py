"""The session: Delta, our source, UTC. That its JVM dies with us, test_worker.py shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tidegate.errors import InvariantBroken
from tidegate.pipeline.worker.spark_session import (
    COMPACT_FILES_MIN,
    SessionSettings,
    build_session,
    jvm_of,
    session_conf,
)


@pytest.mark.spark
def test_session_has_delta_our_source_and_utc(spark: Any, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "table"))
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 3
    assert spark.read.format("tidegate.topic").option("topic", "a.b").load().columns[0] == "partition"
    assert spark.sql("SELECT current_timezone()").first()[0] == "UTC"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.spark
def test_second_build_gives_the_running_session_and_refuses_descriptors(spark: Any) -> None:
    assert jvm_of(build_session()).pid == jvm_of(spark).pid
    with pytest.raises(InvariantBroken):
        build_session(keep_open_fds=(0,))


@pytest.mark.spark
def test_small_files_are_joined_only_when_fifty_have_gathered(spark: Any, tmp_path: Path) -> None:
    table = tmp_path / "table"
    # Made by another writer, as a table is for a worker that starts again.
    deltalake.write_deltalake(str(table), pa.table({"id": pa.array([1, 2], pa.int64())}))

    def add(files: int) -> int:
        """Append so many files; give how often files were joined since the table was made."""
        spark.range(files * 2).repartition(files).write.format("delta").mode("append").save(str(table))
        commits = [path.read_text() for path in (table / "_delta_log").glob("*.json")]
        return sum('"operation":"OPTIMIZE"' in commit for commit in commits)

    assert [add(1), add(1), add(COMPACT_FILES_MIN - 4)] == [0, 0, 0]
    add(1)
    assert [add(1), add(1), add(1)] == [1, 1, 1]


def test_java_options_and_jars_hold_no_space(tmp_path: Path) -> None:
    scratch = tmp_path / "a 'b' \"c\""
    scratch.mkdir()
    conf = session_conf(SessionSettings(), scratch, Path("/tmp/private"))
    log_settings, folder = conf["spark.driver.extraJavaOptions"].split(" ")
    assert not set(log_settings) & set("'\"")
    assert folder == "-Djava.io.tmpdir=/tmp/private"
    assert all(jar.startswith("file:///") for jar in conf["spark.jars"].split(","))
    assert conf["spark.sql.warehouse.dir"] == str(scratch / "warehouse")


def test_local_master_lets_tasks_be_tried_again(tmp_path: Path) -> None:
    conf = session_conf(SessionSettings(), tmp_path, tmp_path)
    assert conf["spark.master"] == "local[*,4]"
    assert (
        session_conf(SessionSettings(extra={"spark.master": "local[1]"}), tmp_path, tmp_path)["spark.master"]
        == "local[1]"
    )
