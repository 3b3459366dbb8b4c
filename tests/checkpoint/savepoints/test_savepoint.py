"""Savepoints: a named state that stays, from which changed code starts."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkpoint.checkpoints import MAX, OPERATOR, Job
from tests.checkpoint.rescale_walk import expected, model, words_of
from tidegate.checkpoint import epochs
from tidegate.checkpoint.commit_record import Times
from tidegate.checkpoint.keys.codec import KeyType, StateKeyColumn
from tidegate.checkpoint.savepoints import savepoint
from tidegate.checkpoint.savepoints import savepoint as savepoint_files
from tidegate.checkpoint.savepoints.record import Savepoint
from tidegate.errors import (
    NameInvalid,
    NotFound,
    SavepointExists,
    StateMismatch,
    StateNotFound,
    StorageCorrupt,
)
from tidegate.state.schema.migrations import Migration
from tidegate.state.schema.schema import SchemaRequest, StateSpec, newest_schema, resolve_schema
from tidegate.state.schema.start_check import check_start
from tidegate.storage.files import link_or_copy


def ran(tmp_path: Path, batches: int, parallelism: int = 2, backend: str = "heap") -> Job:
    job = Job(tmp_path, backend=backend)
    for batch in range(batches):
        job.run(batch, words_of(batch), parallelism)
        job.clock.advance(seconds=1)
    return job


def started(tmp_path: Path, folder: Path, backend: str = "heap") -> Job:
    job = Job(tmp_path, checkpoint="second", backend=backend)
    job.settings = replace(job.settings, local_root=str(tmp_path / "second-local"))
    job.savepoint = str(folder)
    return job


def wanted(*specs: StateSpec, migrations: dict[str, tuple[Migration, ...]] | None = None) -> SchemaRequest:
    return SchemaRequest(OPERATOR, KeyType((StateKeyColumn("word", "string"),)), MAX, specs, migrations or {})


COUNT = StateSpec("count", "value", ("int",), serializer="int")
SEEN = StateSpec("seen", "list", ("str",), serializer="str")


@pytest.mark.parametrize(("backend", "batches"), [("heap", 1), ("heap", 2), ("heap", 5), ("rocksdb", 3)])
def test_savepoint_outlives_its_checkpoint(tmp_path: Path, backend: str, batches: int) -> None:
    """Case 17: with and without snapshots, started with another parallelism in another checkpoint."""
    job = ran(tmp_path, batches, backend=backend)
    made = savepoint.make(job.checkpoint, OPERATOR, "before-v2", job.clock)
    assert (made.batch, made.parallelism, made.max_parallelism) == (batches - 1, 2, MAX)
    kept = tmp_path / "kept"
    savepoint.path_of(job.checkpoint, OPERATOR, "before-v2").rename(kept)
    shutil.rmtree(job.checkpoint)
    shutil.rmtree(tmp_path / "local")
    new = started(tmp_path, kept, backend)
    assert new.counts(3, 0) == model(batches)
    assert new.run(0, words_of(batches), 3) == expected(batches)
    assert new.counts(3, 1) == model(batches + 1)


def test_savepoint_stays_as_it_was_while_the_query_goes_on_and_prunes(tmp_path: Path) -> None:
    """Case 17: pruning leaves it alone."""
    job = ran(tmp_path, 3)
    savepoint.make(job.checkpoint, OPERATOR, "early", job.clock)
    for batch in range(3, 12):
        job.run(batch, words_of(batch), 2)
    assert started(tmp_path, savepoint.path_of(job.checkpoint, OPERATOR, "early")).counts(2, 0) == model(3)
    assert job.counts(2, 12) == model(12)


def test_savepoint_of_an_epoch_that_has_done_no_batch_is_that_of_its_parent(tmp_path: Path) -> None:
    job = ran(tmp_path, 3)
    job.task(job.ask(0, 3, 3), words_of(3))
    made = savepoint.make(job.checkpoint, OPERATOR, "torn", job.clock)
    assert (made.epoch, made.batch) == (0, 2)
    assert started(tmp_path, savepoint.path_of(job.checkpoint, OPERATOR, "torn")).counts(2, 0) == model(3)


def test_savepoint_of_a_young_epoch_has_what_it_rests_on(tmp_path: Path) -> None:
    """Epochs without snapshots, down to the savepoint from which the first of them came."""
    job = ran(tmp_path, 3)
    job.settings = replace(job.settings, snapshot_every_batches=1_000)
    savepoint.make(job.checkpoint, OPERATOR, "first", job.clock)
    second = started(tmp_path, savepoint.path_of(job.checkpoint, OPERATOR, "first"))
    second.run(0, words_of(3), 3)
    second.run(1, words_of(4), 4)
    for path in second.store.root.glob("e*/*/*.snapshot"):
        path.unlink()
    savepoint.make(second.checkpoint, OPERATOR, "again", job.clock)
    kept = tmp_path / "kept"
    savepoint.path_of(second.checkpoint, OPERATOR, "again").rename(kept)
    for gone in (job.checkpoint, second.checkpoint, tmp_path / "second-local"):
        shutil.rmtree(gone)
    third = started(tmp_path, kept)
    assert third.counts(2, 0) == model(5)


def test_damaged_newest_snapshot_is_not_what_a_savepoint_is_made_of(tmp_path: Path) -> None:
    """Case 12: the snapshot before it and the change files do."""
    job = ran(tmp_path, 4)
    for path in job.store.root.glob("e0/0/sst/3.*"):
        path.write_bytes(b"\x00" + path.read_bytes()[1:])
    savepoint.make(job.checkpoint, OPERATOR, "sound", job.clock)
    assert {name[0] for name in job.store.names("savepoints/sound/e0/0/sst")} == {"1"}
    assert started(tmp_path, savepoint.path_of(job.checkpoint, OPERATOR, "sound")).counts(2, 0) == model(4)


def test_snapshots_that_are_all_damaged_are_named(tmp_path: Path) -> None:
    job = ran(tmp_path, 8)
    for path in job.store.root.glob("e0/0/sst/*"):
        path.write_bytes(b"\x00" + path.read_bytes()[1:])
    with pytest.raises(StorageCorrupt, match=r"sst/7.*not those that were written"):
        savepoint.make(job.checkpoint, OPERATOR, "broken", job.clock)
    assert job.store.names("savepoints") == []


def test_damaged_change_file_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    job = ran(tmp_path, 1)
    for path in job.store.root.glob("e0/0/*.changes"):
        path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(StorageCorrupt, match=r"\.changes"):
        savepoint.make(job.checkpoint, OPERATOR, "broken", job.clock)
    assert job.store.names("savepoints") == []


def test_savepoint_is_made_again_when_files_go_while_they_are_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query prunes in the middle: the first attempt comes to nothing, the next finds newer files."""
    job = ran(tmp_path, 3)
    linked = link_or_copy
    batches = iter(range(3, 20))

    def link_while_the_query_runs(source: Path, target: Path) -> None:
        if (batch := next(batches, None)) is not None and batch < 12:
            job.run(batch, words_of(batch), 2)
        linked(source, target)

    monkeypatch.setattr(savepoint_files, "link_or_copy", link_while_the_query_runs)
    made = savepoint.make(job.checkpoint, OPERATOR, "moving", job.clock)
    assert made.batch > 2, "the first attempt must have come to nothing"
    found = started(tmp_path, savepoint.path_of(job.checkpoint, OPERATOR, "moving")).counts(2, 0)
    assert found == model(made.batch + 1)


def test_file_that_stays_missing_is_named(tmp_path: Path) -> None:
    job = ran(tmp_path, 1)
    for path in job.store.root.glob("e0/0/*.changes"):
        path.unlink()
    with pytest.raises(StorageCorrupt, match=r"\.changes"):
        savepoint.make(job.checkpoint, OPERATOR, "broken", job.clock)
    assert job.store.names("savepoints") == []


def test_names_that_are_taken_or_cannot_be_are_refused(tmp_path: Path) -> None:
    job = ran(tmp_path, 1)
    savepoint.make(job.checkpoint, OPERATOR, "v1", job.clock)
    with pytest.raises(SavepointExists, match="'v1'"):
        savepoint.make(job.checkpoint, OPERATOR, "v1", job.clock)
    for name in ["", "..", "a/b", ".hidden", "-x", "a.new", "ä", "x" * 64]:
        with pytest.raises(NameInvalid):
            savepoint.make(job.checkpoint, OPERATOR, name, job.clock)
        with pytest.raises(NameInvalid):
            savepoint.remove(job.checkpoint, OPERATOR, name)
    assert job.store.names("savepoints") == ["v1"]


def test_two_at_once_under_one_name_make_one(tmp_path: Path) -> None:
    job = ran(tmp_path, 2)
    outcomes: list[str] = []

    def make() -> None:
        try:
            savepoint.make(job.checkpoint, OPERATOR, "same", job.clock)
            outcomes.append("made")
        except SavepointExists:
            outcomes.append("taken")

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made", "taken", "taken", "taken"]
    assert job.store.names("savepoints") == ["same"]


def test_savepoints_are_listed_oldest_first_and_removed_by_name(tmp_path: Path) -> None:
    job = ran(tmp_path, 1)
    for name in ["zebra", "ape"]:
        savepoint.make(job.checkpoint, OPERATOR, name, job.clock)
        job.clock.advance(seconds=1)
    job.store.path("savepoints/left.0.new").mkdir()
    found = savepoint.listing(job.checkpoint, OPERATOR)
    assert [made.name for made in found] == ["zebra", "ape"]
    assert all(made.size_bytes > 0 for made in found)
    savepoint.remove(job.checkpoint, OPERATOR, "zebra")
    assert [made.name for made in savepoint.listing(job.checkpoint, OPERATOR)] == ["ape"]
    with pytest.raises(NotFound, match=r"There is no savepoint in .*zebra\."):
        savepoint.remove(job.checkpoint, OPERATOR, "zebra")
    job.clock.set_us(job.store.path("savepoints/left.0.new").stat().st_mtime_ns // 1_000 + 90_000_000_000)
    savepoint.make(job.checkpoint, OPERATOR, "later", job.clock)
    assert job.store.names("savepoints") == ["ape", "later"]


def test_operator_without_a_batch_has_no_savepoint(tmp_path: Path) -> None:
    job = Job(tmp_path)
    with pytest.raises(StateNotFound):
        savepoint.make(job.checkpoint, OPERATOR, "none", job.clock)
    epochs.resolve(job.store, job.ask(0, 2, 0))
    with pytest.raises(StateNotFound):
        savepoint.make(job.checkpoint, OPERATOR, "none", job.clock)


def test_order_of_elements_goes_on_after_a_start_from_a_savepoint(tmp_path: Path) -> None:
    """Spark counts batches from 0 again; elements added then come after those that are there."""
    job = ran(tmp_path, 4)
    savepoint.make(job.checkpoint, OPERATOR, "four", job.clock)
    second = started(tmp_path, savepoint.path_of(job.checkpoint, OPERATOR, "four"))
    epoch = epochs.resolve(second.store, second.ask(0, 2, 0)).epoch
    assert [epoch.order_of(batch) for batch in (0, 1)] == [4, 5]
    assert epoch.times.newest_event_ms == 3_000
    second.run(0, words_of(4), 2)
    savepoint.make(second.checkpoint, OPERATOR, "five", job.clock)
    third = Job(tmp_path, checkpoint="third")
    third.savepoint = str(savepoint.path_of(second.checkpoint, OPERATOR, "five"))
    assert epochs.resolve(third.store, third.ask(0, 3, 0)).epoch.order_of(0) == 5


def test_changed_code_starts_from_a_savepoint_and_says_what_changes(tmp_path: Path) -> None:
    """Cases 14 and 17: states added, dropped and migrated, each reported; numbers of states stay."""
    job = ran(tmp_path, 2)
    resolve_schema(job.store, wanted(COUNT, SEEN))
    savepoint.make(job.checkpoint, OPERATOR, "v1", job.clock)
    folder = savepoint.path_of(job.checkpoint, OPERATOR, "v1")
    second = started(tmp_path, folder)
    last = StateSpec("last", "value", ("str",), serializer="str")
    newer = replace(COUNT, version=2, types=("float",), serializer="float")
    code = wanted(last, newer, migrations={"count": (Migration(1, 2, float),)})
    plan = check_start(second.checkpoint, code, None, folder)
    assert (plan.parallelism, plan.next_batch, plan.seen_epoch) == (2, 0, epochs.NONE_SEEN)
    assert plan.changes == (
        "State 'last' is new and begins empty.",
        "State 'seen' is no longer in the code; its entries stay.",
        "State 'count' goes from version 1 to 2; entries are migrated when they are written.",
    )
    assert not second.checkpoint.exists()
    second.run(0, words_of(2), 2)
    schema = resolve_schema(second.store, code)
    assert {name: state.number for name, state in schema.states.items()} == {"count": 1, "seen": 2, "last": 3}
    with pytest.raises(StateMismatch, match="Raise its version"):
        check_start(tmp_path / "third", wanted(replace(COUNT, types=("str",))), None, folder)


def test_savepoint_does_not_replace_state_that_is_there(tmp_path: Path) -> None:
    job = ran(tmp_path, 2)
    savepoint.make(job.checkpoint, OPERATOR, "v1", job.clock)
    folder = savepoint.path_of(job.checkpoint, OPERATOR, "v1")
    with pytest.raises(StateMismatch, match="has state already"):
        check_start(job.checkpoint, wanted(COUNT), None, folder)
    second = started(tmp_path, folder)
    second.run(0, words_of(2), 3)
    # The savepoint from which it began may stay in the code, whatever became of its files since.
    assert check_start(second.checkpoint, wanted(COUNT), None, folder).next_batch == 1
    with pytest.raises(StateMismatch, match="began with the savepoint"):
        check_start(second.checkpoint, wanted(COUNT), None, tmp_path / "another")


def test_savepoint_of_another_max_parallelism_is_refused(tmp_path: Path) -> None:
    job = ran(tmp_path, 1)
    savepoint.make(job.checkpoint, OPERATOR, "v1", job.clock)
    folder = savepoint.path_of(job.checkpoint, OPERATOR, "v1")
    second = started(tmp_path, folder)
    with pytest.raises(StateMismatch, match="max_parallelism"):
        check_start(second.checkpoint, replace(wanted(COUNT), max_parallelism=MAX * 2), None, folder)
    with pytest.raises(StateMismatch, match="max_parallelism"):
        epochs.resolve(second.store, replace(second.ask(0, 2, 0), max_parallelism=MAX * 2))


def test_start_from_a_savepoint_cut_off_before_its_epoch_goes_on(tmp_path: Path) -> None:
    job = ran(tmp_path, 2)
    resolve_schema(job.store, wanted(COUNT))
    savepoint.make(job.checkpoint, OPERATOR, "v1", job.clock)
    folder = savepoint.path_of(job.checkpoint, OPERATOR, "v1")
    second = started(tmp_path, folder)
    epochs.resolve(second.store, second.ask(0, 2, 0))
    shutil.rmtree(second.store.path("e0"))
    assert check_start(second.checkpoint, wanted(COUNT), None, folder).changes == ()
    assert second.run(0, words_of(2), 2) == expected(2)
    assert newest_schema(second.store, OPERATOR) == newest_schema(job.store, OPERATOR)


GOLDEN = (
    b'{"format":1,"name":"v1","operator":"counts","epoch":3,"batch":41,"parallelism":5,"max_parallelism":128,'
    b'"schema":2,"order_shift":7,"times":{"newest_event_ms":1000,"next_event_timer_ms":null,'
    b'"next_processing_timer_ms":3000},"made_at_ms":1700000000000,"size_bytes":4096,'
    b'"checksum":"b75ecb3239a04115"}\n'
)


def test_record_of_format_1_is_read_and_written_as_ever() -> None:
    """Case 14: a golden record."""
    times = Times(1_000, None, 3_000)
    made = Savepoint("v1", "counts", 3, 41, 5, 128, 2, 7, times, 1_700_000_000_000, 4_096)
    assert Savepoint.from_bytes(GOLDEN, "golden") == made
    assert made.to_bytes() == GOLDEN
    with pytest.raises(StorageCorrupt, match="golden"):
        Savepoint.from_bytes(GOLDEN.replace(b'"batch":41', b'"batch":42'), "golden")


def test_missing_savepoint_is_named(tmp_path: Path) -> None:
    second = started(tmp_path, tmp_path / "nowhere")
    with pytest.raises(NotFound, match=r"There is no savepoint in .*nowhere\."):
        check_start(second.checkpoint, wanted(COUNT), None, tmp_path / "nowhere")
    with pytest.raises(NotFound, match="nowhere"):
        epochs.resolve(second.store, second.ask(0, 2, 0))
