"""Table definitions: what a table may look like, names and tenants, and what an ALTER or a DROP leaves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.tables.bench import ID_AND_TEXT, NOW_US, Bench, column
from tidegate.errors import (
    ColumnExists,
    ColumnNotFound,
    IndexExists,
    IndexNotFound,
    NameInvalid,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    RequestInvalid,
    SchemaInvalid,
    StorageCorrupt,
    TableExists,
    TableNotFound,
)
from tidegate.model.tables import Default, DefaultKind, Durability, Table, TableColumn, TableKind
from tidegate.tables import keys, validation
from tidegate.tables.definitions import TableDirectory
from tidegate.tables.validation import NewTable, column_position

SHARED, USER, STREAM = TableKind.SHARED, TableKind.USER, TableKind.STREAM


def make(bench: Bench, new: NewTable, tenant: str = "default") -> Table:
    return bench.run(lambda staging: bench.directory.stage_create(staging, tenant, new, NOW_US))


def space(bench: Bench, name: str, tenant: str = "default") -> None:
    bench.run(lambda staging: bench.directory.stage_create_namespace(staging, tenant, name))


def stream(**more: Any) -> NewTable:
    given: dict[str, Any] = {"ttl_seconds": 60, "columns": ID_AND_TEXT, **more}
    return NewTable("app", "typing", STREAM, **given)


def test_a_table_is_found_by_name_and_id_and_again_after_a_restart(bench: Bench) -> None:
    table = bench.create()
    space(bench, "app", "acme")
    theirs = make(bench, NewTable("app", "things", USER, ID_AND_TEXT, ("id",)), "acme")
    again = TableDirectory(bench.engine)
    for directory in (bench.directory, again):
        assert list(directory) == [theirs, table]
        assert len(directory) == 2
        assert directory.of("default") == [table]
        assert directory.find("default", "app", "things") == table
        assert directory.get("acme", "app", "things") == theirs
        assert directory.by_id(table.id) == table
        assert directory.namespaces("default") == ["app"]
        assert directory.find("nobody", "app", "things") is None
    assert table.columns[0].required, "a column of the primary key always has a value"
    assert table.id != theirs.id


def test_an_unknown_name_is_told_with_those_that_are_near(bench: Bench) -> None:
    bench.create()
    with pytest.raises(TableNotFound) as near:
        bench.directory.get("default", "app", "thigns")
    assert near.value.hint == "Tables: app.things."
    with pytest.raises(NamespaceNotFound, match="'ap'") as unknown:
        bench.directory.get("default", "ap", "things")
    assert "Did you mean 'app'?" in unknown.value.hint
    with pytest.raises(NamespaceNotFound) as foreign:
        bench.directory.get("acme", "app", "things")
    assert foreign.value.hint == "SHOW NAMESPACES lists them; CREATE NAMESPACE app; makes it."


def test_columns_are_found_whatever_their_case(bench: Bench) -> None:
    table = bench.create(column("id"), column("Full Name", "TEXT"))
    assert column_position(table, "full name") == 1
    assert column_position(table, "ID") == 0
    with pytest.raises(ColumnNotFound, match="no column 'nam'") as problem:
        column_position(table, "nam")
    assert "Full Name" in problem.value.hint
    flowing = make(bench, stream())
    assert column_position(flowing, "_seq") == 2


def test_namespaces_are_made_once_and_dropped_when_empty(bench: Bench) -> None:
    space(bench, "app")
    with pytest.raises(NamespaceExists):
        space(bench, "app")
    for taken in ("lake", "system", "Big", "", "a b"):
        with pytest.raises(NameInvalid, match="namespace name"):
            space(bench, taken)
    table = bench.create()
    drop = lambda staging: bench.directory.stage_drop_namespace(staging, "default", "app")  # noqa: E731
    with pytest.raises(NamespaceNotEmpty, match="things"):
        bench.run(drop)
    bench.run(lambda staging: bench.directory.stage_drop(staging, table))
    bench.run(drop)
    assert bench.directory.namespaces("default") == []
    with pytest.raises(NamespaceNotFound):
        bench.run(drop)
    assert TableDirectory(bench.engine).namespaces("default") == []


def test_two_creates_of_one_name_in_one_group_make_one_table(bench: Bench) -> None:
    space(bench, "app")
    new = NewTable("app", "things", SHARED, ID_AND_TEXT, ("id",))
    stage = lambda staging: bench.directory.stage_create(staging, "default", new, NOW_US)  # noqa: E731
    first, second = bench.run_together(stage, stage)
    assert isinstance(first, Table)
    assert isinstance(second, TableExists)
    assert bench.directory.of("default") == [first]


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (NewTable("app", "x", SHARED, ID_AND_TEXT), "needs a primary key"),
        (NewTable("app", "x", USER, (), ("id",)), "no columns"),
        (NewTable("app", "x", USER, ID_AND_TEXT, ("other",)), "'other', which is not there"),
        (NewTable("app", "x", USER, ID_AND_TEXT, ("id", "ID")), "twice"),
        (NewTable("app", "x", USER, (column("id", "JSON"),), ("id",)), "no order"),
        (NewTable("app", "x", USER, (column("id"), column("ID")), ("id",)), "2 times"),
        (NewTable("app", "X", USER, ID_AND_TEXT, ("id",)), "not a valid table name"),
        (NewTable("app", "x", USER, ID_AND_TEXT, ("id",), ttl_seconds=5), "no ttl_seconds"),
        (NewTable("app", "x", USER, ID_AND_TEXT, ("id",), durability=Durability.FSYNC), "no durability"),
        (stream(ttl_seconds=None), "needs a time to live"),
        (stream(ttl_seconds=0), "between 1 and"),
        (stream(ttl_seconds=-5), "between 1 and"),
        (stream(ttl_seconds=1.5), "whole number"),
        (stream(ttl_seconds=True), "whole number"),
        (stream(ttl_seconds=validation.TTL_SECONDS_MAX + 1), "between 1 and"),
        (stream(columns=(column("_seq"),)), "taken in streams"),
        (stream(columns=(column("_TIME"),)), "taken in streams"),
    ],
)
def test_cases_7_and_9_a_table_that_cannot_be_is_refused_with_the_reason(
    bench: Bench, new: NewTable, reason: str
) -> None:
    space(bench, "app")
    with pytest.raises(RequestInvalid, match=reason):
        make(bench, new)
    assert bench.directory.of("default") == []


def test_a_key_has_a_limited_number_of_columns(bench: Bench) -> None:
    many = tuple(column(f"c{number}") for number in range(validation.KEY_COLUMNS_MAX + 1))
    with pytest.raises(SchemaInvalid, match=f"{validation.KEY_COLUMNS_MAX} is the most"):
        bench.create(*many, key=tuple(each.name for each in many))


def test_a_table_needs_its_namespace(bench: Bench) -> None:
    with pytest.raises(NamespaceNotFound):
        make(bench, NewTable("nowhere", "x", SHARED, ID_AND_TEXT, ("id",)))


def test_tables_and_namespaces_have_limits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.tables.definitions.TABLES_MAX", 1)
    monkeypatch.setattr("tidegate.tables.definitions.NAMESPACES_MAX", 1)
    bench.create()
    with pytest.raises(RequestInvalid, match="no tenant has more"):
        bench.create(name="others")
    with pytest.raises(RequestInvalid, match="no tenant has more"):
        space(bench, "more")
    space(bench, "app", "acme")


@pytest.mark.parametrize(
    ("kind", "default", "fits"),
    [
        ("TIMESTAMP", Default(DefaultKind.NOW), True),
        ("DATE", Default(DefaultKind.NOW), True),
        ("TEXT", Default(DefaultKind.NOW), False),
        ("BIGINT", Default(DefaultKind.SNOWFLAKE_ID), True),
        ("INT", Default(DefaultKind.SNOWFLAKE_ID), False),
        ("UUID", Default(DefaultKind.UUID_V7), True),
        ("TEXT", Default(DefaultKind.UUID_V7), True),
        ("BYTES", Default(DefaultKind.UUID_V7), False),
        ("DECIMAL(5,2)", Default(DefaultKind.VALUE, "1.50"), True),
        ("DECIMAL(5,2)", Default(DefaultKind.VALUE, "1.505"), False),
        ("BIGINT", Default(DefaultKind.VALUE, None), True),
    ],
)
def test_a_default_must_fit_its_column(bench: Bench, kind: str, default: Default, fits: bool) -> None:
    columns = column("id"), TableColumn("x", kind, default=default)
    if fits:
        assert bench.create(*columns).columns[1].default == default
    else:
        with pytest.raises(SchemaInvalid, match="default"):
            bench.create(*columns)


def test_rows_from_before_a_column_read_its_missing_value(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(1, "old")])
    price = column("price", "DECIMAL(5,2)", required=True, missing="1.50")
    wider = bench.run(lambda staging: bench.directory.stage_add_column(staging, table, price))
    assert (wider.id, wider.schema_id, wider.names) == (table.id, 2, ("id", "text", "price"))
    (row,) = bench.rows(wider)
    assert row[:2] == (1, "old")
    assert str(row[2]) == "1.50"
    bench.insert(wider, [(2, "new", None if row is None else row[2])])
    # Who still knows the narrow table reads its columns.
    assert bench.rows(table) == [(1, "old"), (2, "new")]
    assert bench.store.get(bench.engine, table, "", (2,)) == (2, "new")
    assert TableDirectory(bench.engine).by_id(table.id) == wider


def test_columns_that_cannot_be_added_are_refused(bench: Bench) -> None:
    table = bench.create()
    flowing = make(bench, stream())

    def add(to: Table, new: TableColumn) -> None:
        bench.run(lambda staging: bench.directory.stage_add_column(staging, to, new))

    with pytest.raises(ColumnExists, match="'TEXT'"):
        add(table, column("TEXT", "TEXT"))
    with pytest.raises(SchemaInvalid, match="NOT NULL"):
        add(table, column("more", required=True))
    with pytest.raises(SchemaInvalid, match="does not fit"):
        add(table, column("more", "INT", missing="x"))
    with pytest.raises(NameInvalid):
        add(flowing, column("_time", "TIMESTAMP"))
    assert bench.directory.by_id(table.id) == table
    add(flowing, column("more"))
    assert bench.directory.get("default", "app", "typing").schema_id == 2


def test_a_stream_changes_its_time_to_live_and_nothing_else_does(bench: Bench) -> None:
    table = bench.create()
    flowing = make(bench, stream())

    def set_ttl(to: Table, seconds: int) -> Table:
        return bench.run(lambda staging: bench.directory.stage_set_ttl(staging, to, seconds))

    assert set_ttl(flowing, 3600).ttl_seconds == 3600
    assert TableDirectory(bench.engine).get("default", "app", "typing").ttl_seconds == 3600
    with pytest.raises(RequestInvalid, match="between 1"):
        set_ttl(flowing, 0)
    with pytest.raises(RequestInvalid, match="stay until"):
        set_ttl(table, 3600)


def test_case_7_a_table_made_again_shares_nothing_with_the_one_before(bench: Bench) -> None:
    table = bench.index(bench.create(), "text")
    bench.insert(table, [(1, "old"), (2, "older")])
    bench.run(lambda staging: bench.directory.stage_drop(staging, table))
    assert bench.directory.find("default", "app", "things") is None
    with pytest.raises(TableNotFound):
        bench.run(lambda staging: bench.directory.stage_drop(staging, table))
    again = bench.create()
    assert again.id > table.indexes[0].id > table.id
    assert bench.rows(again) == []
    assert bench.store.counts(again) == (0, 0)
    for span in keys.everything_of(table.id):
        assert list(bench.engine.scan(span)) == []


def test_indexes_have_names_and_limits(bench: Bench) -> None:
    table = bench.create()
    flowing = make(bench, stream())

    def add(to: Table, name: str, *columns: str) -> Table:
        return bench.run(lambda staging: bench.directory.stage_add_index(staging, to, name, columns))

    made = add(table, "by_text", "TEXT", "id")
    assert made.indexes[0].columns == ("text", "id")
    assert not made.indexes[0].ready
    with pytest.raises(IndexExists):
        add(table, "by_text", "id")
    with pytest.raises(SchemaInvalid, match="not there"):
        add(table, "more", "other")
    with pytest.raises(SchemaInvalid, match="no column"):
        add(table, "more")
    with pytest.raises(NameInvalid):
        add(table, "Bad Name", "id")
    with pytest.raises(RequestInvalid, match="no indexes"):
        add(flowing, "more", "id")
    for number in range(1, validation.INDEXES_MAX):
        add(table, f"more{number}", "id")
    with pytest.raises(RequestInvalid, match="the most"):
        add(table, "too_many", "id")
    gone = bench.run(lambda staging: bench.directory.stage_drop_index(staging, table, "by_text"))
    assert "by_text" not in [index.name for index in gone.indexes]
    with pytest.raises(IndexNotFound):
        bench.run(lambda staging: bench.directory.stage_drop_index(staging, table, "by_text"))


@pytest.mark.parametrize("which", ["table", "namespace"])
def test_a_definition_of_another_version_is_an_error_not_a_guess(bench: Bench, which: str) -> None:
    table = bench.create()
    at = keys.definition_key(table.id) if which == "table" else keys.namespace_key("default", "app")
    stored = bench.engine.get(at)
    assert stored is not None
    for damaged in (msgspec.json.encode({**msgspec.json.decode(stored), "version": 9}), b"{"):
        batch = bench.engine.batch()
        batch.put(at, damaged)
        bench.engine.write(batch)
        with pytest.raises(StorageCorrupt, match=f"the definition of .*{which}"):
            bench.directory.reload()
