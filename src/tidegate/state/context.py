"""The contexts: take where the work stands, give operators key, times and timers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import StateInvalid, StateOutsideKey, ValueInvalid
from tidegate.state.instant import Moment, time_ms
from tidegate.state.timers import CLOCKS, TimerClock, Timers

if TYPE_CHECKING:
    from tidegate.state.runtime.cursor import Cursor, KeyBatch


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer whose time has come: when it was set for, and on which clock."""

    at: Moment
    clock: TimerClock


@dataclass(frozen=True, slots=True)
class OpenContext:
    """What every context knows: the instance and the batch. `open` knows no more; there is no key yet."""

    batch: int
    partition: int
    parallelism: int
    # the batch's time, the same for a batch that is done again
    now: Moment
    # no event before it is expected any more; None before any is known
    watermark: Moment | None


class Context:
    """What `process` and `on_timer` may know of the event and its key, and the door to timers."""

    __slots__ = ("_clock", "_cursor", "_timers", "batch", "firing", "key", "now", "partition", "watermark")

    def __init__(self, known: OpenContext, cursor: Cursor, timers: Timers | None, clock: TimerClock) -> None:
        """`timers` is None for an operator without `on_timer`; `clock` is the one that counts unless told."""
        self.batch = known.batch
        self.partition = known.partition
        self.now = known.now
        self.watermark = known.watermark
        # The key being worked on: a value, or a tuple of several columns' values.
        self.key: Any = None
        # The timer being worked on; None in `process`.
        self.firing: Timer | None = None
        self._cursor = cursor
        self._timers = timers
        self._clock: TimerClock = clock

    @property
    def timestamp(self) -> Moment:
        """Return the event's time; in `on_timer` the timer's; the batch's where there is no event time."""
        if self.firing is not None:
            return self.firing.at
        event_ms = self._cursor.event_ms
        return self.now if event_ms is None else Moment(event_ms)

    def timer(self, at: int | datetime, clock: TimerClock | None = None) -> None:
        """Ask for `on_timer` of this key at a time; asking twice for one time is asking once.

        The clock is "event" where the operator has an event time, else "processing", unless said otherwise.
        A time that has come already fires in this batch, after the rows. In `on_timer` only a time after the
        timer's own can be asked for on the same clock: anything else would go on for ever.
        """
        at_ms = time_ms(at)
        clock = self._clock if clock is None else _known(clock)
        firing = self.firing
        if firing is not None and clock == firing.clock and at_ms <= firing.at:
            reason = f"{Moment(at_ms)} is not after {firing.at}, the time of the timer that asks for it"
            raise ValueInvalid(place="ctx.timer", reason=reason)
        self._set_timers().set(self._cursor.group, self._stored(), clock, at_ms)

    def cancel_timer(self, at: int | datetime, clock: TimerClock | None = None) -> None:
        """Take back a timer of this key; nothing happens where there is none."""
        clock = self._clock if clock is None else _known(clock)
        self._set_timers().cancel(self._cursor.group, self._stored(), clock, time_ms(at))

    def _set_timers(self) -> Timers:
        if self._timers is None:
            raise without_on_timer(self._cursor.operator)
        return self._timers

    def _stored(self) -> bytes:
        if self._cursor.stored is None:
            raise StateOutsideKey(state="timers")
        return self._cursor.stored


class BatchContext:
    """What `process_batch` may know: the batch's distinct keys, which row has which, times and timers."""

    __slots__ = (
        "_clock",
        "_cursor",
        "_timers",
        "batch",
        "key_index",
        "keys",
        "now",
        "partition",
        "timestamps",
        "watermark",
    )

    def __init__(self, known: OpenContext, cursor: Cursor, timers: Timers | None, clock: TimerClock) -> None:
        self.batch = known.batch
        self.partition = known.partition
        self.now = known.now
        self.watermark = known.watermark
        # The distinct keys: an array of the key column, or of structs for several.
        self.keys: pa.Array = pa.nulls(0)
        # For each row the place of its key in `keys`.
        self.key_index: npt.NDArray[np.int64] = np.empty(0, np.int64)
        # For each row its event time in ms since 1970; None without an event time.
        self.timestamps: npt.NDArray[np.int64] | None = None
        self._cursor = cursor
        self._timers = timers
        self._clock: TimerClock = clock

    @property
    def row_keys(self) -> pa.Array:
        """Return the key of every row."""
        return self.keys.take(pa.array(self.key_index))

    def timer_many(self, keys: Any, ats: Any, clock: TimerClock | None = None) -> None:
        """Set a timer for each key: `ats` is one time for all, or as many as there are keys.

        `keys` is `ctx.keys` or any array of keys that occur in the batch. Times are ms since 1970 (numbers of
        any kind), datetimes or an Arrow array of timestamps.
        """
        many = self._cursor.many
        if many is None:
            raise StateOutsideKey(state="timers")
        if self._timers is None:
            raise without_on_timer(self._cursor.operator)
        places = range(len(many.stored)) if keys is self.keys else _places(many, keys)
        times = _times_ms(ats, len(places))
        groups = [many.groups[place] for place in places]
        stored = [many.stored[place] for place in places]
        self._timers.set_many(groups, stored, self._clock if clock is None else _known(clock), times)

    def stand_on(
        self, many: KeyBatch, key_index: npt.NDArray[np.int64], timestamps: npt.NDArray[np.int64] | None
    ) -> None:
        """Move to the next batch; called by who feeds the operator."""
        self.keys = many.keys
        self.key_index = key_index
        self.timestamps = timestamps


def without_on_timer(operator: str) -> StateInvalid:
    """Return the error for a timer that nobody would be told of."""
    return StateInvalid(operator=operator, reason="it sets a timer and has no on_timer; write one.")


def _known(clock: TimerClock) -> TimerClock:
    if clock not in CLOCKS:
        raise ValueInvalid(place="clock of a timer", reason=f"'{clock}' is none of {', '.join(CLOCKS)}")
    return clock


def _places(many: KeyBatch, keys: Any) -> list[int]:
    """Return the place of each key among the batch's keys."""
    known = {_plain(key): place for place, key in enumerate(many.keys.to_pylist())}
    wanted = (
        keys.to_pylist() if hasattr(keys, "to_pylist") else keys.tolist() if hasattr(keys, "tolist") else keys
    )
    try:
        return [known[_plain(key)] for key in wanted]
    except KeyError as error:
        reason = f"{error.args[0]!r} is not among the keys of this batch"
        raise ValueInvalid(place="keys given to timer_many", reason=reason) from error


def _plain(key: Any) -> Any:
    return tuple(key.values()) if isinstance(key, dict) else key


def _times_ms(ats: Any, count: int) -> list[int]:
    if isinstance(ats, int | datetime):
        return [time_ms(ats)] * count
    if isinstance(ats, pa.ChunkedArray):
        ats = ats.combine_chunks()
    if isinstance(ats, pa.Array):
        is_time = pa.types.is_timestamp(ats.type)
        ats = ats.cast(pa.timestamp("ms"), safe=False).cast(pa.int64()) if is_time else ats
        ats = ats.to_pylist()
    elif isinstance(ats, np.ndarray):
        ats = ats.astype("datetime64[ms]").astype(np.int64) if ats.dtype.kind == "M" else ats
        ats = ats.tolist()
    times = [time_ms(at) for at in ats]
    if len(times) != count:
        raise ValueInvalid(place="timer_many", reason=f"{len(times)} times for {count} keys")
    return times
