"""Spark's checkpoints: at every moment between two batches, a copy goes on exactly once.

The pipeline here writes what Spark and Delta's sink write, in their order, and stops at every step; a reader
that starts as Spark does then says whether rows were lost or doubled.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.upkeep.backup.homes import tree
from tidegate.upkeep.backup.delta_tables import LakeCopy
from tidegate.upkeep.backup.spark_checkpoints import (
    CheckpointPosition,
    batch_to_keep,
    committed_positions,
    copy_checkpoint,
    is_settled,
    planned_positions,
)

QUERY = "4d2b0f0e-0000-4000-8000-000000000001"
BATCH_ROWS = 3


class FakePipeline:
    """Does what Spark does for each batch: offsets, the table with its transaction, commits."""

    def __init__(self, checkpoint: Path, table: Path) -> None:
        self.checkpoint = checkpoint
        self.table = table
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        if not (checkpoint / "metadata").exists():
            (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))

    def steps(self) -> None:
        """Do the next third of a batch."""
        begun, done = self.newest("offsets"), self.newest("commits")
        if begun == done:
            (self.checkpoint / "offsets" / str(begun + 1)).write_text(str((begun + 2) * BATCH_ROWS))
        elif self.transaction() < begun:
            self.write(begun)
        else:
            (self.checkpoint / "commits" / str(begun)).write_text("v1\n{}")

    def start_again(self, until: int) -> None:
        """Run as Spark does after a start, until the table should hold that many rows."""
        begun = self.newest("offsets")
        if begun > self.newest("commits"):
            if self.transaction() < begun:
                self.write(begun)
            (self.checkpoint / "commits" / str(begun)).write_text("v1\n{}")
        end = int((self.checkpoint / "offsets" / str(begun)).read_text()) if begun >= 0 else 0
        # Batches after a restore have another size: a number that is used again shows.
        (self.checkpoint / "offsets" / str(begun + 1)).write_text(str(until))
        if self.transaction() < begun + 1:
            self.append(range(end, until), begun + 1)

    def write(self, batch: int) -> None:
        start = int(self.offset(batch - 1)) if batch else 0
        self.append(range(start, int(self.offset(batch))), batch)

    def append(self, rows: range, batch: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction(QUERY, batch)])
        numbers = pa.table({"n": pa.array(rows, pa.int64())})
        write_deltalake(str(self.table), numbers, mode="append", commit_properties=properties)

    def offset(self, batch: int) -> str:
        return (self.checkpoint / "offsets" / str(batch)).read_text()

    def newest(self, log: str) -> int:
        return max((int(path.name) for path in (self.checkpoint / log).iterdir()), default=-1)

    def transaction(self) -> int:
        if not (self.table / "_delta_log").exists():
            return -1
        found = DeltaTable(str(self.table)).transaction_version(QUERY)
        return -1 if found is None else found

    def rows(self) -> list[int]:
        return sorted(DeltaTable(str(self.table)).to_pyarrow_table()["n"].to_pylist())


# Steps of the pipeline before each look and the copy of the tables: settled, one batch on, many batches on.
@pytest.mark.parametrize(
    ("before", "between", "after"), list(itertools.product(range(7), (0, 1, 2, 3, 7), (0, 1, 2, 5)))
)
def test_a_copy_taken_at_any_step_goes_on_exactly_once(
    tmp_path: Path, before: int, between: int, after: int
) -> None:
    pipeline = FakePipeline(tmp_path / "home" / "checkpoints" / "p", tmp_path / "home" / "lake" / "t")

    def work(steps: int) -> None:
        for _ in range(steps):
            pipeline.steps()

    work(before)
    committed = committed_positions(tmp_path / "home" / "checkpoints")
    work(between)
    lake = LakeCopy(tmp_path / "home" / "lake", tmp_path / "copy" / "lake")
    lake.update()
    work(after)
    begun = planned_positions(tmp_path / "home" / "checkpoints")
    work(2)  # it goes on while the rest is copied
    keep = batch_to_keep(committed.get("p"), begun["p"], lake.tables())
    assert keep is not None
    target = tmp_path / "copy" / "checkpoints" / "p"
    copy_checkpoint(tmp_path / "home" / "checkpoints" / "p", target, keep)

    restored = FakePipeline(target, tmp_path / "copy" / "lake" / "t")
    until = 100
    restored.start_again(until)
    assert restored.rows() == list(range(until))


class FakeFork:
    """A query that writes every batch to two tables, one after the other."""

    def __init__(self, checkpoint: Path, lake: Path) -> None:
        self.parts = [FakePipeline(checkpoint, lake / name) for name in ("a", "b")]

    def steps(self) -> None:
        """Do the next quarter of a batch."""
        first, second = self.parts
        if first.transaction() < first.newest("offsets") or first.newest("offsets") == first.newest(
            "commits"
        ):
            first.steps()
        else:
            second.steps()

    def start_again(self, until: int) -> None:
        """Run as Spark does after a start."""
        first, second = self.parts
        begun, done = first.newest("offsets"), first.newest("commits")
        for part in self.parts:
            if begun > done and part.transaction() < begun:
                part.write(begun)
        (first.checkpoint / "commits" / str(begun)).write_text("v1\n{}")
        for part in (first, second):
            part.start_again(until)
            if part is first:
                (part.checkpoint / "offsets" / str(begun + 1)).unlink()


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")], ids="".join)
@pytest.mark.parametrize(
    ("before", "between", "after"), list(itertools.product((0, 5, 6, 7, 8), (1, 2, 4, 5, 6, 9), (0, 4, 7)))
)
def test_a_query_of_two_tables_goes_on_exactly_once_or_is_copied_again(
    tmp_path: Path, order: tuple[str, str], before: int, between: int, after: int
) -> None:
    fork = FakeFork(tmp_path / "home" / "checkpoints" / "p", tmp_path / "home" / "lake")

    def work(steps: int) -> None:
        for _ in range(steps):
            fork.steps()

    work(before)
    committed = committed_positions(tmp_path / "home" / "checkpoints")
    copies = []
    for name in order:
        work(between)  # more than one table's worth, so that they get apart
        lake = LakeCopy(tmp_path / "home" / "lake" / name, tmp_path / "copy" / "lake" / name)
        lake.update()
        copies += lake.tables()
    work(after)
    begun = planned_positions(tmp_path / "home" / "checkpoints")
    keep = batch_to_keep(committed.get("p"), begun["p"], copies)
    target = tmp_path / "copy" / "checkpoints" / "p"
    copied = FakeFork(tmp_path / "none", tmp_path / "copy" / "lake")
    apart = abs(copied.parts[0].transaction() - copied.parts[1].transaction())
    if keep is None:
        assert apart > 1
        return
    copy_checkpoint(tmp_path / "home" / "checkpoints" / "p", target, keep)
    restored = FakeFork(target, tmp_path / "copy" / "lake")
    if restored.parts[0].newest("offsets") < 0:
        return  # nothing begun in the copy, and nothing in its tables
    restored.start_again(100)
    assert [part.rows() for part in restored.parts] == [list(range(100))] * 2


def test_tables_of_one_query_that_are_far_apart_fit_no_cut(tmp_path: Path) -> None:
    parts = [FakePipeline(tmp_path / "p", tmp_path / name) for name in ("a", "b")]
    for part, batch in zip(parts, (7, 5), strict=True):
        part.append(range(3), batch)
    tables = [part.table for part in parts]
    look = CheckpointPosition(json.dumps({"id": QUERY}).encode(), 9)
    behind = CheckpointPosition(look.metadata, 4)
    assert batch_to_keep(behind, look, tables) is None
    parts[1].append(range(3), 6)
    assert batch_to_keep(behind, look, tables) == (7, 6)
    # A table that it wrote once, long ago, is not waited for.
    assert batch_to_keep(CheckpointPosition(look.metadata, 7), look, tables) == (7, 7)


def _look(newest: int, query: bytes = b"{}") -> CheckpointPosition:
    return CheckpointPosition(query, newest)


def test_settled_means_at_most_one_batch_of_the_same_query() -> None:
    assert is_settled(None, _look(-1))
    assert is_settled(None, _look(0))
    assert not is_settled(None, _look(1))
    assert is_settled(_look(4), _look(4))
    assert is_settled(_look(4), _look(5))
    assert not is_settled(_look(4), _look(6))
    assert not is_settled(_look(4, b"old"), _look(0, b"new"))


def test_a_pipeline_that_writes_elsewhere_repeats_rather_than_loses() -> None:
    assert batch_to_keep(_look(4), _look(9), []) == (5, 4)


def test_half_written_files_and_state_of_later_batches_stay_behind(tmp_path: Path) -> None:
    source = tmp_path / "p"
    names = ["metadata", "offsets/3", "offsets/4", "offsets/.5.abc.tmp", "offsets/.4.crc", "commits/3"]
    names += [
        "commits/4",
        "state/0/0/4.delta",
        "state/0/0/5.zip",
        "state/0/0/6.delta",
        "state/0/0/6.changelog",
    ]
    names += ["state/0/_metadata/schema", "sources/0/0"]
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(name)
    copy_checkpoint(source, tmp_path / "copy", (4, 3))
    later = {
        "offsets/.5.abc.tmp",
        "offsets/.4.crc",
        "commits/4",
        "state/0/0/6.delta",
        "state/0/0/6.changelog",
    }
    assert set(tree(tmp_path / "copy")) == set(names) - later


def test_state_of_operators_is_kept_up_to_the_committed_batch(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    partition = "state/sessions/e0/1"
    kept = ["schema.1.json", "savepoints/monday/v9.aa.changes"]
    kept = [f"state/sessions/{name}" for name in kept]
    kept += [f"{partition}/{name}" for name in ("v4.head", "v4.ab.changes", "v4.ab.out", "3.snapshot")]
    kept += [f"{partition}/sst/000012.sst", "state/sessions/e0/epoch.json"]
    later = [f"{partition}/{name}" for name in ("v5.head", "v5.ac.changes", "v5.ac.out", "5.snapshot")]
    for name in [*kept, *later]:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text(name)
    copy_checkpoint(checkpoint, tmp_path / "copy", (5, 4))
    assert sorted(tree(tmp_path / "copy")) == sorted(kept)
