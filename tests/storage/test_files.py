"""Free room on a disk, and what is refused without it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tidegate.errors import StorageFailed, StorageFull
from tidegate.storage.files import disk_error, disk_free_bytes, require_room


def test_a_folder_that_was_removed_takes_no_write(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    require_room(folder, 1, bytes_min=1)
    shutil.rmtree(folder)
    with pytest.raises(StorageFailed, match="store"):
        require_room(folder, 1, bytes_min=1)


def test_a_write_that_would_touch_the_reserve_is_refused(tmp_path: Path) -> None:
    require_room(tmp_path, 90, bytes_min=10, free_bytes_of=lambda _: 100)
    with pytest.raises(StorageFull):
        require_room(tmp_path, 91, bytes_min=10, free_bytes_of=lambda _: 100)


def test_the_room_for_a_path_that_is_still_to_be_made_is_that_of_its_disk(tmp_path: Path) -> None:
    usage = os.statvfs(tmp_path)
    room = disk_free_bytes(tmp_path / "a" / "b")
    assert abs(room - usage.f_bavail * usage.f_frsize) < 1 << 30
    (tmp_path / "file").write_text("")
    assert disk_free_bytes(tmp_path / "file" / "below") > 0


def test_a_full_disk_is_told_from_another_failure(tmp_path: Path) -> None:
    full = disk_error(tmp_path / "gone", OSError(28, "No space left on device"))
    assert isinstance(full, StorageFull)
    assert full.values["free_bytes"] > 0
    assert isinstance(disk_error(tmp_path, OSError(5, "Input/output error")), StorageFailed)
