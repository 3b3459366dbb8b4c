"""Trims: the beginning of a log goes, offsets never come back, readers are told, the disk gets its room."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.topics.bench import ADA, NOW_US, Bench, build
from tidegate.errors import (
    InvariantBroken,
    OffsetOutOfRange,
    PartitionNotFound,
    SequenceTooOld,
    StorageFailed,
    TopicNotFound,
)
from tidegate.ingest.publish import Messages, Sender
from tidegate.model.ids import SnowflakeSource
from tidegate.storage.engine import KeyRange
from tidegate.storage.group_commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.log.log import TopicLog
from tidegate.topics.log.reader import arrow_stream, read_messages, read_ranges
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.log.time_index import INDEX_EVERY_BYTES, PartitionReader

MIB = 1024 * 1024


def fill(bench: Bench, topic: Topic, batches: int = 3, count: int = 2) -> None:
    """Append that many record batches."""
    for number in range(batches):
        bench.publish(topic, [b"%d" % number] * count, partitions=[0] * count)


def clear(bench: Bench, topic: Topic) -> int:
    def stage(staging: Staging) -> int:
        return sum(
            bench.log.stage_trim(staging, topic, number, bench.log.counters(topic, number).end)
            for number in range(topic.partitions)
        )

    return bench.committer.submit(stage).result(60)


def stored_keys(bench: Bench, topic: Topic) -> list[bytes]:
    spans = (keys.record_range(topic.id, 0, 0, keys.OFFSET_END), keys.time_range(topic.id, 0))
    return [key for span in spans for key, _ in bench.engine.scan(span)]


def test_case_14_clear_then_append_then_read_and_offsets_go_on(bench: Bench) -> None:
    topic = bench.create(partitions=2)
    fill(bench, topic)
    bench.publish(topic, [b"other"], partitions=[1])
    assert clear(bench, topic) == 7
    held = bench.log.counters(topic, 0)
    assert (held.start, held.end, held.stored_bytes) == (6, 6, 0)
    assert stored_keys(bench, topic) == []
    assert bench.payloads(topic) == []
    assert bench.publish(topic, [b"new"], partitions=[0]).offsets.tolist() == [6]
    assert bench.payloads(topic) == ["new"]
    assert clear(bench, topic) == 1
    assert clear(bench, topic) == 0, "there is nothing left"


def test_a_trim_goes_down_to_the_beginning_of_a_record_batch(bench: Bench) -> None:
    topic = bench.create()
    fill(bench, topic)
    assert bench.trim(topic, 1) == 0, "inside the first batch"
    assert bench.trim(topic, 3) == 2
    assert bench.log.counters(topic, 0).start == 2
    assert bench.trim(topic, 2) == bench.trim(topic, 0) == 0, "it never goes back"
    assert bench.payloads(topic) == ["1", "1", "2", "2"]
    assert bench.trim(topic, 5) == 2
    held = bench.log.counters(topic, 0)
    assert held.stored_bytes == sum(
        len(value) for _, value in bench.engine.scan(keys.record_range(topic.id, 0, 0, keys.OFFSET_END))
    )


def test_a_trim_beyond_the_end_or_of_what_is_not_there_is_refused(bench: Bench) -> None:
    topic = bench.create()
    fill(bench, topic)
    with pytest.raises(InvariantBroken, match="beyond the end 6"):
        bench.trim(topic, 7)
    with pytest.raises(PartitionNotFound):
        bench.trim(topic, 0, partition=1)
    bench.delete(topic)
    with pytest.raises(TopicNotFound):
        bench.trim(topic, 2)


def test_case_14_offsets_are_never_reused_after_a_trim_a_clear_and_a_crash(bench: Bench) -> None:
    topic = bench.create()
    fill(bench, topic)
    bench.trim(topic, 4)
    first_ids = bench.publish(topic, [b"a"]).ids
    clear(bench, topic)
    bench.committer.close()
    bench.engine.crash()
    again = build(bench.engine, ManualClock(NOW_US - 10**9))
    held = again.log.counters(topic, 0)
    assert (held.start, held.end) == (7, 7)
    receipt = again.publish(topic, [b"b"])
    assert receipt.offsets.tolist() == [7]
    assert receipt.ids[0] > first_ids[0], "ids rise as well"
    assert again.payloads(topic) == ["b"]
    assert again.log.counters(topic, 0).last_us >= NOW_US, "and times do not go back"
    again.committer.close()


@pytest.mark.parametrize("survives", [True, False])
def test_a_trim_whose_sync_failed_is_there_whole_or_not_at_all(bench: Bench, survives: bool) -> None:
    topic = bench.create()
    fill(bench, topic)
    bench.engine.fail_next_sync(StorageFailed(path="memory", reason="no"), survives=survives)
    with pytest.raises(StorageFailed):
        bench.trim(topic, 4)
    bench.publish(topic, [b"9"])
    assert bench.log.counters(topic, 0).start == (4 if survives else 0)
    assert bench.payloads(topic) == ["2", "2", "9"] if survives else ["0", "0", "1", "1", "2", "2", "9"]


def test_a_trim_in_the_group_of_appends_counts_what_they_stored(bench: Bench) -> None:
    topic, gate = bench.create(), threading.Event()
    fill(bench, topic)
    bench.committer.submit(lambda _staging: gate.wait(60))
    stored = bench.committer.submit(bench.publisher.plan(topic, Messages([None], [b"x" * 1000], [None])))
    trimmed = bench.committer.submit(lambda staging: bench.log.stage_trim(staging, topic, 0, 4))
    gate.set()
    assert (stored.result(60).offsets.tolist(), trimmed.result(60)) == ([6], 4)
    for end in (7, 8):
        held = bench.log.counters(topic, 0)
        sizes = [len(v) for _, v in bench.engine.scan(keys.record_range(topic.id, 0, 0, keys.OFFSET_END))]
        assert (held.start, held.end, held.stored_bytes) == (4, end, sum(sizes))
        bench.publish(topic, [b"y"])


def test_a_change_that_closes_its_group_counts_what_those_before_it_append(bench: Bench) -> None:
    topic, gate = bench.create(), threading.Event()
    fill(bench, topic)

    def with_a_range(staging: Staging) -> None:
        staging.delete_range(b"\xf0", b"\xf1")
        bench.log.stage_append(staging, topic, 0, [None], [b"z"], Origin())

    bench.committer.submit(lambda _staging: gate.wait(60))
    one = Messages([None], [b"x" * INDEX_EVERY_BYTES], [None])
    futures = [bench.committer.submit(bench.publisher.plan(topic, one)) for _ in range(2)]
    closing = bench.committer.submit(with_a_range)
    gate.set()
    for future in (*futures, closing):
        future.result(60)  # type: ignore[attr-defined]
    held = bench.log.counters(topic, 0)
    sizes = [len(value) for _, value in bench.engine.scan(keys.record_range(topic.id, 0, 0, keys.OFFSET_END))]
    assert (held.end, held.stored_bytes, held.appended_bytes) == (9, sum(sizes), sum(sizes))
    entries = list(PartitionReader(bench.engine, topic, 0).entries())
    assert [(entry.offset, entry.bytes_before) for entry in entries] == [
        (7, sum(sizes[:4])),
        (8, sum(sizes[:5])),
    ]


def test_one_change_may_trim_and_then_append_but_not_the_other_way_round(bench: Bench) -> None:
    topic = bench.create()
    fill(bench, topic)

    def replace_all(staging: Staging) -> None:
        bench.log.stage_trim(staging, topic, 0, 6)
        bench.log.stage_append(staging, topic, 0, [None], [b"new"], Origin())

    bench.committer.submit(replace_all).result(60)
    assert bench.payloads(topic) == ["new"]
    held = bench.log.counters(topic, 0)
    assert (held.start, held.end) == (6, 7)

    def wrong(staging: Staging) -> None:
        bench.log.stage_append(staging, topic, 0, [None], [b"1"], Origin())
        bench.log.stage_trim(staging, topic, 0, 7)

    with pytest.raises(InvariantBroken, match="appends"):
        bench.committer.submit(wrong).result(60)
    assert bench.payloads(topic) == ["new"]


def test_case_20_a_reader_of_a_range_that_is_gone_is_told_the_earliest_offset(bench: Bench) -> None:
    topic = bench.create()
    fill(bench, topic)
    before = bench.log.read(topic, 0, 0, 6)
    bench.trim(topic, 4)
    for attempt in (
        lambda: bench.log.read(topic, 0, 3, 6),
        lambda: list(before),
        lambda: read_messages(bench.log, topic, {0: 0}, 10),
        lambda: arrow_stream(bench.log, topic, 0, 2, 5),
        lambda: bench.log.messages_at(topic, 0, np.array([3])),
        lambda: read_ranges(bench.log, topic, [(0, 4, 5), (0, 0, 1)], 1000),
    ):
        with pytest.raises(OffsetOutOfRange) as caught:
            attempt()
        assert caught.value.values["earliest"] == 4
    assert [batch.base_offset for batch in bench.log.read(topic, 0, 4, 6)] == [4]


class _Interrupted(MemoryEngine):
    """An engine in which something happens right before a scan or a get."""

    before_look: Callable[[], None] | None = None

    def scan(self, span: KeyRange, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._interrupt(span.start)
        return super().scan(span, reverse=reverse)

    def _interrupt(self, key: bytes) -> None:
        what, is_log = self.before_look, key[:1] == keys.record_key(1, 0, 0)[:1]
        if what is not None and is_log:
            self.before_look = None
            what()


def test_case_22_a_trim_at_any_moment_of_a_read_gives_messages_or_the_earliest_never_a_hole() -> None:
    for moment in range(3):
        engine = _Interrupted()
        bench = build(engine, ManualClock(NOW_US))
        topic = bench.create()
        fill(bench, topic)

        def later(bench: Bench = bench, topic: Topic = topic, left: int = moment) -> None:
            if left:
                engine.before_look = lambda: later(left=left - 1)  # noqa: B023
            else:
                bench.trim(topic, 4)

        engine.before_look = later
        try:
            offsets = [batch.base_offset for batch in bench.log.read(topic, 0, 1, 6)]
        except OffsetOutOfRange as cut:
            assert cut.values["earliest"] == 4
        else:
            assert offsets == [0, 2, 4]
        engine.before_look = later
        assert bench.log.offset_at(topic, 0, NOW_US) in (0, 4)
        bench.committer.close()


def test_case_22_a_reader_in_the_midst_of_what_is_trimmed_reads_on(tmp_path: Path) -> None:
    for engine in (MemoryEngine(), RocksEngine(tmp_path / "engine")):
        bench = build(engine, ManualClock(NOW_US))  # type: ignore[arg-type]
        topic = bench.create()
        fill(bench, topic, batches=5)
        reading = bench.log.read(topic, 0, 0, 10)
        assert next(reading).base_offset == 0
        bench.trim(topic, 8)
        bench.log.compact(topic, 0, bytes_min=1)
        assert [batch.base_offset for batch in reading] == [2, 4, 6, 8]
        bench.committer.close()
        engine.close()


def test_entries_of_the_time_index_go_with_their_batches(bench: Bench) -> None:
    topic = bench.create()
    for number in range(8):
        bench.clock.set_us(NOW_US + number)
        bench.publish(topic, [b"x" * (INDEX_EVERY_BYTES // 2)])
    times = [keys.time_of(key) for key, _ in bench.engine.scan(keys.time_range(topic.id, 0))]
    assert times == [(NOW_US + number, number) for number in (2, 4, 6)]
    bench.trim(topic, 4)
    left = [keys.time_of(key) for key, _ in bench.engine.scan(keys.time_range(topic.id, 0))]
    assert left == [(NOW_US + number, number) for number in (4, 6)]
    bench.trim(topic, 5)
    left = [keys.time_of(key) for key, _ in bench.engine.scan(keys.time_range(topic.id, 0))]
    assert left == [(NOW_US + 6, 6)]
    assert [bench.log.offset_at(topic, 0, NOW_US + number) for number in (0, 5, 6, 8)] == [5, 5, 6, 8]
    clear(bench, topic)
    assert stored_keys(bench, topic) == []


def test_a_repeat_of_what_was_removed_says_so_and_stores_nothing(bench: Bench) -> None:
    topic = bench.create()
    bench.publish(topic, [b"1", b"2"], sender=Sender("p", 0, ADA))
    bench.publish(topic, [b"3"], sender=Sender("p", 2, ADA))
    bench.trim(topic, 2)
    with pytest.raises(SequenceTooOld) as caught:
        bench.publish(topic, [b"2", b"3"], sender=Sender("p", 1, ADA))
    assert caught.value.values["sequence"] == 1
    assert "retention or CLEAR" in caught.value.hint
    assert "sequence 3" in caught.value.hint
    assert bench.publish(topic, [b"3"], sender=Sender("p", 2, ADA)).offsets.tolist() == [2], (
        "this one is there"
    )
    clear(bench, topic)
    with pytest.raises(SequenceTooOld, match="sequence 2"):
        bench.publish(topic, [b"3", b"4"], sender=Sender("p", 2, ADA))
    assert bench.payloads(topic) == []
    assert bench.publish(topic, [b"4"], sender=Sender("p", 3, ADA)).offsets.tolist() == [3]


def _disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".sst", ".log"))


def test_case_22_the_disk_gets_its_room_back_after_a_trim_and_after_a_topic_is_gone(tmp_path: Path) -> None:
    engine = RocksEngine(tmp_path / "engine")
    bench = build(engine, ManualClock(NOW_US))  # type: ignore[arg-type]
    topic = bench.create()
    noise = random.Random(1)  # LZ4 cannot make it small
    for _ in range(24):
        bench.publish(topic, [b'"' + noise.randbytes(MIB // 2).hex().encode() + b'"'])
    engine.compact(keys.record_range(topic.id, 0, 0, keys.OFFSET_END))
    full_bytes = _disk_bytes(engine.path)
    assert full_bytes > 20 * MIB
    assert not bench.log.compact(topic, 0, MIB), "nothing was removed"
    bench.trim(topic, 22)
    assert bench.log.compact(topic, 0, MIB)
    assert _disk_bytes(engine.path) < full_bytes // 4
    assert not bench.log.compact(topic, 0, MIB), "once is enough"
    bench.delete(topic)
    bench.log.forget(topic)
    assert (bench.log.compact_deleted(), bench.log.compact_deleted()) == (0, 0), (
        "what is left is not worth it"
    )
    bench.committer.close()
    engine.close()


def test_a_large_topic_that_is_gone_is_remembered_until_its_room_is_back(bench: Bench) -> None:
    topic = bench.create()
    for _ in range(5):
        bench.publish(topic, [b"x" * (16 * MIB)])
    bench.delete(topic)
    bench.log.forget(topic)
    assert (bench.log.compact_deleted(), bench.log.compact_deleted()) == (1, 0)


def test_what_was_counted_for_a_trim_is_not_needed_by_it(bench: Bench) -> None:
    """A trim by someone who did not ask where the log should start counts the bytes itself."""
    topic = bench.create()
    for number in range(9):
        bench.publish(topic, [b"%d" % number * (INDEX_EVERY_BYTES // 3)])
    other = TopicLog(bench.engine, SnowflakeSource(bench.clock), bench.clock, bench.schemas)
    for start in (1, 5, 8):
        trim = partial(other.stage_trim, topic=topic, partition=0, start=start)
        bench.committer.submit(trim).result(60)
        sizes = [
            len(value) for _, value in bench.engine.scan(keys.record_range(topic.id, 0, 0, keys.OFFSET_END))
        ]
        assert (len(sizes), other.counters(topic, 0).stored_bytes) == (9 - start, sum(sizes))
