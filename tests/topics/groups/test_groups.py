"""Groups: leases and their fencing, acks of both forms, nacks, extensions, positions, limits and names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.topics.groups.bench import ALICE, EARLIEST, GroupsBench, build, leases, offsets
from tidegate.errors import (
    GroupNotFound,
    OffsetOutOfRange,
    PartitionNotFound,
    RequestInvalid,
)
from tidegate.settings import TopicSettings
from tidegate.storage.memory import MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.groups.types import AckRequest, FetchEstimate, LeasedRange
from tidegate.topics.log.reader import Start

LATEST = Start("latest")


@pytest.fixture
def groups() -> Iterator[GroupsBench]:
    made = build(MemoryEngine(), ManualClock())
    yield made
    made.committer.close()


def test_case_18_two_members_get_different_messages(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 6)
    assert offsets(groups.take(topic, "a", 4)) == [0, 1, 2, 3]
    assert offsets(groups.take(topic, "b", 4)) == [4, 5]
    assert offsets(groups.take(topic, "c", 4)) == []


def test_case_18_an_ack_never_drops_what_another_holds(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 6)
    groups.take(topic, "a", 3)
    groups.take(topic, "b", 3)
    done = groups.upto(topic, 5, member="b")
    assert (done.acked, done.position) == (3, {0: 0})
    assert groups.upto(topic, 5, member="a").position == {0: 6}


def test_case_18_a_lease_is_of_no_use_to_a_member_that_does_not_hold_it(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    held = leases(groups.take(topic, "a"))
    before = groups.shape(topic).partitions
    assert (groups.ack(topic, held, member="b").acked, groups.ack(topic, held, member="b").lost) == (0, held)
    assert groups.nack(topic, held, member="b", dead=True).lost == held
    assert groups.extend(topic, held, 60_000, member="b").lost == held
    assert groups.shape(topic).partitions == before
    assert groups.extend(topic, held[:1], member="a").extended == 1
    assert groups.nack(topic, held[:1], member="a").nacked == 1
    assert groups.ack(topic, held[1:2], member="a").acked == 1
    # Nobody is named: whoever has the lease may.
    assert groups.ack(topic, held[2:]).acked == 1
    with pytest.raises(RequestInvalid, match="one member"):
        groups.commit(lambda s: groups.groups.stage_ack(s, topic, AckRequest("g", None, ALICE, upto={0: 2})))


def test_a_text_that_is_no_lease_is_lost_and_the_others_are_done(groups: GroupsBench) -> None:
    topic = groups.create(partitions=2)
    groups.publish(topic, 3, 0)
    groups.publish(topic, 3, 1)
    held = leases(groups.take(topic))
    assert groups.extend(topic, ["", *held]).lost == [""]
    nacked = groups.nack(topic, ["what", held[0]])
    assert (nacked.nacked, nacked.lost) == (1, ["what"])
    done = groups.ack(topic, [*held[1:], "0.1.2", "0.1.2"])
    assert (done.acked, done.lost) == (5, ["0.1.2"])
    assert done.by_partition == {0: 2, 1: 3}


def test_case_18_what_a_dead_member_had_comes_again_and_is_counted(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    first = groups.take(topic, "a")
    groups.clock.advance(29.9)
    assert offsets(groups.take(topic, "b")) == []
    groups.clock.advance(0.1)
    again = groups.take(topic, "b")
    assert [(grant.start, grant.stop, grant.deliveries) for grant in again.ranges] == [(0, 2, 2)]
    late = groups.ack(topic, leases(first))
    assert (late.acked, late.lost) == (0, leases(first))
    assert groups.upto(topic, 1, member="a").acked == 0
    assert groups.ack(topic, leases(again)).acked == 2


def test_case_18_a_lease_that_ran_out_is_lost_even_when_nobody_took_it_since(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 2)
    first = leases(groups.take(topic, "a"))
    groups.clock.advance(30)
    assert groups.ack(topic, first).lost == first
    assert groups.nack(topic, first).lost == first
    assert groups.extend(topic, first).lost == first
    # By offset the member may still do it: nobody else was given them since.
    assert groups.upto(topic, 1, member="a").acked == 2


def test_what_was_given_back_is_not_acknowledged_by_a_later_offset(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    given = leases(groups.take(topic, "a"))
    groups.nack(topic, [given[1]])
    assert groups.upto(topic, 2, member="a").acked == 2
    assert offsets(groups.take(topic, "a")) == [1]


def test_an_upto_acknowledges_nothing_that_was_never_delivered(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 5)
    groups.take(topic, "a", 2)
    assert groups.upto(topic, 4, member="a").acked == 2
    assert offsets(groups.take(topic, "a")) == [2, 3, 4]


def test_case_19_acks_beyond_the_log_are_refused_and_backwards_are_nothing(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    groups.take(topic)
    with pytest.raises(OffsetOutOfRange):
        groups.upto(topic, 3)
    with pytest.raises(PartitionNotFound):
        groups.upto(topic, 0, partition=1)
    assert groups.upto(topic, 2).acked == 3
    again = groups.upto(topic, 1)
    assert (again.acked, again.position) == (0, {0: 3})
    unknown = ["5.1f3c9a0b2c4d1000.17", "0.1f3c9a0b2c4d1000.1"]
    assert groups.ack(topic, unknown).lost == unknown


def test_case_19_the_position_of_a_group_wins_over_from(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    assert offsets(groups.take(topic, start=LATEST)) == []
    groups.publish(topic, 2)
    assert offsets(groups.take(topic, start=EARLIEST)) == [3, 4]
    assert groups.take(topic, group="h").next_offsets == {0: 5}


def test_case_19_the_first_take_fixes_only_the_partitions_that_it_names(groups: GroupsBench) -> None:
    topic = groups.create(partitions=2)
    groups.publish(topic, 2, 0)
    groups.publish(topic, 2, 1)
    assert groups.take(topic, partition=0, start=LATEST).next_offsets == {0: 2}
    assert not groups.groups.estimate_fetch(topic, "g", None).is_known
    given = groups.take(topic, start=Start("offsets", offsets={1: 1, 0: 0}))
    assert [(grant.partition, grant.start, grant.stop) for grant in given.ranges] == [(1, 1, 2)]
    with pytest.raises(RequestInvalid):
        groups.take(topic, group="h", start=Start("offset", 1))
    assert groups.groups.names(topic) == ["g"]


def test_unknown_groups_are_not_found(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1)
    for ask in (
        lambda: groups.ack(topic, []),
        lambda: groups.upto(topic, 0),
        lambda: groups.nack(topic, []),
        lambda: groups.extend(topic, []),
        lambda: groups.reset(topic, EARLIEST),
        lambda: groups.expire(topic),
        lambda: groups.delete_group(topic),
    ):
        with pytest.raises(GroupNotFound):
            ask()
    assert groups.groups.estimate_fetch(topic, "g", None) == FetchEstimate(
        0, missed=False, due_us=None, is_known=False
    )
    assert groups.groups.lag(topic, "g") == 0


def test_case_18_a_nack_with_a_delay_in_the_middle_of_a_range(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 5)
    given = leases(groups.take(topic))
    assert groups.nack(topic, [given[2]], delay_ms=5000, reason="busy").nacked == 1
    assert groups.notices == ["g"]
    assert groups.groups.estimate_fetch(topic, "g", None).due_us == groups.clock.now_us() + 5_000_000
    assert offsets(groups.take(topic, "b")) == []
    groups.clock.advance(5)
    again = groups.take(topic, "b")
    assert [(grant.start, grant.stop, grant.deliveries) for grant in again.ranges] == [(2, 3, 2)]
    assert groups.ack(topic, [given[2]]).lost == [given[2]]
    rest = [given[number] for number in (0, 1, 3, 4)]
    assert groups.ack(topic, rest).position == {0: 2}


def test_case_18_an_extended_lease_inside_a_range_outlives_its_neighbours(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 5)
    given = leases(groups.take(topic))
    groups.clock.advance(20)
    done = groups.extend(topic, [given[2]], 60_000)
    assert (done.extended, done.expires_us) == (1, groups.clock.now_us() + 60_000_000)
    groups.clock.advance(20)
    assert offsets(groups.take(topic, "b")) == [0, 1, 3, 4]
    assert groups.ack(topic, [given[2]]).acked == 1
    groups.clock.advance(60)
    assert offsets(groups.take(topic, "c")) == [0, 1, 3, 4]


def test_what_is_released_counts_as_never_given(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 10)
    given = groups.take(topic)
    grant = given.ranges[0]
    rest = LeasedRange(0, 4, 10, grant.fetch_id, 1, grant.token)
    assert groups.commit(lambda s: groups.groups.stage_release(s, topic, "g", "a", [rest])) == 6
    groups.publish(topic, 2)
    again = groups.take(topic, "b")
    assert [(one.start, one.stop, one.deliveries) for one in again.ranges] == [(4, 12, 1)]
    # A second release of the same comes too late: another has it.
    assert groups.commit(lambda s: groups.groups.stage_release(s, topic, "g", "a", [rest])) == 0
    assert groups.ack(topic, leases(again)).acked == 8


def test_case_21_partitions_take_turns(groups: GroupsBench) -> None:
    topic = groups.create(partitions=3)
    for number in range(3):
        groups.publish(topic, 2, number)
    order = [groups.take(topic, limit=1).ranges[0].partition for _ in range(6)]
    assert sorted(order[:3]) == [0, 1, 2]
    assert sorted(order) == [0, 0, 1, 1, 2, 2]


def test_what_is_due_again_comes_before_new_messages_lowest_first(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 6)
    given = leases(groups.take(topic, limit=4))
    groups.nack(topic, [given[3], given[1]])
    again = groups.take(topic, "b")
    assert offsets(again) == [1, 3, 4, 5]
    assert [grant.deliveries for grant in again.ranges] == [2, 2, 1]


def test_case_18_a_take_of_many_is_one_entry_and_scattered_acks_leave_the_rest(groups: GroupsBench) -> None:
    big = build(MemoryEngine(), groups.clock, TopicSettings(in_flight_max=100_000, deliveries_max=99))
    topic = big.create()
    big.publish(topic, 6000)
    given = big.take(topic, limit=6000)
    assert len(given.ranges) == 1
    texts = leases(given)
    assert big.ack(topic, texts[::2]).acked == 3000
    assert big.shape(topic).in_flight == 3000
    assert big.ack(topic, texts).acked == 3000
    assert big.shape(topic).lag == 0
    big.committer.close()


def test_thousands_of_fragments_are_given_again_exactly(groups: GroupsBench) -> None:
    big = build(MemoryEngine(), groups.clock, TopicSettings(in_flight_max=100_000, deliveries_max=99))
    topic = big.create()
    big.publish(topic, 6000)
    texts = leases(big.take(topic, limit=6000))
    big.ack(topic, texts[1::3])
    big.nack(topic, texts[2::3], delay_ms=1000)
    groups.clock.advance(31)
    kept = [number for number in range(6000) if number % 3 != 1]
    assert offsets(big.take(topic, "b", 10)) == kept[:10]
    assert offsets(big.take(topic, "b", 6000)) == kept[10:]
    assert big.upto(topic, 5999, member="b").acked == 4000
    big.committer.close()


def test_case_19_a_reset_loses_the_leases_of_before(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 5)
    held = leases(groups.take(topic))
    assert groups.reset(topic, Start("offset", 2)) == {0: 2}
    assert groups.ack(topic, held).lost == held
    again = groups.take(topic, "b")
    assert [(grant.start, grant.stop, grant.deliveries) for grant in again.ranges] == [(2, 5, 1)]
    assert groups.reset(topic, LATEST) == {0: 5}
    assert groups.groups.lag(topic, "g") == 0
    with pytest.raises(OffsetOutOfRange):
        groups.reset(topic, Start("offset", 6))
    time_us = groups.clock.now_us() + 1
    groups.clock.advance(1)
    groups.publish(topic, 1)
    assert groups.reset(topic, Start("timestamp", time_us)) == {0: 5}


def test_a_reset_to_offsets_moves_only_the_partitions_that_it_names(groups: GroupsBench) -> None:
    topic = groups.create(partitions=2)
    groups.publish(topic, 4, 0)
    groups.publish(topic, 4, 1)
    groups.take(topic)
    assert groups.reset(topic, Start("offsets", offsets={1: 3})) == {1: 3}
    assert [part.in_flight for part in groups.shape(topic).partitions] == [4, 0]


def test_a_reset_of_thousands_of_fragments_leaves_no_row_behind(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 1000)
    texts = leases(groups.take(topic, limit=1000))
    groups.ack(topic, texts[::2])
    groups.reset(topic, EARLIEST)
    groups.groups.reload()
    assert offsets(groups.take(topic, limit=1000)) == list(range(1000))


def test_case_18_a_group_made_again_knows_no_lease_of_before(groups: GroupsBench) -> None:
    topic = groups.create()
    groups.publish(topic, 3)
    held = leases(groups.take(topic))
    groups.delete_group(topic)
    assert groups.groups.describe(topic) == []
    groups.take(topic, "a")
    assert groups.ack(topic, held).lost == held
