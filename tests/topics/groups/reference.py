"""A group as simple as can be: a dictionary of messages a partition, looked at one by one.

It says nothing of ranges, entries, rows or indexes; what it and the groups agree on is what is promised.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Message:
    """A message that was given and is not done with."""

    deliveries: int
    lease: str
    ends_us: int
    held: bool
    # Who was given it last and did not give it back, and whose member that is; None where nobody noted it.
    member: str | None
    user: str | None


@dataclass
class Partition:
    """One partition of a group, and what is in its log."""

    next: int
    given: dict[int, Message] = field(default_factory=dict)
    untold: int = 0
    missed: int = 0
    # Dead letters that are not found in their topic yet.
    dead: Counter[int] = field(default_factory=Counter)
    acked: set[int] = field(default_factory=set)

    def settle(self, log_start: int, now_us: int) -> None:
        """Miss what is gone from the log and nobody holds."""
        gone = list(range(self.next, log_start))
        gone += [o for o, m in self.given.items() if o < log_start and not (m.held and now_us < m.ends_us)]
        for offset in gone:
            self.given.pop(offset, None)
        self.next = max(self.next, log_start)
        self.untold += len(gone)
        self.missed += len(gone)

    def due(self, now_us: int) -> list[int]:
        return sorted(offset for offset, message in self.given.items() if message.ends_us <= now_us)

    def in_flight(self, now_us: int) -> int:
        return sum(message.held and now_us < message.ends_us for message in self.given.values())

    def lost(self, log_start: int, now_us: int) -> int:
        """Count what `settle` would miss, of what was given."""
        return sum(o < log_start and not (m.held and now_us < m.ends_us) for o, m in self.given.items())

    def lag(self, log_start: int, log_end: int, now_us: int) -> int:
        return log_end - max(self.next, log_start) + len(self.given) - self.lost(log_start, now_us)

    def position(self, log_start: int, now_us: int) -> int:
        there = [o for o, m in self.given.items() if o >= log_start or (m.held and now_us < m.ends_us)]
        return min([*there, max(self.next, log_start)])


@dataclass
class Reference:
    """One group."""

    deliveries_max: int
    in_flight_max: int
    partitions: dict[int, Partition] = field(default_factory=dict)

    def doomed(self, number: int, now_us: int) -> set[int]:
        """Return what failed too often and is not a dead letter yet."""
        part = self.partitions[number]
        return {o for o in part.due(now_us) if part.given[o].deliveries >= self.deliveries_max}

    def available(self, number: int, log: tuple[int, int], now_us: int) -> tuple[list[int], int]:
        """Return what is due and may be given again, and the number of new messages that may be given.

        What failed too often may be a dead letter already, and then takes no room.
        """
        part = self.partitions[number]
        doomed = self.doomed(number, now_us)
        due = [o for o in part.due(now_us) if o not in doomed and o >= log[0]]
        outstanding = sum(
            o not in doomed and (o >= log[0] or (m.held and now_us < m.ends_us))
            for o, m in part.given.items()
        )
        new = min(log[1] - max(part.next, log[0]), self.in_flight_max - outstanding)
        return due, max(0, new)

    def forget_users(self) -> list[str]:
        """Forget who holds what, and the random bits of leases; return the leases without them."""
        found = []
        for part in self.partitions.values():
            for message in part.given.values():
                partition, fetch, offset = message.lease.split(".")
                message.user, message.lease = None, f"{partition}.{fetch[:16]}.{offset}"
                found.append(message.lease)
        return found

    def holder(self, number: int, offset: int, lease: str, now_us: int) -> Message | None:
        """Return the message that a lease still holds."""
        part = self.partitions.get(number)
        message = part.given.get(offset) if part else None
        if message and message.held and message.lease == lease and now_us < message.ends_us:
            return message
        return None
