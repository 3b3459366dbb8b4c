"""What a consumer holds: takes leased messages and what became of them, gives what is to be told and when.

Nothing here waits, and threads may share it. Times are seconds of a clock that only goes forward. A message
is held from the answer that brought it until it is done, given back or lost; meanwhile its lease is extended
whenever a third of the time is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock

from tidegate.sdk.types import Message

# An acknowledgement goes out with as many others, or after so long, whichever comes first.
ACKS_AT_ONCE = 100
ACK_SECONDS = 0.05
# Two more tries fit into a lease whose extension fails once.
EXTEND_AFTER = 1 / 3


class LeaseTracker:
    """The messages of one consumer: those that wait for a turn, those in work, and those to acknowledge."""

    def __init__(self, lease_seconds: float, limit: int, prefetch: int) -> None:
        self._lease_seconds = lease_seconds
        self._limit = limit
        self._prefetch = prefetch
        self._until: dict[str, float] = {}
        self._waiting: deque[Message] = deque()
        self._working: set[str] = set()
        self._done: list[str] = []
        self._done_since: float | None = None
        self._extend_at: float | None = None
        self._wanted = 0
        self._guard = Lock()

    def took(self, messages: Sequence[Message], now: float) -> None:
        """Note messages that the server gave; they wait for their turn."""
        self.hold([str(message["lease"]) for message in messages], now)
        with self._guard:
            self._waiting.extend(messages)

    def hold(self, leases: Iterable[str], now: float) -> None:
        """Note leases without messages: whoever has these gives them back by name."""
        until = now + self._lease_seconds
        with self._guard:
            self._until.update(dict.fromkeys(leases, until))
            if self._extend_at is None and self._until:
                self._extend_at = now + self._lease_seconds * EXTEND_AFTER

    def take(self, now: float) -> Message | None:
        """Return the next message to work on; one whose lease is over is left to whoever gets it next."""
        with self._guard:
            while self._waiting:
                message = self._waiting.popleft()
                lease = str(message["lease"])
                if self._until.get(lease, 0.0) > now:
                    self._working.add(lease)
                    return message
                self._until.pop(lease, None)
            return None

    def want(self, count: int) -> int:
        """Note that one more (1) or one less (-1) waits for a message; give how many do."""
        with self._guard:
            self._wanted += count
            return self._wanted

    def missing(self) -> int:
        """Return how many messages to ask the server for now; 0 while enough wait here."""
        with self._guard:
            waiting = len(self._waiting)
            short = self._wanted - waiting
            # Asked for in halves: a question for each message that goes would cost more than it brings.
            if short <= 0 and (waiting >= self._prefetch or waiting > self._prefetch // 2):
                return 0
            return min(self._limit, max(self._prefetch - waiting, short))

    def done(self, leases: Sequence[str], now: float) -> bool:
        """Note messages that are done; say whether their acknowledgement should be looked at."""
        with self._guard:
            self._working.difference_update(leases)
            before = len(self._done)
            # What is lost needs no acknowledgement.
            self._done += [lease for lease in leases if self._until.pop(lease, None) is not None]
            if self._done_since is None and self._done:
                self._done_since = now
                return True
            return before < ACKS_AT_ONCE <= len(self._done)

    def dropped(self, leases: Iterable[str]) -> list[str]:
        """Forget leases; give those that were held."""
        with self._guard:
            self._working.difference_update(leases)
            return [lease for lease in leases if self._until.pop(lease, None) is not None]

    def lost(self, leases: Iterable[str]) -> list[str]:
        """Forget leases that someone else may have; give those whose message is in work."""
        with self._guard:
            for lease in leases:
                self._until.pop(lease, None)
            return [lease for lease in leases if lease in self._working]

    def due_in(self, now: float) -> float | None:
        """Return the seconds until something is to be told to the server, or None while there is nothing."""
        with self._guard:
            at = [] if self._extend_at is None else [self._extend_at]
            if self._done_since is not None:
                at.append(now if len(self._done) >= ACKS_AT_ONCE else self._done_since + ACK_SECONDS)
            return max(0.0, min(at) - now) if at else None

    def to_acknowledge(self, now: float, *, at_once: bool = False) -> list[str]:
        """Hand over what is to be acknowledged now; the caller tells the server, or puts it back."""
        with self._guard:
            if self._done_since is None:
                return []
            is_due = len(self._done) >= ACKS_AT_ONCE or now >= self._done_since + ACK_SECONDS
            if not is_due and not at_once:
                return []
            found, self._done, self._done_since = self._done, [], None
            return found

    def put_back(self, leases: list[str], now: float) -> None:
        """Take back what could not be acknowledged."""
        with self._guard:
            self._done = leases + self._done
            self._done_since = now

    def to_extend(self, now: float) -> list[str]:
        """Return the leases to extend, all of them, once a third of the oldest one's time is over."""
        with self._guard:
            if self._extend_at is None or now < self._extend_at:
                return []
            self._extend_at = now + self._lease_seconds * EXTEND_AFTER if self._until else None
            return list(self._until)

    def extended(self, leases: Iterable[str], asked_at: float) -> None:
        """Note that leases run anew from when that was asked for."""
        until = asked_at + self._lease_seconds
        with self._guard:
            self._until.update((lease, until) for lease in leases if lease in self._until)

    def waiting(self) -> list[str]:
        """Hand over the leases of the messages that wait for a turn; none of them gets one."""
        with self._guard:
            left = [str(message["lease"]) for message in self._waiting]
            self._waiting.clear()
            return [lease for lease in left if self._until.pop(lease, None) is not None]

    def rest(self) -> list[str]:
        """Hand over all leases that are neither done nor lost."""
        with self._guard:
            left = list(self._until)
            self._until.clear()
            self._waiting.clear()
            self._working.clear()
            return left
