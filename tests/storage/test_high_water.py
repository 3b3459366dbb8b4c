"""Ids rise over restarts, also over quick ones and when the clock was set back in between."""

from __future__ import annotations

from tidegate.model.ids import SnowflakeSource, snowflake_at, tick_time_us
from tidegate.storage.group_commit import GroupCommitter
from tidegate.storage.high_water import read_high_water_us, stage_high_water
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock

START_US = 1_800_000_000_000_000


def start(engine: MemoryEngine, clock: ManualClock) -> SnowflakeSource:
    """Do what a server does before it gives out ids."""
    start_us = read_high_water_us(engine, clock.now_us())
    committer = GroupCommitter(engine)
    committer.submit(lambda staging: stage_high_water(staging, start_us)).result()
    committer.close()
    ids = SnowflakeSource(clock)
    ids.advance_past(snowflake_at(start_us))
    return ids


def test_ids_rise_over_quick_restarts_and_a_clock_that_goes_back() -> None:
    engine, clock = MemoryEngine(), ManualClock(START_US)
    newest = -1
    for step_us in (0, 1_000, 0, -3_600_000_000, 0, 5_000):
        clock.set_us(clock.now_us() + step_us)
        ids = start(engine, clock)  # and no chore has kept anything since
        taken = [ids.take() for _ in range(3)]
        assert taken[0] > newest
        newest = taken[-1]


def test_the_time_of_a_tick_is_not_before_what_was_given_out() -> None:
    clock = ManualClock(START_US)
    ids = SnowflakeSource(clock)
    ids.take_many(10_000)
    assert tick_time_us(ids.newest) > START_US
    assert tick_time_us(-1) < START_US
