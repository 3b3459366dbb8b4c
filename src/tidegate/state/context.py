"""The contexts of operators: batch, key and event time, and the methods by which timers are set."""

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
    from tidegate.state.cursor import KeyBatch, KeyCursor


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fires: the time for which it was set, and its clock."""

    at: Moment
    clock: TimerClock


@dataclass(frozen=True, slots=True)
class OpenContext:
    """The instance and the batch, which every context has; `open` has no more, as there is no key yet."""

    batch: int
    partition: int
    parallelism: int
    # the batch's time, the same when a batch is repeated
    now: Moment
    # events older than it are late; None before any is known
    watermark: Moment | None


class Context:
    """The context of `process` and `on_timer`: the event's key and times, and the key's timers."""

    __slots__ = ("_clock", "_cursor", "_timers", "batch", "firing", "key", "now", "partition", "watermark")

    def __init__(
        self, known: OpenContext, cursor: KeyCursor, timers: Timers | None, clock: TimerClock
    ) -> None:
        """`timers` is None for an operator without `on_timer`; `clock` is the default of timers."""
        self.batch = known.batch
        self.partition = known.partition
        self.now = known.now
        self.watermark = known.watermark
        # The current key: a value, or a tuple of several columns' values.
        self.key: Any = None
        # The timer that fires; None in `process`.
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
        """Set a timer of this key, which calls `on_timer`; a second one for the same time adds nothing.

        The clock is "event" where the operator has an event time, else "processing", by default. A timer that
        is due already fires in this batch, after the rows. `on_timer` can set timers of the same clock only
        for times after its own: others would fire without end.
        """
        at_ms = time_ms(at)
        clock = self._clock if clock is None else _check_clock(clock)
        firing = self.firing
        if firing is not None and clock == firing.clock and at_ms <= firing.at:
            reason = f"{Moment(at_ms)} is not after {firing.at}, the time of the timer that asks for it"
            raise ValueInvalid(place="ctx.timer", reason=reason)
        self._set_timers().set(self._cursor.group, self._stored(), clock, at_ms)

    def cancel_timer(self, at: int | datetime, clock: TimerClock | None = None) -> None:
        """Cancel a timer of this key; nothing happens where there is none."""
        clock = self._clock if clock is None else _check_clock(clock)
        self._set_timers().cancel(self._cursor.group, self._stored(), clock, time_ms(at))

    def _set_timers(self) -> Timers:
        if self._timers is None:
            raise on_timer_missing(self._cursor.operator)
        return self._timers

    def _stored(self) -> bytes:
        if self._cursor.stored is None:
            raise StateOutsideKey(state="timers")
        return self._cursor.stored


class BatchContext:
    """The context of `process_batch`: the distinct keys of the batch, the key of each row, times, timers."""

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

    def __init__(
        self, known: OpenContext, cursor: KeyCursor, timers: Timers | None, clock: TimerClock
    ) -> None:
        self.batch = known.batch
        self.partition = known.partition
        self.now = known.now
        self.watermark = known.watermark
        # The distinct keys: an array of the key column, or of structs for several.
        self.keys: pa.Array = pa.nulls(0)
        # For each row the position of its key in `keys`.
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
            raise on_timer_missing(self._cursor.operator)
        positions = range(len(many.stored)) if keys is self.keys else _key_positions(many, keys)
        times = _times_ms(ats, len(positions))
        groups = [many.groups[position] for position in positions]
        stored = [many.stored[position] for position in positions]
        self._timers.set_many(groups, stored, self._clock if clock is None else _check_clock(clock), times)

    def enter_keys(
        self, many: KeyBatch, key_index: npt.NDArray[np.int64], timestamps: npt.NDArray[np.int64] | None
    ) -> None:
        """Move to the next batch of keys; the runner of the operator calls it."""
        self.keys = many.keys
        self.key_index = key_index
        self.timestamps = timestamps


def on_timer_missing(operator: str) -> StateInvalid:
    """Return the error for a timer of an operator that has no method for it."""
    return StateInvalid(operator=operator, reason="it sets a timer and has no on_timer; write one.")


def _check_clock(clock: TimerClock) -> TimerClock:
    if clock not in CLOCKS:
        raise ValueInvalid(place="clock of a timer", reason=f"'{clock}' is none of {', '.join(CLOCKS)}")
    return clock


def _key_positions(many: KeyBatch, keys: Any) -> list[int]:
    """Return the position of each key among the batch's keys."""
    positions = {_plain(key): position for position, key in enumerate(many.keys.to_pylist())}
    listed = (
        keys.to_pylist() if hasattr(keys, "to_pylist") else keys.tolist() if hasattr(keys, "tolist") else keys
    )
    try:
        return [positions[_plain(key)] for key in listed]
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
