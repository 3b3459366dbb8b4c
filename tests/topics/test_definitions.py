"""Topic definitions: names belong to tenants, and old definitions are read."""

from __future__ import annotations

import threading

import msgspec
import pytest

from tests.topics.bench import NOW_US, Bench
from tidegate.errors import RequestInvalid, TopicExists, TopicNotFound
from tidegate.storage.group_commit import Staging
from tidegate.topics import keys
from tidegate.topics.definitions import Retention, Topic, TopicDirectory
from tidegate.topics.log.record_batch import Origin


def create(bench: Bench, tenant: str, name: str) -> Topic:
    return bench.committer.submit(
        lambda staging: bench.directory.stage_create(staging, tenant, name, 1, NOW_US)
    ).result(60)


def test_case_23_a_name_of_another_tenant_is_not_found(bench: Bench) -> None:
    create(bench, "acme", "app.secret")
    with pytest.raises(TopicNotFound) as found:
        bench.directory.get("default", "app.secret")
    with pytest.raises(TopicNotFound) as absent:
        bench.directory.get("default", "app.absent")
    assert str(found.value).replace("secret", "absent") == str(absent.value)
    assert bench.directory.of("default") == []
    with pytest.raises(TopicNotFound):
        bench.committer.submit(
            lambda staging: bench.directory.stage_delete(staging, "default", "app.secret")
        ).result(60)
    assert [topic.name for topic in bench.directory.of("acme")] == ["app.secret"]


def test_case_23_two_tenants_have_topics_of_one_name_that_share_nothing(bench: Bench) -> None:
    ours, theirs = create(bench, "default", "app.x"), create(bench, "acme", "app.x")
    assert ours.id != theirs.id
    bench.publish(ours, [b"1"])
    assert bench.payloads(theirs) == []
    with pytest.raises(TopicExists):
        create(bench, "acme", "app.x")
    again = TopicDirectory(bench.engine, 64)
    assert (again.get("default", "app.x"), again.get("acme", "app.x")) == (ours, theirs)


def test_a_definition_from_before_there_were_tenants_belongs_to_the_first_one(bench: Bench) -> None:
    old = {"id": 7, "name": "app.old", "partitions": 2, "created_us": NOW_US, "version": 1}
    batch = bench.engine.batch()
    batch.put(keys.definition_key(7), msgspec.json.encode(old))
    bench.engine.write(batch)
    bench.directory.reload()
    topic = bench.directory.get("default", "app.old")
    assert (topic.id, topic.partitions, topic.tenant) == (7, 2, "default")
    assert topic.retention == Retention()


def change(
    bench: Bench, topic: Topic, partitions: int | None = None, retention: Retention | None = None
) -> Topic:
    return bench.committer.submit(
        lambda staging: bench.directory.stage_change(
            staging, topic, partitions=partitions, retention=retention
        )
    ).result(60)


def test_case_13_partitions_are_added_and_retention_is_changed_and_both_survive(bench: Bench) -> None:
    topic = bench.create(partitions=2, retention=Retention(60, 1000))
    bench.publish(topic, [b"1"], partitions=[1])
    wider = change(bench, topic, partitions=5)
    assert (wider.id, wider.partitions, wider.retention) == (topic.id, 5, Retention(60, 1000))
    assert bench.publish(wider, [b"2"], partitions=[4]).offsets.tolist() == [0]
    assert bench.payloads(wider, 1) == ["1"]
    longer = change(bench, topic, retention=Retention(seconds=90))
    assert (longer.partitions, longer.retention) == (5, Retention(90, None)), "an old copy takes nothing back"
    assert change(bench, longer) == longer, "nothing to change"
    again = TopicDirectory(bench.engine, 64)
    for directory in (bench.directory, again):
        assert directory.get("default", topic.name) == directory.by_id(topic.id) == longer
        assert directory.by_id(999) is None


@pytest.mark.parametrize("partitions", [1, 0, 65])
def test_case_14_fewer_partitions_or_too_many_are_refused(bench: Bench, partitions: int) -> None:
    topic = bench.create(partitions=2)
    with pytest.raises(RequestInvalid, match="partitions"):
        change(bench, topic, partitions=partitions)
    assert bench.directory.get("default", topic.name).partitions == 2


def test_changes_of_one_group_add_up_and_a_topic_that_is_gone_is_not_changed(bench: Bench) -> None:
    topic, gate = bench.create(), threading.Event()
    bench.committer.submit(lambda _staging: gate.wait(60))
    first = bench.committer.submit(lambda s: bench.directory.stage_change(s, topic, partitions=3))
    second = bench.committer.submit(
        lambda s: bench.directory.stage_change(s, topic, retention=Retention(seconds=9))
    )
    deleted = bench.committer.submit(lambda s: bench.directory.stage_delete(s, "default", topic.name))
    gate.set()
    assert first.result(60).partitions == second.result(60).partitions == 3
    assert second.result(60).retention_seconds == 9
    deleted.result(60)
    assert bench.directory.by_id(topic.id) is None
    assert list(bench.directory) == []
    with pytest.raises(TopicNotFound):
        change(bench, topic, partitions=4)
    assert list(TopicDirectory(bench.engine, 64)) == []


def test_the_topic_of_dead_letters_is_made_once_whoever_asks(bench: Bench) -> None:
    topic, gate = bench.create("a.b.c.d", partitions=3, retention=Retention(60)), threading.Event()

    def fail_two(staging: Staging) -> list[Topic]:
        dead = [bench.directory.stage_dead(staging, topic, NOW_US) for _ in range(2)]
        for one in dead:
            bench.log.stage_append(staging, one, 2, [None], [b"1"], Origin("DEAD"))
        return dead

    bench.committer.submit(lambda _staging: gate.wait(60))
    futures = [bench.committer.submit(fail_two) for _ in range(3)]
    gate.set()
    made = [dead for future in futures for dead in future.result(60)]
    known = bench.directory.get("default", "a.b.c.d.dead")
    assert made == [known] * 6
    assert (known.partitions, known.retention, known.is_dead) == (3, Retention(), True)
    assert (topic.is_dead, topic.dead_name) == (False, known.name)
    assert bench.payloads(known, 2) == ["1"] * 6
    bench.delete(known)
    (again, other) = bench.committer.submit(fail_two).result(60)
    assert again.id == other.id != known.id


def test_a_dead_letter_that_is_refused_leaves_no_topic(bench: Bench) -> None:
    topic = bench.create()

    def refused(staging: Staging) -> None:
        bench.directory.stage_dead(staging, topic, NOW_US)
        raise RequestInvalid(reason="no", hint="")

    with pytest.raises(RequestInvalid):
        bench.committer.submit(refused).result(60)
    assert [known.name for known in bench.directory] == [topic.name]
