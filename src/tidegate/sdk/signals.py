"""Signals that end a program: takes what to call, keeps the handlers that were there before."""

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
    """Call `stop` at the first SIGTERM or SIGINT; the second does what it did before.

    Only the main thread may have handlers: in another one this does nothing.
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

    def ended(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop()

    for number in ENDING:
        before[number] = signal.signal(number, ended)
    try:
        yield
    finally:
        restore()
