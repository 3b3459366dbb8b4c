"""Settings of a segmented store, and the preset of RocksDB that it is kept with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.dedup.store.stores import DAY, SETTINGS
from tidegate.checkpoint.backends.rocksdb_options import MIB, RocksSettings
from tidegate.checkpoint.settings import StateSettings, backend_factory
from tidegate.dedup.store.store import SegmentStore, SegmentStoreFactory
from tidegate.errors import StateInvalid
from tidegate.testing.clock import ManualClock


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
    store = settings.place(ManualClock()).open_backend(tmp_path / "copy")
    assert isinstance(store, SegmentStore)
    assert store.rule.retention_us == 100 * DAY
    store.close()


def test_segments_are_no_backend_of_keyed_state() -> None:
    with pytest.raises(StateInvalid, match="it is 'rocksdb' or 'heap'"):
        backend_factory("segments")
