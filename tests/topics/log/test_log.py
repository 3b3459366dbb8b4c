"""The log: dense offsets, readers that see only what is durable, searching by time, damage that is named."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topics.bench import ADA, NOW_US, Bench, build
from tidegate.errors import (
    OffsetOutOfRange,
    PartitionNotFound,
    RequestInvalid,
    StorageCorrupt,
    StorageFailed,
    TopicExists,
    TopicNotFound,
)
from tidegate.ingest.publish import Messages, Receipt, Sender
from tidegate.storage.group_commit import GROUP_BYTES_MAX, Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.log.record_batch import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX


def test_case_14_offsets_are_dense_from_zero_and_survive_a_crash(bench: Bench) -> None:
    topic = bench.create()
    assert bench.publish(topic, [b"1", b"2"]).offsets.tolist() == [0, 1]
    bench.committer.close()
    bench.engine.crash()
    again = build(bench.engine, bench.clock)
    assert again.publish(again.directory.get("default", "app.events"), [b"3"]).offsets.tolist() == [2]
    assert again.payloads(topic) == ["1", "2", "3"]
    again.committer.close()


def test_case_14_a_topic_made_again_shares_nothing_with_the_old_one(bench: Bench) -> None:
    old = bench.create()
    bench.publish(old, [b"1"])
    bench.committer.submit(
        lambda staging: bench.directory.stage_delete(staging, old.tenant, old.name)
    ).result(60)
    with pytest.raises(TopicNotFound):
        bench.directory.get("default", old.name)
    new = bench.create()
    assert new.id != old.id
    assert bench.payloads(new) == []
    assert [key for key, _ in bench.engine.scan(keys.record_range(old.id, 0, 0, keys.OFFSET_END))] == []


def test_case_14_wrong_shapes_and_taken_names_are_refused(bench: Bench) -> None:
    for partitions in (0, -1, 65):
        with pytest.raises(RequestInvalid):
            bench.create(partitions=partitions)
    bench.create()
    with pytest.raises(TopicExists):
        bench.create(partitions=3)


def test_two_creates_of_one_name_in_one_group_make_one_topic(bench: Bench) -> None:
    futures = [
        bench.committer.submit(
            lambda staging: bench.directory.stage_create(staging, "default", "app.x", 1, NOW_US)
        )
        for _ in range(8)
    ]
    errors = [future.exception(60) for future in futures]
    assert errors.count(None) == 1
    assert sum(isinstance(error, TopicExists) for error in errors) == 7


def test_case_17_a_key_goes_to_one_partition_by_a_documented_hash(bench: Bench) -> None:
    topic = bench.create(partitions=4)
    # Golden: CRC-32 of the UTF-8 bytes, modulo the partitions. Never change it: order of keys depends on it.
    assert [topic.partition_of(key) for key in ("a", "b", "meter-1", "grüße", "")] == [3, 1, 3, 1, 0]
    receipt = bench.publish(topic, [b"1", b"2", b"3"], keys=["a", "b", "a"])
    assert receipt.partitions.tolist() == [3, 1, 3]
    assert receipt.offsets.tolist() == [0, 0, 1]


def test_messages_without_a_key_take_partitions_in_turn_and_named_ones_win(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    turns = [bench.publish(topic, [b"1", b"2"]).partitions.tolist() for _ in range(2)]
    assert sorted(turns) == [[0, 0], [1, 1]]
    assert bench.publish(topic, [b"1"], keys=["a"], partitions=[1]).partitions.tolist() == [1]
    with pytest.raises(PartitionNotFound):
        bench.publish(topic, [b"1"], partitions=[2])


def test_a_named_partition_that_is_not_there_is_refused_in_a_topic_of_one(bench: Bench) -> None:
    topic = bench.create()
    with pytest.raises(PartitionNotFound):
        bench.publish(topic, [b"1", b"2"], partitions=[0, 1])
    assert bench.payloads(topic) == []


def test_a_reader_does_not_see_what_is_not_durable(bench: Bench) -> None:
    topic = bench.create()
    bench.engine.fail_next_sync(StorageFailed(path="memory", reason="no"))
    with pytest.raises(StorageFailed):
        bench.publish(topic, [b"1"])
    assert bench.log.counters(topic, 0).end == 0
    assert bench.publish(topic, [b"2"]).offsets.tolist() == [0]
    assert bench.payloads(topic) == ["2"]


def test_a_message_for_a_topic_that_was_deleted_meanwhile_is_refused_and_leaves_nothing(bench: Bench) -> None:
    old = bench.create()
    bench.publish(old, [b"1"])
    bench.delete(old)
    new = bench.create()
    with pytest.raises(TopicNotFound):
        bench.publish(old, [b"2"], sender=Sender("p", 0, ADA))
    assert bench.payloads(new) == []
    for span in keys.everything_of(old.id):
        assert list(bench.engine.scan(span)) == []


@pytest.mark.parametrize("survives", [True, False])
def test_after_a_failed_sync_topics_are_as_the_disk_has_them(bench: Bench, survives: bool) -> None:
    kept = bench.create("app.kept")
    broken = StorageFailed(path="memory", reason="no")
    bench.engine.fail_next_sync(broken, survives=survives)
    with pytest.raises(StorageFailed):
        bench.delete(kept)
    bench.create("app.other")
    assert ("app.kept" in [topic.name for topic in bench.directory]) == (not survives)
    bench.engine.fail_next_sync(broken, survives=survives)
    with pytest.raises(StorageFailed):
        bench.create("app.doubtful")
    bench.create("app.third")
    assert ("app.doubtful" in [topic.name for topic in bench.directory]) == survives
    bench.committer.close()
    again = build(bench.engine, bench.clock)
    again.committer.close()
    assert list(again.directory) == list(bench.directory)


def test_message_ids_rise_across_a_restart_with_a_clock_that_went_back(bench: Bench) -> None:
    topic = bench.create()
    before = bench.publish(topic, [b"1"] * 100).ids
    bench.committer.close()
    again = build(bench.engine, ManualClock(NOW_US - 3_600_000_000))
    after = again.publish(again.directory.get("default", topic.name), [b"2"]).ids
    again.committer.close()
    assert after[0] > before.max()
    assert len(set(before.tolist())) == 100


def test_times_never_go_back_inside_a_partition_and_can_be_searched(bench: Bench) -> None:
    topic = bench.create()
    for at_seconds in (0, 10, 5, 15):
        bench.clock.set_us(NOW_US + at_seconds * 1_000_000)
        bench.publish(topic, [b"1", b"2"])
    times = [batch.first_us - NOW_US for batch in bench.log.read(topic, 0, 0, 8)]
    assert times == [0, 10_000_000, 10_000_000, 15_000_000]
    found = [bench.log.offset_at(topic, 0, NOW_US + s * 1_000_000) for s in (-1, 0, 1, 10, 11, 15, 16)]
    assert found == [0, 0, 2, 2, 6, 6, 8]


def test_ranges_outside_the_log_are_refused_with_what_is_there(bench: Bench) -> None:
    topic = bench.create()
    bench.publish(topic, [b"1", b"2"])
    for start, stop in ((0, 3), (3, 3), (-1, 1)):
        with pytest.raises(OffsetOutOfRange) as caught:
            bench.log.read(topic, 0, start, stop)
        assert caught.value.values["latest"] == 2
    with pytest.raises(PartitionNotFound):
        bench.log.read(topic, 1, 0, 0)


def test_a_damaged_batch_is_named_and_the_others_stay_readable(bench: Bench) -> None:
    topic = bench.create()
    for payload in (b"1", b"2", b"3"):
        bench.publish(topic, [payload])
    _rewrite(bench.engine, keys.record_key(topic.id, 0, 1), b"\x01garbage-that-is-long-enough-for-a-header")
    with pytest.raises(StorageCorrupt, match="offset 1"):
        list(bench.log.read(topic, 0, 0, 3))
    assert [batch.base_offset for batch in bench.log.read(topic, 0, 2, 3)] == [2]


def test_a_hole_in_the_log_is_an_error_not_a_shorter_answer(bench: Bench) -> None:
    topic = bench.create()
    for payload in (b"1", b"2", b"3"):
        bench.publish(topic, [payload])
    batch = bench.engine.batch()
    batch.delete(keys.record_key(topic.id, 0, 1))
    bench.engine.write(batch)
    with pytest.raises(StorageCorrupt, match="offset 1 is missing"):
        list(bench.log.read(topic, 0, 0, 3))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_any_range_holds_exactly_its_offsets(sizes: list[int], data: st.DataObject) -> None:
    bench = build(MemoryEngine(), ManualClock(NOW_US))
    topic = bench.create()
    for size in sizes:
        bench.publish(topic, [b"0"] * size)
    total = sum(sizes)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    offsets = [
        offset
        for batch in bench.log.read(topic, 0, start, stop)
        for offset in batch.arrow().column("offset").to_pylist()
    ]
    bench.committer.close()
    assert [offset for offset in offsets if start <= offset < stop] == list(range(start, stop))


def _rewrite(engine: MemoryEngine, key: bytes, value: bytes) -> None:
    batch = engine.batch()
    batch.put(key, value)
    engine.write(batch)


def _a_second_later(bench: Bench, topic: Topic, messages: Messages) -> Callable[[Staging], Receipt]:
    change = bench.publisher.plan(topic, messages)

    def stage(staging: Staging) -> Receipt:
        bench.clock.advance(1)
        return change(staging)

    return stage


def test_single_messages_of_one_group_share_a_record_batch_and_keep_their_order(bench: Bench) -> None:
    topic, gate = bench.create(partitions=2), threading.Event()
    bench.committer.submit(lambda _staging: gate.wait(60))
    routes = [0, 1, 0, 0, 1, 0]
    futures = []
    for number, partition in enumerate(routes):
        messages = Messages([f"k{number}"], [str(number).encode()], [partition])
        futures.append(bench.committer.submit(_a_second_later(bench, topic, messages)))
    gate.set()
    receipts = [future.result(60) for future in futures]
    assert [int(receipt.offsets[0]) for receipt in receipts] == [0, 0, 1, 2, 1, 3]
    for partition, payloads in ((0, ["0", "2", "3", "5"]), (1, ["1", "4"])):
        (batch,) = bench.log.read(topic, partition, 0, len(payloads))
        rows = batch.arrow().to_pydict()
        assert rows["payload"] == payloads
        assert rows["key"] == [f"k{payload}" for payload in payloads]
        assert rows["offset"] == list(range(len(payloads)))
        times = batch.arrow().column("ts").cast("int64").to_pylist()
        assert times == sorted(times)
        assert len(set(times)) == len(times), "each message keeps the time at which it was taken"
        for offset, time_us in enumerate(times):
            assert bench.log.offset_at(topic, partition, time_us) == offset
            assert bench.log.offset_at(topic, partition, time_us + 1) == offset + 1
        assert rows["message_id"] == [int(receipts[int(payload)].ids[0]) for payload in payloads]
        held = bench.log.counters(topic, partition)
        assert held.stored_bytes == sum(
            len(value) for _, value in bench.engine.scan(keys.record_range(topic.id, partition, 0, 9))
        )


def test_a_topic_deleted_in_the_group_of_its_last_messages_leaves_no_byte(bench: Bench) -> None:
    topic, gate = bench.create(), threading.Event()
    bench.committer.submit(lambda _staging: gate.wait(60))
    messages = Messages([None], [b"1"], [None])
    stored = bench.committer.submit(bench.publisher.plan(topic, messages))
    deleted = bench.committer.submit(
        lambda staging: bench.directory.stage_delete(staging, topic.tenant, topic.name)
    )
    gate.set()
    stored.result(60)
    deleted.result(60)
    left = [key for span in keys.everything_of(topic.id) for key, _ in bench.engine.scan(span)]
    assert left == []


def test_a_large_request_is_stored_as_several_record_batches_and_answered_as_one(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    sizes = [BATCH_BYTES_MAX // 3] * 7 + [BATCH_BYTES_MAX * 2] + [1] * 5
    payloads = [bytes([97 + index]) * size for index, size in enumerate(sizes)]
    names = [f"key-{index}" for index in range(len(sizes))]
    routes = [0 if index != 2 else 1 for index in range(len(sizes))]
    first = bench.publish(topic, payloads, keys=names, partitions=routes, sender=Sender("p", 0, ADA))
    assert first.stored_count == len(sizes)
    stored = list(bench.log.read(topic, 0, 0, len(sizes) - 1))
    assert [batch.count for batch in stored] == [2, 2, 2, 1, 5]
    assert [batch.base_offset for batch in stored] == [0, 2, 4, 6, 7]
    rows = [row for batch in stored for row in batch.arrow().to_pylist()]
    expected = [index for index in range(len(sizes)) if index != 2]
    assert [row["key"] for row in rows] == [names[index] for index in expected]
    assert [row["message_id"] for row in rows] == [int(first.ids[index]) for index in expected]
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    again = bench.publish(topic, payloads, keys=names, partitions=routes, sender=Sender("p", 0, ADA))
    assert (again.stored_count, again.ids.tolist()) == (0, first.ids.tolist())
    assert again.offsets.tolist() == first.offsets.tolist()


def test_long_keys_and_many_messages_end_a_record_batch_too(bench: Bench) -> None:
    topic = bench.create()
    bench.publish(topic, [b"1"] * 3, keys=["ü" * (BATCH_BYTES_MAX // 3)] * 3)
    assert [batch.count for batch in bench.log.read(topic, 0, 0, 3)] == [1, 1, 1]
    bench.publish(topic, [b"1"] * (BATCH_MESSAGES_MAX + 1))
    end = 3 + BATCH_MESSAGES_MAX + 1
    assert [batch.count for batch in bench.log.read(topic, 0, 3, end)] == [BATCH_MESSAGES_MAX, 1]


def test_long_keys_count_against_the_size_of_a_group(bench: Bench) -> None:
    topic = bench.create()
    staging = Staging(bench.engine, {})
    long_key = "k" * (GROUP_BYTES_MAX + 1)
    bench.publisher.plan(topic, Messages([long_key], [b"1"], [None]))(staging)
    assert staging.size_bytes > GROUP_BYTES_MAX
