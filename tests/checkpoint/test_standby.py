"""A standby follows the change files, and is current wherever the query is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.batches import open_new
from tests.checkpoint.checkpoints import OPERATOR, Job
from tests.checkpoint.keys.key_groups import ENTRY_PREFIX_BYTES
from tests.checkpoint.rescale_walk import expected, model, words_of
from tidegate.checkpoint.keys.layout import META_GROUP
from tidegate.checkpoint.standby import Standby
from tidegate.errors import StateNotFound


def standby_of(job: Job, tmp_path: Path, partition: int) -> Standby:
    settings = replace(job.settings, local_root=str(tmp_path / "standby"))
    return Standby(job.checkpoint, OPERATOR, partition, settings, job.clock)


def counts(standbys: list[Standby]) -> dict[str, int]:
    found: dict[str, int] = {}
    for standby in standbys:
        with standby.open() as backend:
            entries = backend.scan(b"", META_GROUP)
            found |= {key[ENTRY_PREFIX_BYTES:].decode(): int(value) for key, value in entries}
    return found


@pytest.mark.parametrize("backend", ["rocksdb", "heap"])
def test_standby_follows_batch_by_batch(tmp_path: Path, backend: str) -> None:
    job = Job(tmp_path, backend=backend)
    standby = standby_of(job, tmp_path, 1)
    with pytest.raises(StateNotFound):
        standby.follow()
    job.run(0, words_of(0), 2)
    job.run(1, words_of(1), 2)
    assert standby.follow() == 2
    assert standby.follow() == 0
    job.run(2, words_of(2), 2)
    assert standby.follow() == 1
    assert counts([standby_of(job, tmp_path, 0), standby]) == model(3)


def test_standby_goes_on_in_a_new_epoch(tmp_path: Path) -> None:
    """Case 10: with the key groups that its partition has there."""
    job = Job(tmp_path)
    standbys = [standby_of(job, tmp_path, partition) for partition in range(5)]
    for batch, parallelism in enumerate([2, 2, 5, 3]):
        job.run(batch, words_of(batch), parallelism)
        assert counts(standbys[:parallelism]) == model(batch + 1)
    with pytest.raises(StateNotFound, match="partition 4"):
        standbys[4].follow()


def test_standby_that_was_away_while_files_were_pruned_catches_up(tmp_path: Path) -> None:
    job = Job(tmp_path)
    standby = standby_of(job, tmp_path, 0)
    job.run(0, words_of(0), 1)
    standby.follow()
    for batch in range(1, 9):
        job.run(batch, words_of(batch), 1)
    assert not job.store.exists("e0/0/v1.head")
    standby.follow()
    assert counts([standby]) == model(9)


def test_partition_that_moves_to_the_host_of_its_standby_begins_warm(tmp_path: Path) -> None:
    """Case 13: the standby's copy is the one that tasks of its machine use."""
    job = Job(tmp_path)
    job.run(0, words_of(0), 1)
    standby_of(job, tmp_path, 0).follow()
    elsewhere = Job(tmp_path)
    elsewhere.settings = replace(job.settings, local_root=str(tmp_path / "standby"))
    with open_new(elsewhere.ask(0, 1, 1), elsewhere.settings, job.clock) as opened:
        assert opened.report is not None
        assert (opened.report.source, opened.report.changelog_files) == ("local", 0)
    assert elsewhere.run(1, words_of(1), 1) == expected(1)
