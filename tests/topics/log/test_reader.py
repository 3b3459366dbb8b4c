"""Reading: start positions, plans that share fairly, and Arrow streams that hold exactly a range."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables.bench import column
from tests.topics.bench import NOW_US, Bench, build
from tidegate.errors import OffsetOutOfRange, PartitionNotFound, RequestInvalid, StorageCorrupt
from tidegate.model.messages import MESSAGE_SCHEMA
from tidegate.model.tables import Table, TableKind
from tidegate.storage.group_commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.log.reader import (
    CHUNK_BYTES,
    RESULT_BYTES_MAX,
    Start,
    arrow_stream,
    plan,
    read_messages,
    read_ranges,
    shared,
    start_offsets,
)
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.payloads import CODEC_FULL, encode_full


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
    taken = read_messages(bench.log, topic, {0: 0, 1: 0}, 6)
    assert (taken.count, taken.next_offsets) == (6, {0: 3, 1: 3})
    rest = read_messages(bench.log, topic, taken.next_offsets, 100)
    assert (rest.count, rest.next_offsets) == (4, {0: 5, 1: 5})


def test_an_answer_ends_before_it_gets_too_large_and_the_next_goes_on(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    large = b"x" * (RESULT_BYTES_MAX // 3)
    for partition in (0, 1):
        bench.publish(topic, [large] * 4, partitions=[partition] * 4)
    position, counts = {0: 0, 1: 0}, []
    while (taken := read_messages(bench.log, topic, position, 100)).batches:
        counts.append(taken.count)
        position = taken.next_offsets
    assert sum(counts) == 8
    assert max(counts) <= 3
    bench.publish(topic, [b"y" * (RESULT_BYTES_MAX + 1)], partitions=[0])
    assert read_messages(bench.log, topic, position, 100).count == 1, "one message is always given"


def test_a_limit_below_the_number_of_partitions_reaches_all_of_them(bench: Bench) -> None:
    topic = bench.create(partitions=3)
    for partition in range(3):
        bench.publish(topic, [b"1"] * 50, partitions=[partition] * 50)
    position = {0: 0, 1: 0, 2: 0}
    for _ in range(30):
        position = read_messages(bench.log, topic, position, 1).next_offsets
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


def test_ranges_are_given_in_their_order_and_cut_to_the_message(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    for partition in (0, 1):
        for batch in range(3):
            texts = [b'"%d/%d"' % (partition, batch * 4 + index) for index in range(4)]
            bench.publish(topic, texts, partitions=[partition] * 4)
    wanted = [(1, 3, 6), (0, 9, 10), (0, 0, 1), (1, 2, 2), (0, 1, 12)]
    batches, damage = read_ranges(bench.log, topic, wanted, 10**6)
    places = [(row["partition"], row["offset"], row["payload"]) for b in batches for row in b.to_pylist()]
    expected = [(p, offset, f'"{p}/{offset}"') for p, start, stop in wanted for offset in range(start, stop)]
    assert places == expected
    assert damage is None
    assert read_ranges(bench.log, topic, [], 10**6) == ([], None)
    with pytest.raises(OffsetOutOfRange):
        read_ranges(bench.log, topic, [(0, 11, 13)], 10**6)


@pytest.mark.parametrize(("bytes_max", "least", "most"), [(1, 1, 1), (3_500, 2, 3), (10**6, 8, 8)])
def test_ranges_end_before_they_get_too_large_but_never_before_the_first_message(
    bench: Bench, bytes_max: int, least: int, most: int
) -> None:
    topic = bench.create()
    for _ in range(2):
        bench.publish(topic, [b"x" * 1000] * 4)
    batches, damage = read_ranges(bench.log, topic, [(0, 1, 3), (0, 0, 1), (0, 3, 8)], bytes_max)
    offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert offsets == [1, 2, 0, 3, 4, 5, 6, 7][: len(offsets)]
    assert least <= len(offsets) <= most
    assert damage is None


def _routed(bench: Bench, topic: Topic, count: int) -> None:
    """Append rows of a table, as a route writes them."""
    columns = (column("id"), column("text", "TEXT"))
    table = Table(7, "default", "app", "rows", TableKind.SHARED, columns, ("id",), 0)
    rows = [(number, f"grüße {number}") for number in range(count)]

    def stage(staging: Staging) -> None:
        number = bench.schemas.stage_number(staging, topic.id, table, NOW_US)
        origin = Origin("INSERT", "app.rows", "full", CODEC_FULL, number, "ada")
        bench.log.stage_append(staging, topic, 0, [None] * count, encode_full(rows), origin)

    bench.committer.submit(stage).result(60)


def test_binary_payloads_leave_as_json_by_every_way_out(bench: Bench) -> None:
    topic = bench.create()
    bench.publish(topic, [b'"first"'])
    _routed(bench, topic, 3)
    bench.publish(topic, [b'"last"'])
    _routed(bench, topic, 600)
    texts = ['"first"', *map(_row_text, range(3)), '"last"', *map(_row_text, range(600))]
    end = len(texts)
    assert bench.payloads(topic) == texts
    for start, stop in ((0, end), (2, end - 1), (5, end)):
        stream = b"".join(arrow_stream(bench.log, topic, 0, start, stop))
        table = pa.ipc.open_stream(stream).read_all()
        table.validate(full=True)
        assert table.column("payload").to_pylist() == texts[start:stop]
        assert table.column("offset").to_pylist() == list(range(start, stop))
    taken = read_messages(bench.log, topic, {0: 3}, 4)
    assert [row["payload"] for batch in taken.batches for row in batch.to_pylist()] == texts[3:7]
    batches, _ = read_ranges(bench.log, topic, [(0, 600, 602), (0, 0, 2)], 10**6)
    assert [row["payload"] for batch in batches for row in batch.to_pylist()] == texts[600:602] + texts[:2]
    one = read_messages(bench.log, topic, {0: 2}, 1).batches[0].to_pylist()
    assert [(row["payload"], row["op"], row["user"], row["source"]) for row in one] == [
        (_row_text(1), "INSERT", "ada", "app.rows")
    ]


@pytest.mark.parametrize("damaged", [[0], [3], [5], [1, 4]])
def test_a_damaged_payload_is_read_alone_without_it(bench: Bench, damaged: list[int]) -> None:
    topic, count = bench.create(), 6
    table = Table(7, "default", "app", "rows", TableKind.SHARED, (column("id"),), ("id",), 0)
    whole = encode_full([(number,) for number in range(count)])
    payloads = [b"\xc1" if number in damaged else whole[number] for number in range(count)]

    def stage(staging: Staging) -> None:
        number = bench.schemas.stage_number(staging, topic.id, table, NOW_US)
        origin = Origin("INSERT", "app.rows", "full", CODEC_FULL, number, "ada")
        bench.log.stage_append(staging, topic, 0, [None] * 3, payloads[:3], origin)
        bench.log.stage_append(staging, topic, 0, [None] * 3, payloads[3:], origin)

    bench.committer.submit(stage).result(60)
    found, marked, at = [], [], 0
    while at < count:
        page = read_messages(bench.log, topic, {0: at}, 100)
        batches, damage = read_ranges(bench.log, topic, [(0, at, count)], 10**6)
        assert batches == page.batches
        rows = [row for batch in page.batches for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == list(range(at, page.next_offsets[0]))
        if page.damage is not None:
            assert str(page.damage) == str(damage)
            assert f"offset {at}" in page.damage.message
            marked += [(row["offset"], row["payload"], row["user"]) for row in rows]
        else:
            found += [row["payload"] for row in rows]
        at = page.next_offsets[0]
    assert found == [f'{{"id":{number}}}' for number in range(count) if number not in damaged]
    assert marked == [(number, "null", "ada") for number in damaged]


def test_a_damaged_record_batch_is_an_error(bench: Bench) -> None:
    topic = bench.create()
    for payload in (b"0", b"1"):
        bench.publish(topic, [payload])
    batch = bench.engine.batch()
    batch.put(keys.record_key(topic.id, 0, 1), b"\x01garbage-that-is-long-enough-for-a-header")
    bench.engine.write(batch)
    assert read_messages(bench.log, topic, {0: 0}, 2).next_offsets == {0: 1}
    with pytest.raises(StorageCorrupt, match="offset 1"):
        read_messages(bench.log, topic, {0: 1}, 2)


def _row_text(number: int) -> str:
    return f'{{"id":{number},"text":"grüße {number}"}}'
