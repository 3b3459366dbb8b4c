"""A pipeline that is backed up at work goes on in the restored home, exactly once."""

from __future__ import annotations

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

BACKUPS = 2
ROWS_BEFORE_FIRST = 200
MORE = 50


def _count(client: package.Client) -> int:
    return int(client.sql(f"SELECT count(*) FROM lake.{TABLE}").rows[0][0])


def _back_up_at_work(folder: Path, journal: Journal, seed: int) -> list[set[str]]:
    """Run a pipeline under load, make backups of it, and give what each must hold at least."""
    cluster = Cluster(folder / "a" / "home", journal)
    cluster.home.parent.mkdir()
    workload = TopicToLake(journal, seed)
    before: list[set[str]] = []
    try:
        cluster.start()
        cluster.wait_for("the server", lambda client: bool(client.status()))
        workload.prepare(cluster)
        workload.start(cluster)
        cluster.wait_for("the first rows", lambda client: _count(client) >= ROWS_BEFORE_FIRST)
        for number in range(BACKUPS):
            before.append(set(workload.acknowledged))
            answer = tidegate("backup", str(folder / f"{number}.tar"), home=cluster.home)
            assert answer.returncode == 0, answer.stderr
            time.sleep(0.7)  # into another batch
        workload.finish()
        cluster.wait_for("the pipeline to catch up", workload.drained)
        assert not workload.verify(cluster), "the backup disturbed the home that it was made of"
        cluster.stop()
    finally:
        cluster.destroy()
    return before


def _go_on(folder: Path, number: int, journal: Journal, acknowledged: set[str]) -> list[Fault]:
    """Restore a backup elsewhere, publish more, and compare topic and table."""
    cluster = Cluster(folder / f"b{number}" / "elsewhere", journal)
    cluster.home.parent.mkdir()
    answer = tidegate("restore", str(folder / f"{number}.tar"), home=cluster.home)
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
        before = _back_up_at_work(tmp_path, journal, seed)
        for number, acknowledged in enumerate(before):
            assert len(acknowledged) >= ROWS_BEFORE_FIRST
            faults = _go_on(tmp_path, number, journal, acknowledged)
            assert not faults, report(journal, faults, seed, ["topic"])
    finally:
        journal.close()
