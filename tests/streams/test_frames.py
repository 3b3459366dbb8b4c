"""Frames: golden bytes, and files that are cut at every byte and flipped at any."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import StorageCorrupt
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.row_codec import encode_values
from tidegate.streams.frame_reader import BytesSource, Damage, Walk, take_payload, walk_back
from tidegate.streams.frames import (
    FRAME_BYTES_MIN,
    HEAD_BYTES,
    FrameContent,
    FrameHeader,
    FrameKind,
    last_seq,
    make_frame,
    parse_head,
    seqs_from,
)
from tidegate.testing.clock import ManualClock

GOLDEN = Path(__file__).parent / "golden" / "stream_log_v1.log"
_FIRST_US = 1_767_225_600_000_000
_FIRST_SEQ = 264_905_529_753_600_000
_ROWS: list[list[list[object]]] = [
    [[1, "hello", None], [2, "wörld", True]],
    [[-(2**63), "", 1.5]],
    [[2**63 - 1, b"\x00\xff", "12.50"], [0, None, False], [3, "x" * 40, -0.25]],
]


def _golden_bytes() -> bytes:
    log = b""
    for number, rows in enumerate(_ROWS):
        batch = FrameContent(FrameKind.ROWS, number + 1, len(rows), encode_values(rows))
        log += make_frame(len(log), batch, _FIRST_US + number, _FIRST_SEQ + 10 * number)
    deletes = [([1], _FIRST_SEQ), (["k", 2], _FIRST_SEQ + 20)]
    batch = FrameContent(FrameKind.DELETES, 3, len(deletes), encode_values(deletes))
    return log + make_frame(len(log), batch, _FIRST_US + 9, _FIRST_SEQ + 90)


def _log_of(sizes: list[int], fill: int = 0x61) -> tuple[bytes, list[int]]:
    """Return a log of frames with payloads of these sizes, and where each begins."""
    log, starts = b"", []
    for number, size in enumerate(sizes):
        starts.append(len(log))
        batch = FrameContent(FrameKind.ROWS, 1, 1, bytes([fill]) * size)
        log += make_frame(len(log), batch, 1_000 + number, 50 + number)
    return log, starts


def _walked(log: bytes) -> tuple[list[int], list[int], int]:
    """Walk forwards; give where whole frames begin, where damage was met, and where appends go on."""
    source = BytesSource(log, "log")
    walk = Walk(source)
    return (*_sorted_out(source, list(walk)), walk.clean_stop)


def _walked_back(log: bytes) -> tuple[list[int], list[int]]:
    source = BytesSource(log, "log")
    whole, damaged = _sorted_out(source, list(walk_back(source)))
    return whole[::-1], damaged[::-1]


def _sorted_out(source: BytesSource, found: list[FrameHeader | Damage]) -> tuple[list[int], list[int]]:
    whole: list[int] = []
    damaged: list[int] = []
    for frame in found:
        payload = frame if isinstance(frame, Damage) else take_payload(source, frame)
        (damaged if isinstance(payload, Damage) else whole).append(frame.position)
    return whole, damaged


def test_version_1_is_written_and_read_as_the_golden_file() -> None:
    golden = GOLDEN.read_bytes()
    assert _golden_bytes() == golden
    source = BytesSource(golden, "golden")
    heads = [head for head in Walk(source) if isinstance(head, FrameHeader)]
    assert [(head.kind, head.schema_id, head.entries) for head in heads] == [
        (1, 1, 2),
        (1, 2, 1),
        (1, 3, 3),
        (2, 3, 2),
    ]
    assert [head.time_us - _FIRST_US for head in heads] == [0, 1, 2, 9]
    assert [head.first_seq - _FIRST_SEQ for head in heads] == [0, 10, 20, 90]
    assert [take_payload(source, head) for head in heads[:3]] == [encode_values(rows) for rows in _ROWS]


def test_the_golden_file_breaks_at_any_flipped_bit() -> None:
    """Case 2: each of the flips damages one frame, and the others are read."""
    golden = GOLDEN.read_bytes()
    whole, _, _ = _walked(golden)
    for place in range(len(golden)):
        owner = max(start for start in whole if start <= place)
        for bit in range(8):
            flipped = bytearray(golden)
            flipped[place] ^= 1 << bit
            found, damaged, stop = _walked(bytes(flipped))
            assert (found, damaged) == ([start for start in whole if start != owner], [owner]), (place, bit)
            assert stop == len(golden), (place, bit)


@pytest.mark.parametrize("fill", [0, 0x61, 0xF5])
def test_a_log_cut_at_any_byte_of_its_last_frames_ends_behind_the_last_whole_one(fill: int) -> None:
    """Case 2: every byte of the last two frames, and of one without a payload."""
    log, starts = _log_of([20, 0, 90, 33], fill)
    bounds = [*starts, len(log)]
    for cut in range(starts[1], len(log) + 1):
        whole, damaged, stop = _walked(log[:cut])
        assert stop == max(bound for bound in bounds if bound <= cut), cut
        assert whole == [start for start in starts if start < stop], cut
        assert damaged == [], cut
        more = log[:stop] + make_frame(stop, FrameContent(FrameKind.ROWS, 1, 1, b"later"), 9_999, 99)
        assert _walked(more)[0] == [*whole, stop], cut
        assert _walked_back(more) == ([*whole, stop], []), cut


@pytest.mark.parametrize("zeros", [1, 7, 8, HEAD_BYTES, FRAME_BYTES_MIN, 4096, 600_000])
def test_zeros_behind_a_cut_are_torn_too(zeros: int) -> None:
    """Case 2, after a power loss: the file has its length, and not yet its bytes."""
    log, starts = _log_of([20, 90])
    for cut in [len(log), *range(starts[1], starts[1] + HEAD_BYTES)]:
        kept = log if cut == len(log) else log[: starts[1]]
        assert _walked(log[:cut] + b"\0" * zeros)[1:] == ([], len(kept)), cut


@settings(max_examples=1500, deadline=None)
@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.integers(1, 255),
    st.sampled_from([0, 0x61, 0xF5]),
)
def test_a_flipped_byte_costs_its_frame_alone(sizes: list[int], spot: int, mask: int, fill: int) -> None:
    """Case 2, forwards and from the end, with appends going on behind it."""
    log, starts = _log_of(sizes, fill)
    place = spot % len(log)
    owner = max(start for start in starts if start <= place)
    flipped = bytearray(log)
    flipped[place] ^= mask
    others = [start for start in starts if start != owner]
    assert _walked(bytes(flipped)) == (others, [owner], len(log))
    assert _walked_back(bytes(flipped)) == (others, [owner])
    flipped += make_frame(len(log), FrameContent(FrameKind.ROWS, 1, 1, b"later"), 9_999, 99)
    assert _walked(bytes(flipped))[:2] == ([*others, len(log)], [owner])
    assert _walked_back(bytes(flipped)) == ([*others, len(log)], [owner])


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=2, max_size=8), st.integers(0, 2**32), st.integers(0, 2**32))
def test_flips_in_several_frames_cost_those_frames(sizes: list[int], seed: int, cut: int) -> None:
    log, starts = _log_of(sizes)
    choice = random.Random(seed)
    owners = sorted(choice.sample(range(len(starts)), choice.randint(1, len(starts) - 1)))
    damaged = bytearray(log)
    bounds = [*starts, len(log)]
    for owner in owners:
        damaged[choice.randrange(bounds[owner], bounds[owner + 1])] ^= choice.randint(1, 255)
    whole, found, _ = _walked(bytes(damaged))
    assert whole == [start for place, start in enumerate(starts) if place not in owners]
    # Headers that are damaged one behind the other are one stretch without a header.
    assert set(found) <= {starts[owner] for owner in owners}
    assert starts[owners[0]] in found
    assert _walked_back(bytes(damaged))[0] == whole


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_walked_to_their_end(content: bytes) -> None:
    whole, _, stop = _walked(content)
    assert whole == []
    assert 0 <= stop <= len(content)
    assert _walked_back(content)[0] == []


def test_a_frame_inside_a_payload_is_not_taken_for_one() -> None:
    inner = make_frame(0, FrameContent(FrameKind.ROWS, 1, 1, b"inner"), 1, 1)
    outer = bytearray(make_frame(0, FrameContent(FrameKind.ROWS, 1, 1, inner), 2, 2))
    outer[5] ^= 1  # the header is unreadable: the walk searches through the payload
    follower = make_frame(len(outer), FrameContent(FrameKind.ROWS, 1, 1, b"next"), 3, 3)
    assert _walked(bytes(outer) + follower)[:2] == ([len(outer)], [0])


def test_an_unknown_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.streams.frames.FRAME_VERSION", 2)
    later = make_frame(0, FrameContent(FrameKind.ROWS, 1, 1, b"payload"), 1, 1)
    monkeypatch.undo()
    for walk in (Walk(BytesSource(later, "f.log")), walk_back(BytesSource(later, "f.log"))):
        with pytest.raises(StorageCorrupt, match=r"f\.log, byte 0.*version 2"):
            list(walk)


@given(st.integers(0, 5_000), st.integers(1, 9_000), st.integers(0, 1023))
def test_numbers_follow_each_other_as_the_source_hands_them_out(taken: int, count: int, node: int) -> None:
    ids = SnowflakeSource(ManualClock(), node)
    ids.take_many(taken)
    claimed = ids.take_many(count).tolist()
    assert list(seqs_from(claimed[0], count)) == claimed
    head = parse_head(make_frame(0, FrameContent(FrameKind.ROWS, 1, count, b""), 1, claimed[0]), 0)
    assert head is not None
    assert last_seq(head) == claimed[-1]
