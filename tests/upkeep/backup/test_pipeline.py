"""A pipeline that is backed up at work goes on in the restored home, exactly once."""

from __future__ import annotations

import random
import secrets
import time
from pathlib import Path

import pytest

import tidegate as package
from tests.cli.calls import tidegate
from tests.crash.cluster import Cluster
from tests.crash.history import Fault, report
from tests.crash.journal import Journal
from tests.crash.workload import (
    TABLE,
    TOPIC,
    TopicToLake,
    _table_rows,
    differences,
    doubles,
    topic_rows,
)

ROWS_BEFORE = 200
# Longer than a batch, so that the backup begins anywhere in one.
PAUSE_SECONDS_MAX = 1.5
MORE = 50


def _count(client: package.Client) -> int:
    return int(client.sql(f"SELECT count(*) FROM lake.{TABLE}").rows[0][0])


def _back_up_at_work(folder: Path, journal: Journal, seed: int) -> set[str]:
    """Run a pipeline under load, make a backup of it, and give what it must hold at least."""
    cluster = Cluster(folder / "a" / "home", journal)
    cluster.home.parent.mkdir()
    workload = TopicToLake(journal, seed)
    try:
        cluster.start()
        cluster.wait_for("the server", lambda client: bool(client.status()))
        workload.prepare(cluster)
        workload.start(cluster)
        cluster.wait_for("the first rows", lambda client: _count(client) >= ROWS_BEFORE)
        time.sleep(random.Random(seed).random() * PAUSE_SECONDS_MAX)
        before = set(workload.acknowledged)
        answer = tidegate("backup", str(folder / "b.tar"), home=cluster.home)
        assert answer.returncode == 0, answer.stderr
        workload.finish()
        cluster.wait_for("the pipeline to catch up", workload.drained)
        assert not workload.verify(cluster), "the backup disturbed the home that it was made of"
        cluster.stop()
    finally:
        cluster.destroy()
    return before


def _go_on(folder: Path, journal: Journal, acknowledged: set[str]) -> list[Fault]:
    """Restore the backup elsewhere, publish more, and compare topic and table."""
    cluster = Cluster(folder / "b" / "elsewhere", journal)
    cluster.home.parent.mkdir()
    answer = tidegate("restore", str(folder / "b.tar"), home=cluster.home)
    assert answer.returncode == 0, answer.stderr
    try:
        cluster.start()
        cluster.wait_for("the restored server", lambda client: bool(client.status()))
        with cluster.client() as client:
            held = dict(topic_rows(client, TOPIC))
            messages = [{"key": str(n), "payload": {"subject": f"later/{n}"}} for n in range(MORE)]
            client.topic(TOPIC).publish(messages)
        total = len(held) + MORE
        cluster.wait_for("the pipeline to catch up", lambda client: _count(client) >= total)
        with cluster.client() as client:
            topic = dict(topic_rows(client, TOPIC))
        table = _table_rows(cluster)
        cluster.stop()
    finally:
        cluster.destroy()
    lost = tuple(acknowledged - set(held.values()))
    faults = [Fault("acknowledged before the backup is in it", f"{len(lost)} are not", lost)] if lost else []
    return [
        *faults,
        *differences("what the backup held is in the restored topic", held, topic, whole=False),
        *differences("the table holds the topic's messages", topic, dict(table)),
        *doubles("each message is in the table once", table),
    ]


@pytest.mark.spark
@pytest.mark.crash
def test_a_pipeline_backed_up_at_work_goes_on_exactly_once_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbelow(10**6)
    with capsys.disabled():
        print(f" backups under load with seed {seed} ", end="", flush=True)
    journal = Journal(tmp_path / "journal.jsonl")
    try:
        acknowledged = _back_up_at_work(tmp_path, journal, seed)
        assert len(acknowledged) >= ROWS_BEFORE
        faults = _go_on(tmp_path, journal, acknowledged)
        assert not faults, report(journal, faults, seed, ["topic"])
    finally:
        journal.close()
