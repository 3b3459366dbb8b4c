"""Marks and records: what was written is read, and every damage is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dedup.store.stores import SETTINGS
from tidegate.checkpoint.backend import Version
from tidegate.dedup.store.manifest import (
    MANIFEST_NAME,
    ListedSegment,
    SegmentRecord,
    StoreManifest,
    decode_record,
    encode_manifest,
    read_manifest,
    remove_manifest,
    snapshot_manifest,
    write_manifest,
)
from tidegate.errors import StateMismatch, StorageCorrupt

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
VERSIONS = st.builds(Version, st.integers(-1, 1 << 30), LONGS, st.text(max_size=20))
SPANS = st.one_of(st.just((None, None)), st.tuples(LONGS, LONGS))
RECORDS = st.builds(
    lambda version, is_whole, keys, span: SegmentRecord(version, is_whole, keys, *span),
    VERSIONS,
    st.booleans(),
    st.integers(0, 1 << 60),
    SPANS,
)
MARK = StoreManifest(
    Version(1, 7, "h7"), -2, {-1: ListedSegment(SegmentRecord(Version(1, 5, "h5"), True, 10, -9, 9), 300, 20)}
)


@given(record=RECORDS)
def test_a_record_comes_back_as_it_was(record: SegmentRecord) -> None:
    assert decode_record(record.encoded(), Path("segment")) == record


@pytest.mark.parametrize(
    "stored", [b"", b"\x01" * 10, b"\x02" + SegmentRecord(Version(0, 0, "")).encoded()[1:]]
)
def test_a_record_that_is_none_is_refused(stored: bytes) -> None:
    with pytest.raises(StorageCorrupt, match="segment"):
        decode_record(stored, Path("segment"))


def test_a_mark_comes_back_as_it_was(tmp_path: Path) -> None:
    assert read_manifest(tmp_path, SETTINGS) is None
    write_manifest(tmp_path, MARK, SETTINGS)
    assert read_manifest(tmp_path, SETTINGS) == MARK
    remove_manifest(tmp_path)
    assert read_manifest(tmp_path, SETTINGS) is None


def test_a_snapshots_mark_takes_its_place_and_its_name_says_its_content(tmp_path: Path) -> None:
    place = snapshot_manifest(tmp_path, MARK, SETTINGS)
    other = snapshot_manifest(tmp_path, replace(MARK, first_live=None), SETTINGS)
    assert place != other
    other.unlink()
    assert read_manifest(tmp_path, SETTINGS) == MARK
    assert [file.name for file in tmp_path.iterdir()] == [MANIFEST_NAME]


def test_changed_or_cut_bytes_of_a_mark_are_noticed(tmp_path: Path) -> None:
    content = encode_manifest(MARK, SETTINGS)
    for at in range(0, len(content), 5):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 7)
        for wrong in (bytes(damaged), content[:at]):
            (tmp_path / MANIFEST_NAME).write_bytes(wrong)
            with pytest.raises(StorageCorrupt, match=MANIFEST_NAME):
                read_manifest(tmp_path, SETTINGS)


@pytest.mark.parametrize(
    "other", [{"interval_us": 25 * 86_400_000_000}, {"with_offsets": True}, {"exact_keys": True}]
)
def test_a_copy_of_another_shape_is_refused(tmp_path: Path, other: dict[str, int]) -> None:
    write_manifest(tmp_path, MARK, SETTINGS)
    with pytest.raises(StateMismatch, match="was made with"):
        read_manifest(tmp_path, replace(SETTINGS, **other))  # type: ignore[arg-type]
