"""The record batch: what is written is read, and any damaged byte is noticed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import StorageCorrupt
from tidegate.model.messages import MESSAGE_SCHEMA
from tidegate.topics.log import record_batch
from tidegate.topics.log.record_batch import (
    Origin,
    Run,
    RunPosition,
    decode_batch,
    encode_runs,
    joined_runs,
)

GOLDEN_V1 = Path(__file__).with_name("record_batch_v1.bin")
GOLDEN = Path(__file__).with_name("record_batch_v2.bin")

_messages = st.lists(
    st.tuples(st.none() | st.text(max_size=20), st.text(max_size=50).map(str.encode)), min_size=1, max_size=30
)


def _encode(messages: list[tuple[str | None, bytes]], base: int = 7) -> bytes:
    ids = np.arange(100, 100 + len(messages), dtype=np.int64)
    keys = [key for key, _ in messages]
    run = Run(RunPosition(3, base, 1_000), Origin(), ids, keys, [payload for _, payload in messages])
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
    stored = b"\x03" + _encode([(None, b"1")])[1:]
    with pytest.raises(StorageCorrupt, match="version 3"):
        decode_batch(stored, 7, "here")


def _golden_runs() -> list[Run]:
    """The messages of the golden file of version 2."""
    inserted = Origin("INSERT", "app.rows", codec=2, schema=513, user="ada")
    one = Run(
        RunPosition(3, 7, 1_000),
        inserted,
        np.array([100, 101]),
        ["k", None],
        [b"\x91\xff", b"\x91\x02"],
    )
    other = Run(
        RunPosition(3, 9, 2_000),
        replace(inserted, op="DELETE", user=None),
        np.array([102]),
        ["k"],
        [b"\x91\x03"],
    )
    return [one, other]


def test_the_header_is_as_documented() -> None:
    stored = encode_runs(_golden_runs())
    version, codec, schema, count = "02", "02", "0201", "00000003"
    first_time, last_time = "00000000000003e8", "00000000000007d0"
    assert stored[:24].hex() == version + codec + schema + count + first_time + last_time


def test_a_batch_of_this_version_is_read_for_ever() -> None:
    """A golden file: if this fails, logs on disk out there cannot be read any more."""
    batch = decode_batch(GOLDEN.read_bytes(), 7, "here")
    assert (batch.version, batch.codec, batch.schema, batch.count) == (2, 2, 513, 3)
    assert (batch.first_us, batch.last_us) == (1_000, 2_000)
    assert not batch.is_wire_format, "payloads of this codec are not text"
    read = batch.arrow()
    payloads = read.column("payload").view(pa.binary()).to_pylist()
    assert payloads == [b"\x91\xff", b"\x91\x02", b"\x91\x03"]
    rows = read.drop_columns(["payload"]).to_pydict()
    assert rows["op"] == ["INSERT", "INSERT", "DELETE"]
    assert rows["user"] == ["ada", "ada", None]
    assert rows["source"] == ["app.rows"] * 3
    assert rows["offset"] == [7, 8, 9]
    assert rows["message_id"] == [100, 101, 102]
    assert rows["key"] == ["k", None, "k"]


def test_a_batch_that_an_older_version_wrote_is_read() -> None:
    """A golden file: if this fails, logs on disk out there cannot be read any more."""
    batch = decode_batch(GOLDEN_V1.read_bytes(), 7, "here")
    assert (batch.version, batch.codec, batch.schema) == (1, 0, 0)
    assert not batch.is_wire_format, "it has a column less than what leaves"
    read = batch.arrow()
    assert read.schema == MESSAGE_SCHEMA
    rows = read.to_pydict()
    assert rows["key"] == ["k", None]
    assert rows["payload"] == ['{"a": 1}', "2"]
    assert rows["offset"] == [7, 8]
    assert rows["message_id"] == [100, 101]
    assert rows["user"] == [None, None]


_origins = st.builds(
    Origin,
    op=st.sampled_from(["INSERT", "UPDATE", "DELETE"]),
    source=st.sampled_from([None, "a.b"]),
    payload_mode=st.sampled_from(["full", "diff"]),
    codec=st.integers(0, 3),
    schema=st.integers(0, 2),
    user=st.sampled_from([None, "", "ada", "bob"]),
)


_messages = st.lists(
    st.tuples(st.none() | st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=9)),
    min_size=1,
    max_size=20,
)


@given(st.lists(st.tuples(_origins, _messages), min_size=1, max_size=4), st.integers(0, 2**40))
def test_few_messages_lie_as_arrow_would_write_them(
    wanted: list[tuple[Origin, list[tuple[str | None, bytes]]]], base: int
) -> None:
    assert record_batch._TEMPLATE is not None, "this version of Arrow writes what is expected of it"
    runs, offset = [], base
    for origin, messages in wanted:
        like = replace(origin, source=wanted[0][0].source, payload_mode="full")
        keys, payloads = [key for key, _ in messages], [payload for _, payload in messages]
        ids = np.arange(offset, offset + len(messages), dtype=np.int64) * 3
        runs.append(Run(RunPosition(7, offset, offset + 5), like, ids, keys, payloads))
        offset += len(messages)
    few = pa.ipc.read_record_batch(
        pa.py_buffer(record_batch._small_body(record_batch._TEMPLATE, runs, offset - base)), MESSAGE_SCHEMA
    )
    by_arrow = pa.ipc.read_record_batch(record_batch._large_body(runs, offset - base), MESSAGE_SCHEMA)
    as_bytes = [column.view(pa.binary()) if column.type == pa.string() else column for column in few.columns]
    for column, written, expected in zip(as_bytes, few.columns, by_arrow.columns, strict=True):
        column.validate(full=True)
        assert written.null_count == expected.null_count
        assert column.equals(expected.view(column.type))


@given(st.lists(st.tuples(_origins, st.integers(1, 3)), min_size=1, max_size=12))
def test_runs_that_share_a_batch_keep_their_own_operation_and_user(wanted: list[tuple[Origin, int]]) -> None:
    runs, base = [], 0
    for origin, count in wanted:
        ids = np.arange(base, base + count)
        runs.append(Run(RunPosition(0, base, base), origin, ids, [None] * count, [b"1"] * count))
        base += count
    rows: list[dict[str, object]] = []
    stored_count = 0
    for shared in joined_runs(runs):
        batch = decode_batch(encode_runs(shared), shared[0].place.base_offset, "here")
        stored_count += 1
        for row in batch.arrow().to_pylist():
            rows.append({**row, "codec": batch.codec, "schema": batch.schema})
    expected = [origin for origin, count in wanted for _ in range(count)]
    for name in ("op", "source", "payload_mode", "codec", "schema", "user"):
        assert [row[name] for row in rows] == [getattr(origin, name) for origin in expected]
    kinds = [(o.source, o.payload_mode, o.codec, o.schema) for o, _ in wanted]
    assert stored_count == 1 + sum(one != other for one, other in pairwise(kinds))
