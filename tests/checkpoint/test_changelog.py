"""Change files: what was written is read, in order; every damage is noticed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.checkpoint import changelog
from tidegate.checkpoint.backend import Changes
from tidegate.checkpoint.backends.heap import HeapBackend
from tidegate.checkpoint.changelog import ChangeWriter, parts, read_changes
from tidegate.checkpoint.commit_record import StoredFile
from tidegate.checkpoint.store import Depot
from tidegate.errors import StorageCorrupt

PARTS = [
    Changes([(b"a", b"c")], {b"a1": b"one", b"": b"", b"gone": None}),
    Changes([], {b"a1": None, b"x" * 300: b"y" * 5_000}),
    Changes([(b"p", b"q"), (b"r", b"s")], {}),
]


def written(depot: Depot, changes: list[Changes], name: str = "p/v1.a.changes") -> StoredFile:
    writer = ChangeWriter(depot.writer(name))
    for part in changes:
        writer.add(part)
    return writer.close()


@pytest.fixture
def depot(tmp_path: Path) -> Depot:
    return Depot(tmp_path)


def test_parts_come_back_in_order(depot: Depot) -> None:
    stored = written(depot, PARTS)
    assert list(read_changes(depot, "p", stored)) == PARTS
    assert list(parts(depot.path("p/v1.a.changes").read_bytes(), "here")) == PARTS
    assert (stored.file, stored.rows) == ("v1.a.changes", 8)


def test_a_batch_without_changes_has_a_file_without_parts(depot: Depot) -> None:
    assert list(read_changes(depot, "p", written(depot, [Changes()]))) == []


def test_many_entries_lie_in_several_sections(depot: Depot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "SECTION_ENTRIES_MAX", 10)
    changes = Changes([(b"a", b"b")], {b"%d" % n: b"v" for n in range(25)})
    found = list(read_changes(depot, "p", written(depot, [changes])))
    assert [len(part.entries) for part in found] == [10, 10, 5]
    assert found[0].ranges == [(b"a", b"b")]
    assert {k: v for part in found for k, v in part.entries.items()} == changes.entries


def test_every_changed_or_cut_byte_is_noticed_and_the_file_named(depot: Depot) -> None:
    """Case 8: a damaged change file is never applied."""
    stored = written(depot, PARTS[:1])
    path = depot.path("p/v1.a.changes")
    content = path.read_bytes()
    for at in [*range(0, len(content), 23), *range(len(content) - 20, len(content))]:
        changed = bytearray(content)
        changed[at] ^= 0x10
        for damaged in (bytes(changed), content[:at]):
            path.write_bytes(damaged)
            with pytest.raises(StorageCorrupt, match=r"v1\.a\.changes"):
                read_changes(depot, "p", stored)
            with pytest.raises(StorageCorrupt, match=r"v1\.a\.changes"):
                parts(damaged, str(path))
    path.unlink()
    with pytest.raises(StorageCorrupt, match="missing"):
        read_changes(depot, "p", stored)


def test_a_newer_format_is_refused_with_what_to_do(depot: Depot) -> None:
    written(depot, PARTS)
    content = bytearray(depot.path("p/v1.a.changes").read_bytes())
    struct.pack_into("<H", content, 8, 2)
    with pytest.raises(StorageCorrupt, match="format is 2") as refused:
        parts(bytes(content), "here")
    assert "newer" in refused.value.hint


KEYS = st.binary(max_size=3).filter(lambda key: key < b"\xff\xff")
CHANGES = st.builds(
    Changes,
    st.lists(st.tuples(KEYS, KEYS), max_size=2),
    st.dictionaries(KEYS, st.none() | st.binary(max_size=4), max_size=5),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(CHANGES, max_size=4))
def test_applying_what_was_read_equals_applying_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Changes]
) -> None:
    root = tmp_path_factory.mktemp("changes")
    depot = Depot(root)
    read = read_changes(depot, "p", written(depot, changes))
    assert _applied(root / "a", list(read)) == _applied(root / "b", changes)


def _applied(folder: Path, changes: list[Changes]) -> list[tuple[bytes, bytes]]:
    backend = HeapBackend(folder)
    for part in changes:
        backend.write_partly(part)
    return list(backend.scan(b"", b"\xff\xff"))


def test_the_file_of_another_attempt_under_this_name_is_noticed(depot: Depot) -> None:
    """Whole in itself and of the same size: only the head knows that it is another one."""
    stored = written(depot, [Changes([], {b"a": b"1"})])
    other = written(depot, [Changes([], {b"a": b"2"})], "p/v1.b.changes")
    assert other.size_bytes == stored.size_bytes
    depot.path("p/v1.b.changes").replace(depot.path("p/v1.a.changes"))
    with pytest.raises(StorageCorrupt, match="the head names"):
        read_changes(depot, "p", stored)
