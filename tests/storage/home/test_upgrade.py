"""Upgrade of a home: the old one is kept whole, the new one has everything, and no kill loses a thing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.upkeep.backup.homes import TOKEN, make_layout_1, new_token, opened_topics, table_rows, tree
from tidegate.errors import HomeLocked, HomeUnusable, StorageFull
from tidegate.storage.home import upgrade
from tidegate.storage.home.home import FOLDERS, Home
from tidegate.storage.home.locks import take_lock

KILLS = 6
FILES_OF_RUNNING = ("locks/", "run/")


def _kept(home: Path) -> list[Path]:
    return sorted((home / "kept").glob("layout-1-*"))


def _still(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out what belongs to running processes, and the copies."""
    return {
        path: content for path, content in files.items() if not path.startswith(("kept/", *FILES_OF_RUNNING))
    }


def test_an_old_home_is_upgraded_and_a_whole_copy_kept(tmp_path: Path) -> None:
    make_layout_1(tmp_path / "home", 50)
    before = _still(tree(tmp_path / "home"))
    home = Home.open(tmp_path / "home", new_token)
    # The new one: everything that was there, and what the layout adds.
    assert json.loads((home.path / "layout.json").read_text()) == {"layout": 4}
    assert home.read_token() == TOKEN
    assert home.home_id
    assert {entry.name for entry in home.path.iterdir() if entry.is_dir()} == set(FOLDERS)
    with opened_topics(home.engine_path) as topics:
        assert topics.numbers() == list(range(50))
        topics.publish(10)
    # The copy: a whole home of the old layout, on which later writes have no effect.
    (kept,) = _kept(home.path)
    assert _still(tree(kept)) == before
    assert sorted(entry.name for entry in kept.iterdir() if entry.is_dir()) == sorted(
        ["locks", "run", "engine", "lake", "checkpoints", "pipelines", "logs"]
    )
    with opened_topics(kept / "engine") as topics:
        assert topics.numbers() == list(range(50))
    assert table_rows(kept / "lake" / "readings") == table_rows(home.lake_path / "readings") == 30


def test_a_home_of_layout_2_is_kept_whole_and_its_noted_parts_stay_noted(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home", new_token)
    with opened_topics(home.engine_path) as topics:
        topics.publish(20)
    layout_2 = {"layout": 2, "parts": ["catalog", "engine"]}
    (home.path / "layout.json").write_text(json.dumps(layout_2))
    before = _still(tree(home.path))
    again = Home.open(home.path, new_token)
    assert json.loads((home.path / "layout.json").read_text()) == {**layout_2, "layout": 4}
    assert again.lost_parts() == ["catalog"], "a part that held something is missed after an upgrade too"
    (kept,) = (home.path / "kept").glob("layout-2-*")
    assert _still(tree(kept)) == before
    with opened_topics(home.engine_path) as topics:
        assert topics.numbers() == list(range(20))


def test_immutable_files_are_shared_and_others_copied(tmp_path: Path) -> None:
    make_layout_1(tmp_path / "home", 50)
    home = Home.open(tmp_path / "home", new_token)
    (kept,) = _kept(home.path)
    for path in tree(kept):
        shared = (kept / path).samefile(home.path / path)
        immutable = path.endswith((".sst", ".parquet")) or "_delta_log/0" in path
        assert shared == immutable, path


def test_opening_again_keeps_no_second_copy(tmp_path: Path) -> None:
    make_layout_1(tmp_path / "home", 1)
    for _ in range(2):
        Home.open(tmp_path / "home", new_token)
    assert len(_kept(tmp_path / "home")) == 1


@pytest.mark.parametrize("kind", ["server", "worker"])
def test_an_old_home_in_use_is_refused_and_untouched(tmp_path: Path, kind: str) -> None:
    make_layout_1(tmp_path / "home", 1)
    lock = take_lock(tmp_path / "home", kind, 0)  # type: ignore[arg-type]
    before = _still(tree(tmp_path / "home"))
    with pytest.raises(HomeLocked):
        Home.open(tmp_path / "home", new_token)
    lock.release()
    assert _still(tree(tmp_path / "home")) == before
    assert not _kept(tmp_path / "home")


def test_commands_beside_an_old_home_say_what_to_do(tmp_path: Path) -> None:
    make_layout_1(tmp_path / "home", 1)
    with pytest.raises(HomeUnusable, match="layout 1") as caught:
        Home.existing(tmp_path / "home")
    assert "tidegate up" in caught.value.hint


def test_a_disk_without_room_leaves_the_old_home_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_layout_1(tmp_path / "home", 5)
    before = _still(tree(tmp_path / "home"))

    def full(_source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(upgrade, "copy_file", full)
    with pytest.raises(StorageFull):
        Home.open(tmp_path / "home", new_token)
    assert _still(tree(tmp_path / "home")) == before
    assert not list((tmp_path / "home" / "kept").iterdir())


UPGRADE = """
import secrets, sys
from pathlib import Path
from tidegate.storage.home.home import Home
print("go", flush=True)
Home.open(Path(sys.argv[1]), lambda: secrets.token_urlsafe(32))
"""


@pytest.mark.crash
def test_a_kill_at_any_moment_of_an_upgrade_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.randbelow(10**6)
    with capsys.disabled():
        print(f" upgrade kills with seed {seed} ", end="", flush=True)
    choice = random.Random(seed)
    home = tmp_path / "home"
    make_layout_1(home, 50)
    for number in range(300):  # so that the copy takes a moment
        (home / "checkpoints" / "readings" / "offsets" / str(number)).write_text(str(number))
    before = _still(tree(home))
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", UPGRADE, str(home)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(choice.random() * 0.3)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        after = _still(tree(home))
        assert before.items() - after.items() in (set(), {("layout.json", before["layout.json"])}), seed
    Home.open(home, new_token)
    kept = _kept(home)
    assert kept, seed
    for copy in kept:
        # A start that was killed right before its end has left the id of the home behind.
        files = {path: content for path, content in _still(tree(copy)).items() if path != "home.id"}
        assert files == before, f"seed {seed}: {copy}"
    assert not list((home / "kept").glob("*.partial")), seed
    with opened_topics(home / "engine") as topics:
        assert topics.numbers() == list(range(50))
