"""How many entries a state has: carried from batch to batch, exact where batches are small."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.checkpoint.batches import Job, open_new, settings
from tests.checkpoint.local.ipc_peers import KINDS
from tidegate.checkpoint.backend import Backend, StateChanges, Version
from tidegate.checkpoint.backends.heap import HeapBackend
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.entry_count import SAMPLE_KEYS, count_change
from tidegate.model.clock import SystemClock

GROUP = b"\x00\x00"


def key(number: int) -> bytes:
    return GROUP + b"%08d" % number


def puts(numbers: range) -> dict[bytes, bytes | None]:
    return {key(number): b"v" for number in numbers}


@pytest.fixture(params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return RocksBackend(tmp_path) if request.param == "rocksdb" else HeapBackend(tmp_path)


def test_small_changes_are_counted_to_the_entry(backend: Backend) -> None:
    rng, lock, count = random.Random(3), set[int](), 0
    for batch in range(40):
        ranges = []
        for _ in range(rng.randrange(6)):
            start = rng.randrange(500)
            ranges.append((key(start), key(start + rng.randrange(90))))
            lock -= set(range(start, int(ranges[-1][1][len(GROUP) :])))
        entries: dict[bytes, bytes | None] = {}
        for number in rng.sample(range(500), 60):
            is_put = rng.random() < 0.7
            entries[key(number)] = b"v" if is_put else None
            (lock.add if is_put else lock.discard)(number)
        changes = StateChanges(ranges=ranges, entries=entries)  # what lies in two ranges goes once
        count += count_change(backend, changes)
        backend.apply(changes, Version(0, batch, "head"))
        assert count == len(list(backend.scan(GROUP, b"\x00\x01"))) == len(lock), batch


def test_of_a_large_batch_some_keys_speak_for_all(backend: Backend) -> None:
    many = 20 * SAMPLE_KEYS
    loaded = StateChanges(entries=puts(range(many)))
    assert count_change(backend, loaded) == many
    backend.apply(loaded, Version(0, 0, "head"))
    assert count_change(backend, loaded) == 0
    assert count_change(backend, StateChanges(entries=dict.fromkeys(puts(range(many))))) == -many
    half = StateChanges(entries=puts(range(many // 2, many + many // 2)))
    assert count_change(backend, half) == pytest.approx(many // 2, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_has_the_count_and_the_size_with_its_batch_in_it(tmp_path: Path, kind: str) -> None:
    """Keys that are written in every batch count once, and a small state is no megabytes."""
    job = Job(tmp_path, settings(tmp_path, backend=kind))
    for batch in range(12):
        with open_new(job.request(batch), job.settings, SystemClock()) as opened:
            changes = StateChanges(entries=puts(range(100)))
            commit = opened.publish(changes, RunFacts(rows_in=1))
        assert commit.entry_count == 100
        assert 100 <= commit.size_bytes <= 100_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_spills_counts_its_parts(tmp_path: Path, kind: str) -> None:
    job = Job(tmp_path, settings(tmp_path, backend=kind))
    with open_new(job.request(0), job.settings, SystemClock()) as opened:
        part = StateChanges(entries=puts(range(60)))
        opened.spill(part)
        opened.backend.write_partly(part)
        commit = opened.publish(StateChanges(entries=puts(range(40, 100))), RunFacts(rows_in=1))
    assert commit.entry_count == 100
