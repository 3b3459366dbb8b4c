"""Counters of a group since the server started: deliveries, redeliveries, acks, nacks, missed messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.topics.groups.bench import GroupsBench, broken_disk, build, leases
from tidegate.errors import StorageFailed
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.types import GroupCounters


@pytest.fixture
def groups() -> Iterator[GroupsBench]:
    made = build(MemoryEngine(), ManualClock())
    yield made
    made.committer.close()


def counts(groups: GroupsBench, topic: Topic, group: str = "g") -> GroupCounters:
    return groups.shape(topic, group).counters


def test_a_delivery_and_an_ack_are_counted(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 4)
    given = leases(groups.take(topic, limit=3))
    assert counts(groups, topic) == GroupCounters(delivered=3)
    groups.ack(topic, given[:2])
    groups.upto(topic, 2)
    assert counts(groups, topic) == GroupCounters(delivered=3, acked=3)
    groups.ack(topic, given)
    assert counts(groups, topic).acked == 3, "a lease that is lost counts nothing"


def test_a_message_is_redelivered_after_its_lease_ended(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    groups.take(topic)
    groups.clock.advance(31)
    groups.take(topic, "b", limit=1)
    assert counts(groups, topic) == GroupCounters(delivered=3, redelivered=1, expired=1)
    assert groups.expire(topic).expired == 1
    groups.take(topic, "b", limit=1)
    assert counts(groups, topic) == GroupCounters(delivered=4, redelivered=2, expired=2)


def test_a_nack_is_counted_and_a_release_is_not(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    given = leases(groups.take(topic))
    groups.nack(topic, given[:1])
    groups.nack(topic, given[1:2], release=True)
    assert counts(groups, topic) == GroupCounters(delivered=3, nacked=1)
    groups.nack(topic, given[2:], dead=True)
    assert counts(groups, topic) == GroupCounters(delivered=3, nacked=2, dead=1)
    groups.take(topic)
    assert counts(groups, topic).redelivered == 1, "a released delivery does not count as one"


def test_messages_that_retention_removed_are_missed(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.take(topic)
    for _ in range(3):
        groups.publish(topic, 2)
    groups.trim(topic, 4)
    assert (groups.shape(topic).missed, counts(groups, topic).missed) == (4, 0), "not reported yet"
    assert groups.take(topic).missed == {0: 4}
    assert (groups.shape(topic).missed, counts(groups, topic).missed) == (4, 4)
    assert counts(groups, topic).delivered == 2


def test_each_group_has_its_own_counters_and_the_totals_have_all(groups: GroupsBench) -> None:
    topic, other = groups.create("app.one"), groups.create("app.two")
    for one in (topic, other):
        groups.publish(one, 3)
    groups.take(topic)
    groups.take(topic, group="h", limit=2)
    groups.take(other, limit=1)
    delivered = [counts(groups, *which).delivered for which in ((topic, "g"), (topic, "h"), (other, "g"))]
    assert delivered == [3, 2, 1]
    assert groups.groups.counters == GroupCounters(delivered=6)
    groups.delete_group(topic)
    groups.take(topic, limit=1)
    assert counts(groups, topic).delivered == 1, "a group that is created again begins at 0"
    assert groups.groups.counters.delivered == 7


def test_a_description_is_a_copy(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    groups.take(topic, limit=1)
    before = counts(groups, topic)
    groups.take(topic, limit=1)
    assert (before.delivered, counts(groups, topic).delivered) == (1, 2)


def test_what_was_not_written_is_not_counted(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    groups.take(topic, limit=1)
    assert isinstance(groups.engine, MemoryEngine)
    groups.engine.fail_next_sync(broken_disk())
    with pytest.raises(StorageFailed):
        groups.take(topic, limit=1)
    assert counts(groups, topic) == GroupCounters(delivered=1)


def test_after_a_restart_counters_are_zero_and_missed_messages_are_kept(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.take(topic)
    for _ in range(2):
        groups.publish(topic, 2)
    groups.trim(topic, 2)
    groups.ack(topic, leases(groups.take(topic))[:1])
    assert counts(groups, topic) == GroupCounters(delivered=2, acked=1, missed=2)
    groups.committer.close()
    again = build(groups.engine, groups.clock)
    shape = again.shape(topic)
    assert (shape.counters, shape.missed, shape.lag) == (GroupCounters(), 2, 1)
    again.committer.close()
