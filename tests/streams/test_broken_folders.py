"""A table whose folder something else broke: it alone fails, and it can be dropped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.streams.factories import BROKEN, FailingDisk, make_store, make_table, texts
from tidegate.errors import StorageFailed
from tidegate.streams.store import StreamStore
from tidegate.testing.clock import ManualClock

TABLE = make_table()
OTHER = make_table(id=2, name="other")


def _break(folder: Path) -> Path:
    """Put a file where the table's folder was."""
    path = folder / "streams/chat/typing"
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("not a folder")
    return path


@pytest.mark.parametrize("is_new", [False, True], ids=["open", "after a start"])
def test_a_file_in_the_place_of_a_table_is_dropped_and_swept(
    tmp_path: Path, clock: ManualClock, is_new: bool
) -> None:
    store = make_store(tmp_path, clock)
    store.append(TABLE, "alice", [(1, "a")])
    if is_new:
        store.close()
        store = make_store(tmp_path, clock)
    path = _break(tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: store.evict(TABLE),
        lambda: store.describe(TABLE),
        lambda: store.read(TABLE, "alice"),
    ]
    for call in calls if is_new else calls[:2]:
        with pytest.raises(StorageFailed) as caught:
            call()
        assert "was stored" not in caught.value.hint
        assert "Errno" not in str(caught.value)
    store.drop(TABLE)
    assert not path.exists()
    assert store.sweep().files == 1
    later = make_table(id=3)
    store.append(later, "alice", [(2, "b")])
    assert texts(store, later) == ["b"]
    store.close()


def test_a_table_whose_owner_or_namespace_cannot_be_told_is_dropped(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = make_store(tmp_path, clock)
    store.append(TABLE, "alice", [(1, "a")])
    (tmp_path / "streams/chat/typing/table.id").write_bytes(b"\0\0")
    store.drop(TABLE)
    assert not (tmp_path / "streams/chat/typing").exists()
    (tmp_path / "streams/chat").rmdir()
    (tmp_path / "streams/chat").touch()
    store.drop(OTHER)
    store.close()


def test_what_cannot_be_removed_keeps_nothing_else_in_the_trash(tmp_path: Path, clock: ManualClock) -> None:
    class StubbornDisk(FailingDisk):
        def unlink(self, path: str) -> None:
            if "stubborn" in path:
                raise OSError(BROKEN, "it stays")
            super().unlink(path)

    store = make_store(tmp_path, clock, disk=StubbornDisk())
    for number, name in enumerate(("a", "stubborn", "z"), start=1):
        for tenant in ("default", "more"):
            table = make_table(id=number, name=name, tenant=tenant)
            store.append(table, "alice", [(1, "a")])
            store.drop(table)
    with pytest.raises(StorageFailed, match="it stays") as caught:
        store.sweep()
    assert "next round" in caught.value.hint
    left = {path.name.partition("-")[2] for path in tmp_path.rglob(".trash/*")}
    assert left == {"stubborn"}
    store.close()


def test_a_write_that_is_refused_says_that_nothing_was_stored(
    tmp_path: Path, store: StreamStore, disk: FailingDisk
) -> None:
    store.append(TABLE, "alice", [(1, "a")])
    disk.write_fault = BROKEN
    with pytest.raises(StorageFailed) as caught:
        store.flush()
    assert caught.value.hint.startswith("Rows that were acknowledged are kept")
    with pytest.raises(StorageFailed) as caught:
        store.append(TABLE, "alice", [(2, "b")])
    assert caught.value.hint.startswith("Nothing of this write was stored")
