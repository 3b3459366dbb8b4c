"""Ctrl-C that waits: takes SIGINT and SIGTERM, gives them when the work at hand is put away."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self


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
