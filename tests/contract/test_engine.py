"""What every engine promises, on RocksDB and on its in-memory twin.

`test_engine_history` holds both against a sorted dictionary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate.errors import InvariantBroken, StorageFailed
from tidegate.storage.engine import Engine, KeyRange
from tidegate.storage.memory import MemoryEngine
from tidegate.storage.rocksdb.engine import RocksEngine

KINDS = ["rocks", "memory"]
EVERYTHING = KeyRange(b"", b"\xff" * 16)


def open_engine(kind: str, folder: Path) -> Engine:
    return MemoryEngine() if kind == "memory" else RocksEngine(folder)


def open_checkpoint(kind: str, folder: Path) -> Engine:
    return MemoryEngine.from_checkpoint(folder) if kind == "memory" else RocksEngine(folder)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(kind: str, tmp_path: Path) -> Iterator[Engine]:
    opened = open_engine(kind, tmp_path / "engine")
    yield opened
    opened.close()


def fill(engine: Engine, *keys: bytes, sync: bool = False) -> None:
    batch = engine.batch()
    for key in keys:
        batch.put(key, b"value of " + key)
    engine.write(batch, sync=sync)


def keys_of(pairs: Iterator[tuple[bytes, bytes]]) -> list[bytes]:
    return [key for key, _ in pairs]


def test_a_value_is_found_by_its_key_and_a_missing_key_is_none(engine: Engine) -> None:
    fill(engine, b"a", b"")
    assert engine.get(b"a") == b"value of a"
    assert engine.get(b"") == b"value of "
    assert engine.get(b"b") is None


def test_many_values_come_in_the_order_asked_with_none_for_missing_keys(engine: Engine) -> None:
    fill(engine, b"a", b"b", b"c")
    asked = [b"c", b"x", b"a", b"c"]
    assert engine.get_many(asked) == [b"value of c", None, b"value of a", b"value of c"]
    assert engine.get_many(tuple(asked)) == engine.get_many(asked)
    assert engine.get_many([]) == []


def test_an_empty_value_is_not_a_missing_one(engine: Engine) -> None:
    batch = engine.batch()
    batch.put(b"empty", b"")
    engine.write(batch)
    assert engine.get(b"empty") == b""
    assert engine.get_many([b"empty"]) == [b""]
    assert list(engine.scan(EVERYTHING)) == [(b"empty", b"")]


def test_changes_of_a_batch_apply_in_the_order_added(engine: Engine) -> None:
    fill(engine, b"a", b"b")
    batch = engine.batch()
    batch.put(b"a", b"one")
    batch.delete(b"a")
    batch.put(b"a", b"two")
    batch.put(b"c", b"gone")
    batch.delete_range(b"b", b"d")
    batch.put(b"d", b"stays")
    assert len(batch) == 6
    engine.write(batch)
    assert list(engine.scan(EVERYTHING)) == [(b"a", b"two"), (b"d", b"stays")]


def test_a_batch_is_invisible_until_it_is_written(engine: Engine) -> None:
    batch = engine.batch()
    batch.put(b"a", b"1")
    assert engine.get(b"a") is None
    assert list(engine.scan(EVERYTHING)) == []


def test_an_empty_batch_changes_nothing(engine: Engine) -> None:
    fill(engine, b"a")
    engine.write(engine.batch(), sync=True)
    assert keys_of(engine.scan(EVERYTHING)) == [b"a"]


def test_a_batch_is_written_once(engine: Engine) -> None:
    batch = engine.batch()
    batch.put(b"a", b"1")
    engine.write(batch)
    assert len(batch) == 1
    with pytest.raises(InvariantBroken, match="used again"):
        engine.write(batch)
    with pytest.raises(InvariantBroken, match="used again"):
        batch.put(b"b", b"2")
    with pytest.raises(InvariantBroken, match="used again"):
        batch.delete(b"b")
    with pytest.raises(InvariantBroken, match="used again"):
        batch.delete_range(b"b", b"c")


def test_a_range_delete_that_ends_before_it_starts_is_refused_and_the_engine_goes_on(engine: Engine) -> None:
    batch = engine.batch()
    batch.put(b"a", b"1")
    with pytest.raises(InvariantBroken, match="before it starts"):
        batch.delete_range(b"z", b"b")
    engine.write(batch)
    fill(engine, b"b")
    assert keys_of(engine.scan(EVERYTHING)) == [b"a", b"b"]


def test_an_empty_range_delete_removes_nothing(engine: Engine) -> None:
    fill(engine, b"a")
    batch = engine.batch()
    batch.delete_range(b"a", b"a")
    engine.write(batch)
    assert engine.get(b"a") == b"value of a"


def test_keys_and_values_must_be_bytes(engine: Engine) -> None:
    with pytest.raises(InvariantBroken, match="bytes"):
        engine.get("a")  # type: ignore[arg-type]
    with pytest.raises(InvariantBroken, match="bytes"):
        engine.get_many(["a"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("start", "stop", "inside"),
    [
        (b"b", b"d", [b"b", b"c"]),
        (b"b", b"c\x00", [b"b", b"c"]),
        (b"bb", b"cc", [b"c"]),
        (b"", b"b", [b"", b"a"]),
        (b"b", b"b", []),
        (b"", b"", []),
        (b"e", b"f", []),
        (b"d", b"\xff", [b"d"]),
        (b"d", b"\xff\x00", [b"d", b"\xff"]),
        (b"\xff", b"\xff\xff\xff", [b"\xff", b"\xff\xff"]),
        (b"\xff\xff\x00", b"\xff\xff\xff", []),
    ],
)
def test_a_scan_is_half_open_both_ways(
    engine: Engine, start: bytes, stop: bytes, inside: list[bytes]
) -> None:
    fill(engine, b"", b"a", b"b", b"c", b"d", b"\xff", b"\xff\xff")
    span = KeyRange(start, stop)
    pairs = [(key, b"value of " + key) for key in inside]
    assert list(engine.scan(span)) == pairs
    assert list(engine.scan(span, reverse=True)) == pairs[::-1]
    with engine.snapshot() as snapshot:
        assert list(snapshot.scan(span)) == pairs
        assert list(snapshot.scan(span, reverse=True)) == pairs[::-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_long_scan_gives_every_pair_once(engine: Engine, reverse: bool) -> None:
    keys = [number.to_bytes(4, "big") for number in range(3_000)]
    fill(engine, *keys)
    assert keys_of(engine.scan(EVERYTHING, reverse=reverse)) == sorted(keys, reverse=reverse)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_sees_the_state_at_its_start(engine: Engine, reverse: bool) -> None:
    keys = [number.to_bytes(4, "big") for number in range(1_000)]
    fill(engine, *keys)
    not_begun = engine.scan(EVERYTHING, reverse=reverse)
    begun = engine.scan(EVERYTHING, reverse=reverse)
    first = next(begun)[0]
    batch = engine.batch()
    batch.delete_range(keys[10], keys[900])
    batch.put(keys[5], b"changed")
    batch.put(b"\x00\x00\x00\x05new", b"")
    engine.write(batch)
    expected = sorted(keys, reverse=reverse)
    assert [first, *keys_of(begun)] == expected
    pairs = list(not_begun)
    assert [key for key, _ in pairs] == expected
    assert (keys[5], b"value of " + keys[5]) in pairs


def test_a_snapshot_keeps_its_moment_for_all_reads(engine: Engine) -> None:
    fill(engine, b"a", b"b")
    with engine.snapshot() as snapshot:
        batch = engine.batch()
        batch.put(b"a", b"new")
        batch.delete(b"b")
        batch.put(b"c", b"new")
        engine.write(batch)
        assert snapshot.get(b"a") == b"value of a"
        assert snapshot.get(b"c") is None
        assert snapshot.get_many([b"c", b"b"]) == [None, b"value of b"]
        assert keys_of(snapshot.scan(EVERYTHING)) == [b"a", b"b"]
        assert keys_of(snapshot.scan(EVERYTHING, reverse=True)) == [b"b", b"a"]
    assert engine.get(b"a") == b"new"


def test_two_scans_of_one_snapshot_do_not_disturb_each_other(engine: Engine) -> None:
    keys = [number.to_bytes(2, "big") for number in range(700)]
    fill(engine, *keys)
    with engine.snapshot() as snapshot:
        pairs = zip(snapshot.scan(EVERYTHING), snapshot.scan(EVERYTHING, reverse=True), strict=True)
        both = [(forwards[0], backwards[0]) for forwards, backwards in pairs]
    assert both == list(zip(keys, keys[::-1], strict=True))


def test_a_closed_snapshot_says_so(engine: Engine) -> None:
    snapshot = engine.snapshot()
    snapshot.close()
    snapshot.close()
    with pytest.raises(InvariantBroken, match="snapshot is closed"):
        snapshot.get(b"a")
    with pytest.raises(InvariantBroken, match="snapshot is closed"):
        list(snapshot.scan(EVERYTHING))


def test_a_checkpoint_is_a_copy_of_its_moment(kind: str, engine: Engine, tmp_path: Path) -> None:
    fill(engine, b"a")
    engine.checkpoint(tmp_path / "deep" / "copy")
    fill(engine, b"b")
    copy = open_checkpoint(kind, tmp_path / "deep" / "copy")
    assert list(copy.scan(EVERYTHING)) == [(b"a", b"value of a")]
    fill(copy, b"c")
    assert keys_of(engine.scan(EVERYTHING)) == [b"a", b"b"]
    copy.close()


def test_a_checkpoint_never_overwrites(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(StorageFailed, match="not there yet"):
        engine.checkpoint(tmp_path / "there")


def test_a_compaction_changes_no_answer(engine: Engine) -> None:
    fill(engine, b"a", b"b", b"c")
    batch = engine.batch()
    batch.delete_range(b"a", b"c")
    engine.write(batch)
    with engine.snapshot() as before:
        fill(engine, b"b2")
        engine.compact(KeyRange(b"a", b"c"))
        engine.compact(KeyRange(b"x", b"x"))
        assert keys_of(before.scan(EVERYTHING)) == [b"c"]
    assert keys_of(engine.scan(EVERYTHING)) == [b"b2", b"c"]


def test_a_reopened_engine_has_what_was_written_and_takes_writes(engine: Engine) -> None:
    fill(engine, b"a", sync=True)
    fill(engine, b"b")
    assert not engine.reopen_needed
    engine.reopen()
    fill(engine, b"c")
    assert keys_of(engine.scan(EVERYTHING)) == [b"a", b"b", b"c"]


def test_a_snapshot_from_before_a_reopen_raises_rather_than_answers(engine: Engine) -> None:
    fill(engine, b"a")
    snapshot = engine.snapshot()
    engine.reopen()
    with pytest.raises(StorageFailed, match="opened again"):
        snapshot.get(b"a")
    with pytest.raises(StorageFailed, match="opened again"):
        list(snapshot.scan(EVERYTHING))
    snapshot.close()


def test_every_use_of_a_closed_engine_is_refused(engine: Engine, tmp_path: Path) -> None:
    batch = engine.batch()
    batch.put(b"a", b"1")
    engine.close()
    engine.close()
    uses: list[Callable[[], object]] = [
        lambda: engine.get(b"a"),
        lambda: engine.get_many([b"a"]),
        lambda: engine.scan(EVERYTHING),
        lambda: engine.write(batch),
        engine.sync,
        engine.snapshot,
        lambda: engine.checkpoint(tmp_path / "copy"),
        engine.reopen,
    ]
    for use in uses:
        with pytest.raises(InvariantBroken, match="engine is closed"):
            use()


def test_a_batch_of_another_engine_is_refused(engine: Engine) -> None:
    class Stranger:
        def put(self, key: bytes, value: bytes, /) -> None: ...
        def delete(self, key: bytes, /) -> None: ...
        def delete_range(self, start: bytes, stop: bytes, /) -> None: ...
        def __len__(self) -> int:
            return 0

    with pytest.raises(InvariantBroken, match="Stranger"):
        engine.write(Stranger())


def test_readers_never_see_half_a_batch(engine: Engine) -> None:
    torn: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            values = {value for _, value in engine.scan(KeyRange(b"k", b"l"))}
            with engine.snapshot() as snapshot:
                seen = set(snapshot.get_many([b"k1", b"k2"])) | {
                    v for _, v in snapshot.scan(KeyRange(b"k", b"l"))
                }
            if len(values) > 1 or len(seen) > 1:
                torn.append((values, seen))

    def write(number: int) -> None:
        batch = engine.batch()
        batch.put(b"k1", b"%d" % number)
        batch.put(b"k2", b"%d" % number)
        engine.write(batch, sync=number % 50 == 0)

    write(0)
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 400):
        write(number)
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []
