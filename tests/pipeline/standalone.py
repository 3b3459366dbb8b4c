"""A Spark standalone cluster on loopback: master and workers from the pyspark package."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil
import pyspark

from tests.paths import ROOT
from tidegate.pipeline.java import find_java

# A JVM on a loaded machine takes seconds; a test waits no longer than it must.
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0

_LISTENS = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:[1-9]\d*)\s")


class Cluster:
    """A master and workers with one core each; ended with everything that they started."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.url = ""
        self._started: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._count = workers

    def __enter__(self) -> Self:
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self._start("master", "org.apache.spark.deploy.master.Master", *place)
        self.url = self._master_url()
        for number in range(self._count):
            self._workers.append(self._start_worker(number))
        return self

    def __exit__(self, *_: object) -> None:
        for one in reversed(self._started):
            end_tree(one)

    def executors(self) -> list[psutil.Process]:
        """Return the executors that run now."""
        found = []
        for worker in self._workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(worker.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if any("CoarseGrainedExecutorBackend" in word for word in child.cmdline()):
                            found.append(child)
        return found

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        size = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--host", "127.0.0.1"]
        work = ["--work-dir", str(self.folder / f"work-{number}")]
        return self._start(
            f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *size, *work, self.url
        )

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        environ = os.environ | {
            "JAVA_HOME": str(find_java().path),
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "SPARK_DAEMON_MEMORY": "256m",
            # Each worker stands for a host with a disk of its own.
            "TIDEGATE_STATE_DIR": str(self.folder / f"disk-{name}"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                [str(spark_class), *command], env=environ, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(started)
        return started

    def _master_url(self) -> str:
        """Wait until the master says at which port it listens, and give that."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            said = _LISTENS.search((self.folder / "master.log").read_text(errors="replace"))
            if said:
                return said[1]
            time.sleep(0.05)
        raise TimeoutError(f"waited {START_SECONDS_MAX} s for the master to listen")


def end_tree(root: subprocess.Popen[bytes]) -> None:
    """End a process of ours and all below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(root.pid)
        for one in [*top.children(recursive=True), top]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
    root.wait(STOP_SECONDS_MAX)


@contextlib.contextmanager
def driver(
    module: str, *arguments: str, environ: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of the tests as a Spark driver, in a process of its own."""
    words = [sys.executable, "-m", module, *arguments]
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    started = subprocess.Popen(
        words, cwd=ROOT, env=os.environ | path | (environ or {}), start_new_session=True
    )
    try:
        yield started
    finally:
        end_tree(started)
