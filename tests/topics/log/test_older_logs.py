"""Topics that an older version wrote: read, appended to, searched and trimmed with what is new.

`topic_log_v1.bin.z` is all of an engine's pairs, compressed, as the version before record batches of version
2 wrote them: topic `app.old`, two partitions, 1,119 messages in five record batches in the first.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.topics.bench import ADA, NOW_US, Bench, build
from tidegate.ingest.publish import Sender
from tidegate.model.messages import MESSAGE_SCHEMA
from tidegate.storage.memory import CHECKPOINT_FILE, MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Retention, Topic
from tidegate.topics.log.reader import arrow_stream, read_messages

GOLDEN = Path(__file__).with_name("topic_log_v1.bin.z")
MESSAGES = 1_119
SECOND_US = 1_000_000


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / CHECKPOINT_FILE).write_bytes(zlib.decompress(GOLDEN.read_bytes()))
    made = build(MemoryEngine.from_checkpoint(tmp_path), ManualClock(NOW_US + 10_000 * SECOND_US))
    yield made
    made.committer.close()


@pytest.fixture
def topic(old: Bench) -> Topic:
    return old.directory.get("default", "app.old")


def test_old_messages_are_all_there_and_new_ones_follow_them(old: Bench, topic: Topic) -> None:
    held = old.log.counters(topic, 0)
    assert (held.start, held.end) == (0, MESSAGES)
    assert held.stored_bytes == held.appended_bytes > 0
    assert topic.retention.is_endless
    assert old.publish(topic, [b"9"], partitions=[0]).offsets.tolist() == [MESSAGES]
    assert old.payloads(topic) == [*map(str, range(MESSAGES)), "9"]
    versions = [batch.version for batch in old.log.read(topic, 0, 0, MESSAGES + 1)]
    assert versions == [1, 1, 1, 1, 1, 2]
    again = old.publish(topic, [b'"p"'], partitions=[1], sender=Sender("p", 0, ADA))
    assert again.stored_count == 0, "what an old producer sent is remembered"


def test_one_stream_gives_batches_of_both_versions(old: Bench, topic: Topic) -> None:
    """Large batches of either version, some of which leave as they lie, and small ones, which are joined."""
    for size in (700, 2, 513):
        old.publish(topic, [b"0"] * size, partitions=[0] * size)
    end = old.log.counters(topic, 0).end
    for start, stop in ((0, end), (1, end - 1), (5, MESSAGES + 1), (MESSAGES - 1, end), (600, 601)):
        stream = b"".join(arrow_stream(old.log, topic, 0, start, stop))
        table = pa.ipc.open_stream(stream).read_all()
        table.validate(full=True)
        assert table.schema == MESSAGE_SCHEMA
        assert table.column("offset").to_pylist() == list(range(start, stop))
        texts = [str(number) if number < MESSAGES else "0" for number in range(start, stop)]
        assert table.column("payload").to_pylist() == texts
        assert table.column("user").null_count == stop - start
    taken = read_messages(old.log, topic, {0: 0}, end)
    assert [batch.schema for batch in taken.batches] == [MESSAGE_SCHEMA] * 8


def test_old_logs_are_searched_by_time_and_trimmed_though_they_have_no_index(
    old: Bench, topic: Topic
) -> None:
    starts = [0, 3, 516, 518, 1118]
    for base in starts:
        assert old.log.offset_at(topic, 0, NOW_US + base * SECOND_US) == base
        assert old.log.offset_at(topic, 0, NOW_US + base * SECOND_US + 1) == next(
            later for later in [*starts, MESSAGES] if later > base
        )
    held = old.log.counters(topic, 0)
    changed = old.committer.submit(
        lambda staging: old.directory.stage_change(
            staging, topic, retention=Retention(max_bytes=held.stored_bytes * 2 // 3)
        )
    ).result(60)
    start = old.log.retained_start(changed, 0, old.clock.now_us())
    assert start == 516
    assert old.trim(changed, start) == start
    assert old.payloads(changed) == [str(number) for number in range(516, MESSAGES)]
    left = old.log.counters(changed, 0)
    assert left.stored_bytes <= held.stored_bytes * 2 // 3
    assert left.appended_bytes == held.appended_bytes
