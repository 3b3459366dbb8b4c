"""Routes: which changes of which tables go into a topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ingest.bench import Bench, build
from tests.tables.bench import column
from tidegate.errors import RequestInvalid, RouteExists, RouteNotFound, StorageCorrupt
from tidegate.model.changes import Op
from tidegate.storage.memory import MemoryEngine
from tidegate.topics.routes import PREVIEW_CHARS_MAX, Route, RouteDirectory, route_key

COLUMNS = (column("id"), column("text", "TEXT"))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = build(MemoryEngine())
    yield made
    made.close()


def ops_of(routes: tuple[Route, ...] | list[Route]) -> list[Op]:
    return [route.op for route in routes]


def test_routes_are_found_by_table_and_topic_and_after_a_restart(bench: Bench) -> None:
    table, other = bench.table(COLUMNS), bench.table(COLUMNS, name="others")
    topic, second = bench.topic(), bench.topic(name="app.second")
    bench.route(topic, table, "full", ops=["update", "insert"], where="id > 3", by=["text"])
    bench.route(second, table, "key", ops=["delete"], preview=80)
    for directory in (bench.routes, RouteDirectory(bench.engine)):
        assert ops_of(directory.of_table(table.id)) == ["insert", "update", "delete"]
        assert ops_of(directory.of_topic(topic.id)) == ["insert", "update"]
        assert directory.of_table(other.id) == ()
        assert directory.feeds(table.id)
        assert not directory.feeds(other.id)
        assert len(directory) == 3
        route = directory.of_topic(topic.id)[0]
        assert (route.where, route.partition_by, route.payload) == ("id > 3", ("text",), "full")
        assert directory.of_topic(second.id)[0].preview_chars == 80


def test_duplicate_source_is_refused(bench: Bench) -> None:
    """Case 14."""
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table, "full", ops=["insert"])
    with pytest.raises(RouteExists, match=r"takes every INSERT of 'app\.things'"):
        bench.route(topic, table, "key", ops=["insert"])
    assert [route.payload for route in bench.routes.of_topic(topic.id)] == ["full"]


def test_two_adds_at_the_same_time_make_one_route(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    route = Route(topic.id, table.id, "insert")
    adds = [lambda staging: bench.routes.stage_add(staging, topic, table, route)] * 2
    answers = bench.run_together(*adds)
    assert [type(answer) for answer in answers] == [Route, RouteExists]


def test_dropped_sources_are_told_and_gone(bench: Bench) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    bench.route(topic, table)
    dropped = bench.run(lambda staging: bench.routes.stage_drop(staging, topic, table, ["update"]))
    assert ops_of(dropped) == ["update"]
    with pytest.raises(RouteNotFound, match="takes no UPDATE"):
        bench.run(lambda staging: bench.routes.stage_drop(staging, topic, table, ["insert", "update"]))
    assert ops_of(bench.routes.of_table(table.id)) == ["insert", "delete"]
    assert ops_of(bench.run(lambda staging: bench.routes.stage_drop(staging, topic, table))) == [
        "insert",
        "delete",
    ]
    with pytest.raises(RouteNotFound):
        bench.run(lambda staging: bench.routes.stage_drop(staging, topic, table))
    assert not bench.routes.feeds(table.id)
    assert len(RouteDirectory(bench.engine)) == 0


def test_routes_go_with_their_table_and_their_topic(bench: Bench) -> None:
    table, other = bench.table(COLUMNS), bench.table(COLUMNS, name="others")
    topic, second = bench.topic(), bench.topic(name="app.second")
    for each in (table, other):
        for into in (topic, second):
            bench.route(into, each, ops=["insert"])
    gone = bench.run(lambda staging: bench.routes.stage_drop_table(staging, table))
    assert sorted(route.topic_id for route in gone) == [topic.id, second.id]
    bench.run(lambda staging: bench.routes.stage_drop_topic(staging, topic))
    assert [(route.topic_id, route.table_id) for route in bench.routes.of_table(other.id)] == [
        (second.id, other.id)
    ]
    assert not bench.routes.feeds(table.id)
    assert len(RouteDirectory(bench.engine)) == 1
    # Nothing left to drop is no error.
    assert bench.run(lambda staging: bench.routes.stage_drop_table(staging, table)) == []


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (Route(1, 1, "insert", preview_chars=PREVIEW_CHARS_MAX + 1), "0 to 1000 characters"),
        (Route(1, 1, "insert", preview_chars=-1), "0 to 1000 characters"),
        (Route(1, 1, "insert", payload="full", preview_chars=5), "goes with payload = 'key'"),
    ],
)
def test_preview_that_makes_no_sense_is_refused(bench: Bench, route: Route, words: str) -> None:
    table, topic = bench.table(COLUMNS), bench.topic()
    with pytest.raises(RequestInvalid, match=words):
        bench.run(lambda staging: bench.routes.stage_add(staging, topic, table, route))


def test_preview_never_hides_a_column_of_the_key(bench: Bench) -> None:
    table, topic = bench.table([column("_preview")], ("_preview",)), bench.topic()
    with pytest.raises(RequestInvalid, match="would hide it"):
        bench.route(topic, table, "key", preview=5)


@pytest.mark.parametrize("stored", [b"{", b"[]", b'{"topic_id":1,"table_id":2,"op":"insert","version":2}'])
def test_damaged_route_is_named(stored: bytes) -> None:
    engine = MemoryEngine()
    batch = engine.batch()
    batch.put(route_key(1, 2, "insert"), stored)
    engine.write(batch)
    with pytest.raises(StorageCorrupt, match="a route of table 2 into topic 1"):
        RouteDirectory(engine)
