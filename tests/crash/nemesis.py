"""The nemesis: from a seed, whom to kill and how long to wait before it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.crash.cluster import Target

# The server is back in a second, the worker in ten: these weights give both their share of hits at work.
WEIGHTS: dict[Target, int] = {"server": 10, "worker": 4, "java": 3, "up": 1}
PAUSE_SECONDS = (0.1, 5.0)
# Where nothing runs in the worker, the server is hit every time: it has to get to work in between.
SERVER_WEIGHTS: dict[Target, int] = {"server": 10, "up": 1}
SERVER_PAUSE_SECONDS = (0.1, 6.0)
AT_WORK_CHANCE = 0.7


@dataclass(frozen=True, slots=True)
class Strike:
    """A kill to come."""

    target: Target
    after_seconds: float
    # Whether the time counts from when the server is there again.
    at_work: bool = False


class Nemesis:
    """The same seed gives the same strikes."""

    def __init__(self, seed: int, *, server_only: bool = False) -> None:
        self._random = random.Random(seed)
        self._weights = SERVER_WEIGHTS if server_only else WEIGHTS
        self._at_work_chance = AT_WORK_CHANCE if server_only else 0.0
        self._pause_seconds = SERVER_PAUSE_SECONDS if server_only else PAUSE_SECONDS

    def next(self) -> Strike:
        """Return the next strike."""
        target = self._random.choices(list(self._weights), list(self._weights.values()))[0]
        # Short pauses hit starts and recoveries, long ones hit steady work.
        low, high = self._pause_seconds
        after_seconds = low + (high - low) * self._random.random() ** 2
        return Strike(target, after_seconds, self._random.random() < self._at_work_chance)
