"""Slots: takes logs that want to be open, gives each a place among a bounded number, closes the oldest.

A slot belongs to an open file. A log that needs one when all are taken gets that of the log whose last append
is longest ago; that one is written out and closed first, under its own lock alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from tidegate.storage.files import is_full
from tidegate.streams.frame_reader import Damage
from tidegate.streams.log_file import Log


class WriterSlots:
    """At most `slots_max` open logs. Threads: any; waits only for a slot that another is about to give up."""

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._taken = 0
        self._open: OrderedDict[Log, None] = OrderedDict()  # least recently used first
        # Chosen to be closed, and not closed yet: what they have in memory is not in their files.
        self._closing: set[Log] = set()
        self._changed = threading.Condition(threading.Lock())
        # Logs whose bytes found no room: appends everywhere wait for them.
        self._full: set[Log] = set()

    def open(self, log: Log) -> list[Damage]:
        """Open a log unless it is, and count it as used; gives the damage that opening met. Raises OSError.

        The caller holds the lock of the log's table, so that nobody else opens it; another may close it as
        soon as this returns.
        """
        with self._changed:
            if log in self._open:
                self._open.move_to_end(log)
                return []
        self._take_slot()
        try:
            with log.lock:
                # Chosen to be closed a moment ago, and not closed yet: it has its slot still.
                was_open = log.is_open
                damages = [] if was_open else log.open()
        except BaseException:
            self._give_slot_back()
            raise
        if was_open:
            self._give_slot_back()
            return []
        with self._changed:
            self._open[log] = None
            self._changed.notify()
        return damages

    def forget(self, log: Log) -> None:
        """Take the slot of a log that was abandoned."""
        with self._changed:
            self._full.discard(log)
            if log in self._open:
                del self._open[log]
                self._taken -= 1
                self._changed.notify()

    def opened(self) -> list[Log]:
        """Return the logs that are open."""
        with self._changed:
            return list(self._open)

    def unwritten(self) -> list[Log]:
        """Return the logs that may have something in memory: those that are open or about to be closed."""
        with self._changed:
            return [*self._open, *self._closing]

    def note(self, log: Log, problem: OSError) -> None:
        """Remember a log that could not be written for want of room."""
        if is_full(problem):
            with self._changed:
                self._full.add(log)

    def retry_full(self) -> None:
        """Write again what found no room before; raises OSError while there is none.

        A log that fails in another way waits no more with the full ones: it remembers its fault, refuses its
        own appends, and is tried again with them and with every flush.
        """
        if not self._full:  # a look without the lock: one append too early or too late is fine
            return
        with self._changed:
            waiting = list(self._full)
        for log in waiting:
            try:
                with log.lock:
                    log.flush()
            except OSError as problem:
                if is_full(problem):
                    raise
            with self._changed:
                self._full.discard(log)

    def _take_slot(self) -> None:
        tried: set[Log] = set()
        while True:
            with self._changed:
                if self._taken < self._slots_max:
                    self._taken += 1
                    return
                victim = next((log for log in self._open if log not in tried), None)
                if victim is None and not self._open:
                    self._changed.wait()
                    continue
                if victim is not None:
                    del self._open[victim]
                    self._closing.add(victim)
            if victim is None:
                fault = next((log.fault for log in tried if log.fault is not None), None)
                if fault is not None:
                    raise fault
                tried.clear()
            elif self._closed(victim):
                return
            else:
                tried.add(victim)

    def _closed(self, victim: Log) -> bool:
        """Close a log that lost its slot; where its bytes cannot be written it keeps it."""
        fault: OSError | None = None
        with victim.lock:
            try:
                victim.close()
            except OSError as problem:
                victim.fault = fault = problem
            finally:
                # Under its lock: nobody opens it before it is known to be closed, or to be open still.
                with self._changed:
                    self._closing.discard(victim)
                    if fault is not None:
                        self._open[victim] = None
                        self._changed.notify()
        if fault is None:
            return True
        self.note(victim, fault)
        return False

    def _give_slot_back(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify()
