"""Tables at rest: a copy is the table at one version, whatever writers do meanwhile."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.upkeep.backup.homes import table_rows, tree, write_table
from tidegate.errors import StorageFailed
from tidegate.upkeep.backup import delta_tables
from tidegate.upkeep.backup.delta_tables import LakeCopy


def test_a_copy_stays_at_its_version_while_the_table_goes_on(tmp_path: Path) -> None:
    write_table(tmp_path / "lake" / "t", 10)
    write_table(tmp_path / "lake" / "t", 10)
    freeze = LakeCopy(tmp_path / "lake", tmp_path / "copy")
    freeze.update()
    assert freeze.tables() == [tmp_path / "copy" / "t"]
    write_table(tmp_path / "lake" / "t", 10)
    DeltaTable(str(tmp_path / "lake" / "t")).create_checkpoint()
    assert DeltaTable(str(tmp_path / "copy" / "t")).version() == 1
    assert table_rows(tmp_path / "copy" / "t") == 20


def test_a_second_take_brings_the_copy_up_to_date(tmp_path: Path) -> None:
    write_table(tmp_path / "lake" / "t", 10)
    freeze = LakeCopy(tmp_path / "lake", tmp_path / "copy")
    freeze.update()
    write_table(tmp_path / "lake" / "t", 5)
    freeze.update()
    assert table_rows(tmp_path / "copy" / "t") == 15


def test_a_checkpoint_beyond_the_version_is_left_out(tmp_path: Path) -> None:
    write_table(tmp_path / "lake" / "t", 10)
    log = tmp_path / "lake" / "t" / "_delta_log"
    (log / "_last_checkpoint").write_text(json.dumps({"version": 7, "size": 1}))
    (log / f"{7:020}.checkpoint.parquet").write_bytes(b"of a version that is not there yet")
    (log / f".{7:020}.json.abc.tmp").write_bytes(b"half writ")
    LakeCopy(tmp_path / "lake", tmp_path / "copy").update()
    assert sorted(tree(tmp_path / "copy" / "t" / "_delta_log")) == [f"{0:020}.json"]
    assert table_rows(tmp_path / "copy" / "t") == 10


def test_a_checkpoint_of_the_version_comes_along(tmp_path: Path) -> None:
    for _ in range(2):
        write_table(tmp_path / "lake" / "t", 5)
    DeltaTable(str(tmp_path / "lake" / "t")).create_checkpoint()
    write_table(tmp_path / "lake" / "t", 10)
    (tmp_path / "lake" / "t" / "_delta_log" / f"{0:020}.json").unlink()  # cleaned up
    LakeCopy(tmp_path / "lake", tmp_path / "copy").update()
    assert (tmp_path / "copy" / "t" / "_delta_log" / "_last_checkpoint").exists()
    assert table_rows(tmp_path / "copy" / "t") == 20


def test_a_table_that_is_dropped_and_made_again_is_the_new_one(tmp_path: Path) -> None:
    for _ in range(3):
        write_table(tmp_path / "lake" / "t", 10)
    freeze = LakeCopy(tmp_path / "lake", tmp_path / "copy")
    freeze.update()
    shutil.rmtree(tmp_path / "lake" / "t")
    write_table(tmp_path / "lake" / "t", 4)
    freeze.update()
    assert table_rows(tmp_path / "copy" / "t") == 4


def test_partitioned_tables_and_files_of_others_come_along(tmp_path: Path) -> None:
    write_table(tmp_path / "lake" / "t" / "nested", 3)
    (tmp_path / "lake" / "notes.txt").write_text("mine")
    (tmp_path / "lake" / ".hidden").write_text("half written")
    LakeCopy(tmp_path / "lake", tmp_path / "copy").update()
    assert table_rows(tmp_path / "copy" / "t" / "nested") == 3
    assert (tmp_path / "copy" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "copy" / "notes.txt").samefile(tmp_path / "lake" / "notes.txt")
    assert not (tmp_path / "copy" / ".hidden").exists()


class Disturbed(LakeCopy):
    """Lets something happen between the copy of a table's log and the copy of its files."""

    meanwhile: Callable[[], None]

    def _copy_log(self, source: Path, target: Path) -> int | None:
        version = super()._copy_log(source, target)
        type(self).meanwhile()
        return version


def _disturbed(tmp_path: Path, meanwhile: Callable[[], None]) -> LakeCopy:
    kind = type("Kind", (Disturbed,), {"meanwhile": staticmethod(meanwhile)})
    made: LakeCopy = kind(tmp_path / "lake", tmp_path / "copy")
    return made


def test_a_table_that_is_compacted_and_vacuumed_meanwhile_is_taken_again(tmp_path: Path) -> None:
    for _ in range(4):
        write_table(tmp_path / "lake" / "t", 5)

    def vacuum() -> None:
        table = DeltaTable(str(tmp_path / "lake" / "t"))
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    _disturbed(tmp_path, vacuum).update()
    assert table_rows(tmp_path / "copy" / "t") == 20


def test_a_table_whose_log_is_cleaned_up_meanwhile_is_taken_again(tmp_path: Path) -> None:
    for _ in range(3):
        write_table(tmp_path / "lake" / "t", 5)
    log = tmp_path / "lake" / "t" / "_delta_log"
    seen: list[int] = []

    def clean_up() -> None:
        if not seen:
            seen.append(1)
            write_table(tmp_path / "lake" / "t", 5)
            DeltaTable(str(tmp_path / "lake" / "t")).create_checkpoint()
            for version in range(3):
                (log / f"{version:020}.json").unlink()
            (tmp_path / "copy" / "t" / "_delta_log" / f"{1:020}.json").unlink()  # gone before it was linked

    _disturbed(tmp_path, clean_up).update()
    assert table_rows(tmp_path / "copy" / "t") == 20


def test_a_table_that_is_removed_data_first_is_left_out(tmp_path: Path) -> None:
    write_table(tmp_path / "lake" / "kept", 5)
    write_table(tmp_path / "lake" / "t", 5)
    steps: list[int] = []

    def remove() -> None:
        steps.append(1)
        if len(steps) == 2:
            for path in (tmp_path / "lake" / "t").glob("*.parquet"):
                path.unlink()
        if len(steps) == 4:
            shutil.rmtree(tmp_path / "lake" / "t")

    freeze = _disturbed(tmp_path, remove)
    freeze.update()
    assert freeze.tables() == [tmp_path / "copy" / "kept"]
    assert not (tmp_path / "copy" / "t").exists()


def test_a_table_that_lost_a_file_fails_the_backup_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_tables, "ATTEMPTS_MAX", 2)
    write_table(tmp_path / "lake" / "t", 5)
    (lost,) = (tmp_path / "lake" / "t").glob("*.parquet")
    lost.unlink()
    with pytest.raises(StorageFailed, match="lake/t failed") as caught:
        LakeCopy(tmp_path / "lake", tmp_path / "copy").update()
    assert lost.name in str(caught.value)


def test_partitions_with_odd_values_are_found_again(tmp_path: Path) -> None:
    rows = pa.table({"part": ["a b", "ü%2F", "x=1/2?#"], "n": [1, 2, 3]})
    write_deltalake(str(tmp_path / "lake" / "t"), rows, partition_by=["part"])
    LakeCopy(tmp_path / "lake", tmp_path / "copy").update()
    found = DeltaTable(str(tmp_path / "copy" / "t")).to_pyarrow_table().sort_by("n")
    assert found["part"].to_pylist() == rows["part"].to_pylist()


def test_a_lake_that_is_not_there_is_empty(tmp_path: Path) -> None:
    freeze = LakeCopy(tmp_path / "lake", tmp_path / "copy")
    freeze.update()
    assert freeze.tables() == []


def test_every_copy_of_a_table_that_is_written_to_is_whole(tmp_path: Path) -> None:
    write_table(tmp_path / "lake" / "t", 7)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            write_table(tmp_path / "lake" / "t", 7)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while DeltaTable(str(tmp_path / "lake" / "t")).version() == 0:  # it is at work
            assert writer.is_alive()
            stop.wait(0.01)
        for number in range(15):
            copy = tmp_path / f"copy-{number}"
            LakeCopy(tmp_path / "lake", copy).update()
            version = DeltaTable(str(copy / "t")).version()
            assert table_rows(copy / "t") == 7 * (version + 1)
    finally:
        stop.set()
        writer.join()
    assert table_rows(tmp_path / "lake" / "t") > 7
