"""`tidegate up` under test: start it, find its processes, kill one with -9, wait until all is well again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import psutil

import tidegate
from tests.crash.journal import Journal
from tidegate.errors import TidegateError

Target = Literal["server", "worker", "java", "up"]
# Long: a machine that is busy with other things starts a JVM in a minute.
START_SECONDS = 300.0
STOP_SECONDS = 120.0
FLUSH_SECONDS = 0.5
# Quick to come back, so that a run of many kills is short.
ENVIRONMENT = {
    "TIDEGATE_SUPERVISOR_BACKOFF_SECONDS_MIN": "0.1",
    "TIDEGATE_SUPERVISOR_BACKOFF_SECONDS_MAX": "0.5",
    "TIDEGATE_WORKER_TRIGGER_INTERVAL_SECONDS": "0.2",
    "TIDEGATE_WORKER_BACKOFF_SECONDS_MAX": "1",
    "TIDEGATE_STREAMS_FLUSH_INTERVAL_SECONDS": str(FLUSH_SECONDS),
    # Half the processor time until the first batch; a worker that is killed soon never earns the rest back.
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
}


class Cluster:
    """Server and worker of one home, supervised."""

    def __init__(self, home: Path, journal: Journal) -> None:
        self.home = home
        self._journal = journal
        self._up: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start `tidegate up`."""
        with (self.home.parent / "up.log").open("ab") as log:
            self._up = subprocess.Popen(
                [sys.executable, "-m", "tidegate", "up", "--home", str(self.home), "--port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
            )
        self._journal.add("up", "up", pid=self._up.pid)

    def kill(self, target: Target) -> bool:
        """Kill one process with -9; say whether there was one to kill."""
        pid = self.pid_of(target)
        if pid is None:
            return False
        begun = self._journal.now_seconds()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        # It died between these two moments, which may be far apart on a busy machine.
        self._journal.add("kill", target, pid=pid, begun=begun)
        if target == "up" and self._up is not None:
            self._up.wait()
            self.start()
        return True

    def pid_of(self, target: Target) -> int | None:
        """Return the process id of a part, if it runs."""
        if self._up is None:
            return None
        if self._up.poll() is not None:
            raise AssertionError(
                f"tidegate up ended by itself with {self._up.returncode}:\n{self.log_tail()}"
            )
        if target == "up":
            return self._up.pid
        try:
            children = psutil.Process(self._up.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if _is(target, child.cmdline()):
                    return int(child.pid)
        return None

    def stop(self) -> None:
        """Stop all of it cleanly; what does not stop is a failure of its own."""
        if self._up is None or self._up.poll() is not None:
            return
        self._up.send_signal(signal.SIGTERM)
        try:
            code = self._up.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.destroy()
            raise AssertionError(f"tidegate up did not stop within {STOP_SECONDS:g} s of SIGTERM") from None
        assert code == 0, f"tidegate up ended with {code}:\n{self.log_tail()}"

    def destroy(self) -> None:
        """End every process of this cluster, whatever state it is in."""
        if self._up is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._up.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        self._up.kill()
        self._up.wait()

    def client(self) -> tidegate.Client:
        """Connect to wherever the server is now."""
        return tidegate.connect(home=self.home)

    def wait_for(
        self, what: str, condition: Callable[[tidegate.Client], bool], seconds: float = START_SECONDS
    ) -> None:
        """Wait until a condition holds; errors on the way are the disturbance, not the answer."""
        deadline = time.monotonic() + seconds
        last: object = "never asked"
        while time.monotonic() < deadline:
            try:
                with self.client() as client:
                    if condition(client):
                        return
                    last = "not yet"
            except TidegateError as problem:
                last = problem
            time.sleep(0.2)
        raise AssertionError(f"waited {seconds:g} s for {what}: {last}\n{self.log_tail()}")

    def log_tail(self) -> str:
        """Return the end of every log of the cluster."""
        logs = [self.home.parent / "up.log", *sorted((self.home / "logs").glob("*.log"))]
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs if path.exists()
        )


def _is(target: Target, command: list[str]) -> bool:
    if target == "java":
        return bool(command) and command[0].endswith("java")
    verb = {"server": "serve", "worker": "worker"}[target]
    return "tidegate" in command and verb in command
