"""Filters that a killed worker left open: what they held is put back from files that have checksums."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.dedup.bloom.small_filters import INCREMENTAL, SMALL, hashes_of, opened
from tests.dedup.store.stores import DAY, SETTINGS, Remembered, everything, packed, random_keys, version
from tests.storage.live_copy import copy_still
from tidegate.dedup.bloom.blocked import Hashes
from tidegate.dedup.bloom.filter import BloomFilter
from tidegate.dedup.bloom.manifest import MANIFEST_NAME, read_manifest
from tidegate.dedup.bloom.memory import FilterSettings
from tidegate.dedup.bloom.page import HEADER_BYTES
from tidegate.dedup.store.store import SegmentStore
from tidegate.dedup.store.table import KeyTable


def _wipe(page: Path) -> None:
    """Take every bit away, and the count: all but the part of the header that has a checksum."""
    content = page.read_bytes()
    page.write_bytes(content[:64] + bytes(len(content) - 64))


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 9)


def _left_open(folder: Path) -> Hashes:
    """Leave a filter as a kill does, with base, delta and journal; return its hashes at the last sync."""
    filters = opened(folder / "own", INCREMENTAL)
    for number in range(4):
        filters.add(hashes_of(number, 400))
        if number in (0, 1):
            filters.snapshot_into(folder / f"taken-{number}")
        if number == 2:
            filters.sync()
    filters.abandon()
    assert {path.suffix for path in (folder / "own").glob("page-*")} == {
        ".bloom",
        ".stem",
        ".tail",
        ".journal",
    }
    return np.concatenate([hashes_of(number, 400) for number in range(3)])


def test_a_page_that_was_left_open_is_restored_whatever_its_bytes_are(tmp_path: Path) -> None:
    synced = _left_open(tmp_path)
    _wipe(tmp_path / "own" / "page-0.bloom")
    again = opened(tmp_path / "own", INCREMENTAL)
    assert again.was_clean
    assert again.contains(synced).all()
    # The fourth batch was in the journal, though not synced.
    assert again.count == 1_600
    again.add(hashes_of(9, 400))
    again.snapshot_into(tmp_path / "later")
    again.close()
    assert opened(tmp_path / "later", INCREMENTAL).contains(synced).all()


@pytest.mark.parametrize("suffix", [".stem", ".tail", ".journal"])
@pytest.mark.parametrize("damage", [_flip, _cut, Path.unlink])
def test_a_page_is_not_trusted_when_the_files_to_restore_it_are_damaged(
    tmp_path: Path, suffix: str, damage: Callable[[Path], None]
) -> None:
    """The segment then builds the filter from its keys."""
    _left_open(tmp_path)
    (found,) = (tmp_path / "own").glob(f"*{suffix}")
    if suffix == ".journal" and damage is _cut:
        os.truncate(found, 8 + 8 * 399)  # less than was synced
    else:
        damage(found)
    again = opened(tmp_path / "own", INCREMENTAL)
    assert not again.was_clean
    again.abandon()


def test_a_damaged_journal_of_a_filter_that_was_closed_is_never_taken_for_a_good_one(tmp_path: Path) -> None:
    _left_open(tmp_path)
    filters = opened(tmp_path / "own", INCREMENTAL)
    filters.close()
    (journal,) = (tmp_path / "own").glob("*.journal")
    _flip(journal)
    filters = opened(tmp_path / "own", INCREMENTAL)
    assert filters.was_clean
    filters.add(hashes_of(7, 10))
    filters.sync()
    filters.abandon()
    _wipe(tmp_path / "own" / "page-0.bloom")
    assert not opened(tmp_path / "own", INCREMENTAL).was_clean


def test_hashes_are_in_the_journal_on_the_disk_when_the_filter_was_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a loss of power the journal is what it was when it was last synced, and no bit of the page."""
    on_disk: dict[Path, bytes] = {}
    fsync = os.fsync

    def synced(file: int) -> None:
        fsync(file)
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.suffix == ".journal":
            on_disk[path] = path.read_bytes()

    monkeypatch.setattr(os, "fsync", synced)
    own = _left_open(tmp_path)
    (journal,) = (tmp_path / "own").glob("*.journal")
    assert len(on_disk[journal]) < journal.stat().st_size
    journal.write_bytes(on_disk[journal])
    _wipe(tmp_path / "own" / "page-0.bloom")
    again = opened(tmp_path / "own", INCREMENTAL)
    assert again.was_clean
    assert again.contains(own).all()


def test_the_same_hashes_again_and_again_leave_every_snapshot_as_it_was(tmp_path: Path) -> None:
    """Deltas of the same content have one name; no journal is written to the file of a delta."""
    filters = opened(tmp_path / "own", INCREMENTAL)
    for number, seed in enumerate([1, 2, 2, 2, 3, 2, 4]):
        filters.add(hashes_of(seed, 200))
        filters.snapshot_into(tmp_path / f"taken-{number}")
    for number, seeds in enumerate([[1], [1, 2], [1, 2], [1, 2], [1, 2, 3], [1, 2, 3], [1, 2, 3, 4]]):
        taken = opened(tmp_path / f"taken-{number}", INCREMENTAL)
        assert taken.contains(np.concatenate([hashes_of(seed, 200) for seed in seeds])).all()
        taken.close()
    filters.abandon()
    _wipe(tmp_path / "own" / "page-0.bloom")
    again = opened(tmp_path / "own", INCREMENTAL)
    assert again.was_clean
    assert again.contains(np.concatenate([hashes_of(seed, 200) for seed in (1, 2, 3, 4)])).all()


def test_a_journal_stays_small_beside_its_page_without_any_snapshot(tmp_path: Path) -> None:
    """Eight bytes a key would be more than all the filter has."""
    filters = opened(tmp_path, INCREMENTAL)
    for number in range(45):
        filters.add(hashes_of(number, 400))
        sizes = {path.suffix: path.stat().st_size for path in tmp_path.glob("page-*")}
        assert sizes[".journal"] <= sizes[".bloom"] / 2
        assert _only_named_files(tmp_path)
    filters.sync()
    filters.abandon()
    _wipe(tmp_path / "page-0.bloom")
    again = opened(tmp_path, INCREMENTAL)
    assert again.was_clean
    assert again.contains(np.concatenate([hashes_of(number, 400) for number in range(45)])).all()


def test_a_page_that_became_full_is_trusted_when_the_next_one_was_begun(tmp_path: Path) -> None:
    """Its base and its journal are discarded then."""
    filters = opened(tmp_path, INCREMENTAL)
    filters.add(hashes_of(1, 20_000))
    filters.add(hashes_of(2, 20_000))
    assert filters.pages == 2
    filters.abandon()
    _wipe(tmp_path / "page-1.bloom")
    again = opened(tmp_path, INCREMENTAL)
    assert again.was_clean
    assert again.contains(hashes_of(1, 20_000)).all()


def test_a_filter_from_a_snapshot_can_be_trusted_without_its_base(tmp_path: Path) -> None:
    _left_open(tmp_path)
    assert list((tmp_path / "taken-1").glob("*.tail"))
    taken = opened(tmp_path / "taken-1", SMALL)  # in which so small a page has none
    assert taken.was_clean
    taken.close()


def _only_named_files(folder: Path) -> bool:
    named = {MANIFEST_NAME, *read_manifest(folder / MANIFEST_NAME).names()}
    return {path.name for path in folder.iterdir()} == named


def test_nothing_stays_in_the_folder_that_the_record_does_not_name(tmp_path: Path) -> None:
    """Stems and journals that are over, of a failed snapshot or of a page that became full, are removed."""
    held: list[Hashes] = []
    filters = opened(tmp_path / "own", INCREMENTAL, held=held)
    for number in range(16):
        filters.add(hashes_of(number, 6_000))
        held.append(hashes_of(number, 6_000))
        if number == 6:
            (tmp_path / "taken-6").write_bytes(b"in the way")
            with pytest.raises(OSError, match="taken-6"):
                filters.snapshot_into(tmp_path / "taken-6")
            filters.sync()
        else:
            filters.snapshot_into(tmp_path / f"taken-{number}")
        assert _only_named_files(tmp_path / "own"), number
    filters.close()
    assert _only_named_files(tmp_path / "own")


def test_pages_that_cannot_be_made_into_one_stay_as_they_are(tmp_path: Path) -> None:
    is_cut_short = False

    def stored() -> Iterator[Hashes]:
        yield own[0]
        if is_cut_short:
            raise KeyboardInterrupt
        yield from own[1:]

    own: list[Hashes] = []
    filters = BloomFilter(tmp_path, SMALL, stored=stored)
    filters.add(hashes_of(99, 1))
    own.append(hashes_of(99, 1))
    filters.close()
    filters = BloomFilter(tmp_path, SMALL, stored=stored)  # without the hashes that came before
    while filters.pages < 3 or filters._pages[-1].room >= 700:
        own.append(hashes_of(len(own), 700))
        filters.add(own[-1])
    filters.sync()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    is_cut_short = True
    with pytest.raises(KeyboardInterrupt):
        filters.add(hashes_of(50, 700))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    is_cut_short = False
    filters.add(hashes_of(50, 700))
    assert filters.pages == 1
    assert filters.contains(np.concatenate([*own, hashes_of(50, 700)])).all()
    filters.abandon()
    again = opened(tmp_path)
    assert again.was_clean  # it was sealed when it was made
    assert again.contains(np.concatenate([*own, hashes_of(50, 700)])).all()


@pytest.mark.parametrize("how", [SMALL, INCREMENTAL])
def test_after_kill_9_everything_added_before_the_last_sync_or_again_is_found(
    tmp_path: Path, how: FilterSettings
) -> None:
    """Case 22: a killed writer leaves a superset of what it synced, in the copy and in its next snapshot.

    A large page is restored even when all its bytes were lost.
    """
    folder, synced = tmp_path / "own", 0
    for life in range(3):
        synced = _life_until_kill(folder, how, synced, 4 * life + 3)
        if how is INCREMENTAL:
            _wipe(folder / f"page-{read_manifest(folder / MANIFEST_NAME).last}.bloom")
        filters = opened(folder, how, held=[_batches(0, synced + 2)])
        assert filters.was_clean or how is SMALL
        assert filters.contains(_batches(0, synced)).all()
        # The batches since then are added again, as a copy catches up.
        filters.add(_batches(synced, synced + 2))
        synced += 2
        taken = tmp_path / f"taken-{life}"
        filters.snapshot_into(taken)
        filters.close()
        restored = opened(taken, how)
        assert restored.was_clean
        assert restored.contains(_batches(0, synced)).all()
        restored.close()


def _batches(start: int, stop: int) -> Hashes:
    return np.concatenate([hashes_of(number, 700) for number in range(start, stop)] or [hashes_of(0, 0)])


def _life_until_kill(folder: Path, how: FilterSettings, start: int, pauses: int) -> int:
    """Add batch after batch in a child, kill it in the middle of its work; give the last synced batch."""
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            held = [_batches(0, start)]
            filters = opened(folder, how, held=held)
            for number in range(start, 1 << 30):
                held.append(hashes_of(number, 700))
                for row in np.array_split(held[-1], 7):
                    filters.add(row)
                if number % 3 == 2:
                    filters.sync()
                    os.write(told, f"{number + 1} ".encode())
                if number % 7 == 6:
                    taken = folder.parent / f"child-{number}"
                    filters.snapshot_into(taken)
                    shutil.rmtree(taken)
        finally:
            os._exit(1)
    os.close(told)
    text = b""
    while text.count(b" ") < pauses:
        part = os.read(heard, 64)
        assert part, "the child ended by itself"
        text += part
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while part := os.read(heard, 4_096):
        text += part
    os.close(heard)
    return max(int(number) for number in text.split())


def test_a_large_filter_that_was_left_open_is_restored_without_reading_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 22: reading all keys again takes minutes for hundreds of millions of them."""
    settings = replace(SETTINGS, expected_keys=6_000_000)
    known, rng = Remembered(), np.random.default_rng(9)
    store = SegmentStore(tmp_path / "copy", settings)
    for batch in range(2):
        keys, times_us = random_keys(rng, 2_000), np.full(2_000, 3 * DAY)
        store.apply(packed(SETTINGS.rule, keys, times_us), version(batch))
        known.add(keys, times_us)
        store.snapshot(tmp_path / f"snapshot-{batch}")
    copy_still(tmp_path / "copy", tmp_path / "left")  # as a kill leaves it
    store.close()
    (page,) = (tmp_path / "left").rglob("page-*.bloom")
    with page.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(bytes(page.stat().st_size - HEADER_BYTES))

    def read(_: KeyTable) -> Iterator[list[bytes]]:
        raise AssertionError("all keys were read")

    monkeypatch.setattr(KeyTable, "all_keys", read)
    again = SegmentStore(tmp_path / "left", settings)
    assert everything(again, known.times) == known.entries()
    again.close()
