"""Reading: start positions, plans that share fairly, and Arrow streams that hold exactly a range."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.bench import NOW_US, Bench, build
from tidegate.errors import OffsetOutOfRange, PartitionNotFound, RequestInvalid
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.batches import MESSAGE_SCHEMA
from tidegate.topics.reading import (
    CHUNK_BYTES,
    TAKEN_BYTES_MAX,
    Start,
    arrow_stream,
    plan,
    shared,
    start_offsets,
    take,
)


@given(st.dictionaries(st.integers(0, 7), st.integers(0, 50), max_size=8), st.integers(1, 120))
def test_a_share_never_exceeds_the_total_and_never_leaves_room_unused(
    waiting: dict[int, int], total: int
) -> None:
    given_out = shared(waiting, total)
    assert sum(given_out.values()) == min(total, sum(waiting.values()))
    assert all(0 <= given_out[partition] <= waiting[partition] for partition in waiting)


def test_a_plan_is_repeatable_and_goes_on_where_it_ended(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    bench.publish(topic, [b"1"] * 10, partitions=[0] * 10)
    bench.publish(topic, [b"1"] * 2, partitions=[1] * 2)
    first = plan(bench.log, topic, Start("earliest"), 6)
    assert (first.start, first.end, first.latest) == ({0: 0, 1: 0}, {0: 4, 1: 2}, {0: 10, 1: 2})
    second = plan(bench.log, topic, Start("offsets", offsets=first.end), 100)
    assert (second.start, second.end) == ({0: 4, 1: 2}, {0: 10, 1: 2})
    assert plan(bench.log, topic, Start("latest"), None).start == {0: 10, 1: 2}
    with pytest.raises(OffsetOutOfRange):
        plan(bench.log, topic, Start("offsets", offsets={0: 11}), None)


def test_positions(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    bench.publish(topic, [b"1"] * 3, partitions=[0] * 3)
    assert start_offsets(bench.log, topic, Start("offset", 2), 0) == {0: 2}
    assert start_offsets(bench.log, topic, Start("after", 2), 0) == {0: 3}
    assert start_offsets(bench.log, topic, Start("timestamp", NOW_US + 1), None) == {0: 3, 1: 0}
    with pytest.raises(RequestInvalid, match="2 partitions"):
        start_offsets(bench.log, topic, Start("offset", 0), None)
    with pytest.raises(PartitionNotFound):
        start_offsets(bench.log, topic, Start("offsets", offsets={5: 0}), None)


def test_taking_from_all_partitions_shares_the_limit(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    for partition in (0, 1):
        bench.publish(topic, [b"1"] * 5, partitions=[partition] * 5)
    taken = take(bench.log, topic, {0: 0, 1: 0}, 6)
    assert (taken.count, taken.next_offsets) == (6, {0: 3, 1: 3})
    rest = take(bench.log, topic, taken.next_offsets, 100)
    assert (rest.count, rest.next_offsets) == (4, {0: 5, 1: 5})


def test_an_answer_ends_before_it_gets_too_large_and_the_next_goes_on(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    large = b"x" * (TAKEN_BYTES_MAX // 3)
    for partition in (0, 1):
        bench.publish(topic, [large] * 4, partitions=[partition] * 4)
    position, counts = {0: 0, 1: 0}, []
    while (taken := take(bench.log, topic, position, 100)).batches:
        counts.append(taken.count)
        position = taken.next_offsets
    assert sum(counts) == 8
    assert max(counts) <= 3
    bench.publish(topic, [b"y" * (TAKEN_BYTES_MAX + 1)], partitions=[0])
    assert take(bench.log, topic, position, 100).count == 1, "one message is always given"


def test_a_limit_below_the_number_of_partitions_reaches_all_of_them(bench: Bench) -> None:
    topic = bench.create(partitions=3)
    for partition in range(3):
        bench.publish(topic, [b"1"] * 50, partitions=[partition] * 50)
    position = {0: 0, 1: 0, 2: 0}
    for _ in range(30):
        position = take(bench.log, topic, position, 1).next_offsets
    assert position == {0: 10, 1: 10, 2: 10}


@settings(max_examples=30)
@given(st.lists(st.sampled_from([1, 3, 511, 512, 600]), min_size=1, max_size=8), st.data())
def test_an_arrow_stream_holds_exactly_the_range(sizes: list[int], data: st.DataObject) -> None:
    bench = build(MemoryEngine(), ManualClock(NOW_US))
    topic = bench.create()
    total = 0
    for size in sizes:
        bench.publish(topic, [str(total + index).encode() for index in range(size)])
        total += size
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    stream = b"".join(arrow_stream(bench.log, topic, 0, start, stop))
    bench.committer.close()
    table = pa.ipc.open_stream(stream).read_all()
    assert table.schema == MESSAGE_SCHEMA
    assert table.column("offset").to_pylist() == list(range(start, stop))
    assert table.column("payload").to_pylist() == [str(number) for number in range(start, stop)]


def test_a_stream_comes_in_chunks_that_are_small_however_large_its_messages_are(bench: Bench) -> None:
    topic = bench.create()
    sizes = [10, CHUNK_BYTES * 3, 5, CHUNK_BYTES, *[CHUNK_BYTES // 8] * 20]
    bench.publish(topic, [b"%d" % index * size for index, size in enumerate(sizes)])
    chunks = list(arrow_stream(bench.log, topic, 0, 1, len(sizes)))
    assert max(map(len, chunks)) <= CHUNK_BYTES
    assert min(map(len, chunks[:-1])) == CHUNK_BYTES
    table = pa.ipc.open_stream(b"".join(chunks)).read_all()
    assert table.column("offset").to_pylist() == list(range(1, len(sizes)))
    assert [len(payload) for payload in table.column("payload").to_pylist()] == [
        len(str(index)) * size for index, size in enumerate(sizes) if index
    ]
