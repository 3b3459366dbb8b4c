"""Filters in files: what was added is found after growth, kills and snapshots; damage is noticed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken, StorageCorrupt, StorageFull
from tidegate.state.segments.bloom import Hashes
from tidegate.state.segments.filter_budget import FilterBudget
from tidegate.state.segments.filter_index import INDEX_NAME
from tidegate.state.segments.filter_page import HEADER_BYTES
from tidegate.state.segments.filters import FilterFiles, FilterSettings, estimated_keys

SMALL = FilterSettings(page_keys_min=1_000, page_keys_max=60_000)
# Every page is large enough for a base and tails.
TAILED = FilterSettings(page_keys_min=20_000, page_keys_max=60_000, base_bytes_min=1)


def hashes_of(seed: int, count: int) -> Hashes:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


def opened(folder: Path, how: FilterSettings = SMALL, count_min: int = 0) -> FilterFiles:
    return FilterFiles(folder, how, FilterBudget(), count_min=count_min)


@contextmanager
def file_size_at_most(size_bytes: int) -> Iterator[None]:
    """Let the system refuse larger files, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


STEPS = ["add", "add", "add", "close", "abandon", "restore", "rebuild", "expect", "sync"]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9_000)), min_size=3, max_size=14),
    how=st.sampled_from([SMALL, TAILED]),
)
def test_no_hash_that_was_added_is_ever_denied(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    steps: list[tuple[str, int]],
    how: FilterSettings,
) -> None:
    """Case 22: against a set, over growth, reopening, kills, snapshots and rebuilding."""
    root = tmp_path_factory.mktemp("filters")
    filters, own = opened(root / "0", how), np.empty(0, np.uint64)
    for number, (step, size) in enumerate(steps):
        if step == "add":
            new = hashes_of(seed + number, size)
            filters.add(new)
            own = np.concatenate([own, new])
        elif step == "sync":
            filters.sync()
        elif step == "expect":
            filters.expect(size * 10)
        elif step == "rebuild":
            filters.abandon()
            chunks = np.array_split(own, 3)
            filters = FilterFiles.rebuild(filters.folder, chunks, expected_keys=len(own), settings=how)
        else:
            filters = _reopened(filters, step, root / str(number + 1), how)
        assert filters.count == len(own)
        assert filters.contains(own).all()
    filters.close()
    shutil.rmtree(root)


def _reopened(filters: FilterFiles, step: str, new: Path, how: FilterSettings) -> FilterFiles:
    folder = filters.folder
    if step == "restore":
        filters.snapshot_into(new)
        filters.abandon()
        folder = new
    elif step == "close":
        filters.close()
    else:
        filters.abandon()
    return opened(folder, how)


def test_false_rate_and_bytes_a_key_stay_as_promised_over_growth(tmp_path: Path) -> None:
    """Case 22: at most 2.5 bytes a key, whatever the estimate; one page where it is right."""
    filters = FilterFiles(tmp_path / "unknown")
    for number in range(12):
        filters.add(hashes_of(number, 500_000))
    assert filters.size_bytes / filters.count <= 2.5
    assert filters.pages <= 4
    strange = hashes_of(99, 500_000)
    expected = filters.rates.expected_false_rate
    assert filters.contains(strange).mean() == pytest.approx(expected, rel=0.15)
    assert filters.rates.probes == len(strange)
    assert filters.rates.maybe == pytest.approx(expected * len(strange), rel=0.15)
    known = FilterFiles(tmp_path / "known")
    known.expect(1_000_000)
    for number in range(10):
        known.add(hashes_of(number, 100_000))
    assert known.pages == 1
    assert known.size_bytes <= 1.5 * known.count + 64
    assert known.contains(strange).mean() < 0.0065


def test_an_estimate_takes_the_segment_before_and_believes_no_first_batch() -> None:
    assert estimated_keys(10, 0.5, 1_000) == 1_000
    assert estimated_keys(2_000, 0.5, 1_000) == 4_000
    assert estimated_keys(1_000, 1e-9) == 8_000
    assert estimated_keys(1_000, 0.0) == 1_000
    assert estimated_keys(1_000, 1.0) == 1_000


@pytest.mark.parametrize("how", [SMALL, TAILED])
def test_full_pages_are_shared_by_snapshots_and_names_say_the_content(
    tmp_path: Path, how: FilterSettings
) -> None:
    filters = opened(tmp_path / "own", how)
    seen: dict[str, bytes] = {}
    copied = 0
    for number in range(20):
        filters.add(hashes_of(number, 1_100))
        taken = filters.snapshot_into(tmp_path / f"taken-{number}")
        assert sorted(taken) == sorted((tmp_path / f"taken-{number}").iterdir())
        for path in taken:
            copied += path.name not in seen and path.suffix == ".base"
            content = path.read_bytes()
            assert seen.setdefault(path.name, content) == content
    assert filters.pages >= 2
    # A page with a base is not copied for each snapshot: tails say what came since.
    assert copied <= 10 if how is TAILED else copied > 12
    for number in range(20):
        taken_then = opened(tmp_path / f"taken-{number}", how)
        assert taken_then.count == 1_100 * (number + 1)
        assert taken_then.contains(np.concatenate([hashes_of(n, 1_100) for n in range(number + 1)])).all()
        taken_then.add(hashes_of(77, 5_000))
        taken_then.close()
    # Those that were opened and written to shared nothing that changes with the filter they came from.
    filters.close()
    again = opened(tmp_path / "own", how)
    assert again.was_clean
    assert again.count == 22_000


def test_a_snapshot_into_a_folder_with_other_files_leaves_them_alone(tmp_path: Path) -> None:
    folder = tmp_path / "segment"
    folder.mkdir()
    (folder / "000012.sst").write_bytes(b"table")
    filters = opened(folder)
    filters.add(hashes_of(1, 5_000))
    filters.snapshot_into(folder / "taken")
    filters.close()
    opened(folder).close()
    FilterFiles.rebuild(folder, [hashes_of(1, 10)], expected_keys=10).close()
    assert (folder / "000012.sst").read_bytes() == b"table"


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
@pytest.mark.parametrize("name", ["page-0.bloom", "page-1.bloom", INDEX_NAME])
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
    if name == INDEX_NAME and damage in {_flip_lines, _flip_seal}:
        damage = _flip_header
    damage(tmp_path / name)
    with pytest.raises(StorageCorrupt) as caught:
        opened(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    again = FilterFiles.rebuild(tmp_path, [own, hashes_of(2, 500)], expected_keys=3_500, settings=SMALL)
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


@pytest.mark.parametrize("suffix", [".base", ".tail", ".bloom", ".filters"])
@pytest.mark.parametrize("damage", [_cut, _flip_header, Path.unlink])
def test_damage_in_a_snapshot_is_noticed(tmp_path: Path, suffix: str, damage: Callable[[Path], None]) -> None:
    filters = opened(tmp_path / "own", TAILED)
    filters.add(hashes_of(1, 39_999))
    filters.add(hashes_of(2, 50_000))
    for number in range(2):
        filters.add(hashes_of(3 + number, 500))
        filters.snapshot_into(tmp_path / f"taken-{number}")
    (found,) = (tmp_path / "taken-1").glob(f"*{suffix}")
    damage(found)
    with pytest.raises(StorageCorrupt):
        opened(tmp_path / "taken-1", TAILED)


def test_a_filter_that_knows_fewer_hashes_than_the_segment_has_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageCorrupt, match="1 keys are known"):
        opened(tmp_path / "gone", count_min=1)


def test_a_rebuilding_that_was_cut_short_is_noticed(tmp_path: Path) -> None:
    def hashes() -> Iterator[Hashes]:
        yield hashes_of(1, 5_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FilterFiles.rebuild(tmp_path, hashes(), expected_keys=9_000)
    with pytest.raises(StorageCorrupt, match=r"filter\.index"):
        opened(tmp_path)


@pytest.mark.parametrize("how", [SMALL, TAILED])
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
    filters = opened(tmp_path / "own", TAILED)
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
    taken = opened(tmp_path / "second", TAILED, count_min=18_000)
    assert taken.contains(np.concatenate(own)).all()


@pytest.mark.parametrize("size", [300, 9_000])
def test_a_record_that_is_older_than_the_journal_leads_to_a_new_base(tmp_path: Path, size: int) -> None:
    """A kill between the cut of a tail, or a new base, and the record that names it."""
    filters = opened(tmp_path / "own", TAILED)
    filters.add(hashes_of(1, 500))
    filters.snapshot_into(tmp_path / "first")
    older = (tmp_path / "own" / INDEX_NAME).read_bytes()
    filters.add(hashes_of(2, size))
    filters.snapshot_into(tmp_path / "second")
    filters.abandon()
    (tmp_path / "own" / INDEX_NAME).write_bytes(older)
    filters = opened(tmp_path / "own", TAILED)
    filters.add(hashes_of(3, 500))
    filters.snapshot_into(tmp_path / "third")
    taken = opened(tmp_path / "third", TAILED)
    assert taken.contains(np.concatenate([hashes_of(1, 500), hashes_of(2, size), hashes_of(3, 500)])).all()


def test_every_block_of_a_page_is_taken_from_the_disk_when_it_is_made(tmp_path: Path) -> None:
    """A write to a mapped hole of a full disk ends the worker by a signal."""
    filters = opened(tmp_path)
    filters.expect(50_000)
    filters.add(hashes_of(1, 1))
    page = (tmp_path / "page-0.bloom").stat()
    assert page.st_blocks * 512 >= page.st_size >= 75_000


@pytest.mark.parametrize("how", [SMALL, TAILED])
def test_after_kill_9_everything_added_before_the_last_sync_or_again_is_found(
    tmp_path: Path, how: FilterSettings
) -> None:
    """Case 22: a killed writer leaves a superset of what it synced, in the copy and in its next snapshot."""
    folder, synced = tmp_path / "own", 0
    for life in range(5):
        synced = _life_until_kill(folder, how, synced, (17 * life) % 29 + 3)
        filters = opened(folder, how)
        assert filters.contains(_batches(0, synced)).all()
        # The batches since then are added again, as a copy catches up.
        filters.add(_batches(synced, synced + 2))
        synced += 2
        taken = tmp_path / f"taken-{life}"
        filters.snapshot_into(taken)
        filters.close()
        restored = opened(taken, how)
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
            filters = opened(folder, how)
            for number in range(start, 1 << 30):
                for row in np.array_split(hashes_of(number, 700), 7):
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


def test_a_power_cut_that_keeps_any_mixture_of_old_and_new_sectors_loses_nothing_synced(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(5)
    own = hashes_of(1, 8_000)
    filters = opened(tmp_path / "own")
    filters.expect(20_000)
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


def test_read_only_changes_nothing_and_refuses_to_add(tmp_path: Path) -> None:
    filters = opened(tmp_path)
    filters.add(hashes_of(1, 5_000))
    filters.abandon()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reader = FilterFiles(tmp_path, is_read_only=True)
    assert reader.contains(hashes_of(1, 5_000)).all()
    assert not reader.was_clean
    with pytest.raises(InvariantBroken):
        reader.add(hashes_of(2, 1))
    reader.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def _resident_bytes(name: str) -> int:
    """Give how much of a mapped file the system holds for this process."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            is_ours = name in line
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_filters_of_a_worker_stay_within_their_memory(tmp_path: Path) -> None:
    """Pages larger than the bound are worked through in parts; others go when they were not used."""
    budget = FilterBudget(1 << 20)
    how = FilterSettings(page_keys_min=1_000_000)
    filters = [FilterFiles(tmp_path / f"bound-{number}", how, budget) for number in range(3)]
    for number, one in enumerate(filters):
        one.add(hashes_of(number, 400_000))
    for _ in range(2):
        for number, one in enumerate(filters):
            assert one.contains(hashes_of(number, 400_000)).all()
            assert one.contains(hashes_of(9, 100_000)).mean() < 0.01
            assert budget.used_bytes <= budget.bytes_max
            # The header, and what the system maps beside a page that is touched, come on top.
            assert _resident_bytes("bound-") <= 2 * budget.bytes_max
    assert sum(one.size_bytes for one in filters) > 4 * budget.bytes_max
    assert budget.released > 0
    for one in filters:
        one.close()
    assert budget.used_bytes == 0


def test_files_that_the_record_does_not_name_go_at_open(tmp_path: Path) -> None:
    filters = opened(tmp_path)
    filters.add(hashes_of(1, 500))
    filters.close()
    for name in ("page-1.bloom", "page-0.bloom.new", "page-0-00.tail", f"{INDEX_NAME}.12.new"):
        (tmp_path / name).write_bytes(b"left by a kill")
    filters = opened(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"page-0.bloom", INDEX_NAME}
    assert filters.contains(hashes_of(1, 500)).all()
