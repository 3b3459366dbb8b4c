from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tidegate.cli.checks import machine
from tidegate.cli.checks.machine import (
    OPEN_FILES_MIN,
    Mount,
    check_clock,
    check_clock_sync,
    check_disk_room,
    check_file_system,
    check_hard_links,
    check_memory,
    check_open_files,
    existing_parent,
    memory_limit_bytes,
    newest_time,
    read_mounts,
)
from tidegate.settings import load_settings

MIB = 1024 * 1024


def test_memory_that_the_settings_give_away_must_be_there(tmp_path: Path) -> None:
    settings = load_settings(None, {}, {"worker.driver_memory_mb": 4096})
    assert check_memory(64_000 * MIB, settings).state == "ok"
    tight = check_memory(5_000 * MIB, settings)
    assert (tight.state, "driver_memory_mb = 1666" in tight.fix) == ("warn", True)
    assert check_memory(4_000 * MIB, settings).state == "fail"


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n", encoding="ascii")
    assert memory_limit_bytes(limit) == 1048576
    limit.write_text("max\n", encoding="ascii")
    assert memory_limit_bytes(limit) == memory_limit_bytes(tmp_path / "none") > 1048576


def test_few_open_files_are_a_warning_with_the_way_that_helps() -> None:
    assert check_open_files(OPEN_FILES_MIN, OPEN_FILES_MIN).state == "ok"
    assert check_open_files(-1, -1).state == "ok"
    assert "ulimit" in check_open_files(256, 10_000).fix
    assert "LimitNOFILE" in check_open_files(256, 1024).fix


def test_a_clock_behind_what_is_stored_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "000001.log"
    file.touch()
    ahead = time.time() + 3600
    os.utime(file, (ahead, ahead))
    (tmp_path / "older").touch()
    newest, name = newest_time(tmp_path.iterdir())
    found = check_clock(time.time(), newest, name)
    assert (found.state, str(file) in found.found) == ("warn", True)
    assert check_clock(ahead + 1, newest, name).state == "ok"
    assert check_clock(time.time(), *newest_time([tmp_path / "none"])).state == "ok"


def test_a_clock_that_nothing_keeps_right_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ANSWER_SECONDS_MAX", 60.0)
    for word, state in (("yes", "ok"), ("no", "warn")):
        told = tmp_path / word
        told.write_text(f"#!/bin/sh\necho {word}\n", encoding="utf-8")
        told.chmod(0o755)
        found = check_clock_sync(str(told))
        assert found is not None
        assert found.state == state
    assert check_clock_sync(str(tmp_path / "none")) is None
    assert check_clock_sync("false") is None


def test_a_full_disk_fails_and_a_nearly_full_one_is_a_warning(tmp_path: Path) -> None:
    assert check_disk_room(10_000_000, 64 * MIB, tmp_path).state == "fail"
    assert check_disk_room(100_000_000, 64 * MIB, tmp_path).state == "warn"
    assert check_disk_room(9_000_000_000, 64 * MIB, tmp_path).state == "ok"


def test_network_and_memory_file_systems_are_warnings(tmp_path: Path) -> None:
    disk = Mount("/", "ext4")
    for kind, state in (("nfs4", "warn"), ("tmpfs", "warn"), ("xfs", "ok")):
        found = check_file_system(tmp_path, [disk, Mount(str(tmp_path), kind)])
        assert (found.state, kind in found.found) == (state, True)
    assert check_file_system(tmp_path, [disk, Mount("/elsewhere", "nfs4")]).state == "ok"
    assert check_file_system(tmp_path, []).state == "ok"


def test_a_later_mount_covers_an_earlier_one_at_the_same_place() -> None:
    found = check_file_system(Path("/"), [Mount("/", "nfs4"), Mount("/", "ext4")])
    assert found.state == "ok"


def test_mounts_are_read_with_blanks_in_their_names(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "26 25 0:5 / /my\\040disk rw shared:2 master:1 - nfs4 host:/x rw\n",
        encoding="utf-8",
    )
    assert read_mounts(table) == [Mount("/", "ext4"), Mount("/my disk", "nfs4")]
    assert read_mounts(tmp_path / "none") == []


def test_hard_links_are_tried_and_nothing_is_left(tmp_path: Path) -> None:
    def refuse(_first: Path, _second: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    assert check_hard_links(tmp_path).state == "ok"
    assert check_hard_links(tmp_path, refuse).state == "warn"
    assert list(tmp_path.iterdir()) == []
    assert check_hard_links(tmp_path / "none").state == "fail"


def test_a_path_that_is_not_there_stands_on_the_folder_above(tmp_path: Path) -> None:
    assert existing_parent(tmp_path / "a" / "b") == tmp_path
