"""Settings of a segmented store, and case 19: how event time is divided into segments, and which are live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dedup.store.stores import SETTINGS
from tidegate.checkpoint.backends.rocksdb_options import MIB, RocksSettings
from tidegate.checkpoint.settings import StateSettings, backend_factory
from tidegate.dedup.settings import INTERVAL_US_MIN, SegmentRule
from tidegate.dedup.store.store import SegmentStore, SegmentStoreFactory
from tidegate.errors import StateInvalid
from tidegate.testing.clock import ManualClock

SECOND = 1_000_000
DAY = 86_400 * SECOND
TIMES = st.integers(-(1 << 55), 1 << 55)


def test_a_hundred_days_lie_in_segments_of_fifty() -> None:
    rule = SegmentRule.of(100 * DAY)
    assert rule.interval_us == 50 * DAY
    assert [rule.folder_name("orders", n) for n in (-1, 0, 1)] == [
        "orders.-4320000000",
        "orders.0",
        "orders.4320000000",
    ]


@pytest.mark.parametrize(
    ("retention_us", "interval_us"), [(1, INTERVAL_US_MIN), (5 * 60 * SECOND, 150 * SECOND)]
)
def test_the_interval_is_half_the_retention_and_a_minute_at_least(
    retention_us: int, interval_us: int
) -> None:
    assert SegmentRule.of(retention_us).interval_us == interval_us


def test_the_interval_is_whole_milliseconds() -> None:
    assert SegmentRule.of(200 * SECOND + 1).interval_us % 1_000 == 0
    with pytest.raises(StateInvalid, match="whole number of milliseconds"):
        SegmentRule(DAY, 60 * SECOND + 1)


def test_a_time_at_the_boundary_belongs_to_the_later_segment() -> None:
    rule = SegmentRule.of(100 * DAY)
    assert [rule.segment_of(time) for time in (-1, 0, 50 * DAY - 1, 50 * DAY)] == [-1, 0, 0, 1]


@given(time=TIMES, interval_ms=st.integers(1, 1 << 40))
def test_columns_are_cut_as_single_times_are(time: int, interval_ms: int) -> None:
    rule = SegmentRule(min(DAY, interval_ms * 1_000), interval_ms * 1_000)
    number = rule.segment_of(time)
    assert rule.start_us(number) <= time < rule.start_us(number + 1)
    assert rule.segments_of(np.array([time], np.int64)).tolist() == [number]
    assert rule.segment_of_folder("a.b", rule.folder_name("a.b", number)) == number


@pytest.mark.parametrize(
    "name", ["other.0", "orders", "orders.1", "orders.0.gone.1", "orders.-0", "orders.00"]
)
def test_other_folders_are_no_segments(name: str) -> None:
    assert SegmentRule.of(100 * DAY).segment_of_folder("orders", name) is None


def test_a_segment_expires_when_all_of_it_is_older_than_the_retention() -> None:
    rule = SegmentRule.of(100 * DAY)
    assert rule.first_live(None) is None
    assert [rule.first_live(day * DAY) for day in (0, 99, 100, 149, 150)] == [-2, -1, 0, 0, 1]
    assert rule.counts_from_us(100 * DAY) == 0


def test_three_segments_live_at_once_with_half_the_retention_each() -> None:
    rule = SegmentRule.of(100 * DAY)
    newest, oldest = rule.segment_of(149 * DAY), rule.first_live(149 * DAY)
    assert oldest is not None
    assert newest - oldest + 1 == 3


def test_too_many_segments_are_refused_with_the_interval_that_would_do() -> None:
    with pytest.raises(StateInvalid, match="give an interval of 16942 ms or more"):
        SegmentRule(8_640 * SECOND, 1_000)
    SegmentRule(8_640 * SECOND, 16_942_000)


@pytest.mark.parametrize("retention_us", [0, -5, 1 << 61])
def test_a_retention_that_cannot_be_is_refused(retention_us: int) -> None:
    with pytest.raises(StateInvalid, match="retention"):
        SegmentRule(retention_us, 60 * SECOND)


def test_a_key_may_have_several_times_in_a_segment_that_is_longer_than_the_retention() -> None:
    assert SegmentRule.of(30 * SECOND).holds_several
    assert not SegmentRule.of(60 * SECOND).holds_several


# ---- settings of a store ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"store": "a/b"}, "letters, digits"),
        ({"store": ""}, "letters, digits"),
        ({"expected_keys": 0}, "expected_keys"),
        ({"filter_bits": 3}, "filter_bits"),
        ({"filter_memory_bytes_max": 5}, "filter_memory_bytes_max"),
        ({"interval_us": 1_000}, "more than 512 segments"),
        ({"retention_us": 0}, "retention"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int | str], words: str) -> None:
    with pytest.raises(StateInvalid, match=words):
        replace(SETTINGS, **wrong)  # type: ignore[arg-type]


def test_a_stored_time_is_wider_with_an_offset() -> None:
    assert (SETTINGS.time_bytes, replace(SETTINGS, with_offsets=True).time_bytes) == (8, 16)


def test_the_preset_is_made_for_many_new_keys() -> None:
    preset = RocksSettings.deduplication(memory_bytes_max=512 * MIB, slots=2)
    assert (preset.compaction_style, preset.compression_type) == ("universal", "lz4")
    assert (preset.write_buffer_size, preset.write_buffer_count) == (128 * MIB, 4)
    triggers = preset.level0_compaction_trigger, preset.level0_slowdown_trigger, preset.level0_stop_trigger
    assert triggers == (4, 20, 40)
    assert (preset.bloom_filter_bits_per_key, preset.max_background_jobs) == (10, 4)
    assert preset.optimize_filters_for_hits
    assert preset.buffers_bytes == 128 * MIB  # half of a slot's share, however many segments are open


@pytest.mark.parametrize(
    "wrong",
    [
        {"level0_compaction_trigger": 0},
        {"level0_slowdown_trigger": 3},
        {"level0_stop_trigger": 19},
        {"max_background_jobs": 0},
        {"max_background_jobs": 65},
    ],
)
def test_triggers_that_do_not_rise_and_jobs_without_bound_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(StateInvalid, match=r"trigger|max_background_jobs"):
        RocksSettings(**wrong)  # type: ignore[arg-type]


def test_settings_of_state_open_a_segmented_store(tmp_path: Path) -> None:
    settings = StateSettings(backend=SegmentStoreFactory(SETTINGS), local_root=str(tmp_path))
    store = settings.local_directory(ManualClock()).open_backend(tmp_path / "copy")
    assert isinstance(store, SegmentStore)
    assert store.rule.retention_us == 100 * DAY
    store.close()


def test_segments_are_no_backend_of_keyed_state() -> None:
    with pytest.raises(StateInvalid, match="it is 'rocksdb' or 'heap'"):
        backend_factory("segments")
