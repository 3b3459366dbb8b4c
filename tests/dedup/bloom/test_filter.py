"""Filters in files: what was added is found after growth, reopening and snapshots, in bounded memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dedup.bloom.false_rate import expected_false_rate_of
from tests.dedup.bloom.small_filters import INCREMENTAL, SMALL, hashes_of, opened
from tidegate.dedup.bloom.blocked import Hashes
from tidegate.dedup.bloom.filter import BloomFilter
from tidegate.dedup.bloom.manifest import MANIFEST_NAME
from tidegate.dedup.bloom.memory import FilterBudget, FilterSettings, estimated_keys
from tidegate.errors import InvariantBroken

STEPS = ["add", "add", "add", "close", "abandon", "restore", "rebuild", "expect", "sync"]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9_000)), min_size=3, max_size=14),
    how=st.sampled_from([SMALL, INCREMENTAL]),
)
def test_no_hash_that_was_added_is_ever_denied(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    steps: list[tuple[str, int]],
    how: FilterSettings,
) -> None:
    """Case 22: against a set, over growth, reopening, kills, snapshots and rebuilding."""
    root = tmp_path_factory.mktemp("filters")
    held: list[Hashes] = []
    filters, own = opened(root / "0", how, held=held), np.empty(0, np.uint64)
    for number, (step, size) in enumerate(steps):
        if step == "add":
            new = hashes_of(seed + number, size)
            filters.add(new)
            held.append(new)
            own = np.concatenate([own, new])
        elif step == "sync":
            filters.sync()
        elif step == "expect":
            filters.expect(size * 10, is_sure=size % 2 == 0)
        elif step == "rebuild":
            filters.abandon()
            filters = BloomFilter.rebuild(
                filters.folder, lambda: iter(held), expected_keys=len(own), settings=how
            )
        else:
            filters = _reopened(filters, step, root / str(number + 1), how, held)
        assert filters.count == len(own)
        assert filters.contains(own).all()
    filters.close()
    shutil.rmtree(root)


def _reopened(
    filters: BloomFilter, step: str, new: Path, how: FilterSettings, held: list[Hashes]
) -> BloomFilter:
    folder = filters.folder
    if step == "restore":
        filters.snapshot_into(new)
        filters.abandon()
        folder = new
    elif step == "close":
        filters.close()
    else:
        filters.abandon()
    return opened(folder, how, held=held)


def test_false_rate_and_bytes_a_key_stay_as_promised_over_growth(tmp_path: Path) -> None:
    """Case 22: at most 2.5 bytes a key, whatever the estimate; one page where it is right."""
    held: list[Hashes] = []
    filters = opened(tmp_path / "unknown", FilterSettings(), held=held)
    for number in range(30):
        new = hashes_of(number, 100_000 if number < 20 else 300_000)
        filters.add(new)
        held.append(new)
        assert filters.pages <= 3
        assert expected_false_rate_of(filters) <= 0.0165
        if filters.count >= 200_000:
            assert filters.size_bytes / filters.count <= 2.5
            on_disk = sum(file.stat().st_size for file in (tmp_path / "unknown").glob("*.bloom"))
            assert on_disk / filters.count <= 2.5
    assert filters.contains(np.concatenate(held)).all()
    strange = hashes_of(99, 500_000)
    assert filters.contains(strange).mean() == pytest.approx(expected_false_rate_of(filters), rel=0.15)
    known = BloomFilter(tmp_path / "known")
    known.expect(1_000_000, is_sure=True)
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


@pytest.mark.parametrize("how", [SMALL, INCREMENTAL])
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
            copied += path.name not in seen and path.suffix == ".stem"
            content = path.read_bytes()
            assert seen.setdefault(path.name, content) == content
    assert filters.pages >= 2
    # A page with a base is not copied for each snapshot: deltas have the hashes added since.
    assert copied <= 10 if how is INCREMENTAL else copied > 12
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
    BloomFilter.rebuild(folder, lambda: iter([hashes_of(1, 10)]), expected_keys=10).close()
    assert (folder / "000012.sst").read_bytes() == b"table"


def test_read_only_changes_nothing_and_refuses_to_add(tmp_path: Path) -> None:
    filters = opened(tmp_path)
    filters.add(hashes_of(1, 5_000))
    filters.abandon()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reader = BloomFilter(tmp_path, is_read_only=True)
    assert reader.contains(hashes_of(1, 5_000)).all()
    assert not reader.was_clean
    with pytest.raises(InvariantBroken):
        reader.add(hashes_of(2, 1))
    reader.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def _resident_bytes(name: str) -> int:
    """Return how much of a mapped file the system holds for this process."""
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
    filters = [BloomFilter(tmp_path / f"bound-{number}", how, budget) for number in range(3)]
    for number, one in enumerate(filters):
        one.add(hashes_of(number, 400_000))
    for _ in range(2):
        for number, one in enumerate(filters):
            assert one.contains(hashes_of(number, 400_000)).all()
            assert one.contains(hashes_of(9, 100_000)).mean() < 0.01
            # Headers, and what the system maps beyond the end of a part, come on top.
            assert _resident_bytes("bound-") <= 1.5 * budget.bytes_max
    assert sum(one.size_bytes for one in filters) > 4 * budget.bytes_max
    assert budget.released > 0
    assert budget.is_tight
    for one in filters:
        one.close()
    assert not budget.is_tight


def test_adding_to_a_filter_for_more_keys_than_fit_into_memory_gives_nothing_back(tmp_path: Path) -> None:
    """The page that takes hashes is no larger than half of the memory, when three are enough for all."""
    budget = FilterBudget(2 << 20)
    filters = BloomFilter(tmp_path / "sure-", None, budget)
    filters.expect(2_000_000, is_sure=True)
    for number in range(60):
        filters.add(hashes_of(number, 500))
    assert budget.released == 0
    filters.add(hashes_of(99, 1_400_000))
    assert (filters.pages, budget.is_tight) == (3, True)
    before = budget.released
    for number in range(60):
        filters.add(hashes_of(number, 500))
    assert budget.released - before <= 30  # what older pages have, once; not all parts for each of 60 calls
    assert filters.contains(hashes_of(99, 1_400_000)).all()
    assert _resident_bytes("sure-") <= 1.5 * budget.bytes_max


def test_what_was_in_memory_while_all_had_room_goes_when_it_has_not(tmp_path: Path) -> None:
    budget = FilterBudget(4 << 20)
    how = FilterSettings(page_keys_min=2_600_000)
    first, second = (BloomFilter(tmp_path / f"tight-{number}", how, budget) for number in range(2))
    first.add(hashes_of(1, 300_000))
    assert _resident_bytes("tight-") > 3 << 20
    second.add(hashes_of(2, 300_000))
    assert budget.is_tight
    assert _resident_bytes("tight-") <= 1.5 * budget.bytes_max


def test_a_page_larger_than_memory_is_used_there_and_back(tmp_path: Path) -> None:
    """Twelve parts of which eight fit: in one and the same order each of them would be let go every time."""
    budget = FilterBudget(1 << 20)
    filters = BloomFilter(tmp_path, FilterSettings(page_keys_min=1_000_000), budget)
    filters.add(hashes_of(1, 100_000))
    assert (filters.pages, filters.size_bytes >> 17) == (1, 11)
    before = budget.released
    for _ in range(20):
        assert filters.contains(hashes_of(1, 100_000)).all()
    assert budget.released - before <= 20 * 6


def test_files_that_the_record_does_not_name_go_at_open(tmp_path: Path) -> None:
    filters = opened(tmp_path)
    filters.add(hashes_of(1, 500))
    filters.close()
    for name in ("page-1.bloom", "page-0.bloom.new", "page-0-00.tail", f"{MANIFEST_NAME}.12.new"):
        (tmp_path / name).write_bytes(b"left by a kill")
    filters = opened(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"page-0.bloom", MANIFEST_NAME}
    assert filters.contains(hashes_of(1, 500)).all()
