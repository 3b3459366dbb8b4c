"""The session: Delta, our source, UTC. That its JVM dies with us, test_worker.py shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import InvariantBroken
from tidegate.pipeline.session import SessionSettings, build_session, jvm_of, session_conf


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


def test_local_master_lets_tasks_be_tried_again(tmp_path: Path) -> None:
    conf = session_conf(SessionSettings(), tmp_path)
    assert conf["spark.master"] == "local[*,4]"
    assert (
        session_conf(SessionSettings(extra={"spark.master": "local[1]"}), tmp_path)["spark.master"]
        == "local[1]"
    )
