"""The brake on guessing: counts wrong tokens by address, and refuses more of them for a while.

A token that is known passes in any case: someone who guesses behind the same address locks nobody out who
is in already. Memory is bounded: when there are too many addresses, the one that was quiet longest goes.
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
        """Count what happens inside as a guess, unless it turns out to be none; refuse one too many.

        It is counted before the answer is known, so that many guesses at once do not all pass. A token that
        was good once, and ended, is no guess: a service that goes on with it shuts nobody else out.
        """
        self.check(address)
        self.count(address)
        try:
            yield
        except (TokenWrong, LinkWrong) as problem:
            if type(problem) not in (TokenWrong, LinkWrong):
                self._forgive(address)
            raise
        except BaseException:
            self._forgive(address)
            raise
        self._forgive(address)

    def check(self, address: str) -> None:
        """Refuse an address that guessed too often in this minute."""
        began, count = self._seen.get(address, (0.0, 0))
        left = began + WINDOW_SECONDS - self._clock.monotonic_seconds()
        if count >= self._guesses_max and left > 0:
            raise TooManyGuesses(address=address, retry_after_seconds=math.ceil(left))

    def _forgive(self, address: str) -> None:
        if address in self._seen:
            began, count = self._seen[address]
            self._seen[address] = (began, max(0, count - 1))

    def count(self, address: str) -> None:
        """Note a wrong token."""
        now = self._clock.monotonic_seconds()
        began, count = self._seen.pop(address, (now, 0))
        if now - began >= WINDOW_SECONDS:
            began, count = now, 0
        self._seen[address] = (began, count + 1)
        while len(self._seen) > ADDRESSES_MAX:
            self._seen.popitem(last=False)
