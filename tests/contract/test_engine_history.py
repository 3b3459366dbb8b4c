"""Any history of writes, scans, snapshots and reopens gives what a sorted dictionary gives."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.test_engine import KINDS, open_engine
from tidegate.storage.engine import Engine, KeyRange, Reader, Snapshot

short_keys = st.binary(max_size=3) | st.sampled_from([b"", b"\x00", b"\xff", b"\xff\xff", b"a", b"a\x00"])
change = st.one_of(
    st.tuples(st.just("put"), short_keys, st.binary(max_size=5)),
    st.tuples(st.just("delete"), short_keys, st.just(b"")),
    st.tuples(st.just("delete_range"), short_keys, short_keys),
)
step = st.one_of(
    st.tuples(st.just("write"), st.lists(change, max_size=6)),
    st.tuples(st.just("scan"), st.tuples(short_keys, short_keys)),
    st.tuples(st.just("snapshot"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
)


def check_steps(engine: Engine, steps: list[tuple[str, object]]) -> None:
    model: dict[bytes, bytes] = {}
    frozen: tuple[Snapshot, dict[bytes, bytes]] | None = None
    for name, what in steps:
        if name == "write":
            write_both(engine, model, what)  # type: ignore[arg-type]
        elif name == "scan":
            check_reads(engine, model, *sorted(what))  # type: ignore[call-overload]
            if frozen is not None:
                check_reads(frozen[0], frozen[1], *sorted(what))  # type: ignore[call-overload]
        elif name == "snapshot":
            frozen = engine.snapshot(), dict(model)
        else:
            frozen = None
            engine.reopen()
    check_reads(engine, model, b"", b"\xff\xff\xff\xff")


def write_both(engine: Engine, model: dict[bytes, bytes], changes: list[tuple[str, bytes, bytes]]) -> None:
    batch = engine.batch()
    for name, key, other in changes:
        if name == "put":
            batch.put(key, other)
            model[key] = other
        elif name == "delete":
            batch.delete(key)
            model.pop(key, None)
        else:
            start, stop = sorted((key, other))
            batch.delete_range(start, stop)
            for gone in [known for known in model if start <= known < stop]:
                del model[gone]
    assert len(batch) == len(changes)
    engine.write(batch)


def check_reads(reader: Reader, model: dict[bytes, bytes], start: bytes, stop: bytes) -> None:
    expected = sorted((key, value) for key, value in model.items() if start <= key < stop)
    assert list(reader.scan(KeyRange(start, stop))) == expected
    assert list(reader.scan(KeyRange(start, stop), reverse=True)) == expected[::-1]
    asked = [start, stop, *model]
    assert reader.get_many(asked) == [model.get(key) for key in asked]
    assert [reader.get(key) for key in asked] == [model.get(key) for key in asked]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(step, max_size=12))
def test_any_history_matches_a_sorted_dictionary(kind: str, steps: list[tuple[str, object]]) -> None:
    with TemporaryDirectory() as folder:
        engine = open_engine(kind, Path(folder))
        try:
            check_steps(engine, steps)
        finally:
            engine.close()
