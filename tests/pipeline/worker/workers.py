"""A worker as a process of its own, a pipeline for it, and what its table holds."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.pipeline.topic.topics import TopicClient

WORKER = """
import sys
from pathlib import Path
from tidegate.pipeline.worker.worker import run_worker
from tidegate.settings import load_settings
from tidegate.storage.home.home import Home

home = Path(sys.argv[1])
flags = {"worker.trigger_interval_seconds": 0.1, "worker.driver_memory_mb": 1024}
sys.exit(run_worker(load_settings(home, {}, flags), Home.existing(home)))
"""

# A JVM that lives for seconds is twice as quick with the first of its two compilers alone.
QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}

PIPELINE = """
from tidegate import spark as tide

@tide.pipeline(name="NAME")
def run(ctx):
    rows = ctx.spark.readStream.format("tidegate.topic").option("topic", "TOPIC")
    rows = rows.option("home", str(ctx.home.path)).load()
    return rows.writeStream.format("delta").option("path", ctx.lake("TABLE"))
"""


def write_pipeline(home: Path, name: str, topic: str, table: str | None = None) -> Path:
    path = home / "pipelines" / f"{name}.py"
    text = PIPELINE.replace("NAME", name).replace("TOPIC", topic).replace("TABLE", table or name)
    path.write_text(text, encoding="utf-8")
    return path


def wait_until(check: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    """Return the first true answer; fail with what was waited for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = check()
        if answer:
            return answer
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds} s: {what}")


@contextlib.contextmanager
def running_worker(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (home / "logs" / "worker.log").open("ab") as log:
        command = [sys.executable, "-c", WORKER, str(home)]
        worker = subprocess.Popen(command, stderr=log, stdout=log, env={**os.environ, **QUICK_JAVA})
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def children_named(worker: subprocess.Popen[bytes], word: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(worker.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word in argument for argument in child.cmdline()):
                found.append(child)
    return found


def counted(topics: TopicClient, name: str) -> tuple[int, int]:
    """Return rows and distinct rows of a table; (0, 0) before its first commit."""
    if not any((topics.server.home / "lake" / name / "_delta_log").glob("*.json")):
        return 0, 0
    statement = f'SELECT count(*), count(DISTINCT (partition, "offset")) FROM lake.{name}'
    rows, distinct = topics.sql(statement)[0]
    return rows, distinct
