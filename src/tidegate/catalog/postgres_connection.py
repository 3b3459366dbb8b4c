"""A connection to PostgreSQL with a timeout for every wait.

PostgreSQL ends statements that run too long by itself; this is for a server, or a network, that does not
answer at all.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import psycopg

from tidegate.model.clock import Clock


class TimeoutConnection(psycopg.Connection[Any]):
    """A connection of psycopg with a timeout for every wait; it is closed when a wait times out."""

    clock: Clock
    timeout_seconds: float

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._limited(gen), *args, **kwargs)

    def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Delegate to a wait of psycopg, which receives nothing about ten times a second while it waits."""
        until_seconds = self.clock.monotonic_seconds() + self.timeout_seconds
        try:
            request = next(gen)
            while True:
                ready = yield request
                if not ready and self.clock.monotonic_seconds() >= until_seconds:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.timeout_seconds:g} s")
                request = gen.send(ready)
        except StopIteration as end:
            return end.value
