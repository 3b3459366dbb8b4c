"""The clocks: the machine's and the one that tests move."""

import time

import pytest

from tidegate.errors import InvariantBroken
from tidegate.model.clock import Clock, SystemClock
from tidegate.testing.clock import START_US, ManualClock


def test_system_clock_reads_microseconds_of_the_machine() -> None:
    clock: Clock = SystemClock()
    before, now_us, after = time.time(), clock.now_us(), time.time()
    assert before - 0.001 <= now_us / 1e6 <= after + 0.001
    first = clock.monotonic_seconds()
    assert clock.monotonic_seconds() >= first


def test_manual_clock_stands_still_until_told() -> None:
    clock: Clock = ManualClock()
    assert clock.now_us() == clock.now_us() == START_US
    assert clock.monotonic_seconds() == clock.monotonic_seconds() == 0


def test_advance_moves_both_clocks() -> None:
    clock = ManualClock(now_us=100)
    clock.advance(1.5)
    assert (clock.now_us(), clock.monotonic_seconds()) == (1_500_100, 1.5)


def test_many_small_steps_add_up_exactly() -> None:
    clock = ManualClock(now_us=0)
    for _ in range(1_000):
        clock.advance(0.1)
    assert (clock.now_us(), clock.monotonic_seconds()) == (100_000_000, 100)


def test_set_moves_the_wall_clock_alone() -> None:
    clock = ManualClock(now_us=1_000)
    clock.advance(1)
    clock.set_us(5)
    assert (clock.now_us(), clock.monotonic_seconds()) == (5, 1)


def test_time_cannot_pass_backwards() -> None:
    with pytest.raises(InvariantBroken, match="set_us"):
        ManualClock().advance(-1)
