"""Ids are unique and in order whatever the clock does."""

import os
import random
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken, RequestInvalid
from tidegate.model.ids import (
    NODE_MAX,
    SNOWFLAKE_EPOCH_US,
    SNOWFLAKE_MAX,
    ObjectId,
    ObjectIdSource,
    SnowflakeSource,
)
from tidegate.testing.clock import START_US, ManualClock

# A step of the clock in milliseconds, either way, and how many ids are taken after it.
moves = st.lists(st.tuples(st.integers(-5_000, 5_000), st.integers(0, 9_000)), max_size=12)
snowflakes = st.integers(0, SNOWFLAKE_MAX - (1 << 40))


@given(moves, st.integers(0, NODE_MAX))
def test_snowflakes_only_go_up_while_the_clock_goes_both_ways(
    steps: list[tuple[int, int]], node: int
) -> None:
    clock = ManualClock()
    source = SnowflakeSource(clock, node)
    taken = [source.take()]
    for step_ms, count in steps:
        clock.set_us(clock.now_us() + step_ms * 1_000)
        many = source.take_many(count)
        assert many.dtype == np.dtype(np.int64)
        assert len(many) == count
        taken += [*many.tolist(), source.take()]
    assert taken == sorted(set(taken))
    assert {snowflake >> 12 & NODE_MAX for snowflake in taken} == {node}


def time_us_of(snowflake: int) -> int:
    return SNOWFLAKE_EPOCH_US + (snowflake >> 22) * 1_000


def test_a_snowflake_is_milliseconds_then_node_then_sequence() -> None:
    clock = ManualClock(SNOWFLAKE_EPOCH_US + 7_999)
    source = SnowflakeSource(clock, node=5)
    assert [source.take(), source.take()] == [7 << 22 | 5 << 12, 7 << 22 | 5 << 12 | 1]


def test_ids_past_the_sequence_borrow_the_next_millisecond_and_fall_back_to_the_clock() -> None:
    clock = ManualClock()
    source = SnowflakeSource(clock)
    ids = source.take_many(4_097)
    assert time_us_of(int(ids[4_095])) == START_US
    assert time_us_of(int(ids[4_096])) == START_US + 1_000
    clock.advance(0.010)
    assert time_us_of(source.take()) == clock.now_us()


def test_one_by_one_and_many_at_once_give_the_same_ids() -> None:
    one, many = SnowflakeSource(ManualClock(), 3), SnowflakeSource(ManualClock(), 3)
    assert [one.take() for _ in range(5_000)] == many.take_many(5_000).tolist()


@given(snowflakes, st.integers(0, NODE_MAX))
def test_every_id_is_greater_than_the_one_advanced_past(old: int, node: int) -> None:
    source = SnowflakeSource(ManualClock(SNOWFLAKE_EPOCH_US), node)
    source.advance_past(old)
    new = source.take()
    assert new > old
    assert new >> 22 == (old >> 22) + (new & 0x3FFFFF <= old & 0x3FFFFF), "no millisecond is skipped in vain"


def test_advancing_past_an_older_id_changes_nothing() -> None:
    source, same = SnowflakeSource(ManualClock()), SnowflakeSource(ManualClock())
    first = source.take()
    source.take()
    source.advance_past(first)
    assert same.take_many(3).tolist()[2] == source.take()


@pytest.fixture
def yielding_threads() -> Iterator[None]:
    """Let new threads yield at each line, so that a missing lock shows every time."""

    def yield_at_each_line(frame: FrameType, event: str, arg: Any) -> Any:
        time.sleep(0)
        return yield_at_each_line

    threading.settrace(yield_at_each_line)
    yield
    threading.settrace(None)


@pytest.mark.usefixtures("yielding_threads")
def test_threads_never_share_an_id() -> None:
    source = SnowflakeSource(ManualClock())
    taken: list[list[int]] = [[] for _ in range(4)]

    def take(into: list[int]) -> None:
        for _ in range(100):
            into += [source.take(), *source.take_many(7).tolist()]

    threads = [threading.Thread(target=take, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(into == sorted(into) for into in taken)
    assert len({snowflake for into in taken for snowflake in into}) == 4 * 100 * 8


def test_a_clock_before_2024_still_gives_ids_in_order() -> None:
    source = SnowflakeSource(ManualClock(now_us=0))
    assert [source.take(), source.take()] == [0, 1]


def test_a_clock_past_the_last_id_is_refused_and_takes_nothing() -> None:
    clock = ManualClock(SNOWFLAKE_EPOCH_US + ((1 << 41) - 1) * 1_000)
    source = SnowflakeSource(clock, NODE_MAX)
    with pytest.raises(InvariantBroken) as caught:
        source.take_many(4_097)
    assert "clock" in caught.value.hint
    assert source.take_many(4_096)[-1] == SNOWFLAKE_MAX
    with pytest.raises(InvariantBroken):
        source.take()


@pytest.mark.parametrize("node", [-1, NODE_MAX + 1])
def test_a_node_outside_its_bits_is_refused(node: int) -> None:
    with pytest.raises(InvariantBroken):
        SnowflakeSource(ManualClock(), node)


@pytest.mark.parametrize("number", [-1, SNOWFLAKE_MAX + 1])
def test_a_number_that_is_no_snowflake_is_refused(number: int) -> None:
    with pytest.raises(InvariantBroken):
        SnowflakeSource(ManualClock()).advance_past(number)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(InvariantBroken):
        SnowflakeSource(ManualClock()).take_many(-1)


@given(st.lists(st.integers(-100, 100), max_size=60), st.integers())
def test_object_ids_only_go_up_while_the_clock_goes_both_ways(steps: list[int], seed: int) -> None:
    clock = ManualClock()
    source = ObjectIdSource(clock, random.Random(seed).randbytes)
    taken = [source.take()]
    for step_seconds in steps:
        clock.set_us(clock.now_us() + step_seconds * 1_000_000)
        taken.append(source.take())
    assert taken == sorted(set(taken))
    assert len({str(made)[8:18] for made in taken}) == 1, "the random bytes are the source's own"


def test_an_object_id_is_seconds_then_random_then_counter() -> None:
    source = ObjectIdSource(ManualClock(0x01020304 * 1_000_000 + 999_999), lambda n: b"\xaa" * n)
    source.take()
    made = source.take()
    assert str(made) == "01020304" + "aa" * 5 + "000001"
    assert made.time_us == 0x01020304 * 1_000_000
    assert ObjectId(str(made)) == made


def test_two_sources_at_one_moment_differ() -> None:
    clock = ManualClock()
    one, other = ObjectIdSource(clock, os.urandom), ObjectIdSource(clock, os.urandom)
    assert one.take() != other.take()


def test_a_random_source_that_gives_too_little_is_refused() -> None:
    with pytest.raises(InvariantBroken):
        ObjectIdSource(ManualClock(), lambda _: b"\x00")


@pytest.mark.parametrize(
    "text", ["", "0" * 23, "0" * 25, "0" * 23 + "g", "A" * 24, "0" * 24 + "\n", "\u0660" * 24]
)
def test_a_text_that_is_no_object_id_is_refused(text: str) -> None:
    with pytest.raises(RequestInvalid, match="is not an object id"):
        ObjectId(text)
