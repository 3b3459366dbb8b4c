"""A child of `tidegate up`, from the inside: takes a pipe on stdin, stops when the parent is gone.

Ctrl-C that waits: takes SIGINT and SIGTERM, gives them when the work at hand is put away.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

if TYPE_CHECKING:
    from tidegate.settings import LogSettings

EXIT_START_REFUSED = 3
STDIN = 0

StopWithParentOption = Annotated[
    bool,
    typer.Option("--stop-with-parent", hidden=True, help="Stop when stdin is closed by whoever opened it."),
]


def start_log(settings: LogSettings | None = None, process_name: str = "tidegate") -> None:
    """Send the log of this program to stderr, as the settings say; before they are known, for people."""
    import sys

    from tidegate.settings import LogSettings
    from tidegate.telemetry.logs import start_logging

    start_logging(settings or LogSettings(), sys.stderr, process_name)


def stop_with_parent(grace_seconds: float) -> int:
    """Send this program SIGTERM when stdin ends, and SIGKILL (with its own children) after the grace.

    The parent holds the other end of the pipe and never writes; the kernel closes it however the parent dies.
    Gives the parent's pid.
    """
    parent = os.getppid()
    thread = threading.Thread(
        target=_wait_for_the_end, args=(grace_seconds,), name="stop-with-parent", daemon=True
    )
    thread.start()
    return parent


def _wait_for_the_end(grace_seconds: float) -> None:
    # os.read and not sys.stdin: a buffered read would hold a lock that the interpreter needs when it leaves.
    while os.read(STDIN, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class HeldInterrupts:
    """Notes the first request to stop, for a loop to ask for; a second one interrupts at once."""

    def __init__(self) -> None:
        self.asked = False
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
        if self.asked and kind is None:
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
