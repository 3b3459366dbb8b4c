"""The choice of a connection pool among several small ones.

For every request httpcore goes through all connections of a pool, and for each idle one through all of them
again: with 32 calls at once in one pool that costs more than the calls. So a client has many pools of a few
connections each. The first pool with room is used, so that few concurrent calls keep a few connections warm.
"""

from __future__ import annotations

from threading import Lock

GROUP_CONNECTIONS_MAX = 8
# 128 connections in all; calls beyond that wait for one.
GROUPS_MAX = 16


class ConnectionGroups:
    """The number of calls in each group; threads may share it."""

    def __init__(self) -> None:
        self._calls = [0] * GROUPS_MAX
        self._lock = Lock()

    def take(self) -> int:
        """Return the number of the first group with room, or of the one with the fewest calls."""
        with self._lock:
            with_room = (n for n, calls in enumerate(self._calls) if calls < GROUP_CONNECTIONS_MAX)
            number = next(with_room, None)
            if number is None:
                number = self._calls.index(min(self._calls))
            self._calls[number] += 1
            return number

    def release(self, number: int) -> None:
        """Count one call less in a group."""
        with self._lock:
            self._calls[number] -= 1
