"""Groups of connections: takes how busy each is, gives the one to use, keeps the counts.

httpx looks at all connections of a pool for every request and compares them with each other: at 32 calls at
once that costs more than the calls. So connections are kept in small groups, each a pool of its own. The
first group that has room is taken, so that few calls at once keep a few connections warm.
"""

from __future__ import annotations

from threading import Lock

GROUP_CONNECTIONS_MAX = 8
# 128 connections in all; calls beyond that wait for one.
GROUPS_MAX = 16


class ConnectionGroups:
    """How many calls each group has; threads may share it."""

    def __init__(self) -> None:
        self._busy = [0] * GROUPS_MAX
        self._guard = Lock()

    def take(self) -> int:
        """Return the number of the first group with room, or of the one that is asked least."""
        with self._guard:
            with_room = (n for n, busy in enumerate(self._busy) if busy < GROUP_CONNECTIONS_MAX)
            number = next(with_room, None)
            if number is None:
                number = self._busy.index(min(self._busy))
            self._busy[number] += 1
            return number

    def give_back(self, number: int) -> None:
        """Say that a call of a group has ended."""
        with self._guard:
            self._busy[number] -= 1
