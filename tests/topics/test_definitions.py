"""Topic definitions: names belong to tenants, and old definitions are read."""

from __future__ import annotations

import msgspec
import pytest

from tests.topics.bench import NOW_US, Bench
from tidegate.errors import TopicExists, TopicNotFound
from tidegate.topics import keys
from tidegate.topics.definitions import Topic, TopicDirectory


def create(bench: Bench, tenant: str, name: str) -> Topic:
    return bench.committer.submit(
        lambda staging: bench.directory.stage_create(staging, tenant, name, 1, NOW_US)
    ).result(5)


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
        ).result(5)
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
