"""What the members of a group know of each message: who was given it, until when, and whose ack was answered.

A member notes what it gives up before it says so, and what it was given after it heard of it. So a hold in
the ledger is never longer than the server's, and an ack in it was answered before anything asked later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.crash.history import Fault
from tests.crash.journal import Journal

# The server's clock may be slewed beside ours.
CLOCK_SECONDS = 0.05


class Place(NamedTuple):
    """Where a message is."""

    partition: int
    offset: int


@dataclass(slots=True)
class Entry:
    """One message, as the members know it, and what the journal calls it."""

    name: str
    deliveries: set[int] = field(default_factory=set)
    # Who was given it last, with which delivery; until when it is that member's, unless given up.
    member: str = ""
    delivery: int = 0
    until_seconds: float = 0.0
    acked_tick: int | None = None
    # An ack of it had no answer, or did not say of which messages it was.
    is_unsure: bool = False


class Ledger:
    """Shared by all members; safe for threads."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._ticks = 0
        self._entries: dict[Place, Entry] = {}
        self._wrong: dict[tuple[str, str], list[Place]] = {}

    @property
    def acked_count(self) -> int:
        """How many messages were acknowledged for sure."""
        with self._lock:
            return sum(entry.acked_tick is not None for entry in self._entries.values())

    def tick(self) -> int:
        """Return a number that is larger than all before it."""
        with self._lock:
            self._ticks += 1
            return self._ticks

    def given(
        self, member: str, messages: Iterable[Mapping[str, Any]], asked_tick: int, until_seconds: float
    ) -> dict[str, Place]:
        """Note what a member was given; the leases with their messages."""
        leases: dict[str, Place] = {}
        now = time.monotonic()
        with self._lock:
            for message in messages:
                place = Place(message["partition"], message["offset"])
                leases[message["lease"]] = place
                entry = self._entries.setdefault(place, Entry(str(message["payload"]["subject"])))
                self._journal.add("given", entry.name, to=member, n=message["deliveries"])
                self._check_given(place, entry, message["deliveries"], asked_tick, now)
                entry.deliveries.add(message["deliveries"])
                # The answer of an earlier delivery may be read later.
                if message["deliveries"] >= entry.delivery:
                    entry.member, entry.delivery = member, message["deliveries"]
                    entry.until_seconds = until_seconds
        return leases

    def acked(self, member: str, places: Iterable[Place]) -> None:
        """Note an ack that was answered."""
        with self._lock:
            self._ticks += 1
            for place in places:
                entry = self._entries[place]
                if entry.acked_tick is not None:
                    self._add_wrong("a message is acknowledged once", f"again by {member}", place)
                if entry.member != member:
                    told = f"by {member}, who had it before {entry.member}"
                    self._add_wrong("nobody acknowledges what another was given since", told, place)
                self._journal.add("acked", entry.name, by=member)
                entry.acked_tick = self._ticks
                entry.until_seconds = 0.0

    def acked_upto(self, member: str, covered: Collection[Place], said: int) -> None:
        """Note an ack of all that a member was given up to some places: what it still held is done.

        What another was given before the ack came in is that one's, and its time is not this member's.
        """
        now = time.monotonic()
        with self._lock:
            own = {place for place in covered if self._entries[place].member == member}
            held = {place for place in own if self._entries[place].until_seconds > now + CLOCK_SECONDS}
        if not len(held) <= said <= len(own):
            self.wrong("an ack says how many it did", f"{said} of {len(held)} to {len(own)}", covered)
        self.acked(member, held)
        self.unsure(own - held)

    def unsure(self, places: Iterable[Place]) -> None:
        """Note an ack of which nobody knows whether it was done."""
        with self._lock:
            for place in places:
                entry = self._entries[place]
                self._journal.add("unsure", entry.name)
                entry.is_unsure = True
                entry.until_seconds = 0.0

    def told_lost(self, member: str, places: Iterable[Place]) -> None:
        """Note leases that the server says are lost; one that is still held is a fault."""
        now = time.monotonic()
        with self._lock:
            for place in places:
                entry = self._entries[place]
                self._journal.add("lost", entry.name, by=member)
                if entry.member == member and now + CLOCK_SECONDS < entry.until_seconds:
                    self._add_wrong("a lease is held for its time", f"{member} lost it", place)

    def released(self, member: str, places: Iterable[Place], *, is_counted: bool) -> None:
        """Note what a member is about to give back; a release does not count as a delivery."""
        with self._lock:
            for place in places:
                entry = self._entries[place]
                self._journal.add("back", entry.name, by=member, counted=is_counted)
                if entry.member == member:
                    entry.until_seconds = 0.0
                    if not is_counted:
                        entry.deliveries.discard(entry.delivery)

    def extended(self, member: str, places: Iterable[Place], until_seconds: float) -> None:
        """Note leases that are held for longer."""
        with self._lock:
            for place in places:
                entry = self._entries[place]
                if entry.member == member and entry.acked_tick is None:
                    entry.until_seconds = until_seconds

    def covered(self, member: str, last: Mapping[int, int]) -> list[Place]:
        """Return what a member was given last up to these offsets, and is not acknowledged for sure."""
        with self._lock:
            return [
                place
                for place, entry in self._entries.items()
                if entry.member == member
                and entry.acked_tick is None
                and place.offset <= last.get(place.partition, -1)
            ]

    def wrong(self, promise: str, told: str, places: Iterable[Place]) -> None:
        """Note a promise that was not kept."""
        with self._lock:
            for place in places:
                self._add_wrong(promise, told, place)

    def faults(self, stored: Collection[Place], dead: Collection[Place]) -> list[Fault]:
        """Tell what went wrong meanwhile, and what nobody was given or acknowledged of all messages."""
        with self._lock:
            never = [place for place in stored if place not in self._entries and place not in dead]
            gone = [place for place in stored if self._is_gone(place) and place not in dead]
            found = [
                Fault(promise, f"{told} ({len(places)} times)", self._subjects(places))
                for (promise, told), places in self._wrong.items()
            ]
            self._wrong = {}
        if never:
            told = f"{len(never)} were given to nobody"
            found.append(Fault("every message is given at least once", told, self._subjects(never)))
        if gone:
            promise = "every message comes until it is acknowledged"
            found.append(Fault(promise, f"{len(gone)} come no more", self._subjects(gone)))
        return found

    def _is_gone(self, place: Place) -> bool:
        entry = self._entries.get(place)
        return entry is not None and entry.acked_tick is None and not entry.is_unsure

    def _check_given(self, place: Place, entry: Entry, delivery: int, asked_tick: int, now: float) -> None:
        if entry.acked_tick is not None and asked_tick > entry.acked_tick:
            self._add_wrong("what was acknowledged does not come again", "it came", place)
        if delivery in entry.deliveries:
            self._add_wrong("each delivery has a number of its own", "two with one", place)
        if delivery > entry.delivery and now + CLOCK_SECONDS < entry.until_seconds:
            told = f"while {entry.member} held it"
            self._add_wrong("a message is given to one member at a time", told, place)

    def _add_wrong(self, promise: str, told: str, place: Place) -> None:
        self._wrong.setdefault((promise, told), []).append(place)

    def _subjects(self, places: Iterable[Place]) -> tuple[str, ...]:
        known = self._entries
        return tuple(known[place].name if place in known else str(place) for place in places)
