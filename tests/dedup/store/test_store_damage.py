"""Case 23: a damaged segment is noticed, set aside and brought back alone; the others stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.dedup.store.stores import DAY, SETTINGS, Remembered, everything, packed, random_keys, version
from tests.storage.live_copy import copy_still
from tidegate.checkpoint.backend import StateChanges, SupportsParts, Version
from tidegate.checkpoint.keys.layout import group_range
from tidegate.dedup.columns import Bytes, Longs
from tidegate.dedup.store import segment
from tidegate.dedup.store.manifest import MANIFEST_NAME
from tidegate.dedup.store.store import SegmentStore
from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFailed

RULE = SETTINGS.rule
PART = "orders.4320000000"
BATCHES = 4


def changes_of(batch: int) -> tuple[StateChanges, Bytes, Longs]:
    rng = np.random.default_rng(batch)
    count = 1_500 if batch % 2 else 300
    keys, times_us = random_keys(rng, count), rng.integers(0, 120 * DAY, count)
    return packed(RULE, keys, times_us), keys, times_us


@pytest.fixture(autouse=True)
def files_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a batch of 1,500 keys as files, and one of 300 through memory."""
    monkeypatch.setattr(segment, "FILE_KEYS_MIN", 200)


@pytest.fixture
def known() -> Remembered:
    known = Remembered()
    for batch in range(BATCHES):
        known.add(*changes_of(batch)[1:])
    return known


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy that was closed at batch 3, beside a snapshot of batch 1."""
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    for batch in range(BATCHES):
        store.apply(changes_of(batch)[0], version(batch))
        if batch == 1:
            store.snapshot(tmp_path / "snapshot")
    store.close()
    return tmp_path / "copy"


def mend(store: SegmentStore, snapshot: Path) -> None:
    """Bring the missing parts back: from the snapshot, then by what the batches since did to them."""
    assert isinstance(store, SupportsParts)
    for part in store.missing_parts():
        store.replace_part(part, snapshot / part)
        for batch in range(2, BATCHES):
            store.apply_to_part(part, changes_of(batch)[0], version(batch))
        store.finish_part(part)


def check_mended(copy: Path, known: Remembered) -> None:
    """Open, find one part missing and the others usable, mend it, and find everything, also later."""
    store = SegmentStore(copy, SETTINGS)
    assert (store.version(), store.missing_parts()) == (version(3), [PART])
    early = {entry for entry in known.entries() if entry[1] < 50 * DAY}
    assert everything(store, known.times, 0, 50 * DAY - 1) == early
    with pytest.raises(StorageCorrupt, match=PART):
        everything(store, known.times)
    mend(store, copy.with_name("snapshot"))
    assert everything(store, known.times) == known.entries()
    store.close()
    again = SegmentStore(copy, SETTINGS)
    assert (again.version(), again.missing_parts()) == (version(3), [])
    assert everything(again, known.times) == known.entries()
    again.close()


def test_a_segment_whose_folder_is_gone_is_brought_back_alone(copy: Path, known: Remembered) -> None:
    shutil.rmtree(copy / PART)
    check_mended(copy, known)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "current", "manifest"])
def test_a_damaged_table_is_noticed_and_its_segment_set_aside(
    copy: Path, known: Remembered, damage: str
) -> None:
    table = max((copy / PART).glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0x10
    match damage:
        case "flip":
            table.write_bytes(content)
        case "cut":
            table.write_bytes(content[: len(content) // 2])
        case "remove":
            table.unlink()
        case "manifest":
            next((copy / PART).glob("MANIFEST-*")).unlink()
        case _:
            (copy / PART / "CURRENT").write_bytes(b"nonsense\n")
    store = SegmentStore(copy, SETTINGS)
    with pytest.raises(StorageCorrupt, match=PART):
        everything(store, known.times)
    assert store.missing_parts() == [PART]
    store.close()
    assert len(list(copy.glob(f"{PART}.damaged.*"))) == 1
    check_mended(copy, known)


def _flip_table(copy: Path) -> None:
    table = max((copy / PART).glob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0x10
    table.write_bytes(content)


def test_damage_that_is_found_while_a_batch_is_written_sets_the_segment_aside(copy: Path) -> None:
    _flip_table(copy)
    store = SegmentStore(copy, SETTINGS)
    with pytest.raises(StorageCorrupt, match=PART):
        store.apply(
            StateChanges(ranges=[group_range(range(group, group + 1)) for group in range(32)]), version(4)
        )
    assert store.missing_parts() == [PART]
    assert store.version() == version(3)
    store.close()


def test_a_filter_is_never_made_of_some_of_the_keys(copy: Path, known: Remembered) -> None:
    """RocksDB's quick iterators end in silence before a block that is damaged."""
    _flip_table(copy)
    (copy / PART / "filter.index").unlink()
    store = SegmentStore(copy, SETTINGS)
    with pytest.raises(StorageCorrupt, match=PART):
        everything(store, known.times)
    assert store.missing_parts() == [PART]
    store.close()
    check_mended(copy, known)


def test_one_damaged_segment_at_most_is_kept_for_a_person_to_look_at(copy: Path, known: Remembered) -> None:
    for _ in range(3):
        (copy / PART / "CURRENT").write_bytes(b"nonsense\n")
        store = SegmentStore(copy, SETTINGS)
        with pytest.raises(StorageCorrupt):
            everything(store, known.times)
        shutil.copytree(copy.with_name("snapshot"), copy.with_name("fetched"))
        mend(store, copy.with_name("fetched"))
        store.close()
        shutil.rmtree(copy.with_name("fetched"))
    assert len(list(copy.glob(f"{PART}.damaged.*"))) == 1


def test_an_older_copy_of_a_segment_is_not_taken_for_the_right_one(copy: Path, known: Remembered) -> None:
    shutil.rmtree(copy / PART)
    shutil.copytree(copy.with_name("snapshot") / PART, copy / PART)
    store = SegmentStore(copy, SETTINGS)
    with pytest.raises(StorageCorrupt, match="the manifest says another"):
        everything(store, known.times)
    store.close()
    check_mended(copy, known)


def test_a_part_that_was_not_ended_is_missing_again(copy: Path, known: Remembered) -> None:
    shutil.rmtree(copy / PART)
    shutil.copytree(copy.with_name("snapshot"), copy.with_name("fetched"))
    store = SegmentStore(copy, SETTINGS)
    store.replace_part(PART, copy.with_name("fetched") / PART)
    with pytest.raises(StorageCorrupt, match="not to 3"):
        store.finish_part(PART)
    for batch in range(2, BATCHES):
        store.apply_to_part(PART, changes_of(batch)[0], version(batch))
    with pytest.raises(StorageCorrupt, match="missing"):
        everything(store, known.times)
    store.close()
    check_mended(copy, known)


def test_a_part_that_no_snapshot_has_begins_empty(copy: Path, known: Remembered) -> None:
    shutil.rmtree(copy / PART)
    store = SegmentStore(copy, SETTINGS)
    store.replace_part(PART, copy.with_name("nothing"))
    for batch in range(BATCHES):
        store.apply_to_part(PART, changes_of(batch)[0], version(batch))
    store.finish_part(PART)
    assert everything(store, known.times) == known.entries()
    with pytest.raises(InvariantBroken, match="not being filled"):
        store.apply_to_part(PART, changes_of(3)[0], version(3))
    with pytest.raises(InvariantBroken, match="not a part"):
        store.replace_part("orders.1", copy)
    store.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_filter_is_made_again_from_the_keys(copy: Path, known: Remembered, damage: str) -> None:
    """Case 22: filters are rebuilt, never stale."""
    rocks = ("CURRENT", "IDENTITY", "LOCK", "LOG", "MANIFEST", "OPTIONS", "0")
    filters = [file for file in (copy / PART).iterdir() if not file.name.startswith(rocks)]
    assert filters
    for file in filters:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0x08
        match damage:
            case "flip":
                file.write_bytes(content)
            case "cut":
                file.write_bytes(content[: len(content) // 2])
            case _:
                file.unlink()
    store = SegmentStore(copy, SETTINGS)
    assert everything(store, known.times) == known.entries()
    assert store.missing_parts() == []
    store.close()


def test_a_damaged_mark_is_named(copy: Path) -> None:
    place = copy / MANIFEST_NAME
    place.write_bytes(place.read_bytes()[:-9])
    with pytest.raises(StorageCorrupt, match=MANIFEST_NAME):
        SegmentStore(copy, SETTINGS)


@pytest.fixture
def ahead(copy: Path) -> Path:
    """Return the copy as a kill leaves it after batch 5, which RocksDB has on the disk; the mark has 3."""
    store = SegmentStore(copy, SETTINGS)
    for batch in (4, 5):
        store.apply(changes_of(batch)[0], version(batch))
    killed = copy.with_name("killed")
    copy_still(copy, killed)
    store.close()
    return killed


def test_a_segment_that_is_ahead_takes_no_batch_twice(ahead: Path, known: Remembered) -> None:
    store = SegmentStore(ahead, SETTINGS)
    assert (store.version(), store.missing_parts()) == (version(3), [])
    for batch in (4, 5):
        changes, keys, times_us = changes_of(batch)
        store.apply(changes, version(batch))
        known.add(keys, times_us)
    assert everything(store, known.times) == known.entries()
    assert store.sizes().entry_count == len(known.times)
    store.close()


def test_a_segment_that_is_ahead_gives_no_answer(ahead: Path, known: Remembered) -> None:
    store = SegmentStore(ahead, SETTINGS)
    with pytest.raises(StorageCorrupt, match="the manifest never reached"):
        everything(store, known.times)
    assert len(store.missing_parts()) == 1
    store.close()


def test_a_segment_that_is_ahead_by_another_head_is_of_another_run(ahead: Path) -> None:
    store = SegmentStore(ahead, SETTINGS)
    store.apply(changes_of(4)[0], version(4))
    with pytest.raises(StorageCorrupt, match="another commit id"):
        store.apply(changes_of(5)[0], Version(0, 5, "other"))
    assert store.version() == version(4)
    store.close()


def test_a_segment_that_is_ahead_of_a_batch_that_leaves_it_alone_is_of_another_run(ahead: Path) -> None:
    store = SegmentStore(ahead, SETTINGS)
    store.apply(changes_of(4)[0], version(4))
    with pytest.raises(StorageCorrupt, match="another commit id"):
        store.apply(StateChanges(), version(5))
    store.close()


def test_a_published_batch_that_was_taken_in_part_is_taken_whole_again(copy: Path, known: Remembered) -> None:
    whole, keys, times_us = changes_of(5)
    store = SegmentStore(copy, SETTINGS)
    for entries in whole.packed[:2]:
        store.apply_early(StateChanges(packed=[entries]), version(4))
    assert store.version() == version(3)
    with pytest.raises(StorageFailed, match="part of a batch"):
        everything(store, known.times)
    killed = copy.with_name("killed")
    copy_still(copy, killed)
    store.close()
    again = SegmentStore(killed, SETTINGS)
    assert again.version() == version(3)
    for entries in whole.packed[:2]:
        again.apply_early(StateChanges(packed=[entries]), version(4))
    again.apply(StateChanges(packed=whole.packed[2:]), version(4))
    known.add(keys, times_us)
    assert everything(again, known.times) == known.entries()
    again.close()
