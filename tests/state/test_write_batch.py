"""The write batch: reads see what is written, rows roll back exactly, large batches spill (cases 1, 5, 8)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.backends.opening import open_backend
from tidegate.checkpoint.backend import Backend, StateChanges, Version
from tidegate.checkpoint.backends.heap import HeapBackend
from tidegate.checkpoint.keys.layout import META_GROUP, after
from tidegate.errors import InvariantBroken
from tidegate.state import write_batch as stage_module
from tidegate.state.write_batch import WriteBatch

PREFIXES = [b"a", b"ab", b"b\xff", b"c"]
SCANNED = [b"s1", b"s2\xff"]
FIRST = Version(0, 0, "first")
KEYS = st.builds(lambda prefix, end: prefix + end, st.sampled_from(PREFIXES), st.binary(max_size=1))
SUBS = st.tuples(st.sampled_from(SCANNED), st.sampled_from([b"", b"\x00", b"x", b"y"]))
VALUES = st.binary(max_size=3)
RANGES = st.tuples(KEYS, KEYS).map(lambda ends: (min(ends), max(ends)))

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, VALUES),
        st.tuples(st.just("delete"), KEYS, st.none()),
        st.tuples(st.just("put_many"), st.lists(KEYS, unique=True, max_size=4), VALUES),
        st.tuples(st.just("put_sub"), SUBS, VALUES),
        st.tuples(st.just("delete_sub"), SUBS, st.none()),
        st.tuples(st.just("clear_sub"), st.sampled_from(SCANNED), st.none()),
        st.tuples(st.just("delete_range"), RANGES, st.none()),
        st.tuples(st.just("prefetch"), st.lists(KEYS, max_size=4), st.none()),
        st.tuples(st.just("begin_row"), st.none(), st.none()),
        st.tuples(st.just("undo_row"), st.none(), st.none()),
        st.tuples(st.just("keep_row"), st.none(), st.none()),
        st.tuples(st.just("check"), RANGES, st.none()),
    ),
    max_size=25,
)


class Model:
    """What the batch sees, as one dict, and as it was when the row began."""

    def __init__(self, entries: dict[bytes, bytes]) -> None:
        self.entries = dict(entries)
        self.before: dict[bytes, bytes] | None = None

    def drop(self, start: bytes, stop: bytes) -> None:
        self.entries = {key: value for key, value in self.entries.items() if not start <= key < stop}

    def between(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        return [(key, self.entries[key]) for key in sorted(self.entries) if start <= key < stop]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    opened = open_backend("heap", tmp_path)
    opened.apply(StateChanges(entries={b"k1": b"1", b"k2": b"2", b"m1": b"old", b"m3": b"old"}), FIRST)
    yield opened
    opened.close()


@settings(max_examples=150, deadline=None)
@given(
    stored=st.dictionaries(st.one_of(KEYS, SUBS.map(b"".join)), VALUES, max_size=12),
    steps=STEPS,
    spills=st.booleans(),
)
def test_a_batch_sees_what_it_wrote(
    stored: dict[bytes, bytes], steps: list[tuple[str, object, object]], spills: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        backend = HeapBackend(Path(folder))
        backend.apply(StateChanges(entries=dict(stored)), FIRST)
        model, spilled = Model(stored), list[StateChanges]()
        stage = WriteBatch(
            backend, stage_bytes_max=400 if spills else 1 << 20, spill=spilled.append if spills else None
        )
        for step in steps:
            act(stage, model, step)
        check(stage, model, (b"", META_GROUP))
        stage.keep_row()
        last = stage.take()
        assert not stage.take()
        backend.apply(last, Version(0, 1, "second"))
        assert dict(backend.scan(b"", META_GROUP)) == model.entries
        assert replayed(stored, [*spilled, last]) == model.entries


def replayed(stored: dict[bytes, bytes], parts: list[StateChanges]) -> dict[bytes, bytes]:
    """Do again, from the changes alone, what the batch did."""
    model = Model(stored)
    for part in parts:
        for start, stop in part.ranges:
            model.drop(start, stop)
        for key, value in part.entries.items():
            model.entries.pop(key, None)
            if value is not None:
                model.entries[key] = value
    return model.entries


def act(stage: WriteBatch, model: Model, step: tuple[str, object, object]) -> None:
    match step:
        case ("put", bytes() as key, bytes() as value):
            stage.put(key, value)
            model.entries[key] = value
        case ("delete", bytes() as key, _):
            stage.delete(key)
            model.entries.pop(key, None)
        case ("put_many", list() as keys, bytes() as value):
            stage.put_many(keys, [value] * len(keys))
            model.entries |= dict.fromkeys(keys, value)
        case ("put_sub", (bytes() as prefix, bytes() as end), bytes() as value):
            stage.put_sub(prefix, prefix + end, value)
            model.entries[prefix + end] = value
        case ("delete_sub", (bytes() as prefix, bytes() as end), _):
            stage.delete_sub(prefix, prefix + end)
            model.entries.pop(prefix + end, None)
        case ("clear_sub", bytes() as prefix, _):
            stage.clear_sub(prefix)
            model.drop(prefix, after(prefix))
        case ("delete_range", (bytes() as start, bytes() as stop), _):
            stage.delete_range(start, stop)
            model.drop(start, stop)
        case ("prefetch", list() as keys, _):
            stage.prefetch(keys)
        case ("check", (bytes() as start, bytes() as stop), _):
            check(stage, model, (start, stop))
        case (name, _, _):
            turn_row(stage, model, name)


def turn_row(stage: WriteBatch, model: Model, name: str) -> None:
    if name == "begin_row":
        stage.begin_row()
        model.before = dict(model.entries)
    elif name == "keep_row":
        stage.keep_row()
        model.before = None
    elif model.before is not None:
        stage.undo_row()
        model.entries, model.before = model.before, None


def check(stage: WriteBatch, model: Model, span: tuple[bytes, bytes]) -> None:
    asked = sorted({*model.entries, b"a", b"s1", b"zz"}, reverse=True)
    wanted = [model.entries.get(key) for key in asked]
    assert stage.get_many(asked) == wanted
    assert [stage.get(key) for key in asked] == wanted
    assert stage.get_many(asked) == wanted
    assert list(stage.scan(*span)) == model.between(*span)
    for prefix in SCANNED:
        assert list(stage.scan_sub(prefix)) == model.between(prefix, after(prefix))
        part = (prefix + b"\x00", prefix + b"y")
        assert list(stage.scan_sub(prefix, *part)) == model.between(*part)
    for count in (1, 2, 9):
        assert by_pages(stage, count) == [model.between(prefix, after(prefix)) for prefix in SCANNED]


def by_pages(stage: WriteBatch, count: int) -> list[list[tuple[bytes, bytes]]]:
    """Read all prefixes side by side to their ends, so many stored entries at a time."""
    found: dict[bytes, list[tuple[bytes, bytes]]] = {prefix: [] for prefix in SCANNED}
    places = [(prefix, prefix) for prefix in SCANNED]
    while places:
        pages = dict(zip([prefix for prefix, _ in places], stage.pages_sub(places, count), strict=True))
        for prefix, page in pages.items():
            found[prefix] += page.entries
        places = [(prefix, page.go_on) for prefix, page in pages.items() if page.go_on is not None]
    return list(found.values())


def test_nothing_reaches_the_backend_before_the_batch_is_over(backend: Backend) -> None:
    stage = WriteBatch(backend)
    stage.put(b"k1", b"new")
    stage.delete(b"k2")
    stage.clear_sub(b"m")
    assert backend.get_many([b"k1", b"k2", b"m1"]) == [b"1", b"2", b"old"]
    assert backend.version() == FIRST


def test_prefetched_keys_are_not_read_again(backend: Backend) -> None:
    stage = WriteBatch(backend)
    stage.prefetch([b"k2", b"k1", b"k9", b"k1"])
    backend.apply(StateChanges(entries={b"k1": b"behind its back", b"k9": b"too"}), Version(0, 1, "second"))
    assert [stage.get(key) for key in (b"k1", b"k2", b"k9")] == [b"1", b"2", None]
    stage.forget_cache()
    assert stage.get(b"k1") == b"behind its back"


def test_what_is_prefetched_stays_bounded(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_module, "CACHE_BYTES_MAX", 10_000)
    stage = WriteBatch(backend)
    for number in range(500):
        stage.prefetch([b"p%d" % number])
        stage.get(b"g%d" % number)
    assert stage._cache_bytes <= 10_000
    assert len(stage._cache) < 100


def test_a_key_that_was_cleared_is_gone_though_it_was_prefetched(backend: Backend) -> None:
    stage = WriteBatch(backend)
    stage.prefetch([b"m1", b"k1"])
    stage.clear_sub(b"m")
    stage.delete_range(b"k", b"l")
    assert stage.get_many([b"m1", b"k1", b"k2"]) == [None, None, None]
    assert stage.get(b"m1") is None


def test_a_scan_gives_what_was_there_when_it_was_asked_for(backend: Backend) -> None:
    stage = WriteBatch(backend)
    stage.put_sub(b"m", b"m2", b"staged")
    seen = []
    for key, value in stage.scan_sub(b"m"):
        seen.append((key, value))
        stage.put_sub(b"m", key + b"+", b"grows")
        stage.put_sub(b"m", b"m2", b"changed")
    assert seen == [(b"m1", b"old"), (b"m2", b"staged"), (b"m3", b"old")]
    assert len(list(stage.scan_sub(b"m"))) == 6


def test_undoing_a_row_brings_back_what_the_row_before_had_written(backend: Backend) -> None:
    stage = WriteBatch(backend)
    stage.begin_row()
    stage.put(b"k1", b"first row")
    stage.put_sub(b"m", b"m2", b"first row")
    stage.begin_row()
    stage.put(b"k1", b"second row")
    stage.put(b"k1", b"second row again")
    stage.clear_sub(b"m")
    stage.put_sub(b"m", b"m9", b"second row")
    stage.delete_range(b"k", b"l")
    stage.undo_row()
    assert stage.get(b"k1") == b"first row"
    assert list(stage.scan_sub(b"m")) == [(b"m1", b"old"), (b"m2", b"first row"), (b"m3", b"old")]
    changes = stage.take()
    assert changes.entries == {b"k1": b"first row", b"m2": b"first row"}
    assert changes.ranges == []


def test_undoing_what_has_not_begun_is_refused(backend: Backend) -> None:
    with pytest.raises(InvariantBroken):
        WriteBatch(backend).undo_row()


def test_a_range_that_ends_before_it_starts_is_refused(backend: Backend) -> None:
    with pytest.raises(InvariantBroken):
        WriteBatch(backend).delete_range(b"b", b"a")


WRITES: dict[str, Callable[[WriteBatch, int], None]] = {
    "put": lambda stage, number: stage.put(b"n%d" % number, b"v" * 100),
    "delete": lambda stage, number: stage.delete(b"n%d" % number),
    "put_many": lambda stage, number: stage.put_many([b"n%d" % number], [b"v" * 100]),
    "put_sub": lambda stage, number: stage.put_sub(b"n", b"n%d" % number, b"v" * 100),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_large_batch_spills_and_memory_stays_bounded(backend: Backend, way: str) -> None:
    spilled: list[StateChanges] = []
    stage = WriteBatch(backend, stage_bytes_max=20_000, spill=spilled.append)
    for number in range(1000):
        WRITES[way](stage, number)
        assert stage._bytes <= 20_000
    assert len(spilled) > 3
    assert backend.version() is None
    keys = [key for part in [*spilled, stage.take()] for key in part.entries]
    assert keys == [b"n%d" % number for number in range(1000)]


def test_a_key_written_again_and_again_does_not_spill(backend: Backend) -> None:
    spilled: list[StateChanges] = []
    stage = WriteBatch(backend, stage_bytes_max=20_000, spill=spilled.append)
    for number in range(5000):
        stage.put(b"hot", b"%d" % number)
    assert spilled == []
    assert stage.take().entries == {b"hot": b"4999"}


def test_a_row_never_spills_before_it_is_kept(backend: Backend) -> None:
    spilled: list[StateChanges] = []
    stage = WriteBatch(backend, stage_bytes_max=20_000, spill=spilled.append)
    stage.put(b"before", b"1")
    stage.begin_row()
    for number in range(1000):
        stage.put(b"n%d" % number, b"v" * 100)
    stage.put_many([b"more"], [b"v"])
    stage.undo_row()
    assert spilled == []
    assert stage.take().entries == {b"before": b"1"}
    stage.begin_row()
    for number in range(1000):
        stage.put(b"n%d" % number, b"v" * 100)
    stage.keep_row()
    assert [len(part.entries) for part in spilled] == [1000]


def test_what_was_spilled_is_read_back(backend: Backend) -> None:
    stage = WriteBatch(backend, stage_bytes_max=2000, spill=list[StateChanges]().append)
    stage.prefetch([b"k1"])
    stage.put(b"k1", b"new")
    stage.clear_sub(b"m")
    for number in range(50):
        stage.put(b"n%d" % number, b"v")
    assert backend.get(b"k1") == b"new"
    assert stage.get(b"k1") == b"new"
    assert list(stage.scan_sub(b"m")) == []
    assert len(list(stage.scan(b"n", b"o"))) == 50
