"""The pulse of a server under load: how long it could work between two moments.

A beat is a small append that is answered from the disk. On a machine that stalls, beats come late or not at
all; so time counted in beats is time in which the server came to its work, and its disk, too.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right

from tests.crash.door import Crew, Door, UnsureError
from tests.crash.journal import Journal

BEATS = "crash.beats"
STATEMENT = f"CREATE STREAM TABLE {BEATS} (n BIGINT) WITH (ttl_seconds = 86400, durability = 'fsync')"
BEAT_SECONDS = 0.1


class Pulse:
    """Beats, on the journal's clock. Threads: one runs it; the others look when it has ended."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._beats: list[float] = []

    def run(self, door: Door, crew: Crew) -> None:
        """Beat until told to stop."""
        for number in itertools.count():
            if crew.stopping.wait(BEAT_SECONDS):
                return
            try:
                door.ask(f"INSERT INTO {BEATS} (n) VALUES (?)", [number])
            except UnsureError:
                time.sleep(BEAT_SECONDS)
            else:
                self._beats.append(self._journal.now_seconds())

    def lived_seconds(self, start: float, stop: float) -> float:
        """Return for how long the server could work between two moments."""
        return max(0, bisect_right(self._beats, stop) - bisect_right(self._beats, start)) * BEAT_SECONDS
