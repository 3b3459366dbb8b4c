"""What a head notes of segments before its batch is applied is what the store says of them afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.dedup.store.stores import DAY, SETTINGS, packed, random_keys, version
from tidegate.checkpoint.backend import StateChanges
from tidegate.dedup.decision_changes import entry_key
from tidegate.dedup.describe import AFTER
from tidegate.dedup.settings import SegmentSettings
from tidegate.dedup.statistics import Additions, notes_after
from tidegate.dedup.store.store import SegmentStore

TIMES_US = np.array([-DAY, 3 * DAY, 4 * DAY, 60 * DAY], np.int64)
LATER_US = np.array([2 * DAY, 70 * DAY, 110 * DAY, 5 * DAY], np.int64)


def changes_of(settings: SegmentSettings, times_us: np.ndarray, seed: int) -> StateChanges:
    """Return a batch of four keys, as the settings have them stored."""
    keys = random_keys(np.random.default_rng(seed), len(times_us))
    offsets = -times_us if settings.with_offsets else None
    columns = packed(settings.rule, keys, times_us, offsets)
    if not settings.exact_keys:
        return columns
    pairs = [(part, row) for part in columns.packed for row in range(len(part.keys))]
    return StateChanges(
        entries={
            entry_key(part.keys[row].tobytes(), part.segment): part.values[row].tobytes()
            for part, row in pairs
        }
    )


@pytest.mark.parametrize("exact_keys", [False, True], ids=["digests", "exact"])
@pytest.mark.parametrize("with_offsets", [False, True], ids=["times", "offsets"])
def test_notes_tell_of_segments_as_they_are_after_the_batch(
    tmp_path: Path, exact_keys: bool, with_offsets: bool
) -> None:
    settings = replace(SETTINGS, exact_keys=exact_keys, with_offsets=with_offsets)
    store = SegmentStore(tmp_path, settings)
    for batch, times_us in enumerate((TIMES_US, LATER_US)):
        changes, added = changes_of(settings, times_us, batch), Additions(settings)
        added.add(changes)
        noted = notes_after(store, settings.rule, None, added)
        store.apply(changes, version(batch))
        there = store.segments()
        assert noted[AFTER]
        for name in ("number", "start_ms", "keys", "oldest_us", "newest_us"):
            assert [one[name] for one in noted["segments"]] == [getattr(one, name) for one in there], name
        assert all(one["size_bytes"] > 0 and one["filter_bytes"] > 0 for one in noted["segments"])
    store.close()


def test_parts_of_a_batch_are_added_up(tmp_path: Path) -> None:
    added = Additions(SETTINGS)
    for seed, times_us in enumerate((TIMES_US, LATER_US, TIMES_US[:0])):
        added.add(changes_of(SETTINGS, times_us, seed))
    noted = notes_after(SegmentStore(tmp_path, SETTINGS), SETTINGS.rule, None, added)
    found = [(one["keys"], one["oldest_us"], one["newest_us"]) for one in noted["segments"]]
    assert found == [
        (1, -DAY, -DAY),
        (4, 2 * DAY, 5 * DAY),
        (2, 60 * DAY, 70 * DAY),
        (1, 110 * DAY, 110 * DAY),
    ]


def test_a_batch_that_stores_nothing_changes_no_segment(tmp_path: Path) -> None:
    added = Additions(SETTINGS)
    added.add(StateChanges())
    assert notes_after(SegmentStore(tmp_path, SETTINGS), SETTINGS.rule, None, added)["segments"] == []
