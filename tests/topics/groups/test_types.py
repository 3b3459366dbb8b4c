"""Groups as a whole: their limits, names, members and description, and topics that grow or go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.topics.groups.bench import LIMITS, GroupsBench, build, leases, offsets
from tidegate.errors import NameInvalid, RequestInvalid, TopicNotFound
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.log.reader import Start

LATEST = Start("latest")


@pytest.fixture
def groups() -> Iterator[GroupsBench]:
    made = build(MemoryEngine(), ManualClock())
    yield made
    made.committer.close()


def test_a_group_holds_no_more_than_it_may(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2 * LIMITS.in_flight_max)
    given = groups.take(topic, limit=5000)
    assert len(offsets(given)) == LIMITS.in_flight_max
    assert groups.groups.estimate_fetch(topic, "g", None).count == 0
    assert offsets(groups.take(topic, "b")) == []
    groups.ack(topic, leases(given)[:3])
    assert groups.notices == ["g"], "who waits learns that there is room again"
    assert len(offsets(groups.take(topic, "b"))) == 3


def test_a_topic_has_no_more_groups_than_it_may(groups: GroupsBench) -> None:
    topic = groups.create()
    for number in range(LIMITS.groups_max):
        groups.take(topic, group=f"g{number}")
    with pytest.raises(RequestInvalid, match="8 consumer groups"):
        groups.take(topic, group="one more")
    groups.delete_group(topic, "g3")
    groups.take(topic, group="one more")


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "a\x00", "\ud800", "\x7f"])
def test_names_of_groups_and_members_are_printable(groups: GroupsBench, name: str) -> None:
    topic = groups.create()
    with pytest.raises(NameInvalid):
        groups.take(topic, group=name)
    with pytest.raises(NameInvalid):
        groups.take(topic, member=name)
    with pytest.raises(NameInvalid):
        groups.groups.record_activity(topic, "g", name)
    for ask in (
        lambda: groups.expire(topic, name),
        lambda: groups.ack(topic, [], group=name),
        lambda: groups.upto(topic, 0, group=name, member=name),
        lambda: groups.delete_group(topic, name),
    ):
        groups.publish(topic, 1)
        with pytest.raises(NameInvalid):
            ask()
    assert groups.groups.names(topic) == []


def test_names_of_groups_may_be_in_any_language(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    groups.take(topic, member="Grüße 世界 " + "é" * 190, group="группа")
    assert groups.shape(topic, "группа").members[0].holds == 1


def test_members_are_listed_while_they_are_heard_of_hold_or_wait(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    groups.take(topic, "holds", lease_ms=600_000)
    groups.groups.record_activity(topic, "g", "waits", 1)
    groups.groups.record_activity(topic, "g", "gone")
    at_us = groups.clock.now_us()
    groups.clock.advance(61)
    shown = [(member.member, member.holds, member.waits) for member in groups.shape(topic).members]
    assert shown == [("holds", 2, 0), ("waits", 0, 1)]
    assert groups.shape(topic).members[0].last_seen_us == at_us
    groups.groups.record_activity(topic, "g", "waits", -1)
    groups.clock.advance(61)
    assert [member.member for member in groups.shape(topic).members] == ["holds"]


def test_a_group_tells_what_was_given_and_acknowledged_last(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 4)
    assert groups.groups.describe(topic) == []
    given = leases(groups.take(topic, limit=3))
    given_us = groups.clock.now_us()
    groups.clock.advance(2)
    groups.ack(topic, given[:2])
    part = groups.shape(topic).partitions[0]
    assert (part.last_delivered_offset, part.last_delivered_us) == (2, given_us)
    assert (part.last_acked_offset, part.last_acked_us) == (1, groups.clock.now_us())
    assert (part.position, part.next, part.lag, part.in_flight, part.waiting) == (2, 3, 2, 1, 0)


def test_counters_count_what_became_durable(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 4)
    given = leases(groups.take(topic))
    groups.ack(topic, given[:1])
    groups.nack(topic, given[1:2])
    groups.clock.advance(30)
    assert groups.expire(topic).expired == 2
    groups.take(topic)
    counters = groups.groups.counters
    assert (counters.delivered, counters.redelivered, counters.acked) == (7, 3, 1)
    assert (counters.nacked, counters.expired, counters.dead) == (1, 2, 0)


def test_an_extension_without_leases_is_a_sign_of_life(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.take(topic, "b")
    groups.clock.advance(50)
    assert groups.extend(topic, [], member="a").extended == 0
    groups.clock.advance(20)
    assert [member.member for member in groups.shape(topic).members] == ["a"]


def test_groups_begin_at_zero_in_partitions_that_are_added(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    groups.take(topic, start=LATEST)
    wider = groups.add_partitions(topic, 3)
    groups.publish(wider, 2, 2)
    given = groups.take(wider, start=LATEST)
    assert [(grant.partition, grant.start, grant.stop) for grant in given.ranges] == [(2, 0, 2)]
    assert groups.take(topic).ranges == [], "a request that knows fewer partitions gets those"


def test_a_topic_that_is_gone_gives_nothing(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.take(topic)
    groups.commit(lambda s: groups.directory.stage_delete(s, topic.tenant, topic.name))
    groups.groups.forget(topic)
    with pytest.raises(TopicNotFound):
        groups.take(topic)
    assert groups.groups.overdue(groups.clock.now_us()) == []
    new = groups.create()
    assert groups.groups.names(new) == []
