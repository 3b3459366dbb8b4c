"""Key parts sort like the values they stand for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken
from tidegate.storage import keys
from tidegate.storage.keys import KeySpace, join, prefix_range

Codec = tuple[Callable[[int], bytes], Callable[[bytes, int], int], int, int]

CODECS: dict[str, Codec] = {
    "u8": (keys.u8, keys.read_u8, 0, 2**8 - 1),
    "u16": (keys.u16, keys.read_u16, 0, 2**16 - 1),
    "u32": (keys.u32, keys.read_u32, 0, 2**32 - 1),
    "u64": (keys.u64, keys.read_u64, 0, 2**64 - 1),
    "i64": (keys.i64, keys.read_i64, -(2**63), keys.I64_MAX),
}
WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i64": 8}


@pytest.mark.parametrize("name", CODECS)
@given(pick=st.data())
def test_bytes_sort_like_the_numbers_and_read_back(name: str, pick: st.DataObject) -> None:
    write, read, low, high = CODECS[name]
    first = pick.draw(st.integers(low, high))
    second = pick.draw(st.integers(low, high))
    assert (write(first) < write(second)) == (first < second)
    assert read(b"head" + write(first), 4) == first
    assert len(write(first)) == WIDTHS[name]


@pytest.mark.parametrize("name", CODECS)
def test_the_ends_fit_and_one_past_them_is_refused(name: str) -> None:
    write, read, low, high = CODECS[name]
    assert read(write(low), 0) == low
    assert read(write(high), 0) == high
    for outside in (low - 1, high + 1):
        with pytest.raises(InvariantBroken, match="does not fit"):
            write(outside)


def test_reading_past_the_end_of_a_key_is_refused() -> None:
    with pytest.raises(InvariantBroken, match="has no 8 bytes at 3"):
        keys.read_u64(b"short", 3)


@given(
    first=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    second=st.tuples(st.integers(0, 300), st.integers(0, 300)),
)
def test_joined_keys_sort_by_their_parts_first_part_first(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    def key(parts: tuple[int, int]) -> bytes:
        return join(KeySpace.TOPIC_LOG, keys.u32(parts[0]), keys.u64(parts[1]))

    assert (key(first) < key(second)) == (first < second)


prefixes = st.binary(min_size=1, max_size=4) | st.sampled_from(
    [b"a\xff", b"\x00", b"\x00\xff\xff", b"\xfe\xff"]
)


@given(
    prefix=prefixes.filter(lambda prefix: prefix.strip(b"\xff")),
    key=st.binary(max_size=6),
    tail=st.binary(max_size=3),
)
def test_a_prefix_range_holds_exactly_the_keys_with_that_prefix(
    prefix: bytes, key: bytes, tail: bytes
) -> None:
    if not prefix.rstrip(b"\xff"):
        return
    span = prefix_range(prefix)
    for candidate in (key, prefix + tail, prefix, prefix[:-1], span.stop):
        assert (span.start <= candidate < span.stop) == candidate.startswith(prefix)


@pytest.mark.parametrize("prefix", [b"", b"\xff", b"\xff\xff"])
def test_a_prefix_without_a_key_after_it_is_refused(prefix: bytes) -> None:
    with pytest.raises(InvariantBroken, match="no key comes right after"):
        prefix_range(prefix)


def test_spaces_are_one_byte_each_distinct_and_leave_ff_free() -> None:
    spaces = list(KeySpace.__members__.values())
    assert len(set(spaces)) == len(KeySpace.__members__)
    assert all(len(space) == 1 and space != b"\xff" for space in spaces)
    assert type(join(KeySpace.SYSTEM)) is bytes
