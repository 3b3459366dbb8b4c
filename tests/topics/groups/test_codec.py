"""Rows of groups: what is written is read back, keys sort by their parts, another format is refused."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.topics.groups.older_rows import version_1
from tidegate.errors import StorageCorrupt
from tidegate.storage.keys import u64
from tidegate.topics import keys
from tidegate.topics.groups import codec
from tidegate.topics.groups.codec import HELD, WAITING, Entry, Position

U64 = st.integers(0, 2**63 - 1)
TIMES = st.integers(-(2**62), 2**62)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@given(
    st.integers(0, 2**62),
    st.integers(1, 9),
    st.sampled_from([HELD, WAITING]),
    st.integers(0, 2**32 - 1),
    st.tuples(U64, TIMES, st.integers(0, 2**50), TIMES),
    st.tuples(TEXTS, TEXTS, TEXTS, st.integers(0, 2**64 - 1)),
)
def test_an_entry_is_read_as_it_was_written(
    start: int,
    count: int,
    kind: int,
    deliveries: int,
    numbers: tuple[int, int, int, int],
    holder: tuple[str, str, str, int],
) -> None:
    grant, ends_us, span_us, given_us = numbers
    held = (kind, deliveries, grant, ends_us, span_us, given_us)
    entry = Entry(start, start + count, *held, *holder)
    assert codec.decode_entry(entry.encode(), start, "here") == entry
    assert codec.decode_entry(version_1(entry), start, "here") == replace(entry, user="", token=0)


@given(st.tuples(U64, U64, U64, TIMES, TIMES, TIMES, TIMES, U64, U64))
def test_a_position_is_read_as_it_was_written(numbers: tuple[int, ...]) -> None:
    position = Position(*numbers)
    assert codec.decode_position(position.encode(), "here") == position


@given(TEXTS, TIMES)
def test_a_group_is_read_as_it_was_written(name: str, created_us: int) -> None:
    assert codec.decode_group(codec.encode_group(name, created_us), "") == (name, created_us)


def test_bytes_of_version_1_stay_readable() -> None:
    # Golden: rows that lie on disks. Never change them; a new version gets a reader of its own.
    at_us = 1_800_000_000_000_000
    entry = Entry(5, 9, HELD, 2, 0x1F3C9A0B2C4D1000, at_us + 30_000_000, 30_000_000, at_us, "a", "why")
    stored = bytes.fromhex(
        "01010000000000000009000000021f3c9a0b2c4d1000000665172a6243800000000001c9c380"
        "0006651728988000000161776879531313a4"
    )
    assert codec.decode_entry(stored, 5, "here") == entry
    assert version_1(entry) == stored
    assert Position(9, 3, 7, 8, 1, 2, 4, 5, 6).encode().hex() == (
        "0100000000000000030000000000000009000000000000000700000000000000080000000000000001"
        "0000000000000002000000000000000400000000000000050000000000000006666ddd23"
    )
    assert codec.encode_group("grüße", at_us).hex() == "0100066517289880006772c3bcc39f65f039cc1f"


def test_bytes_of_entries_of_version_2_stay_readable() -> None:
    at_us = 1_800_000_000_000_000
    numbers = (HELD, 2, 0x1F3C9A0B2C4D1000, at_us + 30_000_000, 30_000_000, at_us)
    entry = Entry(5, 9, *numbers, "a", "why", "default/ada", 0xC2EF3A919BE0D7F5)
    assert entry.encode().hex() == (
        "02010000000000000009000000021f3c9a0b2c4d1000000665172a6243800000000001c9c3800006"
        "651728988000c2ef3a919be0d7f50001000b6164656661756c742f6164617768797de8bc0b"
    )


@pytest.mark.parametrize(
    ("read", "stored"),
    [
        (codec.decode_position, Position(1).encode()),
        (codec.decode_group, codec.encode_group("g", 1)),
        (
            lambda row, place: codec.decode_entry(row, 0, place),
            Entry(0, 2, HELD, 1, 1, 1, 1, 1, "a").encode(),
        ),
    ],
)
def test_rows_that_are_damaged_cut_or_newer_are_refused(
    read: Callable[[bytes, str], Any], stored: bytes
) -> None:
    for wrong in (b"", stored[:-1], stored[:3], bytes([stored[0], stored[1] ^ 4]) + stored[2:]):
        with pytest.raises(StorageCorrupt):
            read(wrong, "here")
    newer = b"\x03" + stored[1:-4]
    with pytest.raises(StorageCorrupt, match="version 3"):
        read(newer + zlib.crc32(newer).to_bytes(4, "big"), "here")


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), U64), min_size=2, max_size=6))
def test_entries_sort_by_partition_and_start(places: list[tuple[int, int]]) -> None:
    digest = codec.digest_of("g")
    made = [codec.entry_prefix(7, digest, number) + u64(start) for number, start in places]
    assert [made[i] for i in sorted(range(len(made)), key=lambda i: places[i])] == sorted(made)
    for key, (number, start) in zip(made, places, strict=True):
        assert codec.partition_in(key) == number
        assert codec.start_in(key) == start
        assert codec.digest_in(key) == digest
        assert codec.topic_id_of(key) == 7


def test_rows_of_a_group_are_among_everything_of_its_topic() -> None:
    digest = codec.digest_of("g")
    spans = keys.everything_of(7)
    for key in (
        codec.group_key(7, digest),
        codec.position_key(7, digest, 2**32 - 1),
        codec.entry_prefix(7, digest, 0) + u64(3),
    ):
        assert any(span.start <= key < span.stop for span in spans)
        assert any(span.start <= key < span.stop for span in codec.everything_of_group(7, digest))
