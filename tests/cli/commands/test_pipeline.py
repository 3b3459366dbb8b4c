from __future__ import annotations

import json
from pathlib import Path

import pytest

import tidegate as tidegate_sdk
from tests.cli.calls import tidegate, tidegate_here
from tidegate.cli.installed_pipelines import with_waiting
from tidegate.storage.home.home import Home
from tidegate.testing.server import running_server

GOOD = """
from tidegate import spark as tide

@tide.pipeline(name="events")
def events(ctx):
    return None
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "home", lambda: "token")


def write(path: Path, text: str = GOOD) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def said(*words: str, home: Home) -> str:
    """Return what a command that goes well prints, on one line."""
    answer = tidegate("pipeline", *words, home=home.path)
    assert answer.returncode == 0, answer.stderr
    return " ".join(answer.stdout.split())


def kept(home: Home) -> dict[str, str]:
    """Return the files of the folder of pipelines, with what is in them."""
    return {path.name: path.read_text(encoding="utf-8") for path in home.pipelines_path.iterdir()}


def test_a_pipeline_is_installed_under_its_name_and_its_file_outlives_a_stop(
    home: Home, tmp_path: Path
) -> None:
    file = tmp_path / "whatever.py"
    file.write_text(GOOD, encoding="utf-8")
    answer = tidegate("pipeline", "run", str(file), "--json", home=home.path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["name"] == "events"
    assert (home.pipelines_path / "events.py").read_text(encoding="utf-8") == GOOD
    assert "'tidegate pipeline start events' continues" in said("stop", "events", home=home)
    assert kept(home) == {"events.py.stopped": GOOD}
    assert "events is stopped already" in said("stop", "events", home=home)
    assert "will run when a worker starts" in said("start", "events", home=home)
    assert kept(home) == {"events.py": GOOD}
    assert "events is not stopped" in said("start", "events", home=home)


def test_stop_tells_whether_a_worker_has_something_to_end(home: Home, tmp_path: Path) -> None:
    said("run", write(tmp_path / "events.py"), home=home)
    assert "Pipeline events is stopped;" in said("stop", "events", home=home)
    said("start", "events", home=home)
    lock = home.lock("worker")
    try:
        assert "Pipeline events stops;" in said("stop", "events", home=home)
        assert f"the worker of {home.path} runs it" in said("start", "events", home=home)
    finally:
        lock.release()


def test_a_start_is_seen_although_the_file_is_the_same(home: Home, tmp_path: Path) -> None:
    """The worker knows files by their time and size: a stop and a start between two looks must show."""
    said("run", write(tmp_path / "events.py"), home=home)
    before = (home.pipelines_path / "events.py").stat().st_mtime_ns
    said("stop", "events", home=home)
    said("start", "events", home=home)
    assert (home.pipelines_path / "events.py").stat().st_mtime_ns > before


def test_other_contents_under_a_name_are_told_to_replace_the_first(home: Home, tmp_path: Path) -> None:
    first, second = write(tmp_path / "one.py"), write(tmp_path / "two.py", f"{GOOD}# other\n")
    assert "Pipeline events is installed;" in said("run", first, home=home)
    assert "Pipeline events is installed;" in said("run", first, home=home)
    answer = said("run", second, home=home)
    assert "replaces the one installed before; it continues from its checkpoint. It will run" in answer
    assert json.loads(said("run", first, "--json", home=home))["replaces"] == "installed"


def test_a_new_file_takes_the_place_of_a_stopped_one(home: Home, tmp_path: Path) -> None:
    first, second = write(tmp_path / "one.py"), write(tmp_path / "two.py", f"{GOOD}# other\n")
    said("run", first, home=home)
    said("stop", "events", home=home)
    assert "replaces the one that was stopped; it continues from its checkpoint" in said(
        "run", second, home=home
    )
    assert kept(home) == {"events.py": f"{GOOD}# other\n"}
    said("stop", "events", home=home)
    assert "Pipeline events is installed;" in said("run", second, home=home)
    assert kept(home) == {"events.py": f"{GOOD}# other\n"}


def test_a_stopped_file_beside_an_installed_one_counts_for_nothing(home: Home) -> None:
    """As after a kill between the install of a file and the removal of the stopped one."""
    write(home.pipelines_path / "events.py")
    write(home.pipelines_path / "events.py.stopped", "old")
    assert "events is not stopped" in said("start", "events", home=home)
    assert tidegate("pipeline", "remove", "events", "--yes", home=home.path).returncode == 1
    said("stop", "events", home=home)
    assert kept(home) == {"events.py.stopped": GOOD}


def test_only_a_stopped_pipeline_is_removed_and_its_checkpoint_stays(home: Home, tmp_path: Path) -> None:
    said("run", write(tmp_path / "events.py"), home=home)
    refused = tidegate("pipeline", "remove", "events", "--yes", home=home.path)
    assert refused.returncode == 1
    assert "is not stopped" in refused.stderr
    assert "tidegate pipeline stop events" in refused.stderr
    said("stop", "events", home=home)
    checkpoint = home.checkpoints_path / "events"
    checkpoint.mkdir()
    unasked = tidegate("pipeline", "remove", "events", home=home.path)
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
    assert kept(home) == {"events.py.stopped": GOOD}
    answer = json.loads(said("remove", "events", "--yes", "--json", home=home))
    assert answer == {"removed": "events", "checkpoint": str(checkpoint), "lake": str(home.lake_path)}
    assert kept(home) == {}
    assert checkpoint.is_dir()


def test_a_stopped_pipeline_is_listed_and_shown_and_one_started_again_waits(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        home = Home.existing(server.home)
        write(home.pipelines_path / "events.py.stopped")
        listed = json.loads(said("list", "--json", home=home))["pipelines"]
        assert [(line["name"], line["state"]) for line in listed] == [("events", "stopped")]
        assert "stopped" in said("list", home=home)
        assert json.loads(said("show", "events", "--json", home=home))["state"] == "stopped"
        with tidegate_sdk.connect(home=home.path) as client:
            assert client.pipelines.show("events")["state"] == "stopped"
            assert [line["state"] for line in client.status()["pipelines"]] == ["stopped"]
            said("start", "events", home=home)
            assert client.pipelines.list() == []
        assert json.loads(said("show", "events", "--json", home=home))["state"] == "waiting"


def test_a_report_from_before_the_start_is_shown_as_waiting() -> None:
    reported = [{"name": "events", "state": "stopped"}, {"name": "idle", "state": "stopped"}]
    shown = with_waiting(reported, ["events"])
    assert {line["name"]: line["state"] for line in shown} == {"events": "waiting", "idle": "stopped"}


@pytest.mark.parametrize("verb", ["stop", "start", "remove"])
@pytest.mark.parametrize(
    ("name", "reason"), [("nobody", "no pipeline 'nobody'"), ("../x", "'../x'"), ("event", "'events'")]
)
def test_a_name_that_is_not_there_is_refused(verb: str, name: str, reason: str, home: Home) -> None:
    write(home.pipelines_path / "events.py.stopped")
    answer = tidegate_here("pipeline", verb, name, home=home.path)
    assert answer.returncode == 1
    assert reason in answer.stderr
    assert kept(home) == {"events.py.stopped": GOOD}


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


def test_a_home_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    file = tmp_path / "events.py"
    file.write_text(GOOD, encoding="utf-8")
    answer = tidegate("pipeline", "run", str(file), home=tmp_path / "nowhere")
    assert answer.returncode == 1
    assert not (tmp_path / "nowhere").exists()
