"""The brake on guessing: counts wrong tokens by address; more of them are told to wait.

A right token passes in any case, known or not: someone who guesses behind the same address, or behind the
same proxy, locks nobody out. Memory is bounded: when there are too many addresses, the one that was quiet
longest goes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.errors import LinkWrong, TokenWrong, TooManyGuesses
from tidegate.model.clock import Clock

WINDOW_SECONDS = 60.0
ADDRESSES_MAX = 10_000


class GuessBrake:
    """Wrong tokens of the last minute, by address."""

    def __init__(self, guesses_max: int, clock: Clock) -> None:
        self._guesses_max = guesses_max
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    @contextmanager
    def guess(self, address: str) -> Iterator[None]:
        """Count a wrong token or link inside; beyond the limit of a minute it is told to wait.

        A token that was good once, and ended, is no guess: a service that goes on with it is told why.
        """
        try:
            yield
        except (TokenWrong, LinkWrong) as problem:
            if type(problem) in (TokenWrong, LinkWrong):
                left_seconds = self.count(address)
                if left_seconds > 0:
                    raise TooManyGuesses(
                        address=address, retry_after_seconds=math.ceil(left_seconds)
                    ) from problem
            raise

    def count(self, address: str) -> float:
        """Note a wrong token; give the seconds for which the address has to wait, 0 while it may go on."""
        now = self._clock.monotonic_seconds()
        began, count = self._seen.pop(address, (now, 0))
        if now - began >= WINDOW_SECONDS:
            began, count = now, 0
        self._seen[address] = (began, count + 1)
        while len(self._seen) > ADDRESSES_MAX:
            self._seen.popitem(last=False)
        return began + WINDOW_SECONDS - now if count >= self._guesses_max else 0.0
