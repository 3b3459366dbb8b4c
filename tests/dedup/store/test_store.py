"""The segmented store: what lookups give, what expires, what damage and a full disk leave."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.dedup.store.stores import (
    ALL_TIME,
    DAY,
    SETTINGS,
    Entry,
    Remembered,
    everything,
    packed,
    random_keys,
    version,
)
from tests.storage.live_copy import copy_still
from tidegate.checkpoint.backend import PackedEntries, StateChanges, Version
from tidegate.checkpoint.keys.layout import META_GROUP, entry_prefix, group_range, segment_prefix
from tidegate.dedup.columns import Bytes, Longs, SegmentKeys, encode_times
from tidegate.dedup.store import segments
from tidegate.dedup.store.keys import bound_inside, outside
from tidegate.dedup.store.store import SegmentStore
from tidegate.dedup.store.table import FILE_KEYS_MIN
from tidegate.errors import InvariantBroken, StateInvalid, StorageFailed, StorageFull

RULE = SETTINGS.rule
MANY = FILE_KEYS_MIN + 100


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    opened = SegmentStore(tmp_path / "copy", SETTINGS)
    yield opened
    opened.close()


def filled(store: SegmentStore, days: int = 120, count: int = 400, seed: int = 1) -> Remembered:
    """Apply three batches over so many days, small ones and one that is written as a file."""
    rng, known = np.random.default_rng(seed), Remembered()
    for batch, size in enumerate((count, MANY, count)):
        keys = random_keys(rng, size)
        times_us = rng.integers(0, days * DAY, size)
        store.apply(packed(store.rule, keys, times_us), version(batch))
        known.add(keys, times_us)
    return known


def rows_of(entries: set[Entry]) -> tuple[Bytes, Longs]:
    ordered = sorted(entries)
    keys = np.frombuffer(b"".join(key for key, _ in ordered), np.uint8).reshape(-1, 18)
    return keys, np.array([time for _, time in ordered], np.int64)


def test_every_time_is_found_and_unknown_keys_have_none(store: SegmentStore) -> None:
    known = filled(store)
    assert everything(store, known.times) == known.entries()
    strangers = random_keys(np.random.default_rng(99), 500).view("V18").reshape(-1).tolist()
    assert everything(store, strangers) == set()
    tallies = store.lookup_counters()
    assert tallies.filter_probes == 3 * (len(known.times) + 500)
    assert tallies.reads == tallies.filter_maybe < 2 * len(known.times)
    assert tallies.filter_false == tallies.filter_maybe - len(known.times)


def test_a_span_includes_both_ends_and_crosses_segments(store: SegmentStore) -> None:
    keys = random_keys(np.random.default_rng(3), 1)
    for batch, time in enumerate((-50 * DAY - 1, -50 * DAY, -1, 0, 50 * DAY - 1, 50 * DAY)):
        other = random_keys(np.random.default_rng(batch), 2)
        changes = packed(RULE, np.vstack([keys, other]), np.array([time, time, time]))
        store.apply(changes, version(batch))
    # One time a segment is kept where the interval is no longer than the retention: the last one.
    assert found(store, keys, -ALL_TIME, ALL_TIME) == [-50 * DAY - 1, -1, 50 * DAY - 1, 50 * DAY]
    assert found(store, keys, -1, 50 * DAY - 1) == [-1, 50 * DAY - 1]
    assert found(store, keys, 0, 50 * DAY - 2) == []
    assert found(store, keys, 50 * DAY, 50 * DAY) == [50 * DAY]


def found(store: SegmentStore, keys: Bytes, from_us: int, to_us: int) -> list[int]:
    column = SegmentKeys.of_digests(keys)
    span = np.full(len(keys), from_us, np.int64), np.full(len(keys), to_us, np.int64)
    return sorted(store.lookup(column, *span).times_us.tolist())


def test_only_segments_that_a_span_overlaps_are_opened(tmp_path: Path) -> None:
    first = SegmentStore(tmp_path, SETTINGS)
    known = filled(first)
    first.close()
    store = SegmentStore(tmp_path, SETTINGS)
    assert [one.filter_probes for one in store.segments()] == [0, 0, 0]
    assert sum(one.keys for one in store.segments()) == len(known.times)
    keys, _ = rows_of(known.entries())
    found(store, keys[:50], 0, DAY)
    assert [one.filter_probes for one in store.segments()] == [50, 0, 0]
    store.close()


def test_few_segments_stay_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "OPEN_SEGMENTS_MAX", 2)
    store = SegmentStore(tmp_path, SETTINGS)
    known = filled(store, days=200)
    assert len(store.segments()) == 4
    assert everything(store, known.times) == known.entries()
    awake = [
        entry
        for entry in store._cache.entries.values()
        if entry.segment and not entry.segment.is_table_closed
    ]
    assert len(awake) <= 2
    store.close()


def test_offsets_lie_beside_times(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, replace(SETTINGS, with_offsets=True))
    keys = random_keys(np.random.default_rng(4), 3)
    times_us, offsets = np.array([5, -5, 60 * DAY]), np.array([0, -7, 1 << 62])
    store.apply(packed(store.rule, keys, times_us, offsets), version(0))
    span = np.full(3, ALL_TIME, np.int64)
    answer = store.lookup(SegmentKeys.of_digests(keys), -span, span)
    assert answer.offsets is not None
    given = answer.rows.tolist(), answer.times_us.tolist(), answer.offsets.tolist()
    assert given == ([0, 1, 2], times_us.tolist(), offsets.tolist())
    store.close()


def test_a_key_keeps_several_times_where_a_segment_is_longer_than_the_retention(tmp_path: Path) -> None:
    """Case 19: retention of 10 s, segments of 60 s."""
    settings = replace(SETTINGS, retention_us=10_000_000, interval_us=60_000_000, with_offsets=True)
    store = SegmentStore(tmp_path, settings)
    keys = random_keys(np.random.default_rng(5), 2)
    twice = np.vstack([keys[:1], keys[:1]])
    values = encode_times(np.array([1_000_000, 30_000_000]), np.array([1, 2]))
    store.apply(StateChanges(packed=[PackedEntries(0, twice, values)]), version(0))
    for batch in (1, 1):  # the same batch once more changes nothing
        store.apply(
            packed(store.rule, keys, np.array([15_000_000, 59_999_999]), np.array([3, 4])), version(batch)
        )
    assert found(store, keys[:1], 0, 60_000_000) == [1_000_000, 15_000_000, 30_000_000]
    assert found(store, keys, 15_000_000, 60_000_000) == [15_000_000, 30_000_000, 59_999_999]
    outer = outside(0, keys[0].tobytes())
    stored = store.get(outer)
    assert stored is not None
    store.write_partly(StateChanges(entries={outer: values[0].tobytes()}))
    assert store.get(outer) == stored
    store.close()


def test_exact_keys_of_any_length_are_found(tmp_path: Path) -> None:
    """Case 21: the key itself is stored."""
    store = SegmentStore(tmp_path, replace(SETTINGS, exact_keys=True))
    keys = [b"\x00\x01" + b"k" * length for length in (1, 5, 5_000)] + [b"\x00\x02kkkkk"]
    value = encode_times(np.array([7])).tobytes()
    store.apply(StateChanges(entries={outside(0, key): value for key in keys[:3]}), version(0))
    span = np.full(4, ALL_TIME, np.int64)
    answer = store.lookup(SegmentKeys.of_exact(keys), -span, span)
    assert (answer.rows.tolist(), answer.times_us.tolist()) == ([0, 1, 2], [7, 7, 7])
    store.close()


def test_expired_segments_go_at_once_and_are_not_written_again(tmp_path: Path) -> None:
    """Case 19: as folders, by observed stream time."""
    store = SegmentStore(tmp_path, SETTINGS)
    known = filled(store, days=200)
    assert store.expire(None) == []
    assert store.expire(149 * DAY + 1) == []
    assert store.expire(200 * DAY) == [0, 1]
    assert store.expire(100 * DAY) == []  # stream time does not go back
    assert folders(tmp_path) == ["orders.12960000000", "orders.8640000000"]
    keys = random_keys(np.random.default_rng(6), 1)
    store.apply(packed(RULE, keys, np.array([5])), version(3))
    assert found(store, keys, 0, 10) == []
    known.expire(100 * DAY)
    assert everything(store, known.times) == known.entries()
    store.close()
    again = SegmentStore(tmp_path, SETTINGS)
    assert (again.version(), again.missing_parts()) == (version(3), [])
    assert [one.number for one in again.segments()] == [2, 3]
    again.close()


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def test_what_expired_after_the_last_mark_is_not_missed(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    filled(store, days=200)
    store.snapshot(tmp_path / "snapshot")  # writes the mark
    store.expire(200 * DAY)
    copy_still(tmp_path / "copy", tmp_path / "killed")
    store.close()
    again = SegmentStore(tmp_path / "killed", SETTINGS)
    assert again.missing_parts() == []
    assert [one.number for one in again.segments()] == [2, 3]
    again.close()


def test_all_that_the_mark_speaks_of_is_on_the_disk(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    known = filled(store)
    store.snapshot(tmp_path / "snapshot")
    copy_still(tmp_path / "copy", tmp_path / "killed")
    keys = random_keys(np.random.default_rng(10), 5)
    store.apply(packed(RULE, keys, np.zeros(5, np.int64)), version(3))
    store.close()
    again = SegmentStore(tmp_path / "killed", SETTINGS)
    assert again.version() == version(2)
    assert everything(again, known.times) == known.entries()
    again.close()


def test_a_removal_that_was_cut_off_is_finished_by_the_next_open(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, SETTINGS)
    filled(store, days=200)
    store.close()
    shutil.copytree(tmp_path / "orders.0", tmp_path / "aside")
    shutil.copytree(tmp_path / "orders.0", tmp_path / "orders.0.gone.7")
    store = SegmentStore(tmp_path, SETTINGS)
    store.expire(150 * DAY)
    store.close()
    shutil.move(tmp_path / "aside", tmp_path / "orders.0")  # the mark was written, the rename was not
    again = SegmentStore(tmp_path, SETTINGS)
    assert [one.number for one in again.segments()] == [1, 2, 3]
    assert "orders.0" not in folders(tmp_path)
    assert not list(tmp_path.glob("*.gone.*"))
    again.close()


def test_a_snapshot_opens_elsewhere_and_stays_as_it_was_taken(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    known = filled(store)
    files = store.snapshot(tmp_path / "snapshot")
    names = {str(file.relative_to(tmp_path / "snapshot")) for file in files}
    assert all(name.endswith(".mark") or name.startswith("orders.") for name in names)
    store.apply(packed(RULE, random_keys(np.random.default_rng(7), 9), np.zeros(9, np.int64)), version(3))
    store.close()
    other = SegmentStore(tmp_path / "snapshot", SETTINGS)
    assert (other.version(), other.missing_parts()) == (version(2), [])
    assert everything(other, known.times) == known.entries()
    assert other.sizes().entry_count == len(known.times)
    other.close()


def test_a_file_of_two_snapshots_has_the_same_bytes_and_old_segments_are_shared(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    filled(store)
    seen: dict[str, bytes] = {}
    shared = 0
    for batch in range(3, 6):
        folder = tmp_path / f"snapshot-{batch}"
        for file in store.snapshot(folder):
            name, content = str(file.relative_to(folder)), file.read_bytes()
            shared += name in seen
            assert seen.setdefault(name, content) == content
        keys = random_keys(np.random.default_rng(batch), MANY)
        store.apply(packed(RULE, keys, np.full(MANY, 110 * DAY)), version(batch))
    assert shared >= 6  # of the two segments that took nothing: tables, filters and what names them
    store.close()


def test_a_scan_gives_all_segments_in_key_order(store: SegmentStore) -> None:
    known = filled(store)
    pairs = list(store.scan(b"", META_GROUP))
    keys = [key for key, _ in pairs]
    assert keys == sorted(outside(RULE.segment_of(time), key) for key, time in known.entries())
    assert store.get_many([*keys[:5], keys[0][:-1] + b"?"]) == [*(value for _, value in pairs[:5]), None]
    start, stop = group_range(range(3, 5))
    inside = [pair for pair in pairs if start <= pair[0] < stop]
    assert list(store.scan(start, stop)) == inside != []


def test_ranges_of_key_groups_go_from_every_segment(store: SegmentStore) -> None:
    known = filled(store)
    store.write_partly(StateChanges(ranges=[(b"", b"\x00\x08"), (b"\x00\x10", META_GROUP)]))
    store.apply(StateChanges(), Version(1, 4, "ground"))
    left = {entry for entry in known.entries() if 8 <= entry[0][1] < 16}
    assert everything(store, known.times) == left != set()
    assert store.sizes().entry_count == len(left)


def test_a_bound_outside_is_the_least_key_behind_it_in_every_segment() -> None:
    keys = [bytes([0, group, last]) for group in (3, 4) for last in (0, 9)]
    bounds = [b"", b"\x00", b"\x00\x03", b"\x00\x03\x04", b"\x00\x03\x05", entry_prefix(3, 1), META_GROUP]
    bounds += [segment_prefix(3, segment) + tail for segment in (-1, 0, 1) for tail in (b"", b"\x05")]
    for segment in (-1, 0, 1):
        for bound in bounds:
            behind = [key for key in keys if outside(segment, key) >= bound]
            assert [key for key in keys if key >= bound_inside(bound, segment)] == behind


def test_event_times_all_over_the_place_are_refused_before_anything_is_made(store: SegmentStore) -> None:
    filled(store)
    store.check_segments(range(500))
    with pytest.raises(StateInvalid, match="603 segments"):
        store.check_segments(range(1_000, 1_600))


def test_entries_of_another_kind_of_state_are_refused(store: SegmentStore) -> None:
    with pytest.raises(InvariantBroken, match="no entry of a segmented store"):
        store.apply(StateChanges(entries={entry_prefix(1, 1) + b"key-of-state": b"v"}), version(0))
    assert store.version() is None


@pytest.mark.parametrize("count", [10, MANY])
def test_a_full_disk_refuses_a_batch_and_changes_nothing(tmp_path: Path, count: int) -> None:
    """Case 23: state as before, and it goes on when there is room."""
    room = [1 << 40]
    store = SegmentStore(tmp_path, SETTINGS, free_bytes=lambda _: room[0])
    known = filled(store)
    keys = random_keys(np.random.default_rng(8), count)
    changes = packed(RULE, keys, np.full(count, 60 * DAY))
    room[0] = 1_000
    with pytest.raises(StorageFull):
        store.apply(changes, version(3))
    with pytest.raises(StorageFull):
        store.snapshot(tmp_path / "snapshot")
    assert store.version() == version(2)
    both = [*known.times, *keys.view("V18").reshape(-1).tolist()]
    assert everything(store, both) == known.entries()
    room[0] = 1 << 40
    store.apply(changes, version(3))
    known.add(keys, np.full(count, 60 * DAY))
    assert everything(store, known.times) == known.entries()
    store.close()


def test_a_store_whose_segments_were_removed_takes_no_batch(tmp_path: Path) -> None:
    store = SegmentStore(tmp_path, SETTINGS)
    filled(store)
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    changes = packed(RULE, random_keys(np.random.default_rng(8), 10), np.full(10, 60 * DAY))
    with pytest.raises(StorageFailed):
        store.apply(changes, version(3))
    store.close()


def test_a_disk_that_fills_up_between_two_segments_leaves_the_batch_to_be_taken_again(tmp_path: Path) -> None:
    looks = [1 << 40] * 100
    store = SegmentStore(tmp_path, SETTINGS, free_bytes=lambda _: looks.pop() if looks else 0)
    known = filled(store)
    keys, times_us = random_keys(np.random.default_rng(9), 40), np.arange(40) * 3 * DAY
    del looks[4:]  # enough for the look ahead and the first segment
    with pytest.raises(StorageFull):
        store.apply(packed(RULE, keys, times_us), version(3))
    assert store.version() == version(2)
    with pytest.raises(StorageFailed, match="part of a batch"):  # never an answer
        everything(store, known.times)
    store.close()
    again = SegmentStore(tmp_path, SETTINGS)
    assert (again.version(), again.missing_parts()) == (version(2), [])
    again.apply(packed(RULE, keys, times_us), version(3))
    known.add(keys, times_us)
    assert everything(again, known.times) == known.entries()
    again.close()
