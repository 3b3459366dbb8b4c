"""What a loss of power leaves: only what was synced, while RocksDB wrote out what it liked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.dedup.store.stores import DAY, SETTINGS, Remembered, everything, packed, random_keys, version
from tests.storage.live_copy import copy_still
from tidegate.checkpoint.recovery import apply_parts
from tidegate.dedup.bloom.page import FilterPage
from tidegate.dedup.store.segments import SegmentCache
from tidegate.dedup.store.store import SegmentStore

RULE = SETTINGS.rule


class Platter:
    """The pages of filters as they are on the disk: what was flushed, and nothing else."""

    def __init__(self) -> None:
        self.pages: dict[str, bytearray] = {}

    def take(self, page: FilterPage, start: int, length: int) -> None:
        content = page.path.read_bytes()
        held = self.pages.setdefault(str(page.path), bytearray(len(content)))
        held[:4096] = held[:4096] if any(held[:4096]) else content[:4096]
        held[start : start + length] = content[start : start + length]

    def lose_power(self, copy: Path, left: Path) -> None:
        """Give the folder as it is after the cut."""
        copy_still(copy, left)
        for path in left.rglob("*.bloom"):
            was = copy / path.relative_to(left)
            empty = bytearray(path.stat().st_size)
            head = bytearray(was.read_bytes()[:4096])
            head[64:] = bytes(4096 - 64)  # made, and synced, without hashes
            empty[:4096] = head
            path.write_bytes(self.pages.get(str(was), empty))


@pytest.fixture
def platter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platter]:
    found, flush = Platter(), FilterPage._flush

    def flushed(page: FilterPage, start: int, length: int) -> None:
        flush(page, start, length)
        found.take(page, start, length)

    monkeypatch.setattr(FilterPage, "_flush", flushed)
    yield found


def batches(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [(random_keys(rng, 60), rng.integers(0, 100, 60) * DAY) for _ in range(count)]


def test_keys_that_the_filter_lost_are_added_again_by_the_catch_up(tmp_path: Path, platter: Platter) -> None:
    known, given = Remembered(), batches(4)
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    for number, (keys, times_us) in enumerate(given):
        store.apply(packed(RULE, keys, times_us), version(number))
        known.add(keys, times_us)
        if number == 1:
            store.snapshot(tmp_path / "snapshot")  # writes the mark
    for entry in store._cache.entries.values():  # RocksDB writes out by itself
        assert entry.segment is not None
        entry.segment.table().flush()
    platter.lose_power(tmp_path / "copy", tmp_path / "left")
    again = SegmentStore(tmp_path / "left", SETTINGS)
    assert again.version() == version(1)
    for number in (2, 3):
        again.apply(packed(RULE, *given[number]), version(number))
    assert everything(again, known.times) == known.entries()
    again.close()
    store.close()


def test_the_filter_is_on_the_disk_when_the_mark_is(tmp_path: Path, platter: Platter) -> None:
    known, given = Remembered(), batches(2)
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    for number, (keys, times_us) in enumerate(given):
        store.apply(packed(RULE, keys, times_us), version(number))
        known.add(keys, times_us)
    store._write_manifest()
    for entry in store._cache.entries.values():
        assert entry.segment is not None
        held = platter.pages[str(next(entry.segment.folder.glob("page-*.bloom")))]
        assert bytes(held[64:]) == next(entry.segment.folder.glob("page-*.bloom")).read_bytes()[64:]
    store.close()


def test_the_mark_stays_the_old_one_when_segments_cannot_be_put_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = batches(2)
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    store.apply(packed(RULE, *given[0]), version(0))
    store.snapshot(tmp_path / "one")
    store.apply(packed(RULE, *given[1]), version(1))
    before = (tmp_path / "copy" / "copy.mark").read_bytes()

    def cut(_: SegmentCache) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SegmentCache, "flush", cut)
        store.snapshot(tmp_path / "two")
    assert (tmp_path / "copy" / "copy.mark").read_bytes() == before
    store.close()


def test_a_segment_that_has_one_part_of_a_batch_takes_the_others(tmp_path: Path) -> None:
    known, given = Remembered(), batches(3)
    given = [(keys, np.full(len(keys), 3 * DAY)) for keys, _ in given]
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    store.apply(packed(RULE, *given[0]), version(0))
    store.snapshot(tmp_path / "snapshot")
    parts = [packed(RULE, *given[1]), packed(RULE, *given[2])]
    store.apply_early(parts[0], version(1))
    store._cache.flush()  # and a kill before the second part
    copy_still(tmp_path / "copy", tmp_path / "left")
    again = SegmentStore(tmp_path / "left", SETTINGS)
    apply_parts(again, parts, version(1))
    for one in given:
        known.add(*one)
    assert everything(again, known.times) == known.entries()
    again.close()
    store.close()


def test_a_filter_that_was_left_open_is_not_believed(tmp_path: Path) -> None:
    """Case 22: its bytes have no checksum, and some of them are gone."""
    known = Remembered()
    keys, times_us = random_keys(np.random.default_rng(9), 2_000), np.full(2_000, 3 * DAY)
    store = SegmentStore(tmp_path / "copy", SETTINGS)
    store.apply(packed(RULE, keys, times_us), version(0))
    known.add(keys, times_us)
    store.snapshot(tmp_path / "snapshot")
    copy_still(tmp_path / "copy", tmp_path / "left")  # as a kill leaves it
    store.close()
    (page,) = (tmp_path / "left").rglob("page-*.bloom")
    content = page.read_bytes()
    page.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
    again = SegmentStore(tmp_path / "left", SETTINGS)
    assert again.version() == version(0)
    assert everything(again, known.times) == known.entries()
    again.close()
