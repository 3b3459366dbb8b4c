"""Load: how many calls work and how many wait, and the line in which calls stand while too many work.

A thousand long polls that come at once, or wake at once, work for a moment and then wait or leave. Whoever
comes in that moment stands in line for a little while before it is refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

# A call in line holds its head and its body's first bytes; more than this are refused at once.
LINE_CALLS_MAX = 10_000


@dataclass(slots=True)
class Load:
    """How many calls work, and how many wait for messages. Belongs to the event loop."""

    running: int = 0
    waiting: int = 0
    line: OrderedDict[asyncio.Future[None], None] = field(default_factory=OrderedDict)

    async def has_room(self, most: int, seconds: float) -> bool:
        """Stand in line until fewer than `most` calls work; False when that takes longer than so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.running >= most:
            if len(self.line) >= LINE_CALLS_MAX:
                return False
            turn: asyncio.Future[None] = loop.create_future()
            self.line[turn] = None
            try:
                done, _ = await asyncio.wait([turn], timeout=max(0.0, until - loop.time()))
            finally:
                self.line.pop(turn, None)
            if not done:
                return False
        return True

    def begin(self) -> None:
        """Count one call more that works."""
        self.running += 1

    def end(self) -> None:
        """Count one call less that works, and let the first in line look again."""
        self.running -= 1
        while self.line:
            turn, _ = self.line.popitem(last=False)
            if not turn.done():
                turn.set_result(None)
                return
