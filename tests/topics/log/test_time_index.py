"""FROM TIMESTAMP: the same answer with the time index, without it and by a plain scan; damage is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.bench import NOW_US, Bench, build
from tidegate.errors import StorageCorrupt
from tidegate.storage.engine import KeyRange
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics import keys
from tidegate.topics.definitions import Retention, Topic
from tidegate.topics.log.counters import Counters
from tidegate.topics.log.time_index import (
    INDEX_EVERY_BYTES,
    IndexEntry,
    PartitionReader,
    entry_pair,
    read_entry,
)


def drop_entries(bench: Bench, topic: Topic, until_us: int) -> None:
    """Leave out the entries before a time, as a log has it that is older than the index."""
    every = keys.time_range(topic.id, 0)
    batch = bench.engine.batch()
    batch.delete_range(every.start, keys.time_key(topic.id, 0, until_us, 0))
    bench.engine.write(batch)


_appends = st.lists(
    st.tuples(st.integers(-3, 4), st.integers(1, 3), st.sampled_from([1, 1000, INDEX_EVERY_BYTES // 2])),
    min_size=1,
    max_size=14,
)


@settings(max_examples=50, deadline=None)
@given(
    _appends, st.none() | st.integers(0, 40), st.integers(0, 40), st.lists(st.integers(-5, 60), max_size=6)
)
def test_any_time_is_found_with_the_index_with_a_part_of_it_and_without(
    appends: list[tuple[int, int, int]], dropped_until: int | None, trim: int, asked: list[int]
) -> None:
    bench = build(MemoryEngine(), ManualClock(NOW_US))
    topic = bench.create()
    at = 0
    for later, count, size in appends:
        at = max(0, at + later)
        bench.clock.set_us(NOW_US + at)
        bench.publish(topic, [b"x" * size] * count)
    bench.trim(topic, min(trim, bench.log.counters(topic, 0).end))
    if dropped_until is not None:
        drop_entries(bench, topic, NOW_US + dropped_until)
    held = bench.log.counters(topic, 0)
    times = [
        time
        for batch in bench.log.read(topic, 0, held.start, held.end)
        for time in batch.arrow().column("ts").cast("int64").to_pylist()
    ]
    assert times == sorted(times)
    for second in asked:
        wanted = sum(time < NOW_US + second for time in times)
        assert bench.log.offset_at(topic, 0, NOW_US + second) == held.start + wanted
    bench.committer.close()


class _Counting(MemoryEngine):
    """An engine that counts the bytes of record batches that are looked at."""

    looked_bytes = 0

    def scan(self, span: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(span, reverse=reverse):
            if key[:1] == keys.record_key(1, 0, 0)[:1]:
                self.looked_bytes += len(value)
            yield key, value


def test_a_search_reads_little_of_a_log_that_has_the_index() -> None:
    engine = _Counting()
    bench = build(engine, ManualClock(NOW_US))
    topic = bench.create(retention=Retention(max_bytes=INDEX_EVERY_BYTES))
    for number in range(300):
        bench.clock.set_us(NOW_US + number)
        bench.publish(topic, [b"x" * (INDEX_EVERY_BYTES // 6)])
    entries = list(PartitionReader(engine, topic, 0).entries())
    assert 40 <= len(entries) <= 60, "about one a MiB"
    engine.looked_bytes = 0
    assert bench.log.offset_at(topic, 0, NOW_US + 177) == 177
    assert engine.looked_bytes <= 2 * INDEX_EVERY_BYTES
    engine.looked_bytes = 0
    start = bench.log.retained_start(topic, 0, NOW_US)
    assert 293 <= start < 300
    assert bench.trim(topic, start) == start
    assert engine.looked_bytes <= 4 * INDEX_EVERY_BYTES, "not what is removed"
    bench.committer.close()


def test_every_flipped_byte_and_every_cut_of_an_entry_is_named() -> None:
    key, value = entry_pair(7, 3, IndexEntry(-5, 99, 1 << 40))
    assert read_entry(key, value, "here") == IndexEntry(-5, 99, 1 << 40)
    for position in range(len(key) + len(value)):
        damaged = bytearray(key + value)
        damaged[position] ^= 0x10
        with pytest.raises(StorageCorrupt, match=r"topic 7, partition 3.*time index"):
            read_entry(bytes(damaged[: len(key)]), bytes(damaged[len(key) :]), "topic 7, partition 3")
    for length in range(len(value)):
        with pytest.raises(StorageCorrupt, match="here"):
            read_entry(key, value[:length], "here")


def test_a_damaged_entry_is_named_by_whoever_meets_it(bench: Bench) -> None:
    topic = bench.create(retention=Retention(max_bytes=1))
    for _ in range(3):
        bench.publish(topic, [b"x" * INDEX_EVERY_BYTES])
    ((key, value), *_) = bench.engine.scan(keys.time_range(topic.id, 0))
    batch = bench.engine.batch()
    batch.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    bench.engine.write(batch)
    attempts: tuple[Callable[[], int], ...] = (
        lambda: bench.log.offset_at(topic, 0, NOW_US),
        lambda: bench.log.retained_start(topic, 0, NOW_US),
    )
    for attempt in attempts:
        with pytest.raises(StorageCorrupt, match=r"topic 'app\.events', partition 0.*time index"):
            attempt()


def test_every_flipped_byte_and_every_cut_of_counters_is_named() -> None:
    whole = Counters(9, 4, -7, 1 << 60, 100, 250, 200)
    stored = whole.encode()
    assert Counters.decode(stored, "here") == whole
    for position in range(len(stored)):
        damaged = bytearray(stored)
        damaged[position] ^= 0x01
        with pytest.raises(StorageCorrupt, match="here"):
            Counters.decode(bytes(damaged), "here")
    for length in range(len(stored)):
        with pytest.raises(StorageCorrupt, match="here"):
            Counters.decode(stored[:length], "here")


def test_counters_lie_as_documented() -> None:
    """A golden value: if this fails, topics on disk out there cannot be read any more."""
    stored = Counters(1, 2, 3, 4, 5, 6, 7).encode()
    numbers = "".join(f"{number:016x}" for number in range(1, 8))
    assert stored.hex() == "02" + numbers + "d1f8898f"
    old = bytes.fromhex("01" + "".join(f"{number:016x}" for number in (9, 0, 3, 4, 500)))
    assert Counters.decode(old, "here") == Counters(9, 0, 3, 4, 500, 500, 0)


def test_damaged_counters_are_named_and_stop_appends_to_their_partition_alone(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    bench.publish(topic, [b"1", b"2"], partitions=[0, 1])
    key = keys.counter_key(topic.id, 0)
    stored = bench.engine.get(key)
    assert stored is not None
    batch = bench.engine.batch()
    batch.put(key, stored[:-1])
    bench.engine.write(batch)
    bench.log.reload()
    with pytest.raises(StorageCorrupt, match=r"topic 'app\.events', partition 0"):
        bench.publish(topic, [b"3"], partitions=[0])
    assert bench.publish(topic, [b"3"], partitions=[1]).offsets.tolist() == [1]
