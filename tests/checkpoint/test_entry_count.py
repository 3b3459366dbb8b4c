"""How many entries a state has: carried from batch to batch, exact where batches are small."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.checkpoint.batches import Job, settings
from tests.checkpoint.local.ipc_peers import KINDS
from tidegate.checkpoint.backend import Backend, Changes, Version
from tidegate.checkpoint.backends.heap import HeapBackend
from tidegate.checkpoint.backends.rocksdb import RocksBackend
from tidegate.checkpoint.batch import open_batch
from tidegate.checkpoint.commit_record import RunFacts
from tidegate.checkpoint.entry_count import SAMPLE_KEYS, moved_by
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
    rng, held, count = random.Random(3), set[int](), 0
    for batch in range(40):
        ranges = []
        for _ in range(rng.randrange(6)):
            start = rng.randrange(500)
            ranges.append((key(start), key(start + rng.randrange(90))))
            held -= set(range(start, int(ranges[-1][1][len(GROUP) :])))
        entries: dict[bytes, bytes | None] = {}
        for number in rng.sample(range(500), 60):
            is_put = rng.random() < 0.7
            entries[key(number)] = b"v" if is_put else None
            (held.add if is_put else held.discard)(number)
        changes = Changes(ranges=ranges, entries=entries)  # what lies in two ranges goes once
        count += moved_by(backend, changes)
        backend.apply(changes, Version(0, batch, "head"))
        assert count == len(list(backend.scan(GROUP, b"\x00\x01"))) == len(held), batch


def test_of_a_large_batch_some_keys_speak_for_all(backend: Backend) -> None:
    many = 20 * SAMPLE_KEYS
    loaded = Changes(entries=puts(range(many)))
    assert moved_by(backend, loaded) == many
    backend.apply(loaded, Version(0, 0, "head"))
    assert moved_by(backend, loaded) == 0
    assert moved_by(backend, Changes(entries=dict.fromkeys(puts(range(many))))) == -many
    half = Changes(entries=puts(range(many // 2, many + many // 2)))
    assert moved_by(backend, half) == pytest.approx(many // 2, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_has_the_count_and_the_size_with_its_batch_in_it(tmp_path: Path, kind: str) -> None:
    """Keys that are written in every batch count once, and a small state is no megabytes."""
    job = Job(tmp_path, settings(tmp_path, backend=kind))
    for batch in range(12):
        with open_batch(job.asked(batch), job.settings, SystemClock()) as opened:
            changes = Changes(entries=puts(range(100)))
            head = opened.publish(changes, RunFacts(rows_in=1))
        assert head.entry_count == 100
        assert 100 <= head.size_bytes <= 100_000


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_spills_counts_its_parts(tmp_path: Path, kind: str) -> None:
    job = Job(tmp_path, settings(tmp_path, backend=kind))
    with open_batch(job.asked(0), job.settings, SystemClock()) as opened:
        part = Changes(entries=puts(range(60)))
        opened.spill(part)
        opened.backend.write_partly(part)
        head = opened.publish(Changes(entries=puts(range(40, 100))), RunFacts(rows_in=1))
    assert head.entry_count == 100
