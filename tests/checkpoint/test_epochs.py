"""Epochs: which number of instances governs a batch, and what happens when it changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.checkpoints import TaskRequest, put_commit, put_commits
from tests.paths import ROOT
from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import Times
from tidegate.checkpoint.snapshot import Manifest, encode_manifest, manifest_name
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import StateInvalid, StateMismatch, StorageCorrupt


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "state" / "counts")


def resolved(
    store: CheckpointStore, parallelism: int, batch: int, seen: int | None = None
) -> list[epochs.EpochPlan]:
    return [epochs.resolve(store, TaskRequest(i, parallelism, batch), seen) for i in range(parallelism)]


def test_first_task_makes_the_first_epoch_and_the_others_find_it(store: CheckpointStore) -> None:
    plans = resolved(store, 3, 7)
    assert {plan.epoch for plan in plans} == {epochs.Epoch(0, 3, 128, 7)}
    assert {plan.replay for plan in plans} == {None}
    put_commits(store, 0, 3, 7)
    assert resolved(store, 3, 8) == plans


def test_other_parallelism_begins_a_new_epoch_after_the_last_complete_batch(store: CheckpointStore) -> None:
    """Case 10: the batch that comes next is the first one of the new epoch."""
    resolved(store, 2, 0)
    put_commits(store, 0, 2, 0)
    plans = resolved(store, 3, 1)
    parent = epochs.Parent(epoch=0, batch=0, parallelism=2)
    assert {plan.epoch for plan in plans} == {epochs.Epoch(1, 3, 128, 1, parent)}
    assert epochs.governing(epochs.list_epochs(store), 0) == epochs.Epoch(0, 2, 128, 0)


def test_batch_done_in_part_is_left_behind_and_done_again(store: CheckpointStore) -> None:
    """Case 10: commit records of the old epoch do not count for a batch that the new epoch begins with."""
    resolved(store, 2, 0)
    put_commits(store, 0, 2, 0)
    put_commit(store, 0, 1, 1)
    plans = resolved(store, 3, 1)
    assert {(plan.epoch.number, plan.epoch.first_batch, plan.replay) for plan in plans} == {(1, 1, None)}
    # An old task that publishes late makes the batch complete over there, which changes nothing any more.
    put_commit(store, 0, 0, 1)
    assert resolved(store, 3, 1) == plans


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_complete_batch_is_given_out_exactly_once_by_the_new_instances(
    store: CheckpointStore, parallelism: int
) -> None:
    """Case 8: complete in the old epoch, not committed by Spark, and the number of instances changes."""
    resolved(store, 3, 4)
    put_commits(store, 0, 3, 4)
    plans = resolved(store, parallelism, 4)
    dealt = [one for plan in plans for one in plan.replay or ()]
    assert sorted(dealt) == [(0, 0), (0, 1), (0, 2)]
    assert all(plan.replay is not None for plan in plans)
    assert {plan.epoch.first_batch for plan in plans} == {5}
    assert resolved(store, parallelism, 4) == plans
    assert {plan.epoch.number for plan in resolved(store, parallelism, 5)} == {1}


def test_parallelism_changed_again_before_the_replayed_batch_was_committed(store: CheckpointStore) -> None:
    resolved(store, 3, 4)
    put_commits(store, 0, 3, 4)
    resolved(store, 2, 4)
    plans = resolved(store, 4, 4)
    assert sorted(one for plan in plans for one in plan.replay or ()) == [(0, 0), (0, 1), (0, 2)]
    assert {(plan.epoch.number, plan.epoch.first_batch) for plan in plans} == {(2, 5)}
    # Back to the old number: the old commit records are its own, and the batch after begins anew from them.
    assert {plan.replay for plan in resolved(store, 3, 4)} == {None}
    back = resolved(store, 3, 5)[0].epoch
    assert (back.number, back.first_batch, back.parent) == (3, 5, epochs.Parent(0, 4, 3))


def test_epoch_left_behind_at_its_first_batch_hands_its_parent_on(store: CheckpointStore) -> None:
    resolved(store, 2, 0)
    put_commits(store, 0, 2, 0)
    resolved(store, 3, 1)
    put_commit(store, 1, 0, 1)
    again = resolved(store, 2, 1)[0].epoch
    assert again == epochs.Epoch(2, 2, 128, 1, epochs.Parent(0, 0, 2))


def test_task_of_a_replaced_run_is_refused(store: CheckpointStore) -> None:
    """Case 8: old tasks of the old number of instances run on."""
    resolved(store, 2, 0, epochs.NONE_SEEN)
    put_commits(store, 0, 2, 0)
    resolved(store, 3, 1, seen=0)
    with pytest.raises(StateMismatch, match="replaced by one with 3"):
        epochs.resolve(store, TaskRequest(0, 2, 1), seen=0)
    with pytest.raises(StateMismatch, match="replaced by one with 3"):
        epochs.resolve(store, TaskRequest(1, 2, 2), seen=epochs.NONE_SEEN)
    assert [epoch.number for epoch in epochs.list_epochs(store)] == [0, 1]
    assert resolved(store, 2, 1, seen=1)[0].epoch.number == 2


def test_epoch_does_not_begin_over_a_batch_that_is_missing(store: CheckpointStore) -> None:
    resolved(store, 2, 0)
    put_commit(store, 0, 0, 0)
    with pytest.raises(StateMismatch, match="batch 0 is not complete in epoch 0"):
        epochs.resolve(store, TaskRequest(0, 3, 1))
    assert [epoch.number for epoch in epochs.list_epochs(store)] == [0]


def test_batch_before_the_state_begins_is_refused(store: CheckpointStore) -> None:
    resolved(store, 2, 5)
    with pytest.raises(StateMismatch, match="begins with batch 5"):
        epochs.resolve(store, TaskRequest(0, 2, 4))


def test_other_max_parallelism_is_refused(store: CheckpointStore) -> None:
    """Case 10: it is fixed at the first start."""
    resolved(store, 2, 0)
    with pytest.raises(StateMismatch, match="max_parallelism=128, and 64 is asked for"):
        epochs.resolve(store, TaskRequest(0, 2, 1, max_parallelism=64))


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(5, 4), (0, 4), (1, 0), (1, 32_769)])
def test_parallelism_that_cannot_be_is_refused(
    store: CheckpointStore, parallelism: int, max_parallelism: int
) -> None:
    with pytest.raises(StateInvalid, match="max_parallelism"):
        epochs.resolve(store, TaskRequest(0, parallelism, 0, max_parallelism=max_parallelism))
    assert epochs.list_epochs(store) == []


def test_many_tasks_at_once_agree_on_one_epoch(store: CheckpointStore) -> None:
    resolved(store, 2, 0)
    put_commits(store, 0, 2, 0)
    with ThreadPoolExecutor(16) as pool:
        plans = list(pool.map(lambda i: epochs.resolve(store, TaskRequest(i, 16, 1), seen=0), range(16)))
    assert {plan.epoch for plan in plans} == {epochs.list_epochs(store)[-1]}
    assert len(epochs.list_epochs(store)) == 2


CRASHING = """
from tests.checkpoint.checkpoints import TaskRequest
from tidegate.checkpoint import epochs
from tidegate.checkpoint.store import CheckpointStore
import sys, pathlib
epochs.resolve(CheckpointStore(pathlib.Path(sys.argv[1])), TaskRequest(0, 3, 1), seen=0)
"""


def test_task_killed_after_it_made_the_epoch_leaves_the_same_one_to_all(store: CheckpointStore) -> None:
    """Case 8: killed in the middle of making a new epoch."""
    resolved(store, 2, 0)
    put_commits(store, 0, 2, 0)
    environment = dict(os.environ, TIDEGATE_CRASH_POINT="epoch-written::1")
    ended = subprocess.run(
        [sys.executable, "-c", CRASHING, str(store.root)], env=environment, cwd=ROOT, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    put_commit(store, 0, 0, 1)
    put_commit(store, 0, 1, 1)
    assert {plan.epoch for plan in resolved(store, 3, 1, seen=0)} == {epochs.list_epochs(store)[1]}
    assert epochs.list_epochs(store)[1].first_batch == 1


def test_folder_without_a_record_is_no_epoch(store: CheckpointStore) -> None:
    resolved(store, 2, 0)
    put_commits(store, 0, 2, 0)
    store.path("e1").mkdir()
    (store.path("e1") / "epoch.json.0.new").write_bytes(b"half")
    assert resolved(store, 3, 1)[0].epoch.number == 1


def test_damaged_record_is_named(store: CheckpointStore) -> None:
    resolved(store, 2, 0)
    path = store.path("e0/epoch.json")
    path.write_bytes(path.read_bytes().replace(b'"parallelism":2', b'"parallelism":3'))
    with pytest.raises(StorageCorrupt, match=r"e0/epoch\.json"):
        epochs.list_epochs(store)


GOLDEN = (
    b'{"format":1,"number":3,"parallelism":5,"max_parallelism":128,"first_batch":42,'
    b'"parent":{"epoch":2,"batch":41,"parallelism":2,"savepoint":null},"origin":"/kept/v1","order_shift":7,'
    b'"times":{"newest_event_ms":1000,"next_event_timer_ms":2000,"next_processing_timer_ms":null},'
    b'"checksum":"f470234185aa9939"}\n'
)


def test_record_of_format_1_is_read_and_written_as_ever() -> None:
    """Case 14: a golden record."""
    epoch = epochs.Epoch(3, 5, 128, 42, epochs.Parent(2, 41, 2), "/kept/v1", 7, Times(1_000, 2_000, None))
    assert epochs.decode_epoch(GOLDEN, "golden") == epoch
    assert epochs.encode_epoch(epoch) == GOLDEN
    fenced = replace(epoch, fenced=True)
    assert epochs.decode_epoch(epochs.encode_epoch(fenced), "fenced") == fenced


def test_times_of_the_old_instances_go_on_in_the_new_epoch(store: CheckpointStore) -> None:
    resolved(store, 2, 0)
    put_commit(store, 0, 0, 0, newest_event_ms=500, next_event_timer_ms=900)
    put_commit(store, 0, 1, 0, newest_event_ms=700, next_event_timer_ms=800, next_processing_timer_ms=5)
    assert resolved(store, 3, 1)[0].epoch.times == Times(700, 800, 5)
    assert resolved(store, 4, 1)[0].epoch.times == Times(700, 800, 5)


def test_torn_batch_is_left_behind_by_an_epoch_of_the_same_parallelism(store: CheckpointStore) -> None:
    resolved(store, 2, 0)
    put_commits(store, 0, 2, 0)
    put_commit(store, 0, 1, 1)
    begun = epochs.begin_epoch(store, "counts", 1)
    assert begun == epochs.Epoch(1, 2, 128, 1, epochs.Parent(0, 0, 2), fenced=True)
    assert resolved(store, 2, 1)[0].epoch == begun


@pytest.mark.parametrize("batch", [0, 1])
def test_a_task_that_outlives_its_run_has_no_part_in_an_epoch_begun_anew(
    store: CheckpointStore, batch: int
) -> None:
    """It may have the rows of another partition, and would publish them under the number of this one."""
    resolved(store, 2, 0, seen=epochs.NONE_SEEN)
    if batch:
        put_commits(store, 0, 2, 0)
    begun = epochs.begin_epoch(store, "counts", batch)
    for seen in {epochs.NONE_SEEN, 0}:
        with pytest.raises(StateMismatch, match="2 instances that was replaced by a newer one"):
            resolved(store, 2, batch, seen=seen)
    assert resolved(store, 2, batch, seen=begun.number)[0].epoch == begun
    # With other instances an epoch follows that all tasks of its run have a part in.
    for partition in range(3):
        rescaled = epochs.resolve(store, TaskRequest(partition, 3, batch), begun.number).epoch
        assert (rescaled.number, rescaled.fenced) == (2, False)
    assert resolved(store, 2, batch, seen=2)[0].epoch.number == 3
    with pytest.raises(StateMismatch, match="replaced by a newer one"):
        resolved(store, 2, batch, seen=0)
    # What an epoch before it did is given out again, whoever asks.
    if batch:
        assert resolved(store, 2, 0, seen=epochs.NONE_SEEN)[0].epoch.number == 0


def test_last_complete_batch_is_the_one_that_every_partition_has(store: CheckpointStore) -> None:
    epoch = resolved(store, 2, 3)[0].epoch
    assert epochs.last_complete(store, epoch) == 2
    put_commit(store, 0, 0, 3)
    assert epochs.last_complete(store, epoch) == 2
    put_commit(store, 0, 1, 3)
    assert epochs.last_complete(store, epoch) == 3


def put_snapshots(store: CheckpointStore, epoch: int, parallelism: int, *batches: int) -> None:
    for partition in range(parallelism):
        for batch in batches:
            manifest = Manifest(epoch, partition, batch, "", "heap", (), 0)
            assert store.put_new(manifest_name(epoch, partition, batch), encode_manifest(manifest))


def test_old_epochs_go_when_the_newest_stands_alone(store: CheckpointStore) -> None:
    """Case 12: old ones are pruned, and only when nothing needs them."""
    for parallelism, batch in [(2, 0), (3, 1), (4, 2)]:
        epoch = resolved(store, parallelism, batch)[0].epoch
        put_commits(store, epoch.number, parallelism, batch)
    assert epochs.prune(store, 2) == []
    put_snapshots(store, 2, 4, 1, 2)
    store.path("e2/3/2.snapshot").write_bytes(b"damaged")
    assert epochs.prune(store, 2) == []
    put_snapshots(store, 1, 3, 0, 1)
    assert epochs.prune(store, 2) == [0]
    put_commit(store, 2, 3, 3)
    put_snapshots(store, 2, 4, 3)
    assert epochs.prune(store, 2) == [1]
    assert [epoch.number for epoch in epochs.list_epochs(store)] == [2]
    assert store.names() == ["e2"]


def test_snapshots_of_the_beginning_alone_do_not_free_the_old_epoch(store: CheckpointStore) -> None:
    """Spark may still ask for the stored output of the batch before."""
    resolved(store, 1, 0)
    put_commits(store, 0, 1, 0)
    resolved(store, 2, 0)
    put_snapshots(store, 1, 2, 0)
    assert epochs.prune(store, 1) == []
    put_commits(store, 1, 2, 1)
    put_snapshots(store, 1, 2, 1)
    assert epochs.prune(store, 1) == [0]


def test_epoch_removed_in_part_is_none_and_goes_at_the_next_time(store: CheckpointStore) -> None:
    resolved(store, 1, 0)
    put_commits(store, 0, 1, 0)
    resolved(store, 2, 1)
    put_commits(store, 1, 2, 1)
    store.remove("e0/epoch.json")
    assert [epoch.number for epoch in epochs.list_epochs(store)] == [1]
    put_snapshots(store, 1, 2, 0, 1)
    assert epochs.prune(store, 2) == [0]
    assert store.names() == ["e1"]
