"""The child's side of supervision: logging, the end of the parent, and signals that wait for a loop."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from tidegate.cli.output.errors import report_error
from tidegate.errors import SettingInvalid, StartRefused

if TYPE_CHECKING:
    from tidegate.cli.invocation import Invocation
    from tidegate.settings import LogSettings, Settings
    from tidegate.storage.home.home import Home

EXIT_START_REFUSED = 3
STDIN = 0

StopWithParentOption = Annotated[
    bool,
    typer.Option("--stop-with-parent", hidden=True, help="Stop when stdin is closed by whoever opened it."),
]


def start_log(settings: LogSettings | None = None, process_name: str = "tidegate") -> None:
    """Log to stderr, as the settings say; with the defaults while they are not known."""
    import sys

    from tidegate.settings import LogSettings
    from tidegate.telemetry.logs import start_logging

    start_logging(settings or LogSettings(), sys.stderr, process_name)


@contextmanager
def foreground_run(
    call: Invocation, name: str, flags: Mapping[str, object], *, with_parent: bool
) -> Iterator[tuple[Settings, Home, int | None]]:
    """Yield settings, home and the supervisor's pid; a refused start exits with 3, not to be tried again."""
    start_log()
    try:
        settings = call.settings(flags)
        start_log(settings.log, name)
        supervisor = stop_with_parent(settings.supervisor.grace_seconds) if with_parent else None
        yield settings, call.open_home(), supervisor
    except (StartRefused, SettingInvalid) as error:
        report_error(call.advise(error).to_wire()["error"], as_json=call.as_json)
        raise typer.Exit(EXIT_START_REFUSED) from error


def stop_with_parent(grace_seconds: float) -> int:
    """Send this process SIGTERM when stdin ends, and SIGKILL (with its own children) after the grace.

    The parent holds the other end of the pipe and never writes; the kernel closes it however the parent dies.
    Return the parent's pid.
    """
    parent = os.getppid()
    thread = threading.Thread(
        target=_wait_for_the_end, args=(grace_seconds,), name="stop-with-parent", daemon=True
    )
    thread.start()
    return parent


def _wait_for_the_end(grace_seconds: float) -> None:
    # os.read and not sys.stdin: a buffered read would hold a lock that the interpreter needs at its exit.
    while os.read(STDIN, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DeferredInterrupt:
    """Sets `is_set` at the first SIGINT or SIGTERM, for a loop to check; a second one interrupts at once."""

    def __init__(self) -> None:
        self.is_set = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _problem: BaseException | None, _trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self.is_set and kind is None:
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True
