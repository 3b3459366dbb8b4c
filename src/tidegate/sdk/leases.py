"""The leases of a consumer: which to acknowledge, which to extend, and when.

Nothing here waits, and threads may share it. Times are seconds of a monotonic clock. A lease is held from the
answer that brought it until it is done, given back or lost; meanwhile it is extended whenever a third of its
time has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import Lock

from tidegate.sdk.types import MessageDict

# Acknowledgements are sent when there are this many, or after this time, whichever comes first.
ACKS_AT_ONCE = 100
ACK_SECONDS = 0.05
# An extension that fails can be repeated twice within the lease.
EXTEND_AFTER = 1 / 3


class LeaseTracker:
    """The leases of one consumer: of messages that are buffered, in work, and done but not acknowledged."""

    def __init__(self, lease_seconds: float, limit: int, prefetch: int) -> None:
        self._lease_seconds = lease_seconds
        self._limit = limit
        self._prefetch = prefetch
        self._until: dict[str, float] = {}
        self._buffer: deque[MessageDict] = deque()
        self._in_work: set[str] = set()
        self._done: list[str] = []
        self._done_since: float | None = None
        self._extend_at: float | None = None
        self._waiters = 0
        self._lock = Lock()

    def add(self, messages: Sequence[MessageDict], now: float) -> None:
        """Add fetched messages to the buffer."""
        self.hold([str(message["lease"]) for message in messages], now)
        with self._lock:
            self._buffer.extend(messages)

    def hold(self, leases: Iterable[str], now: float) -> None:
        """Add leases whose messages the caller keeps."""
        until = now + self._lease_seconds
        with self._lock:
            self._until.update(dict.fromkeys(leases, until))
            if self._extend_at is None and self._until:
                self._extend_at = now + self._lease_seconds * EXTEND_AFTER

    def take(self, now: float) -> MessageDict | None:
        """Return the next buffered message; one whose lease has ended is dropped: others may have it."""
        with self._lock:
            while self._buffer:
                message = self._buffer.popleft()
                lease = str(message["lease"])
                if self._until.get(lease, 0.0) > now:
                    self._in_work.add(lease)
                    return message
                self._until.pop(lease, None)
            return None

    def add_waiters(self, count: int) -> int:
        """Count one waiter more (1) or less (-1); return how many there are."""
        with self._lock:
            self._waiters += count
            return self._waiters

    def fetch_count(self) -> int:
        """Return how many messages to fetch now; 0 while enough are buffered."""
        with self._lock:
            buffered = len(self._buffer)
            short = self._waiters - buffered
            # Fetched when half is gone: a request for every message taken would cost more than it saves.
            if short <= 0 and (buffered >= self._prefetch or buffered > self._prefetch // 2):
                return 0
            return min(self._limit, max(self._prefetch - buffered, short))

    def done(self, leases: Sequence[str], now: float) -> bool:
        """Add leases to acknowledge; True if `due_in` is earlier than before."""
        with self._lock:
            self._in_work.difference_update(leases)
            before = len(self._done)
            # A lease that was lost needs no acknowledgement.
            self._done += [lease for lease in leases if self._until.pop(lease, None) is not None]
            if self._done_since is None and self._done:
                self._done_since = now
                return True
            return before < ACKS_AT_ONCE <= len(self._done)

    def drop(self, leases: Iterable[str]) -> list[str]:
        """Remove leases; return those that were held."""
        with self._lock:
            self._in_work.difference_update(leases)
            return [lease for lease in leases if self._until.pop(lease, None) is not None]

    def lose(self, leases: Iterable[str]) -> list[str]:
        """Remove leases that another member may have; return those whose message is in work."""
        with self._lock:
            for lease in leases:
                self._until.pop(lease, None)
            return [lease for lease in leases if lease in self._in_work]

    def due_in(self, now: float) -> float | None:
        """Return the seconds until leases are to be acknowledged or extended; None: there are none."""
        with self._lock:
            at = [] if self._extend_at is None else [self._extend_at]
            if self._done_since is not None:
                at.append(now if len(self._done) >= ACKS_AT_ONCE else self._done_since + ACK_SECONDS)
            return max(0.0, min(at) - now) if at else None

    def take_done(self, now: float, *, at_once: bool = False) -> list[str]:
        """Return and remove the leases to acknowledge now; the caller sends them, or puts them back."""
        with self._lock:
            if self._done_since is None:
                return []
            is_due = len(self._done) >= ACKS_AT_ONCE or now >= self._done_since + ACK_SECONDS
            if not is_due and not at_once:
                return []
            leases, self._done, self._done_since = self._done, [], None
            return leases

    def put_back_done(self, leases: list[str], now: float) -> None:
        """Put back leases that could not be acknowledged."""
        with self._lock:
            self._done = leases + self._done
            self._done_since = now

    def due_to_extend(self, now: float) -> list[str]:
        """Return the leases to extend: all of them, once a third of the oldest one's time has passed."""
        with self._lock:
            if self._extend_at is None or now < self._extend_at:
                return []
            self._extend_at = now + self._lease_seconds * EXTEND_AFTER if self._until else None
            return list(self._until)

    def extend(self, leases: Iterable[str], requested_at: float) -> None:
        """Let leases that the server extended end a lease time after the request."""
        until = requested_at + self._lease_seconds
        with self._lock:
            self._until.update((lease, until) for lease in leases if lease in self._until)

    def take_buffered(self) -> list[str]:
        """Return and remove the leases of all buffered messages, with the messages."""
        with self._lock:
            leases = [str(message["lease"]) for message in self._buffer]
            self._buffer.clear()
            return [lease for lease in leases if self._until.pop(lease, None) is not None]

    def take_all(self) -> list[str]:
        """Return and remove all leases that are neither done nor lost."""
        with self._lock:
            leases = list(self._until)
            self._until.clear()
            self._buffer.clear()
            self._in_work.clear()
            return leases
