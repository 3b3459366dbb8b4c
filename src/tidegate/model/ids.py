"""Ids that sort by their time of creation: snowflakes, object ids and UUIDs of version 7.

Snowflakes (64-bit numbers) and object ids (24 hex digits) count in ticks that only go up, `moment <<
sequence_bits | sequence`: when the clock goes back, or the sequence of a moment is used up, the next tick is
one of the future. Sources keep nothing on disk: after a restart, `advance_past` the newest stored id keeps
the order even when the clock went back meanwhile.

UUIDs of version 7 (RFC 9562): 48 bits of milliseconds, then 74 random bits; they sort by time.

    milliseconds 48 | version 4 | random 12 | variant 2 | random 62

A source makes each one greater than the one before, also when the clock stops or goes back: within a
millisecond it adds to the random part, and continues with the next millisecond when that is used up.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.errors import InvariantBroken, RequestInvalid
from tidegate.model.clock import Clock
from tidegate.model.names import shorten

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SNOWFLAKE_EPOCH_US = 1_704_067_200_000_000  # 2024-01-01T00:00:00Z; 41 bits of milliseconds reach into 2093
MILLISECOND_BITS = 41
NODE_BITS = 10
SEQUENCE_BITS = 12
NODE_MAX = (1 << NODE_BITS) - 1
SNOWFLAKE_MAX = (1 << (MILLISECOND_BITS + NODE_BITS + SEQUENCE_BITS)) - 1  # the largest signed 64-bit number

_SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
_OBJECT_ID = re.compile(r"[0-9a-f]{24}")
_OBJECT_ID_SECOND_BITS = 32  # unsigned: reaches into 2106
_OBJECT_ID_COUNTER_BITS = 24
_OBJECT_ID_RANDOM_BYTES = 5


class _Ticks:
    """Numbers that only go up, near the clock; safe from any thread."""

    def __init__(self, moment_bits: int, sequence_bits: int) -> None:
        self._sequence_bits = sequence_bits
        self._tick_max = (1 << (moment_bits + sequence_bits)) - 1
        self._last = -1
        self._lock = threading.Lock()

    def take(self, moment: int, count: int = 1) -> int:
        """Claim `count` consecutive ticks, all or none, and return the first."""
        with self._lock:
            first = max(moment << self._sequence_bits, self._last + 1)
            last = first + count - 1
            if last > self._tick_max:
                raise InvariantBroken(
                    reason="the clock is past the last moment that an id can hold",
                    hint="Set the clock of this machine right, then start again.",
                )
            self._last = max(self._last, last)
        return first

    def advance_past(self, tick: int) -> None:
        with self._lock:
            self._last = max(self._last, tick)

    @property
    def last(self) -> int:
        return self._last


class SnowflakeSource:
    """A source of ids of one node, each greater than the one before; no two nodes share a number.

    An id is 41 bits of milliseconds since 2024, 10 bits of node and 12 bits of sequence. Beyond 4,096 ids a
    millisecond it runs ahead of the clock, and falls back to it when the rate drops. Threads: any.
    """

    def __init__(self, clock: Clock, node: int = 0) -> None:
        if not 0 <= node <= NODE_MAX:
            raise InvariantBroken(reason=f"snowflake node {node} is not between 0 and {NODE_MAX}")
        self._clock = clock
        self._node = node
        self._ticks = _Ticks(MILLISECOND_BITS, SEQUENCE_BITS)

    def take(self) -> int:
        """Return the next id."""
        tick = self._ticks.take(self._now_ms())
        high = tick >> SEQUENCE_BITS << NODE_BITS | self._node
        return high << SEQUENCE_BITS | tick & _SEQUENCE_MASK

    def take_many(self, count: int) -> npt.NDArray[np.int64]:
        """Return the next `count` ids in ascending order; far cheaper than as many calls of `take`."""
        import numpy as np

        if count < 0:
            raise InvariantBroken(reason=f"{count} ids were asked for")
        if count == 1:
            return np.array((self.take(),), dtype=np.int64)
        first = self._ticks.take(self._now_ms(), count)
        ticks = np.arange(first, first + count, dtype=np.int64)
        high = ticks >> SEQUENCE_BITS << NODE_BITS | self._node
        return high << SEQUENCE_BITS | ticks & _SEQUENCE_MASK

    def advance_past(self, snowflake: int) -> None:
        """Make every later id greater than this one, whichever node made it."""
        _check_snowflake(snowflake)
        moment = snowflake >> (NODE_BITS + SEQUENCE_BITS)
        node = snowflake >> SEQUENCE_BITS & NODE_MAX
        # Within one millisecond the node decides: its ids are above a smaller node's, and below a greater's.
        sequence = snowflake & _SEQUENCE_MASK
        if node != self._node:
            sequence = _SEQUENCE_MASK if node > self._node else -1
        self._ticks.advance_past((moment << SEQUENCE_BITS) + sequence)

    @property
    def newest(self) -> int:
        """The tick of the newest id, without the node; -1 before the first."""
        return self._ticks.last

    def _now_ms(self) -> int:
        return (self._clock.now_us() - SNOWFLAKE_EPOCH_US) // 1_000


def tick_time_us(tick: int) -> int:
    """Return the end of the moment in a tick (an id without its node), in microseconds since 1970."""
    return SNOWFLAKE_EPOCH_US + ((max(tick, 0) >> SEQUENCE_BITS) + 1) * 1_000


def snowflake_at(time_us: int) -> int:
    """Return the least snowflake of a moment, in microseconds since 1970; of 2024 for an earlier one."""
    moment_ms = max(0, time_us - SNOWFLAKE_EPOCH_US) // 1_000
    return moment_ms << (NODE_BITS + SEQUENCE_BITS)


def _check_snowflake(snowflake: int) -> None:
    if not 0 <= snowflake <= SNOWFLAKE_MAX:
        raise InvariantBroken(reason=f"{snowflake} is not a snowflake id")


@dataclass(frozen=True, slots=True, order=True)
class ObjectId:
    """24 hex digits in small letters: 4 bytes of seconds since 1970, 5 random ones, 3 of a counter."""

    text: str

    def __post_init__(self) -> None:
        if not _OBJECT_ID.fullmatch(self.text):
            raise RequestInvalid(
                reason=f"'{shorten(self.text)}' is not an object id.",
                hint="An object id is 24 hex digits, 0-9 and small a-f.",
            )

    def __str__(self) -> str:
        return self.text

    @property
    def time_us(self) -> int:
        """The time of creation, in microseconds since 1970, exact to the second."""
        return int(self.text[:8], 16) * 1_000_000


class ObjectIdSource:
    """A source of object ids, each greater than the one before; sources differ in their random bytes.

    `random_bytes(n)` returns n bytes (`os.urandom` at the doors) and is called once. Threads: any.
    """

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._random = random_bytes(_OBJECT_ID_RANDOM_BYTES)
        if len(self._random) != _OBJECT_ID_RANDOM_BYTES:
            raise InvariantBroken(reason=f"the random source gave {len(self._random)} bytes")
        self._ticks = _Ticks(_OBJECT_ID_SECOND_BITS, _OBJECT_ID_COUNTER_BITS)

    def take(self) -> ObjectId:
        """Return the next id."""
        tick = self._ticks.take(self._clock.now_us() // 1_000_000)
        second, counter = tick >> _OBJECT_ID_COUNTER_BITS, tick & ((1 << _OBJECT_ID_COUNTER_BITS) - 1)
        return ObjectId(f"{second:08x}{self._random.hex()}{counter:06x}")


RANDOM_BITS = 74
MILLISECOND_MAX = (1 << 48) - 1  # in the year 10889
# A new millisecond begins in the lower half, so that steps have room.
_START_MASK = (1 << (RANDOM_BITS - 1)) - 1
_STEP_BYTES = 4  # the next one of a millisecond cannot be guessed from the one before


class UuidSource:
    """A source of UUIDs, each greater than the one before; safe from any thread."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._last_ms = -1
        self._last_random = 0

    def take(self) -> str:
        """Return the next one."""
        now_ms = self._clock.now_us() // 1_000
        with self._lock:
            if now_ms > self._last_ms:
                self._begin(now_ms)
            else:
                self._last_random += 1 + _random(self._random_bytes, _STEP_BYTES)
                if self._last_random >> RANDOM_BITS:
                    self._begin(self._last_ms + 1)
            return _written(self._last_ms, self._last_random)

    def take_many(self, count: int) -> list[str]:
        """Return the next ones, in ascending order."""
        return [self.take() for _ in range(count)]

    def _begin(self, moment_ms: int) -> None:
        self._last_ms = moment_ms
        self._last_random = _random(self._random_bytes, 10) & _START_MASK


def _random(random_bytes: Callable[[int], bytes], count: int) -> int:
    found = random_bytes(count)
    if len(found) != count:
        raise InvariantBroken(reason=f"the random source gave {len(found)} bytes")
    return int.from_bytes(found, "big")


def _written(moment_ms: int, random: int) -> str:
    if not 0 <= moment_ms <= MILLISECOND_MAX:
        raise InvariantBroken(
            reason="the clock is outside the moments that a UUID can hold",
            hint="Set the clock of this machine right, then start again.",
        )
    high, low = random >> 62, random & ((1 << 62) - 1)
    text = f"{moment_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
