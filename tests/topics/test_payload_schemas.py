"""Payload schemas: numbered by topic, seen once durable, kept as long as the topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ingest.bench import NOW_US, Bench, build
from tests.tables.bench import column
from tidegate.errors import RequestInvalid, StorageCorrupt
from tidegate.model.tables import Table
from tidegate.storage.memory import MemoryEngine
from tidegate.topics import payload_schemas as module
from tidegate.topics.payload_schemas import PayloadSchemas, schema_key

COLUMNS = (column("id"), column("text", "TEXT"))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = build(MemoryEngine())
    yield made
    made.close()


def numbered(bench: Bench, topic_id: int, table: Table) -> int:
    return bench.run(lambda staging: bench.schemas.stage_number(staging, topic_id, table, NOW_US))


def test_columns_have_one_number_in_a_topic(bench: Bench) -> None:
    first, second = bench.table(COLUMNS, name="first"), bench.table(COLUMNS, name="second")
    assert [numbered(bench, 5, table) for table in (first, second, first)] == [1, 2, 1]
    assert numbered(bench, 6, second) == 1
    assert [schema.source for schema in bench.schemas.of(5)] == ["app.first", "app.second"]
    assert bench.schemas.get(5, 2).columns == second.columns


def test_added_column_makes_another_schema_and_keeps_the_old(bench: Bench) -> None:
    table = bench.table(COLUMNS)
    numbered(bench, 5, table)
    wider = bench.run(lambda staging: bench.tables.stage_add_column(staging, table, column("more", "TEXT")))
    assert numbered(bench, 5, wider) == 2
    again = PayloadSchemas(bench.engine)
    assert [len(schema.columns) for schema in again.of(5)] == [2, 3]
    assert again.of(5) == bench.schemas.of(5)


def test_changes_of_one_group_agree_on_numbers(bench: Bench) -> None:
    first, second = bench.table(COLUMNS, name="first"), bench.table(COLUMNS, name="second")
    wanted = [first, second, first, second]
    stages = [
        lambda staging, table=table: bench.schemas.stage_number(staging, 5, table, NOW_US) for table in wanted
    ]
    assert bench.run_together(*stages) == [1, 2, 1, 2]
    assert [schema.number for schema in bench.schemas.of(5)] == [1, 2]


def test_refused_change_takes_no_number(bench: Bench) -> None:
    first, second = bench.table(COLUMNS, name="first"), bench.table(COLUMNS, name="second")

    def refused(staging: object) -> None:
        bench.schemas.stage_number(staging, 5, first, NOW_US)  # type: ignore[arg-type]
        raise RequestInvalid(reason="no")

    answers = bench.run_together(
        refused, lambda staging: bench.schemas.stage_number(staging, 5, second, NOW_US)
    )
    assert answers[1] == 1
    assert bench.schemas.get(5, 1).source == "app.second"


def test_missing_schema_is_named(bench: Bench) -> None:
    with pytest.raises(StorageCorrupt, match="payload schema 9 is missing"):
        bench.schemas.get(5, 9)


def test_forgotten_topic_has_no_schemas(bench: Bench) -> None:
    table = bench.table(COLUMNS)
    numbered(bench, 5, table)
    bench.run(lambda staging: staging.delete(schema_key(5, 1)))
    bench.schemas.forget(5)
    assert bench.schemas.of(5) == []
    assert numbered(bench, 5, table) == 1


@pytest.mark.parametrize("stored", [b"{", b'{"number": 1}', b"[]"])
def test_damaged_schema_is_named(stored: bytes) -> None:
    engine = MemoryEngine()
    batch = engine.batch()
    batch.put(schema_key(5, 3), stored)
    engine.write(batch)
    with pytest.raises(StorageCorrupt, match="payload schema 3 of topic 5"):
        PayloadSchemas(engine)


def test_schema_of_a_later_version_is_refused(bench: Bench) -> None:
    numbered(bench, 5, bench.table(COLUMNS))
    stored = bench.engine.get(schema_key(5, 1))
    assert stored is not None
    later = stored.replace(b'"version":1', b'"version":2')
    bench.run(lambda staging: staging.put(schema_key(5, 1), later))
    with pytest.raises(StorageCorrupt, match="version 2"):
        bench.schemas.reload()


def test_topic_that_has_seen_too_many_shapes_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBER_MAX", 1)
    numbered(bench, 5, bench.table(COLUMNS, name="first"))
    with pytest.raises(RequestInvalid, match="can name no more"):
        numbered(bench, 5, bench.table(COLUMNS, name="second"))
