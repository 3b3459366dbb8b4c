"""Staging many keys at once is staging them one by one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.storage.group_commit import GroupCommitter, Staging
from tidegate.storage.memory import MemoryEngine

few_keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
pairs = st.dictionaries(few_keys, st.binary(max_size=3))


@settings(max_examples=100, deadline=None)
@given(pairs, pairs, st.lists(few_keys), pairs, st.lists(few_keys), st.lists(few_keys))
def test_many_reads_see_what_single_reads_see(
    stored: dict[bytes, bytes],
    before: dict[bytes, bytes],
    removed: list[bytes],
    own: dict[bytes, bytes],
    own_removed: list[bytes],
    asked: list[bytes],
) -> None:
    engine = MemoryEngine()
    batch = engine.batch()
    for key, value in stored.items():
        batch.put(key, value)
    engine.write(batch)
    group: dict[bytes, bytes | None] = {**before, **dict.fromkeys(removed)}
    staging = Staging(engine, group)
    assert staging.get_many(asked) == [staging.get(key) for key in asked]
    staging.put_many(list(own), list(own.values()))
    for key in own_removed:
        staging.delete(key)
    expected = {**stored, **group, **own, **dict.fromkeys(own_removed)}
    assert staging.get_many(asked) == [expected.get(key) for key in asked]
    assert [staging.get(key) for key in asked] == staging.get_many(asked)


def test_many_puts_are_written_and_counted_like_single_ones() -> None:
    engine = MemoryEngine()
    one, many = Staging(engine, {}), Staging(engine, {})
    for key, value in ((b"a", b"1"), (b"b", b"22")):
        one.put(key, value)
    many.put_many([b"a", b"b"], [b"1", b"22"])
    assert (many.operations, many.size_bytes, many.written()) == (
        one.operations,
        one.size_bytes,
        one.written(),
    )
    committer = GroupCommitter(engine)
    committer.submit(lambda staging: staging.put_many([b"a", b"b"], [b"1", b"22"])).result(60)
    committer.close()
    assert engine.get_many([b"a", b"b", b"c"]) == [b"1", b"22", None]
