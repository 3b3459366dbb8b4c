"""A consumer group that an earlier version wrote, before leases had a user.

`before_users.bin.z` is all of an engine's pairs, compressed: topic `app.old` with ten messages in its first
partition, of which group `g` acknowledged the first, has five leased, one nacked for an hour, and two whose
lease expired.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.topics.bench import NOW_US
from tests.topics.groups.bench import ALICE, BOB, GroupsBench, build, leases, offsets
from tidegate.errors import Forbidden
from tidegate.storage.memory import CHECKPOINT_FILE, MemoryEngine
from tidegate.testing.clock import ManualClock
from tidegate.topics.definitions import Topic
from tidegate.topics.groups.types import FetchRequest

GOLDEN = Path(__file__).parent.with_name("before_users.bin.z")
OF_WORKER = [f"0.059582970000000a.{offset}" for offset in (1, 2, 3)]
OF_ALICE = [f"0.059582970000000b.{offset}" for offset in (4, 5)]
EXPIRED = "0.059582970000000c.6"


@pytest.fixture
def old(tmp_path: Path) -> Iterator[GroupsBench]:
    (tmp_path / CHECKPOINT_FILE).write_bytes(zlib.decompress(GOLDEN.read_bytes()))
    made = build(MemoryEngine.from_checkpoint(tmp_path), ManualClock(NOW_US + 10_000_000))
    yield made
    made.committer.close()


@pytest.fixture
def topic(old: GroupsBench) -> Topic:
    return old.directory.get("default", "app.old")


def test_everything_that_was_leased_still_is(old: GroupsBench, topic: Topic) -> None:
    shape = old.shape(topic)
    part = shape.partitions[0]
    assert (part.position, part.next, part.lag, part.in_flight, part.waiting) == (1, 9, 10, 5, 3)
    assert {member.member: member.holds for member in shape.members} == {"worker-1": 3, "alice": 2}


def test_the_ids_that_were_given_out_are_good(old: GroupsBench, topic: Topic) -> None:
    assert old.upto(topic, 9, "worker-1").acked == 0
    assert old.extend(topic, OF_WORKER[:1], 60_000, user=BOB).extended == 1
    with pytest.raises(Forbidden):
        old.ack(topic, OF_WORKER)
    assert old.ack(topic, OF_WORKER[1:]).acked == 2
    assert old.nack(topic, OF_ALICE[:1], dead=True).dead == 1
    assert old.ack(topic, [EXPIRED]).lost == [EXPIRED]
    assert old.upto(topic, 9, "alice").acked == 1
    assert old.ack(topic, OF_WORKER[:1], user=BOB).acked == 1


def test_what_is_delivered_again_has_a_user(old: GroupsBench, topic: Topic) -> None:
    fetch = FetchRequest("g", "worker-1", BOB.qualified_name, partition=0)
    again = old.commit(lambda staging: old.groups.stage_fetch(staging, topic, fetch))
    assert offsets(again) == [6, 7, 9, 10]
    with pytest.raises(Forbidden):
        old.ack(topic, leases(again), user=ALICE)
    assert old.upto(topic, 10, "worker-1", user=BOB).acked == 4
