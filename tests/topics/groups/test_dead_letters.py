"""Dead letters: after too many deliveries, with reason and origin, in one write with the message's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tests.topics.groups.bench import LIMITS, GroupsBench, broken_disk, build, leases, offsets
from tidegate.errors import StorageFailed, TopicNotFound
from tidegate.model.tables import Table, TableColumn, TableKind
from tidegate.settings import TopicSettings
from tidegate.storage.group_commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics import keys
from tidegate.topics.definitions import Topic
from tidegate.topics.log.record_batch import Origin
from tidegate.topics.payloads import CODEC_FULL, encode_full


@pytest.fixture
def groups() -> Iterator[GroupsBench]:
    made = build(MemoryEngine(), ManualClock())
    yield made
    made.committer.close()


def dead_topic(groups: GroupsBench, topic: Topic) -> Topic:
    return groups.directory.get(topic.tenant, topic.dead_name)


def letters(groups: GroupsBench, topic: Topic, partition: int = 0) -> list[dict[str, Any]]:
    return [msgspec.json.decode(text) for text in groups.payloads(dead_topic(groups, topic), partition)]


def fail(groups: GroupsBench, topic: Topic, times: int) -> None:
    """Let the messages run out of their leases."""
    for _ in range(times):
        groups.take(topic, "worker", 1000)
        groups.clock.advance(30)


def test_case_18_after_its_last_delivery_a_message_is_a_dead_letter(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1, keys=["k1"])
    groups.publish(topic, 1)
    for number in range(LIMITS.deliveries_max):
        given = groups.take(topic)
        done = groups.nack(topic, leases(given)[:1], reason="no such user")
        assert (done.nacked, done.dead) == (1, int(number == LIMITS.deliveries_max - 1))
        if number == 0:
            groups.ack(topic, leases(given)[1:])
    assert offsets(groups.take(topic)) == []
    assert groups.groups.lag(topic, "g") == 0
    (letter,) = letters(groups, topic)
    assert letter["reason"] == "no such user"
    assert letter["payload"] == {"n": 0}
    origin = letter["origin"]
    assert origin.pop("messageId").isdigit()
    assert origin == {
        "topic": "app.jobs",
        "partition": 0,
        "offset": 0,
        "group": "g",
        "member": "a",
        "deliveries": 3,
        "op": "PUBLISH",
        "ts": "2026-01-01T00:00:00Z",
        "source": None,
        "payloadMode": "full",
        "user": None,
    }
    dead = dead_topic(groups, topic)
    (batch,) = [groups.log.arrow(dead, one) for one in groups.log.read(dead, 0, 0, 1)]
    assert batch.select(["op", "source", "payload_mode", "key"]).to_pylist() == [
        {"op": "DEAD", "source": "app.jobs", "payload_mode": "full", "key": "k1"}
    ]


def test_case_18_leases_that_run_out_too_often_make_dead_letters(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 5)
    fail(groups, topic, LIMITS.deliveries_max)
    assert groups.expire(topic).dead == 5
    found = letters(groups, topic)
    assert [letter["origin"]["offset"] for letter in found] == [0, 1, 2, 3, 4]
    assert {(letter["reason"], letter["origin"]["member"]) for letter in found} == {
        ("the lease ran out", "worker")
    }
    assert (groups.groups.counters.dead, groups.groups.counters.expired) == (5, 15)


def test_a_take_that_meets_them_makes_dead_letters_too(groups: GroupsBench) -> None:
    topic = groups.create(partitions=2)
    groups.publish(topic, 2, 1)
    fail(groups, topic, LIMITS.deliveries_max)
    groups.publish(topic, 1, 1)
    given = groups.take(topic, "b")
    assert [(one.partition, one.start, one.deliveries) for one in given.ranges] == [(1, 2, 1)]
    assert dead_topic(groups, topic).partitions == 2
    assert [letter["origin"]["offset"] for letter in letters(groups, topic, 1)] == [0, 1]


def test_a_rejected_message_is_a_dead_letter_at_once(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    held = leases(groups.take(topic))
    assert groups.nack(topic, held[1:2], reason="not JSON that I know", dead=True).dead == 1
    assert [letter["origin"]["offset"] for letter in letters(groups, topic)] == [1]
    assert groups.shape(topic).in_flight == 2


def test_a_dead_letter_and_the_end_of_its_message_are_one_write(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    held = leases(groups.take(topic))
    engine = groups.engine
    assert isinstance(engine, MemoryEngine)
    engine.fail_next_write(broken_disk())
    with pytest.raises(StorageFailed):
        groups.nack(topic, held, dead=True)
    with pytest.raises(TopicNotFound):
        dead_topic(groups, topic)
    assert groups.nack(topic, held, dead=True).dead == 1
    groups.committer.close()
    engine.crash()
    again = build(engine, groups.clock)
    assert len(letters(again, topic)) == 1
    assert again.groups.lag(topic, "g") == 0
    again.committer.close()


def test_messages_of_the_dead_letter_topic_are_given_without_end(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    groups.nack(topic, leases(groups.take(topic)), dead=True)
    dead = dead_topic(groups, topic)
    for number in range(1, 6):
        given = groups.take(dead)
        assert given.ranges[0].deliveries == number
        assert groups.nack(dead, leases(given), dead=True).dead == 0
    assert [one.name for one in groups.directory] == ["app.jobs", "app.jobs.dead"]


def test_without_dead_letters_a_message_is_given_without_end() -> None:
    limits = TopicSettings(deliveries_max=2, dead_letters=False)
    groups = build(MemoryEngine(), ManualClock(), limits)
    topic = groups.create()
    groups.publish(topic, 1)
    for number in range(1, 6):
        assert groups.take(topic).ranges[0].deliveries == number
        groups.clock.advance(30)
        groups.expire(topic)
    assert len(groups.directory) == 1
    groups.committer.close()


def test_what_retention_removed_is_missed_and_no_dead_letter(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    groups.publish(topic, 3)
    held = leases(groups.take(topic))
    groups.trim(topic, 3)
    assert groups.nack(topic, held, dead=True).dead == 3
    assert groups.take(topic).missed == {0: 3}
    assert [letter["origin"]["offset"] for letter in letters(groups, topic)] == [3, 4, 5]


def test_many_dead_letters_are_written_in_parts(groups: GroupsBench) -> None:
    big = build(MemoryEngine(), groups.clock, TopicSettings(deliveries_max=1))
    topic = big.create()
    big.publish(topic, 2500)
    big.take(topic, limit=2500)
    groups.clock.advance(30)
    rounds = []
    while big.groups.overdue(groups.clock.now_us()):
        rounds.append(big.expire(topic).dead)
    assert rounds == [1000, 1000, 500]
    assert [letter["origin"]["offset"] for letter in letters(big, topic)] == list(range(2500))
    big.committer.close()


def test_many_rejected_messages_become_dead_letters_in_parts(groups: GroupsBench) -> None:
    big = build(MemoryEngine(), groups.clock, TopicSettings(deliveries_max=9))
    topic = big.create()
    big.publish(topic, 500)
    big.publish(topic, 2200)
    held = leases(big.take(topic, limit=2700))
    big.trim(topic, 500)
    # The first 500 are gone from the log.
    done = big.nack(topic, held[:2500], reason="no such thing", dead=True)
    assert (done.nacked, done.dead, done.lost) == (2500, 1000, [])
    shape = big.shape(topic)
    assert (shape.in_flight, shape.waiting, shape.missed) == (200, 1000, 500)
    assert big.ack(topic, held[2000:2001]).lost == held[2000:2001]
    assert big.upto(topic, 2499).acked == 0, "what was given back is nobody's"
    rounds = []
    while big.groups.overdue(groups.clock.now_us()):
        rounds.append(big.expire(topic).dead)
    assert rounds == [1000]
    found = letters(big, topic)
    assert [letter["origin"]["offset"] for letter in found] == list(range(500, 2500))
    assert {letter["reason"] for letter in found} == {"no such thing"}
    assert (big.groups.counters.dead, big.groups.counters.expired) == (2000, 0)
    assert offsets(big.take(topic)) == []
    big.committer.close()


def test_what_a_rejected_message_waits_for_is_a_grave_also_for_a_take(groups: GroupsBench) -> None:
    topic = groups.create(partitions=2)
    big = build(groups.engine, groups.clock, TopicSettings(deliveries_max=9))
    big.publish(topic, 600, 0)
    big.publish(topic, 600, 1)
    held = leases(big.take(topic, limit=1200))
    assert big.nack(topic, held, reason="no", dead=True).dead == 1000
    assert offsets(big.take(topic)) == []
    assert [len(letters(big, topic, number)) for number in (0, 1)] == [600, 600]
    assert big.groups.lag(topic, "g") == 0
    big.committer.close()


def damage(groups: GroupsBench, topic: Topic, base: int) -> None:
    """Turn a bit of a record batch over."""
    key = keys.record_key(topic.id, 0, base)
    stored = groups.engine.get(key)
    assert stored is not None
    batch = groups.engine.batch()
    batch.put(key, stored[:-3] + bytes([stored[-3] ^ 1]) + stored[-2:])
    groups.engine.write(batch, sync=True)


def remove(groups: GroupsBench, topic: Topic, base: int) -> None:
    """Lose a record batch."""
    batch = groups.engine.batch()
    batch.delete(keys.record_key(topic.id, 0, base))
    groups.engine.write(batch, sync=True)


@pytest.mark.parametrize("harm", [damage, remove])
@pytest.mark.parametrize("way", ["expire", "take", "nack"])
def test_a_damaged_message_is_a_dead_letter_without_payload_and_the_group_goes_on(
    groups: GroupsBench, harm: Callable[[GroupsBench, Topic, int], None], way: str, caplog: Any
) -> None:
    topic = groups.create()
    for count in (2, 3, 2, 2):
        groups.publish(topic, count)
    fail(groups, topic, LIMITS.deliveries_max - 1)
    held = leases(groups.take(topic, "worker"))
    harm(groups, topic, 2)
    harm(groups, topic, 5)
    if way == "nack":
        assert groups.nack(topic, held, reason="no").dead == 9
    else:
        groups.clock.advance(30)
        assert (groups.expire(topic).dead if way == "expire" else groups.take(topic, "b").ranges) in (9, [])
    groups.publish(topic, 1)
    assert offsets(groups.take(topic, "b")) == [9]
    found = letters(groups, topic)
    assert [letter["origin"]["offset"] for letter in found] == list(range(9))
    assert [letter["payload"] for letter in found] == [
        {"n": number} if number in (0, 1, 7, 8) else None for number in range(9)
    ]
    why = "no" if way == "nack" else "the lease ran out"
    assert found[0]["reason"] == why
    assert found[3]["reason"] == f"the message could not be read (partition 0, offset 3); before that: {why}"
    assert (found[3]["origin"]["messageId"], found[3]["origin"]["member"]) == (None, "worker")
    assert any(
        "dead letters written without payload" in message and "count=5" in message
        for message in caplog.messages
    )


def test_one_payload_that_is_not_what_its_schema_says_leaves_the_others_readable(groups: GroupsBench) -> None:
    topic = groups.create()
    table = Table(7, "default", "app", "users", TableKind.SHARED, (TableColumn("id", "BIGINT"),), ("id",), 0)
    schemas = groups.log._schemas

    def publish(staging: Staging) -> None:
        number = schemas.stage_number(staging, topic.id, table, 0)
        payloads = [*encode_full([(1,)]), b"\xc1", *encode_full([(3,)])]
        origin = Origin(op="INSERT", source="app.users", codec=CODEC_FULL, schema=number)
        groups.log.stage_append(staging, topic, 0, ["1", "2", "3"], payloads, origin)

    groups.commit(publish)
    assert groups.nack(topic, leases(groups.take(topic)), dead=True).dead == 3
    found = letters(groups, topic)
    assert [letter["payload"] for letter in found] == [{"id": 1}, None, {"id": 3}]
    assert "offset 1" in found[1]["reason"]
    assert [(letter["origin"]["op"], letter["origin"]["source"]) for letter in found] == 3 * [
        ("INSERT", "app.users")
    ]


def test_groups_bury_for_themselves(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    groups.nack(topic, leases(groups.take(topic)), dead=True)
    assert offsets(groups.take(topic, group="h")) == [0]
