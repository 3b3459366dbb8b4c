"""Lease ids: what is written is read back, by fetch and range; other texts are returned apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken
from tidegate.model.ids import SNOWFLAKE_MAX, SnowflakeSource
from tidegate.testing.clock import ManualClock
from tidegate.topics.groups.leases import (
    ECHO_CHARS_MAX,
    FetchIdSource,
    lease_id,
    lease_prefix,
    read_leases,
)

LEASES = st.tuples(
    st.integers(0, 2**32 - 1),
    st.integers(0, SNOWFLAKE_MAX),
    st.just(0) | st.integers(1, 2**64 - 1),
    st.integers(0, 2**63 - 1) | st.integers(0, 9),
)


def test_a_lease_reads_well() -> None:
    assert lease_id(0, 0x1F3C9A0B2C4D1000, 0xC2EF, 17) == "0.1f3c9a0b2c4d1000000000000000c2ef.17"
    assert lease_prefix(0, 0x1F3C9A0B2C4D1000, 2**64 - 1) == "0.1f3c9a0b2c4d1000ffffffffffffffff."


def test_a_lease_of_an_earlier_version_has_no_random_bits() -> None:
    assert lease_id(0, 0x1F3C9A0B2C4D1000, 0, 17) == "0.1f3c9a0b2c4d1000.17"
    ((named,), strange) = read_leases(["0.1f3c9a0b2c4d1000.17"])
    assert (named.fetch_id, named.token, strange) == (0x1F3C9A0B2C4D1000, 0, [])


def test_fetch_ids_rise_and_their_tokens_are_random_and_never_0() -> None:
    ids = SnowflakeSource(ManualClock())
    drawn = iter([b"\x01" * 8, bytes(8), b"\x03" * 8])
    source = FetchIdSource(ids, lambda count: next(drawn)[:count])
    taken = [source.take() for _ in range(3)]
    assert [token for _, token in taken] == [0x0101010101010101, 1, 0x0303030303030303]
    assert sorted(fetch_id for fetch_id, _ in taken) == [fetch_id for fetch_id, _ in taken]
    source.advance_past(taken[-1][0] + 2**40)
    drawn = iter([b"\x04" * 8])
    assert source.take()[0] > taken[-1][0] + 2**40
    with pytest.raises(InvariantBroken):
        FetchIdSource(ids, lambda _count: b"short").take()


@given(st.lists(LEASES, max_size=30))
def test_leases_are_read_as_they_were_written_each_once(parts: list[tuple[int, int, int, int]]) -> None:
    texts = [lease_id(*part) for part in parts]
    assert all(len(text) <= 64 for text in texts)
    named, strange = read_leases(texts)
    assert strange == []
    found = [
        (one.partition, one.fetch_id, one.token, offset)
        for one in named
        for start, stop in one.ranges
        for offset in range(start, stop)
    ]
    assert sorted(found) == sorted(set(parts))
    assert sum(one.count for one in named) == len(found)
    for one in named:
        stops = [stop for _, stop in one.ranges]
        starts = [start for start, _ in one.ranges]
        assert all(stop < start for stop, start in zip(stops, starts[1:], strict=False))


def test_leases_of_one_grant_become_one_range() -> None:
    ((named,), _) = read_leases([lease_id(3, 77, 5, offset) for offset in reversed(range(1000))])
    assert (named.partition, named.fetch_id, named.ranges) == (3, 77, [(0, 1000)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "0.1f3c9a0b2c4d1000",
        "0.1f3c9a0b2c4d1000.",
        "0.1f3c9a0b2c4d1000.1_0",
        "0.1f3c9a0b2c4d1000. 1",
        "0.1f3c9a0b2c4d1000.-1",
        "0.1F3C9A0B2C4D1000.1",
        "00.1f3c9a0b2c4d1000.1",
        "0.1f3c.1",
        "0.1f3c9a0b2c4d10000000000000000000.1",
        "0.1f3c9a0b2c4d100012.1",
        "0.1f3c9a0b2c4d1000.٣",
        "0.1f3c9a0b2c4d1000.1\n",
        "0.1f3c9a0b2c4d1000.1\n0.1f3c9a0b2c4d1000.2",
    ],
)
def test_a_text_that_is_no_lease_is_named_once_and_the_others_are_read(text: str) -> None:
    ((named,), strange) = read_leases([text, lease_id(0, 1, 9, 1), text, lease_id(0, 1, 9, 2)])
    assert (named.ranges, strange) == ([(1, 3)], [text])


def test_a_long_text_that_is_no_lease_is_cut_where_it_is_named() -> None:
    assert read_leases(["x" * 10_000]) == ([], ["x" * ECHO_CHARS_MAX])
