"""Filters that were killed, cut, changed or had no room: nothing synced is lost, and damage is noticed."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.dedup.bloom.small_filters import INCREMENTAL, SMALL, hashes_of, opened
from tidegate.dedup.bloom.blocked import Hashes
from tidegate.dedup.bloom.filter import BloomFilter
from tidegate.dedup.bloom.manifest import MANIFEST_NAME
from tidegate.dedup.bloom.memory import FilterSettings
from tidegate.dedup.bloom.page import HEADER_BYTES
from tidegate.errors import StorageCorrupt, StorageFull


@contextmanager
def file_size_at_most(size_bytes: int) -> Iterator[None]:
    """Let the system refuse larger files, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def _flip_lines(path: Path) -> None:
    _flip(path, HEADER_BYTES + 321)


def _flip_header(path: Path) -> None:
    _flip(path, 20)


def _flip_seal(path: Path) -> None:
    _flip(path, 130)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGE = [_cut, _flip_lines, _flip_header, _flip_seal, _empty, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["page-0.bloom", "page-1.bloom", MANIFEST_NAME])
def test_damage_is_noticed_at_open_and_the_filter_is_rebuilt(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """Case 22 and 23: a full page, the active one, the record; cut, changed, emptied or missing."""
    own = hashes_of(1, 3_000)
    filters = opened(tmp_path)
    filters.add(own[:1_500])
    filters.add(own[1_500:])
    assert filters.pages == 2 or filters.count
    filters.add(hashes_of(2, 500))
    filters.close()
    if name == MANIFEST_NAME and damage in {_flip_lines, _flip_seal}:
        damage = _flip_header
    damage(tmp_path / name)
    with pytest.raises(StorageCorrupt) as caught:
        opened(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    stored = [own, hashes_of(2, 500)]
    again = BloomFilter.rebuild(tmp_path, lambda: iter(stored), expected_keys=3_500, settings=SMALL)
    assert again.contains(own).all()
    again.close()
    assert opened(tmp_path, count_min=3_500).was_clean


def test_a_full_page_whose_seal_was_wiped_is_not_trusted(tmp_path: Path) -> None:
    filters = opened(tmp_path)
    filters.add(hashes_of(1, 2_500))
    filters.add(hashes_of(2, 9_000))
    filters.close()
    content = bytearray((tmp_path / "page-0.bloom").read_bytes())
    content[128:HEADER_BYTES] = bytes(HEADER_BYTES - 128)
    (tmp_path / "page-0.bloom").write_bytes(content)
    with pytest.raises(StorageCorrupt, match=r"page-0\.bloom"):
        opened(tmp_path)


@pytest.mark.parametrize("suffix", [".stem", ".tail", ".bloom", ".filters"])
@pytest.mark.parametrize("damage", [_cut, _flip_header, Path.unlink])
def test_damage_in_a_snapshot_is_noticed(tmp_path: Path, suffix: str, damage: Callable[[Path], None]) -> None:
    filters = opened(tmp_path / "own", INCREMENTAL)
    filters.add(hashes_of(1, 39_999))
    filters.add(hashes_of(2, 50_000))
    for number in range(2):
        filters.add(hashes_of(3 + number, 500))
        filters.snapshot_into(tmp_path / f"taken-{number}")
    (found,) = (tmp_path / "taken-1").glob(f"*{suffix}")
    damage(found)
    with pytest.raises(StorageCorrupt):
        opened(tmp_path / "taken-1", INCREMENTAL)


def test_a_filter_that_knows_fewer_hashes_than_the_segment_has_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageCorrupt, match="1 keys are known"):
        opened(tmp_path / "gone", count_min=1)


def test_a_rebuilding_that_was_cut_short_is_noticed(tmp_path: Path) -> None:
    def hashes() -> Iterator[Hashes]:
        yield hashes_of(1, 5_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BloomFilter.rebuild(tmp_path, hashes, expected_keys=9_000)
    with pytest.raises(StorageCorrupt, match=r"filter\.index"):
        opened(tmp_path)


@pytest.mark.parametrize("how", [SMALL, INCREMENTAL])
def test_no_room_for_a_page_changes_nothing(tmp_path: Path, how: FilterSettings) -> None:
    """Case 23: the batch fails, the filter is as before and goes on when there is room."""
    own = hashes_of(1, 25_000)
    filters = opened(tmp_path / "own", how)
    filters.add(own)
    filters.sync()
    before = {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()}
    with file_size_at_most(16_384), pytest.raises(StorageFull):
        filters.add(hashes_of(2, 60_000))
    assert {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()} == before
    assert filters.count == 25_000
    filters.add(hashes_of(2, 60_000))
    filters.close()
    again = opened(tmp_path / "own", how, count_min=85_000)
    assert again.contains(own).all()
    assert again.contains(hashes_of(2, 60_000)).all()


def test_no_room_for_a_snapshot_or_its_journal_loses_no_hash(tmp_path: Path) -> None:
    own = [hashes_of(number, 3_000) for number in range(6)]
    filters = opened(tmp_path / "own", INCREMENTAL)
    filters.add(own[0])
    with file_size_at_most(8_192), pytest.raises(StorageFull):
        filters.snapshot_into(tmp_path / "failed-0")
    filters.add(own[1])
    filters.snapshot_into(tmp_path / "first")
    with file_size_at_most(8_192), pytest.raises(StorageFull):
        filters.add(own[2])
    assert filters.count == 6_000
    for hashes in own[2:]:
        filters.add(hashes)
    filters.snapshot_into(tmp_path / "second")
    taken = opened(tmp_path / "second", INCREMENTAL, count_min=18_000)
    assert taken.contains(np.concatenate(own)).all()


@pytest.mark.parametrize("size", [300, 9_000])
def test_a_manifest_that_is_older_than_the_journal_leads_to_a_new_base(tmp_path: Path, size: int) -> None:
    """A kill between the write of a delta, or a new base, and the manifest that names it."""
    filters = opened(tmp_path / "own", INCREMENTAL)
    filters.add(hashes_of(1, 500))
    filters.snapshot_into(tmp_path / "first")
    older = (tmp_path / "own" / MANIFEST_NAME).read_bytes()
    filters.add(hashes_of(2, size))
    filters.snapshot_into(tmp_path / "second")
    filters.abandon()
    (tmp_path / "own" / MANIFEST_NAME).write_bytes(older)
    filters = opened(tmp_path / "own", INCREMENTAL)
    filters.add(hashes_of(3, 500))
    filters.snapshot_into(tmp_path / "third")
    taken = opened(tmp_path / "third", INCREMENTAL)
    assert taken.contains(np.concatenate([hashes_of(1, 500), hashes_of(2, size), hashes_of(3, 500)])).all()


def test_every_block_of_a_page_is_taken_from_the_disk_when_it_is_made(tmp_path: Path) -> None:
    """A write to a mapped hole of a full disk ends the worker by a signal."""
    filters = opened(tmp_path)
    filters.expect(50_000, is_sure=True)
    filters.add(hashes_of(1, 1))
    page = (tmp_path / "page-0.bloom").stat()
    assert page.st_blocks * 512 >= page.st_size >= 75_000


def test_a_power_cut_that_keeps_any_mixture_of_old_and_new_sectors_loses_nothing_synced(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(5)
    own = hashes_of(1, 8_000)
    filters = opened(tmp_path / "own")
    filters.expect(20_000, is_sure=True)
    filters.add(own)
    filters.sync()
    page = tmp_path / "own" / "page-0.bloom"
    old = np.frombuffer(page.read_bytes(), np.uint8)
    filters.add(hashes_of(2, 8_000))
    new = np.frombuffer(page.read_bytes(), np.uint8)
    sectors = -(-len(new) // 512)
    chosen = np.repeat(rng.random(sectors) < 0.5, 512)[: len(new)]
    filters.abandon()
    page.write_bytes(np.where(chosen, new, old).tobytes())
    again = opened(tmp_path / "own")
    assert not again.was_clean
    assert again.contains(own).all()
    again.add(hashes_of(2, 8_000))
    assert again.contains(hashes_of(2, 8_000)).all()
