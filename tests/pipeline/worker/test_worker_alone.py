"""The worker as a process of its own: awkward paths, and a stop while it starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.pipeline.topic.topics import TopicClient
from tests.pipeline.worker.workers import children_named, counted, running_worker, wait_until, write_pipeline
from tidegate.pipeline.jars import delta_jars
from tidegate.storage.home.home import Home
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
            assert worker.wait(60) == 0
    assert (home / "checkpoints" / "events" / "commits").is_dir()
    # Its private folder was elsewhere, and is gone.
    assert (home / "run" / "spark" / "tmp").is_symlink()
    assert not (home / "run" / "spark" / "tmp").exists()
    # Nothing took an address for a path.
    assert not list(tmp_path.rglob("*%20*"))


@pytest.mark.spark
def test_worker_that_is_stopped_while_it_starts_exits_at_once(home: Path) -> None:
    with running_server(home), running_worker(home) as worker:
        jvm = wait_until(lambda: children_named(worker, "SparkSubmit"), "the start of the JVM")[0]
        os.killpg(jvm.pid, signal.SIGSTOP)  # it starts no further: only the signal can end the wait for it
        try:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(jvm.pid, signal.SIGCONT)
        assert "worker stopped during its start" in (home / "logs" / "worker.log").read_text()
        Home.existing(home).lock("worker", wait_seconds=60).release()
