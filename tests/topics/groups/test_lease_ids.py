"""Lease ids: what is written is read back, by fetch and range; other texts are returned apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.model.ids import SNOWFLAKE_MAX
from tidegate.topics.groups.leases import (
    ECHO_CHARS_MAX,
    lease_id,
    lease_prefix,
    read_leases,
)

LEASES = st.tuples(
    st.integers(0, 2**32 - 1), st.integers(0, SNOWFLAKE_MAX), st.integers(0, 2**63 - 1) | st.integers(0, 9)
)


def test_a_lease_reads_well() -> None:
    assert lease_id(0, 0x1F3C9A0B2C4D1000, 17) == "0.1f3c9a0b2c4d1000.17"
    assert lease_prefix(0, 0x1F3C9A0B2C4D1000) == "0.1f3c9a0b2c4d1000."


@given(st.lists(LEASES, max_size=30))
def test_leases_are_read_as_they_were_written_each_once(parts: list[tuple[int, int, int]]) -> None:
    texts = [lease_id(*part) for part in parts]
    assert all(len(text) <= 48 for text in texts)
    named, strange = read_leases(texts)
    assert strange == []
    found = [
        (one.partition, one.fetch_id, offset)
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
    ((named,), _) = read_leases([lease_id(3, 77, offset) for offset in reversed(range(1000))])
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
        "0.1f3c9a0b2c4d1000.٣",
        "0.1f3c9a0b2c4d1000.1\n",
        "0.1f3c9a0b2c4d1000.1\n0.1f3c9a0b2c4d1000.2",
    ],
)
def test_a_text_that_is_no_lease_is_named_once_and_the_others_are_read(text: str) -> None:
    ((named,), strange) = read_leases([text, lease_id(0, 1, 1), text, lease_id(0, 1, 2)])
    assert (named.ranges, strange) == ([(1, 3)], [text])


def test_a_long_text_that_is_no_lease_is_cut_where_it_is_named() -> None:
    assert read_leases(["x" * 10_000]) == ([], ["x" * ECHO_CHARS_MAX])
