"""The checkpoint store: whole files under names that are linked once."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from tidegate.checkpoint.store import CheckpointDisk, CheckpointStore, checkpoint_path, operator_store
from tidegate.errors import CheckpointUnusable, StorageFull


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "state" / "op")


def test_a_name_is_given_once_and_the_first_bytes_stay(store: CheckpointStore) -> None:
    assert store.put_new("e0/0/v1.head", b"first") is True
    assert store.put_new("e0/0/v1.head", b"second") is False
    assert store.read("e0/0/v1.head") == b"first"
    assert store.names("e0/0") == ["v1.head"]


def test_of_many_writers_at_once_one_wins_and_all_know_it(store: CheckpointStore) -> None:
    won: list[int] = []
    ready = threading.Barrier(8)

    def put(number: int) -> None:
        ready.wait()
        if store.put_new("head", b"%d" % number * 1_000):
            won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("head") == b"%d" % won[0] * 1_000


def test_a_link_whose_answer_was_lost_counts_as_ours(tmp_path: Path) -> None:
    class Forgetful(CheckpointDisk):
        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            raise FileExistsError(errno.EEXIST, "the answer was lost and the call repeated")

    assert CheckpointStore(tmp_path, Forgetful()).put_new("head", b"ours") is True


def test_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    class Full(CheckpointDisk):
        def write(self, file: BinaryIO, content: bytes | memoryview) -> None:
            file.write(bytes(content)[:3])
            raise OSError(errno.ENOSPC, "no room")

    store = CheckpointStore(tmp_path, Full())
    with pytest.raises(StorageFull, match="head"):
        store.put_new("e0/head", b"bytes")
    with pytest.raises(StorageFull), store.writer("e0/file") as writer:
        writer.write(b"bytes")
    assert store.names("e0") == []
    assert CheckpointStore(tmp_path).put_new("e0/head", b"bytes")


def test_a_disk_without_links_is_refused(tmp_path: Path) -> None:
    class Linkless(CheckpointDisk):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, f"{source} and {target} cannot be one")

    with pytest.raises(CheckpointUnusable, match="no hard links"):
        CheckpointStore(tmp_path, Linkless()).put_new("head", b"bytes")


def test_a_streamed_file_is_gone_after_an_error_and_its_name_is_exclusive(store: CheckpointStore) -> None:
    def cut_short() -> None:
        with store.writer("e0/file") as writer:
            writer.write(b"half")
            raise ValueError("the rest never comes")

    with pytest.raises(ValueError, match="never comes"):
        cut_short()
    assert store.names("e0") == []
    with store.writer("e0/file") as writer:
        writer.write(b"whole")
    with pytest.raises(FileExistsError):
        store.writer("e0/file")
    assert store.read("e0/file") == b"whole"


def test_missing_names_are_none_and_empty(store: CheckpointStore) -> None:
    assert store.read("e9/0/v1.head") is None
    assert store.names("e9") == []
    store.remove("e9/0/v1.head")


@pytest.mark.parametrize("address", ["/a/b", "file:/a/b", "file:///a/b"])
def test_a_checkpoint_is_a_path_or_a_file_address(address: str) -> None:
    assert checkpoint_path(address) == Path("/a/b")
    assert operator_store(address, "op").root == Path("/a/b/state/op")


@pytest.mark.parametrize("address", ["s3a://bucket/a", "hdfs://host/a", "dbfs:/a"])
def test_any_other_scheme_is_refused(address: str) -> None:
    with pytest.raises(CheckpointUnusable, match="shared file system"):
        checkpoint_path(address)
