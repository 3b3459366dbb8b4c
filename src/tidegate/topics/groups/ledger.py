"""The ledger of a group in a partition: the messages delivered and not acknowledged, and who holds them.

A message below `next` and in no entry is acknowledged (or missed). One in an entry is delivered and not
acknowledged: held or waiting. One from `next` on was never delivered. Entries do not overlap.

An operation is computed in a `Draft` and leaves the ledger alone; `apply` then makes all of its changes at
once, and cannot fail. Asking for due entries moves them inside the ledger's index, but changes nothing that
can be observed. Not safe from two threads at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from tidegate.errors import InvariantBroken
from tidegate.topics.groups.codec import HELD, Entry, Position

# An index may have this many stale places before it is rebuilt from the entries.
INDEX_SLACK = 64

Ranges = Iterable[tuple[int, int]]
Change = Callable[[Entry, int, int], Entry | None]


class Ledger:
    """The entries of a partition; `position` and `stored` are its row, decoded and as it is written."""

    __slots__ = (
        "_advanced_us",
        "_by_start",
        "_due",
        "_lapses",
        "_later",
        "_starts",
        "outstanding",
        "position",
        "stored",
    )

    def __init__(self, position: Position, entries: Iterable[Entry] = ()) -> None:
        self.position = position
        self.stored = position.encode()
        self._by_start = {entry.start: entry for entry in entries}
        self._starts = sorted(self._by_start)
        # Messages in entries.
        self.outstanding = sum(entry.count for entry in self._by_start.values())
        # Entries that end by this time are in `_due`, by start; the others are in `_later`, by time. Both may
        # also have places of entries that are gone or were changed.
        self._advanced_us = -1
        self._due: list[int] = []
        self._later = [(entry.ends_us, entry.start) for entry in self._by_start.values()]
        # The held ones once more, by the end of their lease.
        self._lapses = [(one.ends_us, one.start) for one in self._by_start.values() if one.kind == HELD]
        heapify(self._later)
        heapify(self._lapses)

    def __len__(self) -> int:
        return len(self._starts)

    def entries(self) -> Iterator[Entry]:
        """Return all entries in the order of their offsets."""
        return (self._by_start[start] for start in self._starts)

    def below(self, offset: int) -> list[Entry]:
        """Return the entries that begin below an offset."""
        return [self._by_start[start] for start in self._starts[: bisect_left(self._starts, offset)]]

    def clipped(self, ranges: Ranges) -> list[tuple[Entry, list[tuple[int, int]]]]:
        """Return the entries that overlap ranges, each with the parts that do; ranges rise."""
        found: list[tuple[Entry, list[tuple[int, int]]]] = []
        starts, by_start = self._starts, self._by_start
        for start, stop in ranges:
            at = max(0, bisect_right(starts, start) - 1)
            while at < len(starts) and starts[at] < stop:
                entry = by_start[starts[at]]
                at += 1
                if entry.stop <= start:
                    continue
                part = (max(start, entry.start), min(stop, entry.stop))
                if found and found[-1][0] is entry:
                    found[-1][1].append(part)
                else:
                    found.append((entry, [part]))
        return found

    def due(self, now_us: int) -> Iterator[Entry]:
        """Yield the entries that may be delivered again, lowest first: their wait or their lease ended."""
        self._advance(now_us)
        last = -1
        for start in self._due:
            entry = self._by_start.get(start)
            if entry is not None and start != last and entry.ends_us <= now_us:
                last = start
                yield entry

    def due_later_us(self, now_us: int) -> int | None:
        """Return when the next entry becomes due that is not due yet; None where there is none."""
        self._advance(now_us)
        while self._later:
            ends_us, start = self._later[0]
            entry = self._by_start.get(start)
            if entry is not None and entry.ends_us == ends_us:
                return ends_us
            heappop(self._later)
        return None

    def has_lapsed(self, now_us: int) -> bool:
        """True if a lease ended and its entry is not expired yet."""
        while self._lapses:
            ends_us, start = self._lapses[0]
            entry = self._by_start.get(start)
            if entry is not None and entry.kind == HELD and entry.ends_us == ends_us:
                return ends_us <= now_us
            heappop(self._lapses)
        return False

    def is_held(self, entry: Entry, now_us: int) -> bool:
        """True if a member has a lease on these messages."""
        return entry.kind == HELD and now_us < entry.ends_us

    def position_offset(self, log_start: int, now_us: int) -> int:
        """Return the lowest offset that is not acknowledged, of those that are in the log or held."""
        for entry in self.entries():
            if entry.stop > log_start or self.is_held(entry, now_us):
                return entry.start if self.is_held(entry, now_us) else max(entry.start, log_start)
        return max(self.position.next, log_start)

    def lost_count(self, log_start: int, now_us: int) -> int:
        """Return the number of messages in entries that are removed from the log and not held.

        They can never be delivered again.
        """
        return sum(
            min(entry.stop, log_start) - entry.start
            for entry in self.below(log_start)
            if not self.is_held(entry, now_us)
        )

    def lag(self, log_start: int, log_end: int, now_us: int) -> int:
        """Return the number of messages that are not acknowledged, of those that are in the log or held."""
        new = max(0, log_end - max(self.position.next, log_start))
        return new + self.outstanding - self.lost_count(log_start, now_us)

    def apply(self, draft: Draft) -> None:
        """Apply the changes of a draft, all at once."""
        gone = [start for start in draft.removed if start not in draft.put]
        new = [start for start in draft.put if start not in draft.removed]
        self.outstanding -= sum(entry.count for entry in draft.removed.values())
        self.outstanding += sum(entry.count for entry in draft.put.values())
        for start in gone:
            del self._by_start[start]
        self._by_start.update(draft.put)
        if (len(gone) + len(new)) * 8 > len(self._starts) + 64:
            self._starts = sorted(self._by_start)
        else:
            for start in gone:
                del self._starts[bisect_left(self._starts, start)]
            for start in new:
                insort(self._starts, start)
        self.position = draft.position
        self.stored = draft.encoded()
        self._index(draft.put.values())

    def _index(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.ends_us <= self._advanced_us:
                insort(self._due, entry.start)
            else:
                heappush(self._later, (entry.ends_us, entry.start))
            if entry.kind == HELD:
                heappush(self._lapses, (entry.ends_us, entry.start))
        dead = 0
        for start in self._due:
            known = self._by_start.get(start)
            if known is not None and known.ends_us <= self._advanced_us:
                break
            dead += 1
        del self._due[:dead]
        most = 2 * len(self._starts) + INDEX_SLACK
        if len(self._later) > most or len(self._due) > most or len(self._lapses) > most:
            everything = list(self._by_start.values())
            at_us = self._advanced_us
            self._due = sorted(entry.start for entry in everything if entry.ends_us <= at_us)
            self._later = [(entry.ends_us, entry.start) for entry in everything if entry.ends_us > at_us]
            self._lapses = [(entry.ends_us, entry.start) for entry in everything if entry.kind == HELD]
            heapify(self._later)
            heapify(self._lapses)

    def _advance(self, now_us: int) -> None:
        if now_us <= self._advanced_us:
            return
        self._advanced_us = now_us
        moved: list[int] = []
        while self._later and self._later[0][0] <= now_us:
            _, start = heappop(self._later)
            entry = self._by_start.get(start)
            if entry is not None and entry.ends_us <= now_us:
                moved.append(start)
        if moved:
            # A list that a caller iterates over must not change.
            self._due = sorted({*self._due, *moved}) if len(moved) > 4 else _inserted(self._due, moved)


class Draft:
    """Changes to one ledger that are computed and not applied yet."""

    __slots__ = ("_cut", "_encoded", "before", "ledger", "position", "put", "removed")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.before = ledger.position
        self.position = ledger.position
        # Entries as they were, and what is in their place, both by start.
        self.removed: dict[int, Entry] = {}
        self.put: dict[int, Entry] = {}
        self._encoded: bytes | None = None
        # What `settle` left of the one entry that lies across the start of the log.
        self._cut: Entry | None = None

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to write."""
        return not self.removed and not self.put and self.position is self.before

    @property
    def outstanding(self) -> int:
        """The number of messages in entries after the change."""
        count = self.ledger.outstanding
        count -= sum(entry.count for entry in self.removed.values())
        return count + sum(entry.count for entry in self.put.values())

    def encoded(self) -> bytes:
        """Return the bytes of the position after the change."""
        if self._encoded is None:
            raise InvariantBroken(reason="a draft of a ledger is applied before it is written")
        return self._encoded

    def finish(self) -> bytes:
        """Return the bytes of the position after the change, under a new revision."""
        self.position = replace(self.position, revision=self.before.revision + 1)
        self._encoded = self.position.encode()
        return self._encoded

    def current(self, entry: Entry) -> Entry | None:
        """Return what `settle` left of an entry; None when nothing is."""
        if entry.start not in self.removed:
            return entry
        return self._cut if self._cut is not None and self._cut.stop == entry.stop else None

    def replace(self, entry: Entry, parts: Ranges, change: Change | None = None) -> None:
        """Remove parts of an entry, or change them; the rest of it stays in the state that it is in."""
        if self.put.get(entry.start) is entry:
            del self.put[entry.start]
        else:
            self.removed[entry.start] = entry
        at = entry.start
        for start, stop in parts:
            if at < start:
                self.put[at] = entry.part(at, start)
            changed = change(entry, start, stop) if change else None
            if changed is not None:
                self.put[start] = changed
            at = stop
        if at < entry.stop:
            self.put[at] = entry.part(at, entry.stop)

    def settle(self, log_start: int, now_us: int) -> int:
        """Skip what was removed from the log and is not held; return the number of these messages."""
        skipped = max(0, log_start - self.position.next)
        if skipped:
            self.position = replace(self.position, next=log_start)
        for entry in self.ledger.below(log_start):
            if not self.ledger.is_held(entry, now_us):
                stop = min(entry.stop, log_start)
                self.replace(entry, [(entry.start, stop)])
                self._cut = self.put.get(log_start)
                skipped += stop - entry.start
        self.miss(skipped)
        return skipped

    def miss(self, count: int) -> None:
        """Count messages that the group can never get."""
        if count:
            unreported, total = self.position.missed_unreported + count, self.position.missed_total + count
            self.position = replace(self.position, missed_unreported=unreported, missed_total=total)

    def mark_reported(self) -> None:
        """Note that the missed messages were reported to a member."""
        self.position = replace(self.position, missed_unreported=0)


def _inserted(starts: list[int], new: Iterable[int]) -> list[int]:
    copy = starts.copy()
    for start in new:
        insort(copy, start)
    return copy
