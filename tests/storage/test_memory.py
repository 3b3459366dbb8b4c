"""The in-memory twin: crashes and failures on command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import InvariantBroken, StorageFailed, StorageFull
from tidegate.storage.engine import KeyRange
from tidegate.storage.memory import MemoryEngine

EVERYTHING = KeyRange(b"", b"\xff" * 8)


def put(engine: MemoryEngine, key: bytes, value: bytes = b"v", *, sync: bool = False) -> None:
    batch = engine.batch()
    batch.put(key, value)
    engine.write(batch, sync=sync)


def test_a_crash_drops_exactly_what_was_not_synced() -> None:
    engine = MemoryEngine()
    put(engine, b"kept", b"old", sync=True)
    put(engine, b"gone", sync=True)
    put(engine, b"kept", b"new")
    put(engine, b"fresh")
    batch = engine.batch()
    batch.delete_range(b"a", b"h")
    engine.write(batch)
    engine.crash()
    assert list(engine.scan(EVERYTHING)) == [(b"gone", b"v"), (b"kept", b"old")]


def test_a_sync_covers_every_write_before_it() -> None:
    engine = MemoryEngine()
    put(engine, b"a")
    put(engine, b"b")
    engine.sync()
    put(engine, b"c")
    engine.crash()
    assert [key for key, _ in engine.scan(EVERYTHING)] == [b"a", b"b"]


keys = st.sampled_from([b"a", b"b", b"c", b"d"])
changes = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "delete_range"]), keys, keys, st.binary(max_size=2)),
    max_size=6,
)


@given(synced=changes, lost=changes)
def test_any_changes_after_a_sync_are_taken_back_by_a_crash(
    synced: list[tuple[str, bytes, bytes, bytes]], lost: list[tuple[str, bytes, bytes, bytes]]
) -> None:
    engine = MemoryEngine()
    apply(engine, synced)
    engine.sync()
    before = list(engine.scan(EVERYTHING))
    apply(engine, lost)
    engine.crash()
    assert list(engine.scan(EVERYTHING)) == before
    assert engine.get_many([key for key, _ in before]) == [value for _, value in before]


def apply(engine: MemoryEngine, changes: list[tuple[str, bytes, bytes, bytes]]) -> None:
    for name, key, other, value in changes:
        batch = engine.batch()
        if name == "put":
            batch.put(key, value)
        elif name == "delete":
            batch.delete(key)
        else:
            batch.delete_range(min(key, other), max(key, other))
        engine.write(batch)


def test_a_failed_write_applies_nothing_and_the_next_one_works() -> None:
    engine = MemoryEngine()
    engine.fail_next_write(StorageFull(path="memory", free_bytes=0))
    with pytest.raises(StorageFull):
        put(engine, b"a")
    assert engine.get(b"a") is None
    assert not engine.reopen_needed
    put(engine, b"a")
    assert engine.get(b"a") == b"v"


def test_after_a_failed_sync_only_a_reopen_helps_and_it_shows_what_was_synced() -> None:
    engine = MemoryEngine()
    put(engine, b"a", sync=True)
    put(engine, b"b")
    engine.fail_next_sync(StorageFailed(path="memory", reason="on command"))
    with pytest.raises(StorageFailed, match="on command"):
        engine.sync()
    needed_before = engine.reopen_needed
    assert engine.get(b"b") == b"v", "reads go on"
    with pytest.raises(StorageFailed, match="after a reopen"):
        put(engine, b"c")
    with pytest.raises(StorageFailed, match="after a reopen"):
        engine.sync()
    engine.reopen()
    assert (needed_before, engine.reopen_needed) == (True, False)
    assert [key for key, _ in engine.scan(EVERYTHING)] == [b"a"]
    put(engine, b"c", sync=True)


def test_a_snapshot_from_before_a_crash_no_longer_answers() -> None:
    engine = MemoryEngine()
    put(engine, b"a")
    snapshot = engine.snapshot()
    engine.crash()
    with pytest.raises(StorageFailed, match="opened again"):
        snapshot.get(b"a")


def test_values_of_another_type_are_refused() -> None:
    batch = MemoryEngine().batch()
    with pytest.raises(InvariantBroken, match="not str"):
        batch.put(b"a", "text")  # type: ignore[arg-type]
