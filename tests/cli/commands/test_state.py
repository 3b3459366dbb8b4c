"""`tidegate state`: reads checkpoints of pipelines and of any Spark job, while nothing runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.checkpoints import OPERATOR, Job, Streaming
from tests.cli.calls import tidegate_here
from tidegate.dedup.deduplicator import Deduplicator
from tidegate.storage.home.home import Home

WORDS = ["tide", "gate", "tide", "sea", "shore"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home in which the pipeline `words` has done three batches in two partitions."""
    opened = Home.open(tmp_path / "home", lambda: "token")
    job = Job(opened.checkpoints_path, checkpoint="words")
    for batch in range(3):
        job.run(batch, WORDS, parallelism=2)
    return opened


def answer(home: Home, *words: str) -> Any:
    said = tidegate_here("state", *words, "--json", home=home.path)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_the_list_has_every_operator_with_its_last_whole_batch(home: Home) -> None:
    (line,) = answer(home, "list")["operators"]
    assert (line["pipeline"], line["name"], line["partitions"], line["batch"]) == ("words", OPERATOR, 2, 2)
    assert line["entries"] >= len(set(WORDS))
    assert line["checkpointBytes"] > 0
    text = tidegate_here("state", "list", home=home.path).stdout
    assert "words" in text
    assert OPERATOR in text


def test_an_empty_home_says_where_to_begin(tmp_path: Path) -> None:
    Home.open(tmp_path / "home", lambda: "token")
    assert "docs/guide/state.md" in tidegate_here("state", "list", home=tmp_path / "home").stdout


def test_show_has_a_line_for_each_partition_also_for_a_path(home: Home) -> None:
    by_name = answer(home, "show", "words")["operators"]
    by_path = answer(home, "show", str(home.checkpoints_path / "words"))["operators"]
    assert [part["partition"] for part in by_name[0]["partitionList"]] == [0, 1]
    assert by_path[0]["partitionList"] == by_name[0]["partitionList"]
    text = tidegate_here("state", "show", "words", "--operator", OPERATOR, home=home.path).stdout
    assert "partition" in text


def test_a_savepoint_is_made_listed_and_removed(home: Home) -> None:
    made = answer(home, "savepoint", "words", "monday")
    assert (made["name"], made["batch"]) == ("monday", 2)
    assert Path(made["path"]).is_dir()
    assert [line["name"] for line in answer(home, "savepoints", "words")["savepoints"]] == ["monday"]
    again = tidegate_here("state", "savepoint", "words", "monday", home=home.path)
    assert again.returncode == 1
    assert "already" in again.stderr
    assert answer(home, "savepoint", "words", "monday", "--remove") == {"removed": "monday"}
    assert answer(home, "savepoints", "words")["savepoints"] == []
    assert not Path(made["path"]).exists()


def test_a_savepoint_says_where_the_sources_stood(home: Home) -> None:
    job = Streaming(home.checkpoints_path, checkpoint="paid")
    text = job.plan(0, {"topic": 1, "0": 11, "1": 0}, {"logOffset": 4})
    job.run(0, WORDS, parallelism=2)
    made = answer(home, "savepoint", "paid", "monday")
    assert made["offsets"] == {
        "sources": [
            {"offsets": {"topic": 1, "0": 11, "1": 0}, "startingOffsets": '{"0": 11, "1": 0}'},
            {"offsets": {"logOffset": 4}, "startingOffsets": None},
        ],
        "text": text,
    }
    assert answer(home, "savepoints", "paid")["savepoints"] == [made]
    shown = tidegate_here("state", "savepoints", "paid", home=home.path).stdout
    again = tidegate_here("state", "savepoint", "paid", "tuesday", home=home.path).stdout
    for told in (shown, again):
        assert """source 0 at {"topic": 1, "0": 11, "1": 0}, startingOffsets '{"0": 11, "1": 0}'""" in told
        assert 'source 1 at {"logOffset": 4}' in told
    assert answer(home, "savepoint", "words", "monday")["offsets"] is None
    assert "source 0" not in tidegate_here("state", "savepoints", "words", home=home.path).stdout


def test_a_savepoint_says_which_function_starts_from_it(home: Home, tmp_path: Path) -> None:
    assert "tide.process(…, savepoint=" in _made(home, "words")
    with Deduplicator("orders", tmp_path / "seen", "1 day") as seen:
        seen.check(["a"], [1])
    assert "tide.deduplicate(…, savepoint=" in _made(home, str(tmp_path / "seen"))


def _made(home: Home, pipeline: str) -> str:
    said = tidegate_here("state", "savepoint", pipeline, "monday", home=home.path)
    assert said.returncode == 0, said.stderr
    return said.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("show", "nothing"),
        ("show", "words", "--operator", "other"),
        ("savepoint", "words", "monday", "--operator", "other"),
        ("savepoint", "words", "never-made", "--remove"),
        ("savepoints", "./no/such/folder"),
    ],
)
def test_what_is_not_there_is_named(home: Home, words: tuple[str, ...]) -> None:
    said = tidegate_here("state", *words, home=home.path)
    assert said.returncode == 1
    assert "There is no state" in said.stderr or "There is no savepoint" in said.stderr


def test_a_name_that_cannot_be_is_refused(home: Home) -> None:
    said = tidegate_here("state", "savepoint", "words", "../escape", home=home.path)
    assert said.returncode == 1
    assert not list(home.path.parent.rglob("escape"))
