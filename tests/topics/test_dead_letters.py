"""Dead letters: after too many deliveries, with reason and origin, in one write with the message's end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.topics.groups_bench import LIMITS, GroupsBench, broken_disk, build, leases, offsets
from tidegate.errors import StorageFailed, TopicNotFound
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic
from tidegate.topics.groups import GroupLimits


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
    assert (groups.groups.tallies.dead, groups.groups.tallies.expired) == (5, 15)


def test_a_take_that_meets_them_makes_dead_letters_too(groups: GroupsBench) -> None:
    topic = groups.create(partitions=2)
    groups.publish(topic, 2, 1)
    fail(groups, topic, LIMITS.deliveries_max)
    groups.publish(topic, 1, 1)
    given = groups.take(topic, "b")
    assert [(one.partition, one.start, one.deliveries) for one in given.grants] == [(1, 2, 1)]
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
        assert given.grants[0].deliveries == number
        assert groups.nack(dead, leases(given), dead=True).dead == 0
    assert [one.name for one in groups.directory] == ["app.jobs", "app.jobs.dead"]


def test_without_dead_letters_a_message_is_given_without_end() -> None:
    limits = GroupLimits(deliveries_max=2, dead_letters=False)
    groups = build(MemoryEngine(), ManualClock(), limits)
    topic = groups.create()
    groups.publish(topic, 1)
    for number in range(1, 6):
        assert groups.take(topic).grants[0].deliveries == number
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
    big = build(MemoryEngine(), groups.clock, GroupLimits(deliveries_max=1))
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


def test_groups_bury_for_themselves(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    groups.nack(topic, leases(groups.take(topic)), dead=True)
    assert offsets(groups.take(topic, group="h")) == [0]
