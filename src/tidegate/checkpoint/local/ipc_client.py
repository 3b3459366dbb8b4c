"""Borrowing a copy: takes a folder that another worker of this machine has open, gives its copy over a line.

A borrowed copy is read and written where it is open (lending.py). It becomes this worker's own when that is
better or has to be: it is to be made anew, the batch asks too often for a line, a part of the batch goes into
it before the batch is over, or the lender is gone. A lender that goes takes what was in its memory with it,
so the copy is brought to its batch again. Spark may end a lender at any moment, which it takes for idle: no
batch fails for that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tidegate.checkpoint.backend import Backend, Changes, Sizes, Version
from tidegate.checkpoint.local.ipc import Line, LineLost, connect
from tidegate.checkpoint.local.ipc_server import CALLS, GIVE_UP, KEEP, LANGUAGE
from tidegate.checkpoint.local.lock import LOCK_NAME, Claim, claim, holder_of
from tidegate.checkpoint.local.store import CopyMoved, LocalCopy, Place, claim_beside
from tidegate.errors import StorageFailed, from_wire

log = logging.getLogger(__name__)

# A call takes seconds where a lender's disk is slow. One that takes longer is of a worker that hangs.
ANSWER_SECONDS_MAX = 60.0
# A batch that asks more often reads key by key: its copy is closed at the lender's and opened here.
CALLS_MAX = 256
# Entries of a range that are asked for at once: few at first, since most readers stop early.
PAGE_ENTRIES_MIN = 16
PAGE_ENTRIES_MAX = 4_096

# The folders of operators that asked too often; they do not borrow again in the life of this worker.
_TALKATIVE: set[Path] = set()


def borrow(place: Place, folder: Path) -> LocalCopy | None:
    """Return the copy of a folder that another worker has open and does not use; None when none lends it."""
    address = None if folder.parent in _TALKATIVE else holder_of(folder)
    line = None if address is None else connect(address, wait_seconds_max=ANSWER_SECONDS_MAX)
    if line is None:
        return None
    try:
        line.send((LANGUAGE, str(folder), repr(place.factory)))
        is_lent = line.receive()[0]
    except LineLost as lost:
        log.info("no copy is lent of %s: %s", folder, lost)
        is_lent = False
    if not is_lent:
        line.close()
        return None
    now_ns = place.clock.now_us() * 1_000
    os.utime(folder / LOCK_NAME, ns=(now_ns, now_ns))
    return BorrowedCopy(folder, place, line)


class _NoClaim(Claim):
    """Stands where the claim of an own copy would: a borrowed one is its lender's."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, -1, -1)

    def release(self) -> None:
        """Nothing is held."""

    def forget(self) -> None:
        """Nothing is held."""


class BorrowedCopy(LocalCopy):
    """A partition's copy that another worker has open, or had: then it is this worker's own."""

    def __init__(self, folder: Path, place: Place, line: Line) -> None:
        super().__init__(_NoClaim(folder), place, is_private=False)
        self.line: Line | None = line
        # Brings the copy to the batch that it stood at; whoever works with it sets this.
        self.bring_again: Callable[[], object] | None = None
        self._borrowed = BorrowedBackend(self)

    @property
    def backend(self) -> Backend:
        return self._borrowed if self.line is not None else super().backend

    @property
    def is_open(self) -> bool:
        return self.line is not None or super().is_open

    def open(self) -> Backend | None:
        return self._borrowed if self.line is not None else super().open()

    def wipe(self) -> Path:
        self._take()
        return super().wipe()

    def close(self) -> None:
        if self.line is None:
            super().close()

    def give_up(self) -> None:
        if self.line is not None:
            self._return(GIVE_UP)
        super().give_up()

    def keep(self) -> None:
        if isinstance(self.held, _NoClaim):
            self._return(KEEP)
        else:
            super().keep()

    def move(self) -> CopyMoved:
        """Take the copy while it is being brought to its batch; give what tells that to who brings it.

        A lender that is lost leaves it at an older batch than it said: the next change file does not fit.
        """
        self._take()
        return CopyMoved(str(self.folder))

    def own(self) -> Backend:
        """Open the copy here, at the batch that the lender had it at."""
        self._take()
        if self.bring_again is not None:
            self.bring_again()
            return self.backend
        # Nobody has read from it yet: whoever brings it looks at its version, and makes it anew without one.
        backend = self.open()
        if backend is None:
            self.wipe().mkdir()
            backend = self.adopt()
        return backend

    def recover(self, lost: LineLost) -> Backend:
        """Go on without the lender, from what it left on the disk."""
        log.warning("the worker that lent the copy in %s is lost: %s", self.folder, lost)
        self.hang_up()
        return self.own()

    def lost(self, reason: str) -> StorageFailed:
        """Return the error of a copy that was lost with its lender."""
        return StorageFailed(path=str(self.folder), reason=reason)

    def _take(self) -> None:
        """Make the folder this worker's own, or a private one in its place when that takes too long."""
        if not isinstance(self.held, _NoClaim):
            return
        self._return(GIVE_UP)
        folder = self.folder
        held = claim(folder, wait_ms_max=self._place.wait_ms_max)
        if held is None:
            log.warning("the copy in %s is in use for long; a private one is made", folder)
            held, self.is_private = claim_beside(folder, "private"), True
        self.held = held

    def hang_up(self) -> None:
        """End the loan without a word: what a lender that is late says now answers another call."""
        line, self.line = self.line, None
        if line is not None:
            line.close()

    def _return(self, word: str) -> None:
        """End the loan; the lender has put the copy in its place, or is gone, when this returns."""
        line, self.line = self.line, None
        if line is None:
            return
        try:
            line.send((word,))
            line.receive()
        except LineLost as lost:
            log.info("the lender of %s is gone: %s", self.folder, lost)
        line.close()


class BorrowedBackend:
    """The entries of a borrowed copy, wherever they are open by now."""

    def __init__(self, copy: BorrowedCopy) -> None:
        self._copy = copy
        self._calls = 0

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._ask("get", key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = self._ask("get_many", keys if isinstance(keys, list) else list(keys))
        return values

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        size = PAGE_ENTRIES_MIN
        while True:
            page = self._ask("page", start, stop, size)
            yield from ((key, value) for key, value in page)
            if len(page) < size:
                return
            start = page[-1][0] + b"\x00"
            size = min(size * 4, PAGE_ENTRIES_MAX)

    def pages(self, ranges: Sequence[tuple[bytes, bytes]], count_max: int) -> list[list[tuple[bytes, bytes]]]:
        pages = self._ask("pages", ranges if isinstance(ranges, list) else list(ranges), count_max)
        return [[(key, value) for key, value in page] for page in pages]

    def version(self) -> Version | None:
        found = self._ask("version")
        return None if found is None else Version(*found)

    def apply(self, changes: Changes, version: Version) -> None:
        named = (version.epoch, version.batch, version.head_id)
        keys, values = list(changes.entries), list(changes.entries.values())  # read quicker than a dict
        self._write("apply", changes.ranges, keys, values, named)

    def write_partly(self, changes: Changes) -> None:
        # The lender's end would be this batch's from now on, so the copy is opened here first.
        copy = self._copy
        if copy.line is not None and copy.bring_again is None:
            raise copy.move()
        backend = copy.backend if copy.line is None else copy.own()
        backend.write_partly(changes)

    def snapshot(self, folder: Path) -> list[Path]:
        return [Path(path) for path in self._write("snapshot", str(folder))]

    def sizes(self) -> Sizes:
        return Sizes(*self._ask("sizes"))

    def close(self) -> None:
        self._copy.close()

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Read from the copy, also when its lender is lost on the way."""
        copy = self._copy
        if copy.line is None:
            return CALLS[name](copy.backend, *arguments)
        self._calls += 1
        if self._calls > CALLS_MAX:
            _TALKATIVE.add(copy.folder.parent)
            return CALLS[name](copy.own(), *arguments)
        try:
            return self._answer(copy.line, name, arguments)
        except LineLost as lost:
            return CALLS[name](copy.recover(lost), *arguments)

    def _write(self, name: str, *arguments: Any) -> Any:
        copy = self._copy
        if copy.line is None:
            return CALLS[name](copy.backend, *arguments)
        try:
            return self._answer(copy.line, name, arguments)
        except LineLost as lost:
            copy.hang_up()
            if copy.bring_again is None:
                raise copy.move() from lost
            raise copy.lost("the worker that lent it ended") from lost

    def _answer(self, line: Line, name: str, arguments: tuple[Any, ...]) -> Any:
        line.send((name, *arguments))
        is_done, answer = line.receive()
        if not is_done:
            raise from_wire(answer)
        return answer
