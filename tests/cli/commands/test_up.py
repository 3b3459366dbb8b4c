from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import alive, tidegate

DEADLINE_SECONDS = 90.0


class Launched:
    """A `tidegate up --json` and what it says."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.child = child
        self.events: list[str] = []

    def read_until(self, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Read lines until one is as wanted; a run that ends before that fails the test."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            said: dict[str, Any] = json.loads(line)
            assert "event" in said or "pid" in said, said
            if "event" in said:
                self.events.append(said["event"])
            if wanted(said):
                return said
        raise AssertionError(
            f"it ended early: {self.events} {self.child.stderr and self.child.stderr.read()}"
        )


@contextmanager
def launched(home: Path) -> Iterator[Launched]:
    words = [sys.executable, "-m", "tidegate", "up", "--json", "--port", "0", "--home", str(home)]
    # Time to stop on a busy machine: what is killed instead says so, and is no stop.
    environ = {**os.environ, "TIDEGATE_SUPERVISOR_GRACE_SECONDS": "60"}
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        yield Launched(child)
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=DEADLINE_SECONDS)


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.05)


@pytest.mark.crash
def test_a_killed_server_is_started_again_and_one_signal_stops_all(tmp_path: Path) -> None:
    with launched(tmp_path / "home") as run:
        first = run.read_until(lambda said: "pid" in said)["pid"]
        os.kill(first, signal.SIGKILL)
        second = run.read_until(lambda said: said.get("pid", first) != first)["pid"]
        assert any(
            event.startswith("server ended (killed by SIGKILL), starts again in 0.5 s")
            for event in run.events
        )
        run.child.send_signal(signal.SIGTERM)
        run.read_until(lambda said: said.get("event", "").startswith("server stopped"))
        assert run.child.wait(DEADLINE_SECONDS) == 0
        order = [event.split()[0] for event in run.events[-2:]]
        assert order == ["worker", "server"]
    wait_until_gone([first, second])
    assert {entry.name for entry in (tmp_path / "home" / "logs").iterdir()} >= {"server.log", "worker.log"}


@pytest.mark.crash
def test_a_second_up_names_the_first_and_leaves_its_log_alone(tmp_path: Path) -> None:
    with launched(tmp_path / "home") as run:
        run.read_until(lambda said: "pid" in said)
        second = tidegate("up", "--port", "0", home=tmp_path / "home")
        assert second.returncode == 1
        assert f"kill {run.child.pid})" in second.stderr
        assert "Stop the 'tidegate up' that runs it" in second.stderr
        log = (tmp_path / "home" / "logs" / "server.log").read_text(encoding="utf-8")
        assert "HOME_LOCKED" not in log
        run.child.send_signal(signal.SIGINT)
        run.read_until(lambda said: said.get("event", "").startswith("server stopped"))
        assert run.child.wait(DEADLINE_SECONDS) == 0


@pytest.mark.crash
def test_children_stop_when_up_itself_is_killed(tmp_path: Path) -> None:
    with launched(tmp_path / "home") as run:
        server = run.read_until(lambda said: "pid" in said)["pid"]
        children = (
            Path(f"/proc/{run.child.pid}/task/{run.child.pid}/children").read_text(encoding="ascii").split()
        )
        assert str(server) in children
        run.child.kill()
    wait_until_gone([int(pid) for pid in children])


@pytest.mark.crash
def test_an_up_waits_for_the_server_of_a_killed_one_that_has_not_noticed_yet(tmp_path: Path) -> None:
    with launched(tmp_path / "home") as run:
        old = run.read_until(lambda said: "pid" in said)["pid"]
        # Its supervisor's end of the pipe stays open, so it does not see that its supervisor is gone.
        pipe = os.open(f"/proc/{old}/fd/0", os.O_WRONLY)
        os.kill(run.child.pid, signal.SIGKILL)
        run.child.wait()
        later = threading.Timer(2.0, os.close, (pipe,))
        with launched(tmp_path / "home") as second:
            later.start()
            new = second.read_until(lambda said: "pid" in said)["pid"]
            assert new != old
            assert not alive(old)
            assert not any("fell" in event for event in second.events), second.events
            second.child.send_signal(signal.SIGTERM)
            assert second.child.wait(DEADLINE_SECONDS) == 0
    later.join()
    wait_until_gone([old, new])
