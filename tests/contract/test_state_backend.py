"""Case 5: what every backend of keyed state promises, with random operations compared with a plain model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.backends.opening import open_backend as open_kind
from tests.contract.under_segments import UnderSegments
from tidegate.checkpoint.backend import Backend, StateChanges, Version
from tidegate.checkpoint.keys.layout import META_GROUP, after, entry_prefix
from tidegate.checkpoint.settings import BACKEND_KINDS
from tidegate.errors import InvariantBroken, StateInvalid, StorageCorrupt

KINDS = (*BACKEND_KINDS, "segments")
KEYS = st.text("\x00\x01ab\x7f", min_size=1, max_size=3).map(lambda text: text.encode("latin-1"))
VALUES = st.one_of(st.none(), st.binary(max_size=6), st.just(b"v" * 300))
RANGES = st.tuples(KEYS, KEYS).map(lambda ends: (min(ends), max(ends)))
CHANGES = st.builds(
    StateChanges,
    ranges=st.lists(RANGES, max_size=2),
    entries=st.dictionaries(KEYS, VALUES, max_size=12),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), CHANGES),
        st.tuples(st.just("apply"), CHANGES),
        st.tuples(st.just("partly"), CHANGES),
        st.tuples(st.just("reopen"), st.none()),
        st.tuples(st.just("move"), st.none()),
        st.tuples(st.just("scan"), RANGES),
    ),
    max_size=8,
)


@dataclass
class Model:
    """What a backend should hold."""

    entries: dict[bytes, bytes] = field(default_factory=dict)
    version: Version | None = None

    def take(self, changes: StateChanges, version: Version | None) -> None:
        for start, stop in changes.ranges:
            for key in [key for key in self.entries if start <= key < stop]:
                del self.entries[key]
        for key, value in changes.entries.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
        self.version = version

    def between(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        return [(key, self.entries[key]) for key in sorted(self.entries) if start <= key < stop]


def open_backend(kind: str, folder: Path) -> Backend:
    return UnderSegments(folder) if kind == "segments" else open_kind(kind, folder)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(kind: str, tmp_path: Path) -> Iterator[Backend]:
    opened = open_backend(kind, tmp_path / "copy")
    yield opened
    opened.close()


def version(batch: int) -> Version:
    return Version(epoch=2, batch=batch, commit_id=f"head-{batch}")


def everything(backend: Backend) -> list[tuple[bytes, bytes]]:
    return list(backend.scan(b"", META_GROUP))


def check(backend: Backend, model: Model) -> None:
    assert backend.version() == model.version
    assert everything(backend) == model.between(b"", META_GROUP)
    asked = [b"a", *model.entries, b"nothing", b"a"]
    assert backend.get_many(asked) == [model.entries.get(key) for key in asked]
    assert [backend.get(key) for key in asked] == [model.entries.get(key) for key in asked]


@pytest.mark.parametrize("kind", BACKEND_KINDS)
@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_random_operations_give_what_the_model_gives(kind: str, steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(kind, Path(folder), steps)


@settings(max_examples=8, deadline=None)  # each of its segments is a RocksDB of its own
@given(steps=STEPS)
def test_random_operations_on_segments_give_what_the_model_gives(steps: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run("segments", Path(folder), steps)


def run(kind: str, root: Path, steps: list[tuple[str, object]]) -> None:
    model, here = Model(), root / "copy"
    backend = open_backend(kind, here)
    for number, (step, given_) in enumerate(steps):
        match step, given_:
            case "apply", StateChanges() as changes:
                backend.apply(changes, version(number))
                model.take(changes, version(number))
            case "partly", StateChanges() as changes:
                backend.write_partly(changes)
                model.take(changes, None)
            case "scan", (bytes() as start, bytes() as stop):
                assert list(backend.scan(start, stop)) == model.between(start, stop)
                ranges = [(start, stop), (b"", start), (stop, META_GROUP), (stop, start), (b"a", b"b")]
                for count in (1, 3, 100):
                    wanted = [model.between(*one)[:count] for one in ranges]
                    assert backend.pages(ranges, count) == wanted
            case "reopen", _:
                backend.close()
                backend = open_backend(kind, here)
            case _:
                here = root / f"copy-{number}"
                backend.snapshot(here)
                backend.close()
                backend = open_backend(kind, here)
        check(backend, model)
    backend.close()


def test_a_new_copy_has_no_version_and_no_entries(backend: Backend) -> None:
    assert backend.version() is None
    assert everything(backend) == []
    assert backend.sizes().entry_count == 0


def test_ranges_go_before_entries_are_put(backend: Backend) -> None:
    backend.apply(StateChanges(entries={b"a1": b"old", b"a2": b"old", b"b": b"old"}), version(1))
    backend.apply(StateChanges(ranges=[(b"a", b"b")], entries={b"a2": b"new"}), version(2))
    assert everything(backend) == [(b"a2", b"new"), (b"b", b"old")]


def test_a_range_of_many_entries_goes_whole(backend: Backend) -> None:
    keys = [b"k%05d" % number for number in range(3000)]
    backend.apply(StateChanges(entries=dict.fromkeys(keys, b"v")), version(1))
    backend.apply(StateChanges(ranges=[(b"k00010", b"k02990")]), version(2))
    assert [key for key, _ in everything(backend)] == keys[:10] + keys[2990:]


def test_the_version_survives_closing(kind: str, tmp_path: Path) -> None:
    backend = open_backend(kind, tmp_path)
    backend.apply(StateChanges(entries={b"k": b"v"}), Version(3, 12_345_678_901, "höchst-eigen"))
    backend.close()
    again = open_backend(kind, tmp_path)
    assert again.version() == Version(3, 12_345_678_901, "höchst-eigen")
    again.close()


def test_a_batch_that_is_not_over_leaves_no_version_behind(kind: str, tmp_path: Path) -> None:
    backend = open_backend(kind, tmp_path)
    backend.apply(StateChanges(entries={b"k": b"v"}), version(1))
    backend.write_partly(StateChanges(entries={b"k": b"w"}))
    assert backend.version() is None
    backend.close()
    again = open_backend(kind, tmp_path)
    assert again.version() is None
    again.apply(StateChanges(entries={b"l": b"x"}), version(2))
    assert again.version() == version(2)
    assert everything(again) == [(b"k", b"w"), (b"l", b"x")]
    again.close()


def test_a_file_of_two_snapshots_has_the_same_bytes(backend: Backend, tmp_path: Path) -> None:
    seen: dict[str, bytes] = {}
    for batch in range(6):
        backend.apply(StateChanges(entries={b"k%d" % batch: bytes([batch]) * 50}), version(batch))
        files = backend.snapshot(tmp_path / f"snapshot-{batch}")
        folder = tmp_path / f"snapshot-{batch}"
        assert sorted(files) == sorted(path for path in folder.rglob("*") if path.is_file())
        for file in files:
            content = file.read_bytes()
            assert seen.setdefault(str(file.relative_to(folder)), content) == content


def test_a_snapshot_stays_as_it_was_taken(kind: str, tmp_path: Path) -> None:
    backend = open_backend(kind, tmp_path / "copy")
    backend.apply(StateChanges(entries={b"k": b"then"}), version(1))
    backend.snapshot(tmp_path / "snapshot")
    backend.apply(StateChanges(entries={b"k": b"now"}), version(2))
    then = open_backend(kind, tmp_path / "snapshot")
    assert then.version() == version(1)
    assert everything(then) == [(b"k", b"then")]
    assert everything(backend) == [(b"k", b"now")]
    then.close()
    backend.close()


def test_a_snapshot_into_a_folder_that_is_there_is_refused(backend: Backend, tmp_path: Path) -> None:
    with pytest.raises(InvariantBroken):
        backend.snapshot(tmp_path)


def test_a_damaged_snapshot_is_noticed(kind: str, tmp_path: Path) -> None:
    backend = open_backend(kind, tmp_path / "copy")
    entries: dict[bytes, bytes | None] = {b"k%05d" % number: b"v" * 50 for number in range(2000)}
    backend.apply(StateChanges(entries=entries), version(1))
    files = backend.snapshot(tmp_path / "snapshot")
    backend.close()
    # A filter that is damaged is made again from the keys, so it is not what is damaged here.
    tables = [file for file in files if file.suffix == ".sst"] or files
    largest = max(tables, key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 8] ^= 0x40
    largest.write_bytes(content)
    with pytest.raises(StorageCorrupt) as caught:
        read_whole(kind, tmp_path / "snapshot", list(entries))
    assert str(tmp_path / "snapshot") in str(caught.value)


def test_a_snapshot_with_a_file_cut_short_is_noticed(kind: str, tmp_path: Path) -> None:
    backend = open_backend(kind, tmp_path / "copy")
    backend.apply(StateChanges(entries={b"k": b"v" * 5000}), version(1))
    for file in backend.snapshot(tmp_path / "snapshot"):
        file.write_bytes(file.read_bytes()[:-3])
    backend.close()
    with pytest.raises(StorageCorrupt):
        read_whole(kind, tmp_path / "snapshot", [b"k"])


def read_whole(kind: str, folder: Path, keys: list[bytes]) -> None:
    backend = open_backend(kind, folder)
    try:
        backend.get_many(keys)
        everything(backend)
    finally:
        backend.close()


def test_scans_may_be_read_side_by_side(backend: Backend) -> None:
    entries: dict[bytes, bytes | None] = {b"k%03d" % number: b"%d" % number for number in range(100)}
    backend.apply(StateChanges(entries=entries), version(1))
    one, two = backend.scan(b"k", b"l"), backend.scan(b"k05", b"l")
    pairs = list(zip(one, two, strict=False))
    assert pairs[0] == ((b"k000", b"0"), (b"k050", b"50"))
    assert len(pairs) == 50
    assert len(list(one)) == 49  # zip takes one more before it sees that the other is over


def test_pages_of_many_ranges_end_where_the_ranges_do(backend: Backend) -> None:
    """Also where thousands of deleted keys lie in a range, behind it, and before the first entry of it."""
    keys = [b"k%05d" % number for number in range(6000)]
    backend.apply(StateChanges(entries=dict.fromkeys(keys, b"v")), version(1))
    backend.apply(StateChanges(entries=dict.fromkeys(keys[100:2900] + keys[3000:5000])), version(2))
    left = keys[:100] + keys[2900:3000] + keys[5000:]
    ends = [b"k%05d" % number for number in (0, 50, 90, 100, 500, 2800, 2950, 3000, 4999, 5000, 5990)]
    ranges = [*zip(ends, [*ends[1:], b"\xff\xff\xff"], strict=True), (b"k00010", b"k05500"), (b"k", b"k")]
    for count in (1, 7, 10_000):
        found = [[key for key, _ in page] for page in backend.pages(ranges, count)]
        assert found == [[key for key in left if start <= key < stop][:count] for start, stop in ranges]
    assert backend.pages([], 5) == []


def test_entries_where_the_store_keeps_its_own_are_refused(backend: Backend) -> None:
    with pytest.raises(InvariantBroken):
        backend.apply(StateChanges(entries={META_GROUP + b"version": b"mine"}), version(1))
    assert backend.version() is None
    backend.apply(StateChanges(entries={b"a": b"1"}), version(1))
    with pytest.raises(InvariantBroken):
        backend.apply(StateChanges(entries={b"a": b"2", META_GROUP + b"x": b"mine"}), version(2))
    assert (backend.get(b"a"), backend.version()) == (b"1", version(1))


def test_sizes_follow_what_is_there(backend: Backend) -> None:
    prefix = entry_prefix(1, 1)
    entries: dict[bytes, bytes | None] = {prefix + b"%06d" % number: b"v" * 100 for number in range(1000)}
    backend.apply(StateChanges(entries=entries), version(1))
    assert 900 <= backend.sizes().entry_count <= 1100
    assert backend.sizes().size_bytes > 50_000
    assert after(prefix) > max(entries)


@pytest.mark.parametrize("kind", KINDS)
def test_closing_twice_is_harmless(kind: str, tmp_path: Path) -> None:
    backend = open_backend(kind, tmp_path / "copy")
    backend.apply(StateChanges(entries={b"a": b"1"}), version(3))
    backend.close()
    backend.close()
    again = open_backend(kind, tmp_path / "copy")
    assert (again.get(b"a"), again.version()) == (b"1", version(3))
    again.close()


def test_a_backend_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateInvalid, match="it is 'rocksdb' or 'heap'"):
        open_kind("redis", tmp_path)
