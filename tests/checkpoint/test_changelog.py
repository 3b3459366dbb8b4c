"""Change files: what was written is read, in order; every damage is noticed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.checkpoint import changelog
from tidegate.checkpoint.backend import StateChanges
from tidegate.checkpoint.backends.heap import HeapBackend
from tidegate.checkpoint.changelog import ChangelogWriter, decode_changes, read_changes
from tidegate.checkpoint.commit_record import StoredFile
from tidegate.checkpoint.store import CheckpointStore
from tidegate.errors import StorageCorrupt

PARTS = [
    StateChanges([(b"a", b"c")], {b"a1": b"one", b"": b"", b"gone": None}),
    StateChanges([], {b"a1": None, b"x" * 300: b"y" * 5_000}),
    StateChanges([(b"p", b"q"), (b"r", b"s")], {}),
]


def written(store: CheckpointStore, changes: list[StateChanges], name: str = "p/v1.a.changes") -> StoredFile:
    writer = ChangelogWriter(store.writer(name))
    for part in changes:
        writer.add(part)
    return writer.close()


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def test_parts_come_back_in_order(store: CheckpointStore) -> None:
    stored = written(store, PARTS)
    assert list(read_changes(store, "p", stored)) == PARTS
    assert list(decode_changes(store.path("p/v1.a.changes").read_bytes(), "here")) == PARTS
    assert (stored.file, stored.rows) == ("v1.a.changes", 8)


def test_a_batch_without_changes_has_a_file_without_parts(store: CheckpointStore) -> None:
    assert list(read_changes(store, "p", written(store, [StateChanges()]))) == []


def test_many_entries_lie_in_several_sections(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "SECTION_ENTRIES_MAX", 10)
    changes = StateChanges([(b"a", b"b")], {b"%d" % n: b"v" for n in range(25)})
    found = list(read_changes(store, "p", written(store, [changes])))
    assert [len(part.entries) for part in found] == [10, 10, 5]
    assert found[0].ranges == [(b"a", b"b")]
    assert {k: v for part in found for k, v in part.entries.items()} == changes.entries


def test_every_changed_or_cut_byte_is_noticed_and_the_file_named(store: CheckpointStore) -> None:
    """Case 8: a damaged change file is never applied."""
    stored = written(store, PARTS[:1])
    path = store.path("p/v1.a.changes")
    content = path.read_bytes()
    for at in [*range(0, len(content), 23), *range(len(content) - 20, len(content))]:
        changed = bytearray(content)
        changed[at] ^= 0x10
        for damaged in (bytes(changed), content[:at]):
            path.write_bytes(damaged)
            with pytest.raises(StorageCorrupt, match=r"v1\.a\.changes"):
                read_changes(store, "p", stored)
            with pytest.raises(StorageCorrupt, match=r"v1\.a\.changes"):
                decode_changes(damaged, str(path))
    path.unlink()
    with pytest.raises(StorageCorrupt, match="missing"):
        read_changes(store, "p", stored)


def test_a_newer_format_is_refused_with_what_to_do(store: CheckpointStore) -> None:
    written(store, PARTS)
    content = bytearray(store.path("p/v1.a.changes").read_bytes())
    struct.pack_into("<H", content, 8, 2)
    with pytest.raises(StorageCorrupt, match="format is 2") as refused:
        decode_changes(bytes(content), "here")
    assert "newer" in refused.value.hint


KEYS = st.binary(max_size=3).filter(lambda key: key < b"\xff\xff")
CHANGES = st.builds(
    StateChanges,
    st.lists(st.tuples(KEYS, KEYS), max_size=2),
    st.dictionaries(KEYS, st.none() | st.binary(max_size=4), max_size=5),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(CHANGES, max_size=4))
def test_applying_what_was_read_equals_applying_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, changes: list[StateChanges]
) -> None:
    root = tmp_path_factory.mktemp("changes")
    store = CheckpointStore(root)
    read = read_changes(store, "p", written(store, changes))
    assert _applied(root / "a", list(read)) == _applied(root / "b", changes)


def _applied(folder: Path, changes: list[StateChanges]) -> list[tuple[bytes, bytes]]:
    backend = HeapBackend(folder)
    for part in changes:
        backend.write_partly(part)
    return list(backend.scan(b"", b"\xff\xff"))


def test_the_file_of_another_attempt_under_this_name_is_noticed(store: CheckpointStore) -> None:
    """Whole in itself and of the same size: only the commit record shows that it is another one."""
    stored = written(store, [StateChanges([], {b"a": b"1"})])
    other = written(store, [StateChanges([], {b"a": b"2"})], "p/v1.b.changes")
    assert other.size_bytes == stored.size_bytes
    store.path("p/v1.b.changes").replace(store.path("p/v1.a.changes"))
    with pytest.raises(StorageCorrupt, match="the commit record names"):
        read_changes(store, "p", stored)
