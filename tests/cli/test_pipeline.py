from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calls import tidegate
from tidegate.storage.home import Home

GOOD = """
from tidegate import spark as tide

@tide.pipeline(name="events")
def events(ctx):
    return None
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home", lambda: "token")


def test_a_pipeline_is_installed_under_its_name_and_taken_out_again(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "whatever.py"
    file.write_text(GOOD, encoding="utf-8")
    answer = tidegate("pipeline", "run", str(file), "--json", home=home.path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["name"] == "events"
    assert (home.pipelines_path / "events.py").read_text(encoding="utf-8") == GOOD
    assert tidegate("pipeline", "stop", "events", home=home.path).returncode == 0
    assert list(home.pipelines_path.iterdir()) == []


def test_what_a_file_prints_is_no_part_of_the_answer(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "events.py"
    file.write_text(f"print('loaded')\n{GOOD}", encoding="utf-8")
    answer = tidegate("pipeline", "run", str(file), "--json", home=home.path)
    assert json.loads(answer.stdout)["name"] == "events"
    assert "loaded" in answer.stderr


def test_the_answer_tells_whether_a_worker_is_there(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "events.py"
    file.write_text(GOOD, encoding="utf-8")
    assert "will run when a worker starts" in tidegate("pipeline", "run", str(file), home=home.path).stdout
    lock = home.lock("worker")
    try:
        answer = tidegate("pipeline", "run", str(file), home=home.path)
    finally:
        lock.release()
    assert f"the worker of {home.path} runs it" in answer.stdout


def test_the_same_file_again_is_written_anew(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "events.py"
    file.write_text(GOOD, encoding="utf-8")
    stamps = []
    for _ in range(2):
        assert tidegate("pipeline", "run", str(file), home=home.path).returncode == 0
        stamps.append((home.pipelines_path / "events.py").stat().st_mtime_ns)
    assert stamps[0] < stamps[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1\n", "@tide.pipeline"),
        ("def broken(:\n", "line 1"),
        ("import no_such_module_anywhere\n", "no_such_module_anywhere"),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused_and_not_installed(
    text: str, reason: str, home: Home, tmp_path: Path
) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(text, encoding="utf-8")
    answer = tidegate("pipeline", "run", str(file), home=home.path)
    assert answer.returncode == 1
    assert reason in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(home.pipelines_path.iterdir()) == []


def test_stopping_an_unknown_pipeline_says_so(home: Home) -> None:
    answer = tidegate("pipeline", "stop", "nobody", home=home.path)
    assert answer.returncode == 1
    assert "There is no pipeline 'nobody'" in answer.stderr


def test_a_home_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "events.py"
    file.write_text(GOOD, encoding="utf-8")
    answer = tidegate("pipeline", "run", str(file), home=tmp_path / "nowhere")
    assert answer.returncode == 1
    assert not (tmp_path / "nowhere").exists()
