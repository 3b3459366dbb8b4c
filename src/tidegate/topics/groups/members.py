"""The members of consumer groups and when each was active last, in memory alone.

A member is whatever name a request gives. It is listed while it holds a message, waits for one, or was active
lately; after a restart it is listed again from its next request on, or because of what it holds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tidegate.model.clock import Clock

# Members that are remembered before inactive ones are looked for.
MEMBERS_MIN = 256


class SteadyTime:
    """Microseconds since 1970 by the monotonic clock, so that setting the machine's clock does not move them.

    Leases are timed by it: a clock that is set forward ends none early, one that is set back holds none
    longer. It starts at the time of the machine's clock.
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
class MemberActivity:
    """When a member was active last, by the clock and by steady time, and how many long polls it has."""

    wall_us: int
    steady_us: int
    waits: int


class Members:
    """The members of all groups. Threads: any."""

    def __init__(self, clock: Clock, steady: SteadyTime, member_seconds: float) -> None:
        self._clock = clock
        self._steady = steady
        self._silent_us = int(member_seconds * 1_000_000)
        self._lock = threading.Lock()
        self._seen: dict[tuple[int, str, str], MemberActivity] = {}
        self._room = MEMBERS_MIN

    def record(self, topic_id: int, group: str, member: str, waits: int = 0) -> None:
        """Record that a member is active; `waits` is 1 when a long poll begins, -1 when it ends."""
        wall_us, steady_us = self._clock.now_us(), self._steady.now_us()
        with self._lock:
            known = self._seen.get((topic_id, group, member))
            if known is None:
                self._seen[topic_id, group, member] = MemberActivity(wall_us, steady_us, max(0, waits))
                if len(self._seen) > self._room:
                    self._prune(steady_us)
                return
            known.wall_us, known.steady_us = wall_us, steady_us
            known.waits = max(0, known.waits + waits)

    def of_topic(self, topic_id: int) -> dict[str, dict[str, MemberActivity]]:
        """Return the active members of a topic, by group and name."""
        now_us = self._steady.now_us()
        found: dict[str, dict[str, MemberActivity]] = {}
        with self._lock:
            for (topic, group, member), seen in self._seen.items():
                if topic == topic_id and not self._is_silent(seen, now_us):
                    found.setdefault(group, {})[member] = MemberActivity(
                        seen.wall_us, seen.steady_us, seen.waits
                    )
        return found

    def forget(self, topic_id: int, group: str | None = None) -> None:
        """Drop the members of a topic or of a group that is gone; one that waits is recorded again."""
        with self._lock:
            gone = [key for key in self._seen if key[0] == topic_id and group in (None, key[1])]
            for key in gone:
                del self._seen[key]

    def _prune(self, now_us: int) -> None:
        active = {key: seen for key, seen in self._seen.items() if not self._is_silent(seen, now_us)}
        self._seen = active
        self._room = 2 * len(active) + MEMBERS_MIN

    def _is_silent(self, seen: MemberActivity, now_us: int) -> bool:
        return not seen.waits and now_us - seen.steady_us > self._silent_us
