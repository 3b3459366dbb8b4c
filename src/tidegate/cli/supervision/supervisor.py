"""The supervisor of `tidegate up`: it starts children, restarts them when they end, and rotates their logs.

A child that ends is started again after a pause that doubles from `backoff_seconds_min` to
`backoff_seconds_max` and begins at the minimum again once the child ran for `stable_seconds`. Exit code 3
means that a child cannot start here: `tick` raises its error, since trying again does not help.

Each child leads a process group, so that Ctrl-C on the terminal reaches the supervisor alone. Each child has
a pipe on stdin that ends when the supervisor ends. Each run of a child has a mark in its environment, which
its own children inherit: when a child is gone, every process that still has its mark (a worker's Java) is
killed before the child is started again, so that two of them never write to the same files. Threads: one
thread calls everything.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from tidegate.cli.output.errors import MARK
from tidegate.cli.supervision.child import EXIT_START_REFUSED
from tidegate.errors import StartRefused, TidegateError, from_wire
from tidegate.model.clock import Clock
from tidegate.settings import SupervisorSettings

STOP_POLL_SECONDS = 0.05
SWEEPS_MAX = 5  # the first finds what is there, the next what was forked meanwhile


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """The name, the command and the log of a child."""

    name: str
    command: tuple[str, ...]
    log_path: Path


@dataclass(frozen=True, slots=True)
class ChildState:
    """The state of a child now."""

    name: str
    state: Literal["running", "waiting", "stopped"]
    pid: int | None
    restarts: int
    next_start_seconds: float
    log_path: Path


class Child:
    """One child, with its current process and its restarts."""

    def __init__(self, plan: ChildPlan, pause_seconds: float) -> None:
        self.plan = plan
        self.pause_seconds = pause_seconds
        self.popen: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_due_at: float | None = None
        self.restarts = 0
        self.log_start = 0
        self.pid = 0
        self.mark = ""

    def start(self, now: float) -> None:
        """Start the child; its output goes to the end of its log."""
        self.mark = secrets.token_hex(8)
        with open_log(self.plan.log_path) as log:
            self.log_start = log.seek(0, os.SEEK_END)
            self.popen = subprocess.Popen(
                self.plan.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                env={**os.environ, MARK: self.mark},
            )
        self.pid = self.popen.pid
        self.started_at = now
        self.start_due_at = None

    def poll(self) -> int | None:
        """Return the exit code of an ended child, once its own children are killed; None while it runs."""
        if self.popen is None or (code := self.popen.poll()) is None:
            return None
        kill_marked(self.mark)
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        self.popen = None
        return code

    def last_error(self) -> TidegateError | None:
        """Return the last error that the child itself logged in this run, if any."""
        for line in reversed(read_since(self.plan.log_path, self.log_start).splitlines()):
            error = _error_line(line)
            if error is not None and error.get("pid", self.pid) == self.pid:
                return from_wire(error)
        return None

    def refusal(self) -> TidegateError:
        """Return the error why the child cannot start here."""
        fallback = StartRefused(
            reason=f"The {self.plan.name} cannot start.", hint=f"Its log is {self.plan.log_path}."
        )
        return self.last_error() or fallback


class Supervisor:
    """Starts children, restarts them when they end, and stops them, the last one first."""

    def __init__(self, settings: SupervisorSettings, clock: Clock, notify: Callable[[str], None]) -> None:
        """`notify` is called with a sentence for every event."""
        self._settings = settings
        self._clock = clock
        self._notify = notify
        self._children: list[Child] = []

    def start(self, plan: ChildPlan) -> None:
        """Start a child and keep it running from now on."""
        child = Child(plan, self._settings.backoff_seconds_min)
        self._children.append(child)
        child.start(self._clock.monotonic_seconds())

    def tick(self) -> None:
        """Poll every child once; start what is due; raise the error of one that cannot start here."""
        now = self._clock.monotonic_seconds()
        for child in self._children:
            code = child.poll()
            if code is not None:
                if code == EXIT_START_REFUSED:
                    self._notify(f"{child.plan.name} cannot start here")
                    raise child.refusal()
                self._plan_restart(child, code, now)
            if child.start_due_at is not None and child.start_due_at <= now:
                child.restarts += 1
                child.start(now)
                self._notify(f"{child.plan.name} started again (process {_pid_of(child)})")

    def states(self) -> list[ChildState]:
        """Return the state of every child, in the order in which they were started."""
        now = self._clock.monotonic_seconds()
        return [_state_of(child, now) for child in self._children]

    def stop(self, hurry: Callable[[], bool], sleep: Callable[[float], None]) -> None:
        """Stop all children, the last started first; each gets the grace, or none once `hurry()` is true."""
        for child in reversed(self._children):
            child.start_due_at = None
            if child.popen is None:
                continue
            began = self._clock.monotonic_seconds()
            _signal(child.popen.pid, signal.SIGTERM)
            if self._wait(child, began, hurry, sleep):
                self._notify(f"{child.plan.name} stopped ({self._clock.monotonic_seconds() - began:.1f} s)")
            else:
                self._notify(f"{child.plan.name} killed")

    def _wait(
        self, child: Child, began: float, hurry: Callable[[], bool], sleep: Callable[[float], None]
    ) -> bool:
        while child.poll() is None:
            late = self._clock.monotonic_seconds() - began > self._settings.grace_seconds
            if child.popen is not None and (late or hurry()):
                child.popen.kill()
                child.popen.wait()
                child.poll()
                return False
            sleep(STOP_POLL_SECONDS)
        return True

    def _plan_restart(self, child: Child, code: int, now: float) -> None:
        if now - child.started_at >= self._settings.stable_seconds:
            child.pause_seconds = self._settings.backoff_seconds_min
        child.start_due_at = now + child.pause_seconds
        error = child.last_error()
        why = error.message if error is not None else f"its log is {child.plan.log_path}"
        self._notify(
            f"{child.plan.name} ended ({_code_text(code)}), starts again in {child.pause_seconds:g} s; {why}"
        )
        child.pause_seconds = min(max(child.pause_seconds, 0.1) * 2, self._settings.backoff_seconds_max)


def child_command(noun: str, python: str, home: Path, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command of a child: the same Python, the same home, errors that `refusal` can read."""
    return (python, "-m", "tidegate", noun, "--home", str(home), "--json", "--stop-with-parent", *extra)


def _error_line(line: str) -> dict[str, Any] | None:
    if not line.startswith('{"error"'):
        return None
    try:
        error: dict[str, Any] = json.loads(line)
    except ValueError:
        return None  # torn by another writer, or by the child's end
    return error


def _state_of(child: Child, now: float) -> ChildState:
    due = child.start_due_at
    state: Literal["running", "waiting", "stopped"] = "stopped"
    if child.popen is not None:
        state = "running"
    elif due is not None:
        state = "waiting"
    pause = max(0.0, due - now) if due is not None else 0.0
    return ChildState(child.plan.name, state, _pid_of(child), child.restarts, pause, child.plan.log_path)


def _pid_of(child: Child) -> int | None:
    return child.popen.pid if child.popen is not None else None


def _code_text(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"killed by {signal.Signals(-code).name}"


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it ended by itself a moment ago


def kill_marked(mark: str) -> None:
    """Kill every process with a mark, until none is found."""
    import psutil

    for _ in range(SWEEPS_MAX):
        found = [one for one in psutil.process_iter() if _has_mark(one, mark)]
        if not found:
            return
        for one in found:
            _signal(one.pid, signal.SIGKILL)
        psutil.wait_procs(found, timeout=1.0)


def _has_mark(one: Any, mark: str) -> bool:
    import psutil

    try:
        return bool(one.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False  # gone meanwhile, or another user's


LOG_BYTES_MAX = 10_000_000  # a log that is longer at a start is rotated
# The current one and four older ones: 50 MB for each child at most, and what the current run writes.
LOG_FILES_MAX = 5
ERROR_TAIL_BYTES_MAX = 64_000  # an error is searched in this much of the end of a log


def open_log(path: Path) -> BinaryIO:
    """Open a log for append; rotate one that is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        rotate(path)
    return path.open("ab", buffering=0)


def rotate(path: Path) -> None:
    """Move `<name>` to `<name>.1`, `.1` to `.2` and so on; the last one is overwritten."""
    for number in range(LOG_FILES_MAX - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)


def read_since(path: Path, start: int) -> str:
    """Return what was written after byte `start`, or the last part of it when it is long."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(start, size - ERROR_TAIL_BYTES_MAX))
        return file.read().decode("utf-8", errors="replace")
