"""The number of requests that run and that wait, and the queue for when too many run.

A thousand long polls that arrive or wake at once run for a moment and then wait or leave. Requests that
arrive in that moment queue for a short time before they are refused. Answers that are complete and not yet
sent are limited by their bytes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from tidegate.errors import TooManyRequests

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


# More would take the memory that the rest of the server needs.
ANSWER_BYTES_MAX = 256 * 1024 * 1024
# Retry-After of an answer that is refused for its size.
RETRY_SECONDS = 2


class HeldResponses:
    """The size of all answers that are not sent yet; belongs to the event loop."""

    def __init__(self, bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self.size_bytes = 0

    def check_room(self) -> None:
        """Raise TooManyRequests where no further answer could be held."""
        if self.size_bytes >= self._bytes_max:
            raise self._refusal()

    def add(self, size_bytes: int) -> None:
        """Count an answer; one that is larger than the limit is held when it is the only one."""
        if self.size_bytes and self.size_bytes + size_bytes > self._bytes_max:
            raise self._refusal()
        self.size_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Stop counting an answer: it is sent, or its client has left."""
        self.size_bytes -= size_bytes

    def _refusal(self) -> TooManyRequests:
        return TooManyRequests(
            what="bytes of answers wait until their callers take them",
            limit=self._bytes_max,
            retry_after_seconds=RETRY_SECONDS,
            hint=f"Try again in {RETRY_SECONDS} s, or ask for less at once.",
        )
