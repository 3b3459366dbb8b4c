"""Groups through crashes, failing disks, retention and clocks that are set: no promise is taken back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.live_copy import copy_still
from tests.topics.groups.bench import ALICE, GroupsBench, broken_disk, build, leases, offsets
from tidegate.errors import (
    GroupNotFound,
    OffsetOutOfRange,
    RequestInvalid,
    StorageCorrupt,
    StorageFailed,
    TopicNotFound,
)
from tidegate.storage.group_commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.storage.rocksdb.engine import RocksEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.groups import codec
from tidegate.topics.groups.types import AckRequest, FetchRequest, FetchResult
from tidegate.topics.log.reader import Start


@pytest.fixture
def groups() -> Iterator[GroupsBench]:
    made = build(MemoryEngine(), ManualClock())
    yield made
    made.committer.close()


def crashed(groups: GroupsBench) -> GroupsBench:
    """Lose the power, and start again on the same disk."""
    engine = groups.engine
    assert isinstance(engine, MemoryEngine)
    groups.committer.close()
    engine.crash()
    return build(engine, groups.clock)


def test_case_18_leases_survive_a_crash_with_holder_time_and_count(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 6)
    held = leases(groups.take(topic, "a", 4))
    groups.ack(topic, held[:1])
    groups.nack(topic, held[1:2], delay_ms=5000)
    before = groups.shape(topic)
    again = crashed(groups)
    after = again.shape(topic)
    assert after.partitions == before.partitions
    assert [(member.member, member.holds) for member in after.members] == [("a", 2)]
    assert offsets(again.take(topic, "b")) == [4, 5]
    assert again.ack(topic, held[2:3]).acked == 1
    again.clock.advance(30)
    given = again.take(topic, "b")
    assert [(one.start, one.stop, one.deliveries) for one in given.ranges] == [(1, 2, 2), (3, 6, 2)]
    again.committer.close()


def test_case_18_a_killed_process_leaves_leases_and_acks_on_the_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    first = build(RocksEngine(tmp_path / "store"), clock)
    topic = first.create()
    first.publish(topic, 100)
    held = leases(first.take(topic, "a", 60))
    first.ack(topic, held[10:20])
    first.nack(topic, held[30:31], delay_ms=1000, reason="busy")
    # What a kill leaves: the files as they are, the store not closed.
    copy_still(tmp_path / "store", tmp_path / "copy")
    second = build(RocksEngine(tmp_path / "copy"), clock)
    assert second.shape(topic).partitions == first.shape(topic).partitions
    assert second.ack(topic, held).acked == 49
    clock.advance(1)
    given = second.take(topic, "b", 1000)
    assert offsets(given) == [30, *range(60, 100)]
    assert given.ranges[0].deliveries == 2
    for bench in (first, second):
        bench.committer.close()
        bench.engine.close()


def test_a_write_that_fails_leaves_no_lease_behind(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 4)
    groups.take(topic, "a", 1)
    engine = groups.engine
    assert isinstance(engine, MemoryEngine)
    engine.fail_next_write(broken_disk())
    with pytest.raises(StorageFailed):
        groups.take(topic, "b", 2)
    assert offsets(groups.take(topic, "c", 2)) == [1, 2]
    engine.fail_next_sync(broken_disk())
    with pytest.raises(StorageFailed):
        groups.upto(topic, 3, member="c")
    assert groups.upto(topic, 3, member="c").acked == 2
    engine.fail_next_write(broken_disk())
    with pytest.raises(StorageFailed):
        groups.delete_group(topic)
    wider = groups.add_partitions(topic, 2)
    assert [part.partition for part in groups.shape(wider).partitions] == [0, 1]
    engine.fail_next_write(broken_disk())
    with pytest.raises(StorageFailed):
        groups.take(topic, group="new")
    with pytest.raises(GroupNotFound):
        groups.upto(topic, 0, group="new")


def test_a_stage_that_is_refused_after_its_work_is_as_if_it_never_was(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 4)

    def refused(staging: Staging) -> None:
        groups.groups.stage_fetch(staging, topic, FetchRequest("g", "a", ALICE.qualified_name, limit=4))
        raise RequestInvalid(reason="the rest of the statement is wrong", hint="")

    gate = threading.Event()
    blocker = groups.committer.submit(lambda _staging: gate.wait(60))
    taken = groups.committer.submit(
        lambda s: groups.groups.stage_fetch(s, topic, FetchRequest("g", "b", ALICE.qualified_name, limit=1))
    )
    wrong = groups.committer.submit(refused)
    last = groups.committer.submit(
        lambda s: groups.groups.stage_fetch(s, topic, FetchRequest("g", "c", ALICE.qualified_name, limit=9))
    )
    gate.set()
    blocker.result(60)
    assert offsets(taken.result(60)) == [0]
    assert isinstance(wrong.exception(60), RequestInvalid)
    assert offsets(last.result(60)) == [1, 2, 3]


def test_changes_of_one_group_of_writes_see_each_other(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 4)

    def both(staging: Staging) -> FetchResult:
        given = groups.groups.stage_fetch(
            staging, topic, FetchRequest("g", "a", ALICE.qualified_name, limit=3)
        )
        groups.groups.stage_ack(staging, topic, AckRequest("g", "a", ALICE, leases(given)[:2]))
        return given

    groups.commit(both)
    assert groups.shape(topic).in_flight == 1
    again = crashed(groups)
    assert again.shape(topic).partitions[0].position == 2
    again.committer.close()


def test_case_20_a_group_that_retention_overtook_is_told_once_what_it_missed(groups: GroupsBench) -> None:
    topic = groups.create()
    for _ in range(5):
        groups.publish(topic, 10)
    held = leases(groups.take(topic, "a", 15))
    groups.nack(topic, held[5:10], delay_ms=1000)
    groups.ack(topic, held[:2])
    groups.trim(topic, 30)
    assert groups.groups.estimate_fetch(topic, "g", None).missed
    # 10 to 14 and 2 to 4 are still held, 5 to 9 wait, 15 to 29 were never given.
    assert groups.shape(topic).missed == 20
    assert groups.groups.lag(topic, "g") == 20 + 8
    given = groups.take(topic, "b", 5)
    assert (given.missed, offsets(given)) == ({0: 20}, [30, 31, 32, 33, 34])
    assert groups.take(topic, "b", 1).missed == {}
    assert groups.ack(topic, held[10:12]).acked == 2
    groups.clock.advance(30)
    again = crashed(groups)
    late = again.take(topic, "c", 100)
    assert late.missed == {0: 6}
    assert offsets(late) == list(range(30, 50))
    assert again.shape(topic).missed == 26
    again.committer.close()


@pytest.mark.parametrize(
    ("start", "missed"),
    [(Start("offset", 3), 7), (Start("after", 3), 6), (Start("offsets", offsets={0: 0}), 10)],
)
def test_case_20_a_group_that_begins_below_the_log_is_told_once_what_it_missed(
    groups: GroupsBench, start: Start, missed: int
) -> None:
    topic = groups.create()
    groups.publish(topic, 10)
    groups.publish(topic, 4)
    groups.trim(topic, 10)
    given = groups.take(topic, start=start, limit=2)
    assert (given.missed, offsets(given)) == ({0: missed}, [10, 11])
    again = crashed(groups)
    later = again.take(topic, start=start)
    assert (later.missed, offsets(later)) == ({}, [12, 13])
    assert again.shape(topic).missed == missed
    for beyond in (Start("offset", 15), Start("offset", -1)):
        with pytest.raises(OffsetOutOfRange):
            again.take(topic, group="h", start=beyond)
    with pytest.raises(OffsetOutOfRange):
        again.reset(topic, Start("offset", 3))
    again.committer.close()


def test_case_14_a_cleared_topic_leaves_a_group_at_its_end(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 10)
    groups.take(topic, "a", 4)
    groups.trim(topic, 10)
    part = groups.shape(topic).partitions[0]
    assert (part.start, part.end, part.next, part.lag, part.in_flight, part.position) == (10, 10, 10, 4, 4, 0)
    assert groups.upto(topic, 3).position == {0: 10}
    assert groups.groups.lag(topic, "g") == 0
    assert groups.take(topic).missed == {0: 6}
    groups.publish(topic, 1)
    assert offsets(groups.take(topic)) == [10]


def test_a_straddled_entry_is_given_again_from_the_start_of_the_log(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 5)
    groups.publish(topic, 5)
    groups.take(topic, "a", 8)
    groups.clock.advance(30)
    groups.trim(topic, 5)
    given = groups.take(topic, "b", 2)
    assert (given.missed, offsets(given)) == ({0: 5}, [5, 6])
    assert given.ranges[0].deliveries == 2
    assert groups.expire(topic).expired == 1
    assert offsets(groups.take(topic, "b", 9)) == [7, 8, 9]


def test_a_clock_that_is_set_neither_ends_nor_holds_leases(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    held = leases(groups.take(topic, "a"))
    groups.clock.set_us(groups.clock.now_us() + 3_600_000_000)
    assert offsets(groups.take(topic, "b")) == []
    assert groups.groups.overdue(groups.clock.now_us()) == []
    groups.clock.set_us(groups.clock.now_us() - 10 * 3_600_000_000)
    groups.clock.advance(29)
    due_us = groups.groups.estimate_fetch(topic, "g", None).due_us
    assert due_us == groups.clock.now_us() + 1_000_000
    assert groups.extend(topic, held).extended == 2
    groups.clock.advance(30)
    assert groups.groups.overdue(groups.clock.now_us()) == [(topic.id, "g")]
    assert offsets(groups.take(topic, "b")) == [0, 1]


def test_a_clock_that_is_set_back_while_the_server_is_down_holds_no_lease_for_longer(
    groups: GroupsBench,
) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    held = leases(groups.take(topic, "a", 2))
    groups.nack(topic, held[:1], delay_ms=5000)
    groups.clock.set_us(groups.clock.now_us() - 86_400_000_000)
    again = crashed(groups)
    assert offsets(again.take(topic, "b")) == [2]
    again.clock.advance(5)
    assert offsets(again.take(topic, "b")) == [0]
    again.clock.advance(25)
    assert offsets(again.take(topic, "c", 1)) == [1]
    again.committer.close()


def test_fetch_ids_after_a_restart_are_above_all_before(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    before = groups.take(topic, "a", 1).ranges[0].fetch_id
    groups.clock.set_us(groups.clock.now_us() - 86_400_000_000)
    again = crashed(groups)
    assert again.take(topic, "b", 1).ranges[0].fetch_id > before
    again.committer.close()


def test_expiry_makes_due_says_so_and_survives(groups: GroupsBench) -> None:
    topic = groups.create(partitions=2)
    groups.publish(topic, 3, 0)
    groups.publish(topic, 2, 1)
    groups.take(topic, "a")
    assert groups.groups.overdue(groups.clock.now_us()) == []
    groups.clock.advance(30)
    assert groups.groups.overdue(groups.clock.now_us()) == [(topic.id, "g")]
    assert (groups.expire(topic).expired, groups.notices) == (5, ["g"])
    assert groups.groups.overdue(groups.clock.now_us()) == []
    again = crashed(groups)
    assert again.groups.overdue(again.clock.now_us()) == []
    # Nobody else was given them: their member may still say that it is done.
    assert again.upto(topic, 2, member="a").acked == 3
    assert [one.partition for one in again.take(topic, "b").ranges] == [1]
    again.committer.close()


def test_leases_that_nobody_looks_at_are_found_after_a_restart(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    groups.take(topic)
    groups.clock.advance(30)
    again = crashed(groups)
    assert again.groups.overdue(again.clock.now_us()) == [(topic.id, "g")]
    again.committer.close()


@pytest.mark.parametrize("kind", ["group", "position", "entry"])
def test_damage_to_a_row_is_named(groups: GroupsBench, kind: str) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    groups.take(topic)
    digest = codec.digest_of("g")
    key = {
        "group": codec.group_key(topic.id, digest),
        "position": codec.position_key(topic.id, digest, 0),
        "entry": codec.entry_prefix(topic.id, digest, 0) + bytes(8),
    }[kind]
    stored = groups.engine.get(key)
    assert stored is not None
    batch = groups.engine.batch()
    batch.put(key, stored[:-6] + bytes([stored[-6] ^ 1]) + stored[-5:])
    groups.engine.write(batch, sync=True)
    groups.groups.reload()
    with pytest.raises(StorageCorrupt, match="checksum"):
        groups.take(topic)


def test_a_reset_while_leases_are_held_survives_a_crash(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 4)
    held = leases(groups.take(topic))
    groups.reset(topic, Start("offset", 1))
    again = crashed(groups)
    assert again.ack(topic, held).lost == held
    assert offsets(again.take(topic)) == [1, 2, 3]
    again.committer.close()


def test_readers_on_other_threads_never_meet_a_group_in_the_middle_of_a_change(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 800)
    groups.take(topic, "a", 1)
    faults: list[BaseException] = []
    stop = threading.Event()

    def look() -> None:
        try:
            while not stop.is_set():
                shape = groups.shape(topic)
                # Nothing is acknowledged and nothing added: however it is divided, the sum stays.
                assert shape.lag == 800
                groups.groups.estimate_fetch(topic, "g", None)
                groups.groups.overdue(groups.clock.now_us())
        except BaseException as fault:  # noqa: BLE001 - told by the test
            faults.append(fault)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(60):
        texts = leases(groups.take(topic, "b", 10))
        groups.nack(topic, texts[::2], release=True)
        groups.extend(topic, texts[1::2], 1000 + number)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert faults == []


def test_a_group_that_was_full_says_so_when_it_has_room_again(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1001)
    given = leases(groups.take(topic, limit=1000))
    assert groups.groups.estimate_fetch(topic, "g", None).count == 0
    groups.notices.clear()
    groups.ack(topic, given[:1])
    assert groups.notices == ["g"] and groups.groups.estimate_fetch(topic, "g", None).count == 1
    groups.ack(topic, given[1:2])
    assert groups.notices == ["g"]


def test_a_take_that_comes_after_its_topic_was_deleted_leaves_nothing(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    groups.commit(lambda s: groups.directory.stage_delete(s, "default", topic.name))
    groups.groups.forget(topic)
    with pytest.raises(TopicNotFound):
        groups.take(topic)
    assert not list(groups.engine.scan(codec.groups_range(topic.id)))
