"""A bounded pool of open logs, with LRU replacement.

Each open file has a slot. If all slots are taken, the log whose last append is longest ago is written and
closed first, under its own lock alone, and its slot is reused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from tidegate.storage.files import is_full
from tidegate.streams.frame_reader import Damage
from tidegate.streams.log_file import LogFile


class WriterPool:
    """At most `slots_max` open logs. Threads: any; waits only for a slot that is being released."""

    def __init__(self, slots_max: int) -> None:
        self._slots_max = slots_max
        self._slots_used = 0
        self._open: OrderedDict[LogFile, None] = OrderedDict()  # least recently used first
        # Chosen to be closed, and not closed yet: their bytes in memory are not in their files.
        self._closing: set[LogFile] = set()
        self._changed = threading.Condition(threading.Lock())
        # Logs whose bytes found no room: appends everywhere wait for them.
        self._full: set[LogFile] = set()

    def open(self, log: LogFile) -> list[Damage]:
        """Open a log unless it is open, and mark it as used; return the damage found. Raises OSError.

        The caller holds the lock of the log's table, so that no other thread opens it; another thread may
        close it as soon as this returns.
        """
        with self._changed:
            if log in self._open:
                self._open.move_to_end(log)
                return []
        self._take_slot()
        try:
            with log.lock:
                # Chosen to be closed, and not closed yet: it still has its slot.
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

    def forget(self, log: LogFile) -> None:
        """Release the slot of a log that was abandoned."""
        with self._changed:
            self._full.discard(log)
            if log in self._open:
                del self._open[log]
                self._slots_used -= 1
                self._changed.notify()

    def open_logs(self) -> list[LogFile]:
        """Return the logs that are open."""
        with self._changed:
            return list(self._open)

    def unwritten(self) -> list[LogFile]:
        """Return the logs that may have bytes in memory: those that are open or about to be closed."""
        with self._changed:
            return [*self._open, *self._closing]

    def note(self, log: LogFile, problem: OSError) -> None:
        """Remember a log that could not be written because the disk is full."""
        if is_full(problem):
            with self._changed:
                self._full.add(log)

    def retry_full(self) -> None:
        """Retry the writes that found the disk full; raises OSError while it is.

        A log that fails in another way is removed from these: it remembers its fault, refuses its own
        appends, and is retried with them and with every flush.
        """
        if not self._full:  # without the lock: one append too early or too late does no harm
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
        tried: set[LogFile] = set()
        while True:
            with self._changed:
                if self._slots_used < self._slots_max:
                    self._slots_used += 1
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
            elif self._try_close(victim):
                return
            else:
                tried.add(victim)

    def _try_close(self, victim: LogFile) -> bool:
        """Close a log that lost its slot; False if its bytes cannot be written, and it keeps the slot."""
        fault: OSError | None = None
        with victim.lock:
            try:
                victim.close()
            except OSError as problem:
                victim.fault = fault = problem
            finally:
                # Under its lock: no thread opens it before it is known whether it was closed.
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
            self._slots_used -= 1
            self._changed.notify()
