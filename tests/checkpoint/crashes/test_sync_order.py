"""The order of calls to the disk: what a name leads to is there before it, also after a loss of power."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from tests.checkpoint import batches
from tests.checkpoint.batches import Job, settings
from tidegate.checkpoint.local.pool import pool
from tidegate.checkpoint.store import CheckpointDisk


@pytest.fixture(autouse=True)
def closed_pool() -> Iterator[None]:
    yield
    pool().close()


class Recording(CheckpointDisk):
    """A disk that remembers the order of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def sync(self, file: BinaryIO) -> None:
        super().sync(file)
        path = Path(f"/proc/self/fd/{file.fileno()}").readlink()
        self.calls.append(("upload" if path.parent.name == "sst" else "sync", path.name))

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        self.calls.append(("link", target.name))

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        self.calls.append(("folder", path.name))

    def before_and_after(self, name: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        at = self.calls.index(("link", name))
        return self.calls[:at], self.calls[at + 1 :]


def test_a_name_is_given_when_all_behind_it_is_on_the_disk_and_counts_when_it_is_itself(
    tmp_path: Path,
) -> None:
    """A loss of power at any moment: nothing that is named is missing, nothing that was given out is gone."""
    job = Job(tmp_path, settings(tmp_path, snapshot_every_batches=1), disk=Recording())
    assert isinstance(job.disk, Recording)
    job.do(0)
    job.do(1)
    for name, kinds in {"v0.head": ("changes", "out"), "v1.head": ("changes", "out")}.items():
        before, after = job.disk.before_and_after(name)
        stem = name.removesuffix("head")
        at = [place for place, (call, file) in enumerate(before) if call == "sync" and file.startswith(stem)]
        assert {before[place][1].rpartition(".")[2] for place in at} == {*kinds, "new"}
        files = [place for place in at if not before[place][1].endswith(".new")]
        assert ("folder", "0") in before[max(files) :]
        assert after[0] == ("folder", "0")
    before, after = job.disk.before_and_after("1.snapshot")
    uploads = [place for place, (call, file) in enumerate(before) if call == "upload" and file[:2] == "1."]
    assert ("folder", "sst") in before[max(uploads) :]
    assert before[-1] == ("sync", "1.snapshot.0.new")
    assert after[0] == ("folder", "0")
    before, after = job.disk.before_and_after("epoch.json")
    assert before[-1][0] == "sync"
    assert after[:3] == [("folder", "e0"), ("folder", "e0"), ("folder", batches.OPERATOR)]
    # The folders above the first commit record are synced, whoever made them.
    before, _ = job.disk.before_and_after("v0.head")
    assert [file for call, file in before if call == "folder"][-5:] == [
        *("0", "e0", batches.OPERATOR, "state", "checkpoint")
    ]


def test_what_is_given_out_again_is_put_on_the_disk_first(tmp_path: Path) -> None:
    job = Job(tmp_path, settings(tmp_path))
    job.do(0)
    job.disk = Recording()
    job.do(0)
    assert job.disk.calls[-1] == ("folder", "0")
