"""Handlers of SIGTERM and SIGINT for the time that an agent runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first SIGTERM or SIGINT; the second has the effect that it had before.

    Only the main thread may set handlers: in another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while before:
            number, former = before.popitem()
            if former is not None:  # None: not set from Python, and cannot be set from it
                signal.signal(number, former)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop()

    for number in ENDING:
        before[number] = signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
