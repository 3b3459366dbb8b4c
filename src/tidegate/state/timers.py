"""Timers of keys: set and cancelled by operators, fired in order of time.

A timer is the entry `key group | 0x02 | clock | time | key` (checkpoint/keys/layout.py), one for each key,
clock and time. Times of both clocks are ms since 1970. Used by one thread, for one batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from tidegate.checkpoint.backend import page_size
from tidegate.checkpoint.keys.layout import SPACE_TIMER, TIMER_PREFIX_BYTES, timer_prefix, timer_time
from tidegate.errors import ValueInvalid

if TYPE_CHECKING:
    from tidegate.state.write_batch import WriteBatch

TimerClock = Literal["event", "processing"]
CLOCKS: tuple[TimerClock, ...] = ("event", "processing")

# How the clocks are written in the key of a timer.
_NUMBERS: dict[TimerClock, int] = {"event": 0, "processing": 1}

# The value of a timer is its format version and nothing else.
TIMER_VALUE = b"\x01"

# Due timers of a key group that are read at once: memory stays small when millions are due, and a read is
# shared by many.
CHUNK_TIMERS = 512

# So many of each key group are read at first: mostly few are due, or none.
FIRST_TIMERS = 16

TIME_MS_MIN = -(2**63)
TIME_MS_MAX = 2**63 - 1

# Key group, space and clock: the prefix by which the timers of one clock are scanned.
_SCANNED_BYTES = 4
_SCANNED = {clock: bytes((SPACE_TIMER, _NUMBERS[clock])) for clock in CLOCKS}


class DueTimer(NamedTuple):
    """A timer that is due; ordered by time, then by the stored key."""

    at_ms: int
    stored: bytes
    clock: TimerClock
    group: bytes


@dataclass(frozen=True, slots=True)
class NextTimers:
    """The earliest timer of each clock that a batch left behind; None where there is none."""

    event_ms: int | None
    processing_ms: int | None


class _ClockTimers:
    """The timers of one clock: the limit up to which they are due, the next one, how far groups are read."""

    __slots__ = ("known_ms", "limit_ms", "next_ms", "read_to")

    def __init__(self, known_ms: int | None) -> None:
        self.known_ms = known_ms
        # Nothing is due before `due` is called.
        self.limit_ms = TIME_MS_MIN - 1
        self.next_ms: int | None = None
        # Key groups that may have more due timers than were read, and the last entry that was read.
        self.read_to: dict[bytes, bytes] = {}

    def note(self, at_ms: int) -> None:
        """Take note of a timer that is not due."""
        if self.next_ms is None or at_ms < self.next_ms:
            self.next_ms = at_ms


class Timers:
    """The timers of the key groups of one instance, during one batch.

    The order of a batch: rows set and cancel timers, `due` is read to its end, then come `next_event_ms` and
    `next_processing_ms`.
    """

    __slots__ = (
        "_fresh_ms",
        "_groups",
        "_heap",
        "_is_firing",
        "_known",
        "_lanes",
        "_touched",
        "_waiting",
        "_write_batch",
    )

    def __init__(self, write_batch: WriteBatch, groups: range, known: NextTimers | None = None) -> None:
        """`known` are the next timers after the last batch: nothing is read where none of them can be due."""
        self._write_batch = write_batch
        self._groups = groups
        self._known = known
        self._lanes: dict[TimerClock, _ClockTimers] = {
            "event": _ClockTimers(known.event_ms if known else None),
            "processing": _ClockTimers(known.processing_ms if known else None),
        }
        # The earliest timer of each clock that was set in this batch.
        self._fresh_ms: dict[TimerClock, int | None] = {"event": None, "processing": None}
        self._heap: list[DueTimer] = []
        # Entries in the heap, and those set or cancelled while timers fire: these are read again.
        self._waiting: set[bytes] = set()
        self._touched: set[bytes] = set()
        self._is_firing = False

    def set(self, group: bytes, stored: bytes, clock: TimerClock, at_ms: int) -> None:
        """Set a timer for a key; one that already exists stays."""
        if not TIME_MS_MIN <= at_ms <= TIME_MS_MAX:
            raise ValueInvalid(place="time of a timer", reason=f"{at_ms} ms is beyond 64 bits")
        entry = _entry(group, clock, at_ms, stored)
        self._write_batch.put_sub(entry[:_SCANNED_BYTES], entry, TIMER_VALUE)
        if self._is_firing:
            self._set_while_firing(DueTimer(at_ms, stored, clock, group), entry)
            return
        fresh_ms = self._fresh_ms[clock]
        if fresh_ms is None or at_ms < fresh_ms:
            self._fresh_ms[clock] = at_ms

    def set_many(
        self, groups: Sequence[int], stored: Sequence[bytes], clock: TimerClock, ats_ms: Sequence[int]
    ) -> None:
        """Set a timer for each of many keys."""
        for group, key, at_ms in zip(groups, stored, ats_ms, strict=True):
            self.set(group.to_bytes(2, "big"), key, clock, at_ms)

    def cancel(self, group: bytes, stored: bytes, clock: TimerClock, at_ms: int) -> None:
        """Cancel a timer of a key; nothing happens where there is none."""
        if not TIME_MS_MIN <= at_ms <= TIME_MS_MAX:
            return
        entry = _entry(group, clock, at_ms, stored)
        self._write_batch.delete_sub(entry[:_SCANNED_BYTES], entry)
        if self._is_firing:
            self._touched.add(entry)

    def due(self, watermark_ms: int | None, processing_ms: int | None) -> Iterator[DueTimer]:
        """Yield the timers that are due, by time and then by key, and delete each.

        Due timers that are set meanwhile come too, those that are cancelled do not. A timer is deleted before
        it is yielded, so a rollback of what is done for it leaves it deleted.
        """
        for clock, limit_ms in zip(CLOCKS, (watermark_ms, processing_ms), strict=True):
            lane = self._lanes[clock]
            lane.limit_ms = TIME_MS_MIN - 1 if limit_ms is None else limit_ms
            if self._may_be_due(clock):
                self._fresh_ms[clock] = None
                self._read(clock, [group.to_bytes(2, "big") for group in self._groups])
            else:
                lane.next_ms = lane.known_ms
        self._is_firing = True
        while self._heap:
            timer = heapq.heappop(self._heap)
            entry = _entry(timer.group, timer.clock, timer.at_ms, timer.stored)
            self._waiting.discard(entry)
            if entry not in self._touched or self._write_batch.get(entry) is not None:
                self._write_batch.delete_sub(entry[:_SCANNED_BYTES], entry)
                yield timer
            self._read_on(timer, entry)
        self._is_firing = False

    def last_ms(self, clock: TimerClock) -> int | None:
        """Return the time of the latest timer of a clock; reads all of them, so only for last batches."""
        found = None
        for group in self._groups:
            for entry, _ in self._write_batch.scan_sub(group.to_bytes(2, "big") + _SCANNED[clock], None):
                at_ms = timer_time(entry)
                found = at_ms if found is None else max(found, at_ms)
        return found

    def next_event_ms(self) -> int | None:
        """Return the time of the earliest event-time timer left, or an earlier one; call it after `due`."""
        return self._next("event")

    def next_processing_ms(self) -> int | None:
        """Return the time of the earliest processing-time timer left, or an earlier one; after `due`."""
        return self._next("processing")

    def _next(self, clock: TimerClock) -> int | None:
        times = [at for at in (self._lanes[clock].next_ms, self._fresh_ms[clock]) if at is not None]
        return min(times, default=None)

    def _may_be_due(self, clock: TimerClock) -> bool:
        if self._known is None:
            return True
        lane, fresh_ms = self._lanes[clock], self._fresh_ms[clock]
        return any(at is not None and at <= lane.limit_ms for at in (lane.known_ms, fresh_ms))

    def _set_while_firing(self, timer: DueTimer, entry: bytes) -> None:
        lane = self._lanes[timer.clock]
        self._touched.add(entry)
        if timer.at_ms > lane.limit_ms:
            lane.note(timer.at_ms)
            return
        if entry in self._waiting:
            return
        read_to = lane.read_to.get(timer.group)
        # Beyond what was read of its key group the next read finds it.
        if read_to is None or entry <= read_to:
            self._waiting.add(entry)
            heapq.heappush(self._heap, timer)

    def _read(self, clock: TimerClock, groups: Iterable[bytes]) -> None:
        """Read the next due timers of key groups, and note the first of each that is not due.

        Key groups with more of them are read together, so the number of calls follows that of due timers and
        not of key groups.
        """
        lane, scanned = self._lanes[clock], _SCANNED[clock]
        places: dict[bytes, bytes] = {}
        for group in groups:
            read_to = lane.read_to.pop(group, None)
            places[group] = group + scanned if read_to is None else read_to + b"\x00"
        counts = dict.fromkeys(places, 0)
        size_max = FIRST_TIMERS if len(places) > 1 else CHUNK_TIMERS
        while places:
            size = page_size(len(places), min(size_max, CHUNK_TIMERS))
            pages = self._write_batch.pages_sub([(group + scanned, at) for group, at in places.items()], size)
            further: dict[bytes, bytes] = {}
            for group, (entries, go_on) in zip(places, pages, strict=True):
                taken = [entry for entry, _ in entries[: CHUNK_TIMERS - counts[group]]]
                due_count = self._take_due(clock, group, taken)
                counts[group] += due_count
                if due_count < len(taken):
                    continue
                if counts[group] == CHUNK_TIMERS:
                    lane.read_to[group] = taken[-1]
                elif go_on is not None:
                    further[group] = go_on
            places, size_max = further, CHUNK_TIMERS

    def _take_due(self, clock: TimerClock, group: bytes, entries: list[bytes]) -> int:
        """Put the due ones among a key group's next timers into the heap; return how many are due."""
        lane = self._lanes[clock]
        for count, entry in enumerate(entries):
            at_ms = timer_time(entry)
            if at_ms > lane.limit_ms:
                lane.note(at_ms)
                return count
            if entry not in self._waiting:
                self._waiting.add(entry)
                heapq.heappush(self._heap, DueTimer(at_ms, entry[TIMER_PREFIX_BYTES:], clock, group))
        return len(entries)

    def _read_on(self, timer: DueTimer, entry: bytes) -> None:
        """Read more of a key group once the last timer that was read of it fires."""
        if self._lanes[timer.clock].read_to.get(timer.group) == entry:
            self._read(timer.clock, [timer.group])


def _entry(group: bytes, clock: TimerClock, at_ms: int, stored: bytes) -> bytes:
    return timer_prefix(int.from_bytes(group, "big"), _NUMBERS[clock], at_ms) + stored
