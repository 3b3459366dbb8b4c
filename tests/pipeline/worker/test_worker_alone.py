"""The worker as a process of its own: awkward paths, and a stop while it starts."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.pipeline.topics import TopicClient
from tests.pipeline.workers import children_named, counted, running_worker, wait_until, write_pipeline
from tidegate.pipeline.jars import delta_jars
from tidegate.storage.home import Home
from tidegate.testing.server import running_server


@pytest.mark.spark
def test_home_and_jars_with_spaces_and_quotes_in_their_paths_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = tmp_path / "my jars"
    jars.mkdir()
    for jar in delta_jars():
        shutil.copy(jar, jars)
    monkeypatch.setenv("TIDEGATE_JARS_DIR", str(jars))
    home = tmp_path / 'it\'s a "home"'
    with running_server(home) as server:
        topics = TopicClient(server)
        topics.create("app.events", 2)
        topics.publish("app.events", range(100))
        write_pipeline(home, "events", "app.events")
        with running_worker(home) as worker:
            wait_until(lambda: counted(topics, "events") == (100, 100), "the rows", 120)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(15) == 0
    assert (home / "checkpoints" / "events" / "commits").is_dir()
    # Nothing took an address for a path.
    assert not list(tmp_path.rglob("*%20*"))


@pytest.mark.spark
def test_worker_that_is_stopped_while_it_starts_exits_at_once(home: Path) -> None:
    with running_server(home), running_worker(home) as worker:
        wait_until(lambda: children_named(worker, "SparkSubmit"), "the start of the JVM")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(5) == 0
        Home.existing(home).lock("worker").release()
