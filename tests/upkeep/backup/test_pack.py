"""Packing: a file is there whole or not at all, and two packers do not get into each other's way."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.upkeep.backup.homes import no_report
from tidegate.errors import RequestInvalid
from tidegate.upkeep.backup.home_snapshot import CONTENT_FOLDER, FreezeNotes
from tidegate.upkeep.backup.pack import BackupFile, pack
from tidegate.upkeep.backup.restore import read_manifest


def _frozen(folder: Path, digit: str) -> Path:
    (folder / CONTENT_FOLDER).mkdir(parents=True)
    FreezeNotes(digit * 16, 2, "2026-01-01T00:00:00Z").write(folder)
    (folder / CONTENT_FOLDER / "layout.json").write_text('{"layout": 2}')
    (folder / CONTENT_FOLDER / "large").write_bytes(digit.encode() * (3 << 20))
    return folder


def _pack(
    folder: Path, file: Path, *, force: bool, report: Callable[[int, int], None] = no_report
) -> BackupFile:
    return pack(folder, file, tidegate_version="0", force=force, report=report)


@pytest.mark.parametrize("force", [False, True])
def test_of_two_packers_of_one_file_each_writes_its_own(tmp_path: Path, force: bool) -> None:
    slow, quick = _frozen(tmp_path / "slow", "a"), _frozen(tmp_path / "quick", "b")
    file = tmp_path / "out" / "b.tar"
    file.parent.mkdir()
    begun: list[int] = []

    def overtake(done: int, _total: int) -> None:
        if not begun:
            begun.append(done)
            _pack(quick, file, force=force)
            assert read_manifest(file).home_id == "b" * 16

    if force:
        _pack(slow, file, force=True, report=overtake)
        assert read_manifest(file).home_id == "a" * 16
    else:
        with pytest.raises(RequestInvalid, match="already exists"):
            _pack(slow, file, force=False, report=overtake)
        assert read_manifest(file).home_id == "b" * 16
    assert [path.name for path in file.parent.iterdir()] == ["b.tar"]


def test_a_pack_that_fails_leaves_no_file(tmp_path: Path) -> None:
    folder = _frozen(tmp_path / "frozen", "a")
    file = tmp_path / "out" / "b.tar"
    file.parent.mkdir()

    def fail(_done: int, _total: int) -> None:
        assert not file.exists(), "the file has its name before it is complete"
        raise OSError(5, "the disk said no")

    with pytest.raises(Exception, match="the disk said no"):
        _pack(folder, file, force=False, report=fail)
    assert list(file.parent.iterdir()) == []


PACK = """
import os, sys
from pathlib import Path
from tidegate.upkeep.backup.pack import pack
def kill(done, total):
    if done == total:
        os.kill(os.getpid(), 9)
pack(Path(sys.argv[1]), Path(sys.argv[2]), tidegate_version="0", force=True, report=kill)
"""


def test_a_pack_that_is_killed_leaves_the_old_file_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    folder = _frozen(tmp_path / "frozen", "a")
    file = tmp_path / "out" / "b.tar"
    file.parent.mkdir()
    file.write_text("the backup of yesterday")
    child = subprocess.run([sys.executable, "-c", PACK, str(folder), str(file)], check=False)
    assert child.returncode == -signal.SIGKILL
    assert file.read_text() == "the backup of yesterday"
    assert len(list(file.parent.iterdir())) == 2
    others = [file.parent / "b.tar.12345678.partial", file.parent / "b.tar.mine.partial"]
    for other in others:
        other.write_text("x")
    with others[0].open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)  # its packer is at work still
        _pack(folder, file, force=True)
    assert sorted(file.parent.iterdir()) == sorted([file, *others])
    assert read_manifest(file).home_id == "a" * 16


def test_a_disk_without_links_keeps_a_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _frozen(tmp_path / "frozen", "a")
    file = tmp_path / "b.tar"

    def no_links(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    def meanwhile(_done: int, _total: int) -> None:
        file.write_text("precious")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(RequestInvalid):
        _pack(folder, file, force=False, report=meanwhile)
    assert file.read_text() == "precious"
    file.unlink()
    _pack(folder, file, force=False)
    assert read_manifest(file).home_id == "a" * 16
