"""The record batch: what is written is read, and any damaged byte is noticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import StorageCorrupt
from tidegate.topics.batches import Origin, Place, Run, decode_batch, encode_runs

GOLDEN = Path(__file__).with_name("record_batch_v1.bin")

_messages = st.lists(
    st.tuples(st.none() | st.text(max_size=20), st.text(max_size=50).map(str.encode)), min_size=1, max_size=30
)


def _encode(messages: list[tuple[str | None, bytes]], base: int = 7) -> bytes:
    ids = np.arange(100, 100 + len(messages), dtype=np.int64)
    keys = [key for key, _ in messages]
    run = Run(Place(3, base, 1_000), Origin(), ids, keys, [payload for _, payload in messages])
    return encode_runs([run])


@given(_messages)
def test_messages_come_back_as_they_went_in(messages: list[tuple[str | None, bytes]]) -> None:
    batch = decode_batch(_encode(messages), 7, "here")
    assert (batch.count, batch.stop_offset, batch.first_us) == (len(messages), 7 + len(messages), 1_000)
    rows = batch.arrow().to_pydict()
    assert rows["key"] == [key for key, _ in messages]
    assert rows["payload"] == [payload.decode() for _, payload in messages]
    assert rows["offset"] == list(range(7, 7 + len(messages)))
    assert set(rows["partition"]) == {3}
    assert set(rows["op"]) == {"PUBLISH"}


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    stored = _encode([("k", b'{"a": 1}'), (None, b"2")])
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 0x40
        with pytest.raises(StorageCorrupt, match="partition 3, offset 7"):
            decode_batch(bytes(damaged), 7, "partition 3, offset 7")
    for length in range(len(stored)):
        with pytest.raises(StorageCorrupt):
            decode_batch(stored[:length], 7, "here")


def test_an_unknown_version_is_named() -> None:
    stored = b"\x02" + _encode([(None, b"1")])[1:]
    with pytest.raises(StorageCorrupt, match="version 2"):
        decode_batch(stored, 7, "here")


def test_the_header_of_version_1_is_as_documented() -> None:
    stored = _encode([("k", b'{"a": 1}'), (None, b"2")])
    version, count, time = "01", "00000002", "00000000000003e8"
    assert stored[:24].hex() == version + "000000" + count + time + time


def test_a_batch_that_an_older_version_wrote_is_read() -> None:
    """A golden file: if this fails, logs on disk out there cannot be read any more."""
    batch = decode_batch(GOLDEN.read_bytes(), 7, "here")
    rows = batch.arrow().to_pydict()
    assert rows["key"] == ["k", None]
    assert rows["payload"] == ['{"a": 1}', "2"]
    assert rows["offset"] == [7, 8]
    assert rows["message_id"] == [100, 101]
