"""The number of requests that run and that wait, and the queue for when too many run.

A thousand long polls that arrive or wake at once run for a moment and then wait or leave. Requests that
arrive in that moment queue for a short time before they are refused.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

# A queued request holds its head and the first bytes of its body; beyond this they are refused at once.
QUEUED_REQUESTS_MAX = 10_000


@dataclass(slots=True)
class Admission:
    """How many requests run, and how many wait for messages. Belongs to the event loop."""

    running: int = 0
    waiting: int = 0
    queue: OrderedDict[asyncio.Future[None], None] = field(default_factory=OrderedDict)

    async def wait_room(self, most: int, seconds: float) -> bool:
        """Wait until fewer than `most` requests run; False if that takes longer than `seconds`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self.running >= most:
            if len(self.queue) >= QUEUED_REQUESTS_MAX:
                return False
            turn: asyncio.Future[None] = loop.create_future()
            self.queue[turn] = None
            try:
                done, _ = await asyncio.wait([turn], timeout=max(0.0, until - loop.time()))
            finally:
                self.queue.pop(turn, None)
            if not done:
                return False
        return True

    def begin(self) -> None:
        """Count one more running request."""
        self.running += 1

    def end(self) -> None:
        """Count one running request less, and wake the first in the queue."""
        self.running -= 1
        while self.queue:
            turn, _ = self.queue.popitem(last=False)
            if not turn.done():
                turn.set_result(None)
                return
