"""The freeze: whatever a pipeline does meanwhile, what is frozen goes on exactly once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.upkeep.backup.homes import make_home, new_token, opened_topics, table_rows, write_table
from tests.upkeep.backup.test_spark_checkpoints import FakePipeline
from tidegate.errors import BackupUnusable, StorageFailed
from tidegate.model.clock import SystemClock
from tidegate.storage.home.home import Home
from tidegate.testing.clock import START_US, ManualClock
from tidegate.upkeep.backup import home_snapshot as freezes
from tidegate.upkeep.backup.home_snapshot import CONTENT_FOLDER, FreezeNotes, freeze

FREEZES = 8


@pytest.mark.parametrize("passes", [freezes.PASSES_MAX, 1], ids=["until settled", "cut by the table"])
def test_a_pipeline_that_never_rests_goes_on_exactly_once_from_every_freeze(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    monkeypatch.setattr(freezes, "PASSES_MAX", passes)
    home = make_home(tmp_path / "home")
    pipeline = FakePipeline(home.checkpoints_path / "p", home.lake_path / "t")
    for number in range(300):  # so that a pass takes longer than a batch
        (home.lake_path / "other").mkdir(exist_ok=True)
        (home.lake_path / "other" / f"{number}.parquet").write_bytes(b"x")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            pipeline.steps()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with opened_topics(home.engine_path) as topics:
            topics.publish(1)
            for number in range(FREEZES):
                while pipeline.newest("commits") <= number + 1:  # it is at work
                    assert worker.is_alive()
                    stop.wait(0.01)
                folder = tmp_path / f"frozen-{number}"
                freeze(home, topics.engine, folder, SystemClock())
                _goes_on(folder / CONTENT_FOLDER)
    finally:
        stop.set()
        worker.join()
    assert pipeline.newest("commits") > FREEZES


def _goes_on(content: Path) -> None:
    copy = FakePipeline(content / "checkpoints" / "p", content / "lake" / "t")
    begun = copy.newest("offsets")
    until = int(copy.offset(begun)) + 100 if begun >= 0 else 100
    copy.start_again(until)
    assert copy.rows() == list(range(until))


def test_a_frozen_home_is_a_home_and_says_of_when_it_is(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    write_table(home.tenant_lake_path("acme") / "theirs", 4)
    with opened_topics(home.engine_path) as topics:
        topics.publish(9)
        freeze(home, topics.engine, tmp_path / "frozen", ManualClock(START_US))
        topics.publish(9)
    notes = FreezeNotes.read(tmp_path / "frozen")
    assert notes == FreezeNotes(home.home_id, 4, "2026-01-01T00:00:00Z")
    frozen = Home.open(tmp_path / "frozen" / CONTENT_FOLDER, new_token)
    assert frozen.home_id == home.home_id
    assert table_rows(frozen.tenant_lake_path("acme") / "theirs") == 4
    with opened_topics(frozen.engine_path) as topics:
        assert topics.numbers() == list(range(9))
    assert DeltaTable(str(home.tenant_lake_path("acme") / "theirs")).version() == 0


def test_every_offset_that_a_copied_checkpoint_names_is_in_the_copied_engine(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    pipeline = FakePipeline(home.checkpoints_path / "p", home.lake_path / "t")
    ends: list[int] = []
    with opened_topics(home.engine_path) as topics:

        def move() -> None:
            """Publish, and let the pipeline do a whole batch with all that there is."""
            topics.publish(10)
            batch = len(ends)
            ends.append(10 * (batch + 1))
            (pipeline.checkpoint / "offsets" / str(batch)).write_text(str(ends[-1]))
            pipeline.write(batch)
            (pipeline.checkpoint / "commits" / str(batch)).write_text("v1\n{}")

        freeze(home, topics.engine, tmp_path / "frozen", SystemClock(), move)
    content = tmp_path / "frozen" / CONTENT_FOLDER
    copy = FakePipeline(content / "checkpoints" / "p", content / "lake" / "t")
    with opened_topics(content / "engine") as topics:
        held = len(topics.numbers())
    assert copy.newest("offsets") >= 0
    assert int(copy.offset(copy.newest("offsets"))) <= held
    assert held == ends[-2], "the engine is copied last: all but what came after it is there"


def test_a_query_whose_tables_are_too_far_apart_fails_the_freeze_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezes, "PASSES_MAX", 1)
    home = make_home(tmp_path / "home")
    for name, batch in (("a", 7), ("b", 5)):
        FakePipeline(home.checkpoints_path / "fork", home.lake_path / name).append(range(3), batch)
    (home.checkpoints_path / "fork" / "offsets" / "8").write_text("3")
    with opened_topics(home.engine_path) as topics, pytest.raises(StorageFailed, match="pipeline fork"):
        freeze(home, topics.engine, tmp_path / "frozen", SystemClock())


def test_a_folder_that_nobody_froze_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackupUnusable, match=r"freeze\.json"):
        FreezeNotes.read(tmp_path)
