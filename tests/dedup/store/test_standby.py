"""A standby of a deduplication: it follows, begins warm, and gives its copy to whoever asks.

Case 13: a standby copy takes over.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dedup.store.copies import OPERATOR, Job, Model, flip, segments, settings
from tidegate.checkpoint.settings import StateSettings
from tidegate.checkpoint.standby import CheckpointStandby
from tidegate.checkpoint.store import CheckpointStore, operator_store
from tidegate.dedup.identity import DIGEST_XXHASH, IDENTITY_FILE, DedupIdentity
from tidegate.dedup.standby import standby_settings
from tidegate.dedup.store.store import SegmentStoreFactory
from tidegate.errors import StateNotFound, StorageCorrupt
from tidegate.model.clock import SystemClock


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def job(room: Path, model: Model) -> Job:
    job = Job(room, settings(room), parallelism=2)
    rule = segments().rule
    identity = DedupIdentity(
        retention_us=rule.retention_us,
        interval_us=rule.interval_us,
        exact_keys=False,
        with_offsets=False,
        columns=(("id", "bigint"),),
        digest=DIGEST_XXHASH,
    )
    job.checkpoint_store.path("").mkdir(parents=True)
    job.checkpoint_store.path(IDENTITY_FILE).write_bytes(identity.to_bytes())
    job.drive(range(3), model)
    return job


def opened_in(local_root: str | None) -> Callable[[CheckpointStore], StateSettings]:
    def settings_of(checkpoint_store: CheckpointStore) -> StateSettings:
        found = standby_settings(checkpoint_store, local_root)
        assert found is not None
        return found

    return settings_of


def standby_of(job: Job, root: str = "standby") -> CheckpointStandby:
    return CheckpointStandby(job.root / "checkpoint", None, opened_in(str(job.root / root)), SystemClock())


def moves(standby: CheckpointStandby) -> list[tuple[int, int, int]]:
    return [(one.partition, one.batch, one.moved) for one in standby.follow()]


def test_it_follows_all_partitions_batch_by_batch(job: Job, model: Model) -> None:
    standby = standby_of(job)
    assert moves(standby) == [(0, 2, 3), (1, 2, 3)]
    assert moves(standby) == [(0, 2, 0), (1, 2, 0)]
    job.drive([3], model)
    assert moves(standby) == [(0, 3, 1), (1, 3, 1)]
    there = job.elsewhere("standby")
    assert there.stored(4) == model.counted()
    assert [(one.source, one.changelog_files) for one in there.reports] == [("local", 0)] * 2


def test_a_copy_that_a_task_has_is_left_to_it(job: Job) -> None:
    """The tasks of this machine keep theirs open between batches: a standby beside them takes none away."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(job.root / "local"), str(job.copy(0).parent)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        job.stop()
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write("go\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "held\n"
        found = list(standby_of(job, "local").follow())
        assert [(one.partition, one.is_in_use) for one in found] == [(0, True), (1, False)]
    finally:
        holder.kill()
        holder.wait()
    assert [one.is_in_use for one in standby_of(job, "local").follow()] == [False, False]


_HOLD = """
import sys
from pathlib import Path
from tidegate.checkpoint.local.lock import lock_folder
sys.stdin.readline()
held = lock_folder(Path(sys.argv[2]), wait_ms_max=60000)
print("held" if held else "not held", flush=True)
sys.stdin.read()
"""


def test_it_mends_a_segment_of_its_own_copy(job: Job, model: Model) -> None:
    standby = standby_of(job)
    moves(standby)
    job.stop()
    there = job.elsewhere("standby")
    shutil.rmtree(there.segment(10))
    damaged = [one.damaged for one in standby.follow()]
    assert any(f"{OPERATOR}.600000" in line for line in damaged[0])
    assert there.stored(3) == model.counted()


def test_what_is_wrong_with_one_partition_keeps_none_of_the_others(job: Job) -> None:
    flip(job.checkpoint_store.path(f"e0/0/{job.head(2).changes.file}"))
    found = list(standby_of(job).follow())
    assert isinstance(found[0].problem, StorageCorrupt)
    assert (found[1].batch, found[1].problem) == (2, None)


def test_settings_come_from_the_checkpoint_alone(job: Job, room: Path) -> None:
    found = opened_in(None)(operator_store(str(room / "checkpoint"), OPERATOR))
    assert isinstance(found.backend, SegmentStoreFactory)
    assert found.backend.settings == segments()
    assert standby_settings(operator_store(str(room / "checkpoint"), "other"), None) is None
    with pytest.raises(StateNotFound):
        list(CheckpointStandby(room / "checkpoint", "other", opened_in(None), SystemClock()).follow())


def test_the_command_follows_gives_way_to_a_task_and_ends_on_ctrl_c(job: Job, model: Model) -> None:
    job.stop()
    # The standby may be stopped by the system while it has a copy: the task waits for it.
    job.settings = replace(job.settings, lock_wait_ms_max=60_000)
    shutil.rmtree(job.root / "local")
    command = [sys.executable, "-m", "tidegate", "state", "standby", str(job.root / "checkpoint")]
    options = ["--local-dir", str(job.root / "local"), "--json", "--every", "100 ms"]
    child = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    try:
        assert child.stdout is not None
        first = [json.loads(child.stdout.readline()) for _ in range(2)]
        assert [(one["partition"], one["batch"], one["madeAnew"]) for one in first] == [
            (0, 2, True),
            (1, 2, True),
        ]
        # Its copies are where the tasks look: they begin warm, while the standby lives.
        job.reports.clear()
        job.drive([3], model)
        assert [(one.source, one.changelog_files) for one in job.reports] == [("local", 0)] * 2
        job.stop()
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=60) == 0
    finally:
        child.kill()
        child.wait()
