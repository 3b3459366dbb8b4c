"""Members of consumer groups: takes signs of life, gives who is there, keeps them in memory alone.

A member is whoever names itself one. It is listed while it holds a message, waits for one, or was heard of
lately; after a restart it shows up again with its next sign of life, or by what it holds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tidegate.model.clock import Clock

# Members remembered before those that went silent are looked for.
KEPT_MIN = 256


class SteadyTime:
    """Microseconds since 1970 that pass evenly while this runs, whatever is done to the clock.

    Leases are counted in it: a clock that is set forward ends none early, one that is set back holds none
    longer. It begins with the clock of the machine.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_us = clock.now_us() - self._passed_us()

    def now_us(self) -> int:
        """Return the time."""
        return self._began_us + self._passed_us()

    def ahead_us(self) -> int:
        """Return by how much the clock of the machine is ahead of this."""
        return self._clock.now_us() - self.now_us()

    def _passed_us(self) -> int:
        return int(self._clock.monotonic_seconds() * 1_000_000)


@dataclass(slots=True)
class Seen:
    """When a member was heard of, by the clock and by time that passes evenly, and how often it waits."""

    wall_us: int
    steady_us: int
    waits: int


class Members:
    """Who was heard of, of all groups; from any thread."""

    def __init__(self, clock: Clock, steady: SteadyTime, member_seconds: float) -> None:
        self._clock = clock
        self._steady = steady
        self._silent_us = int(member_seconds * 1_000_000)
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, str, str], Seen] = {}
        self._room = KEPT_MIN

    def seen(self, topic_id: int, group: str, member: str, waits: int = 0) -> None:
        """Note a sign of life; `waits` is 1 when a long poll begins, -1 when it ends."""
        wall_us, steady_us = self._clock.now_us(), self._steady.now_us()
        with self._lock:
            known = self._seen.get((topic_id, group, member))
            if known is None:
                self._seen[topic_id, group, member] = Seen(wall_us, steady_us, max(0, waits))
                if len(self._seen) > self._room:
                    self._prune(steady_us)
                return
            known.wall_us, known.steady_us = wall_us, steady_us
            known.waits = max(0, known.waits + waits)

    def of_topic(self, topic_id: int) -> dict[str, dict[str, Seen]]:
        """Return who is there, by group and name."""
        now_us = self._steady.now_us()
        found: dict[str, dict[str, Seen]] = {}
        with self._lock:
            for (topic, group, member), seen in self._seen.items():
                if topic == topic_id and not self._is_silent(seen, now_us):
                    found.setdefault(group, {})[member] = Seen(seen.wall_us, seen.steady_us, seen.waits)
        return found

    def forget(self, topic_id: int, group: str | None = None) -> None:
        """Drop the members of a topic or of a group that is gone; who waits tells of itself again."""
        with self._lock:
            gone = [key for key in self._seen if key[0] == topic_id and group in (None, key[1])]
            for key in gone:
                del self._seen[key]

    def _prune(self, now_us: int) -> None:
        kept = {key: seen for key, seen in self._seen.items() if not self._is_silent(seen, now_us)}
        self._seen = kept
        self._room = 2 * len(kept) + KEPT_MIN

    def _is_silent(self, seen: Seen, now_us: int) -> bool:
        return not seen.waits and now_us - seen.steady_us > self._silent_us
