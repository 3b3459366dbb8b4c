"""Leases and users: a lease belongs to the user who fetched; what has no user yet is decided safely."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.topics.groups.bench import ALICE, BOB, ROOT, GroupsBench, build, leases, offsets
from tests.topics.groups.older_rows import as_version_1
from tidegate.errors import Forbidden
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock

FOREIGN = replace(ALICE, own_tenant="acme")
ACTS: list[Callable[..., Any]] = [GroupsBench.ack, GroupsBench.nack, GroupsBench.extend]


@pytest.fixture
def groups() -> Iterator[GroupsBench]:
    made = build(MemoryEngine(), ManualClock())
    yield made
    made.committer.close()


def aged(groups: GroupsBench) -> GroupsBench:
    """Come back with the entries as earlier versions wrote them."""
    groups.committer.close()
    as_version_1(groups.engine)
    return build(groups.engine, groups.clock)


def older_leases(held: list[str]) -> list[str]:
    """Return the ids that earlier versions gave out for these leases."""
    return [
        f"{partition}.{digits[:16]}.{offset}" for partition, digits, offset in (x.split(".") for x in held)
    ]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("user", [BOB, FOREIGN], ids=["another", "of the name in another tenant"])
def test_a_lease_of_another_user_is_refused_and_stays(groups: GroupsBench, act: Any, user: Any) -> None:
    topic = groups.create()
    groups.publish(topic, 4)
    held = leases(groups.take(topic))
    before = groups.shape(topic).partitions
    with pytest.raises(Forbidden):
        act(groups, topic, held[:2], user=user)
    assert groups.shape(topic).partitions == before
    act(groups, topic, held[:2], user=ROOT)
    act(groups, topic, held[2:], user=ALICE)


def test_an_offset_acknowledges_only_what_the_user_got(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 6)
    assert offsets(groups.take(topic, "a", 3)) == [0, 1, 2]
    with pytest.raises(Forbidden):
        groups.upto(topic, 5, "a", user=BOB)
    assert offsets(groups.take(topic, "a", 2, user=BOB)) == [3, 4]
    assert groups.upto(topic, 5, "a", user=BOB).acked == 2
    with pytest.raises(Forbidden):
        groups.upto(topic, 5, "a", user=BOB)
    assert groups.upto(topic, 5, "nobody", user=BOB).acked == 0
    assert groups.upto(topic, 5, "a").acked == 3


def test_an_offset_of_an_administrator_acknowledges_all_of_the_member(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 4)
    groups.take(topic, "a", 1)
    groups.take(topic, "a", 1, user=BOB)
    groups.take(topic, "b", 1, user=BOB)
    assert groups.upto(topic, 3, "a", user=ROOT).acked == 2


def test_what_expired_is_acknowledged_by_offset_by_its_user_alone(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    groups.take(topic, "a")
    groups.clock.advance(31)
    assert groups.expire(topic).expired == 2
    with pytest.raises(Forbidden):
        groups.upto(topic, 1, "a", user=BOB)
    assert groups.upto(topic, 1, "a").acked == 2


def test_what_was_released_or_nacked_belongs_to_nobody(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    first, second, third = leases(groups.take(topic, "a"))
    groups.nack(topic, [first], release=True)
    groups.nack(topic, [second])
    groups.nack(topic, [third], dead=True)
    assert groups.upto(topic, 2, "a", user=BOB).acked == 0
    assert offsets(groups.take(topic, "a", user=BOB)) == [0, 1]


def test_a_redelivered_message_belongs_to_the_user_who_fetched_it_again(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    late = leases(groups.take(topic, "a"))
    groups.clock.advance(31)
    again = leases(groups.take(topic, "a", user=BOB))
    assert groups.ack(topic, late).lost == late
    with pytest.raises(Forbidden):
        groups.ack(topic, again)
    with pytest.raises(Forbidden):
        groups.upto(topic, 0, "a")
    assert groups.ack(topic, again, user=BOB).acked == 1


@pytest.mark.parametrize("is_named", [False, True])
def test_a_refused_list_changes_nothing_of_its_own_leases(groups: GroupsBench, is_named: bool) -> None:
    topic = groups.create(partitions=2)
    groups.publish(topic, 2, 0)
    groups.publish(topic, 2, 1)
    own, others = leases(groups.take(topic, partition=0)), leases(groups.take(topic, partition=1, user=BOB))
    before = groups.shape(topic).partitions
    for act in ACTS:
        with pytest.raises(Forbidden):
            act(groups, topic, own + others, member="a" if is_named else None)
    assert groups.shape(topic).partitions == before


def test_the_user_and_the_random_bits_survive_a_crash(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    held = leases(groups.take(topic))
    groups.committer.close()
    assert isinstance(groups.engine, MemoryEngine)
    groups.engine.crash()
    again = build(groups.engine, groups.clock)
    with pytest.raises(Forbidden):
        again.ack(topic, held, user=BOB)
    assert again.ack(topic, older_leases(held)).lost == older_leases(held)
    assert again.ack(topic, held).acked == 2
    again.committer.close()


def test_a_lease_of_an_earlier_version_is_good_for_whoever_has_its_id(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 5)
    held = leases(groups.take(topic, "worker-1"))
    old = older_leases(held)
    again = aged(groups)
    assert again.shape(topic).in_flight == 5
    assert again.ack(topic, held).lost == held, "the random bits were given out by nobody"
    assert again.ack(topic, old[:1], member="worker-1").acked == 1
    assert again.ack(topic, old[1:2], member="worker-2").lost == old[1:2]
    assert again.nack(topic, old[1:2], user=BOB).nacked == 1
    assert offsets(again.take(topic, "b", user=BOB)) == [1]
    with pytest.raises(Forbidden):
        again.upto(topic, 1, "b")
    assert again.ack(topic, old[2:], user=BOB).acked == 3
    again.committer.close()


def test_a_lease_of_an_earlier_version_belongs_to_the_first_who_extends_it(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    old = older_leases(leases(groups.take(topic, "worker-1")))
    again = aged(groups)
    assert again.extend(topic, old[:1], user=BOB).extended == 1
    with pytest.raises(Forbidden):
        again.ack(topic, old)
    assert again.ack(topic, old[1:]).acked == 1
    assert again.ack(topic, old[:1], user=BOB).acked == 1
    again.committer.close()


def test_the_name_of_a_member_proves_nothing_about_what_an_earlier_version_delivered(
    groups: GroupsBench,
) -> None:
    topic = groups.create()
    groups.publish(topic, 6)
    groups.take(topic, "worker-1", 2)
    groups.take(topic, "alice", 2)
    again = aged(groups)
    assert again.upto(topic, 5, "worker-1", user=BOB).acked == 0
    assert again.upto(topic, 5, "worker-1").acked == 0
    assert again.upto(topic, 5, "alice", user=BOB).acked == 0
    assert again.upto(topic, 5, "alice", user=FOREIGN).acked == 0
    assert again.upto(topic, 5, "alice").acked == 2, "the name that a member of hers has by default"
    assert again.upto(topic, 5, "worker-1", user=ROOT).acked == 2
    # Others come again when their leases end, and belong to whoever fetches them.
    assert offsets(again.take(topic, "worker-1", user=BOB)) == [4, 5]
    assert again.upto(topic, 5, "worker-1", user=BOB).acked == 2
    again.committer.close()
