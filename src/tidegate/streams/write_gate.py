"""The gate that writes pass: once it is closed, those that have begun are finished, and no other begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.errors import NotReady


class WriteGate:
    """Counts the writes that run; any thread may pass, and any may close it."""

    def __init__(self) -> None:
        self._running = 0
        self._is_closed = False
        self._changed = threading.Condition()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Count a write while it runs, or raise NotReady."""
        with self._changed:
            if self._is_closed:
                raise NotReady(reason="it is stopping")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Refuse writes from now on; return when none runs."""
        with self._changed:
            self._is_closed = True
            while self._running:
                self._changed.wait()
