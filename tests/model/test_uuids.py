"""UUIDs of version 7: the layout of RFC 9562, and an order that the clock cannot break."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from tidegate.errors import InvariantBroken
from tidegate.model.ids import UuidSource
from tidegate.testing.clock import ManualClock


def test_the_example_of_the_rfc_is_written_as_there() -> None:
    """Appendix A.6 of RFC 9562: its moment, 0xcc3 in the first random part and the rest in the second."""
    source = UuidSource(ManualClock(0x017F22E279B0 * 1_000 + 999), bytes)
    source.take()
    source._last_random = (0xCC3 << 62 | 0x18C4DC0C0C07398F) - 1
    assert source.take() == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


def test_version_and_variant_are_right_whatever_the_random_bits() -> None:
    draw = random.Random(1)
    for _ in range(200):
        made = UUID(UuidSource(ManualClock(1_800_000_000_000_000), draw.randbytes).take())
        assert (made.version, made.variant) == (7, "specified in RFC 4122")
        assert made.int >> 80 == 1_800_000_000_000


def test_each_is_greater_than_the_one_before_whatever_the_clock_does() -> None:
    clock = ManualClock()
    source = UuidSource(clock, random.Random(2).randbytes)
    made = source.take_many(50)
    clock.advance(0.001)
    made.append(source.take())
    clock.set_us(clock.now_us() - 10_000_000)
    made += source.take_many(50)
    assert made == sorted(set(made))


def test_a_millisecond_that_is_used_up_borrows_the_next() -> None:
    clock = ManualClock()
    source = UuidSource(clock, lambda count: b"\xff" * count)
    first = source.take()
    # The step of all ones is 2^32: as many of them as there is room for.
    source._last_random = (1 << 74) - 1
    second = source.take()
    assert UUID(second).int >> 80 == (UUID(first).int >> 80) + 1
    assert second > first


def test_a_random_source_that_gives_too_little_is_an_error() -> None:
    with pytest.raises(InvariantBroken, match="gave 0 bytes"):
        UuidSource(ManualClock(0), lambda _: b"").take()
    with pytest.raises(InvariantBroken, match="clock"):
        UuidSource(ManualClock(-1), bytes).take()
