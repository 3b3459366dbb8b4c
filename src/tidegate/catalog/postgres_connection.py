"""A connection to PostgreSQL that does not wait for ever: takes a limit, gives an error when it is reached.

PostgreSQL ends statements that run too long by itself; this is for a server, or a network, that says nothing
at all.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import psycopg

from tidegate.model.clock import Clock


class PatientConnection(psycopg.Connection[Any]):
    """A connection of psycopg whose every wait ends in time; it is closed when one does."""

    clock: Clock
    patience_seconds: float

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._limited(gen), *args, **kwargs)

    def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass on what a wait of psycopg wants and gets; it gets nothing about ten times a second."""
        until_seconds = self.clock.monotonic_seconds() + self.patience_seconds
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and self.clock.monotonic_seconds() >= until_seconds:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.patience_seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value
