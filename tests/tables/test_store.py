"""Statements on rows: all of one or nothing, keys that are unique, users that see their own, exact counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.tables.bench import Bench, column, wire
from tidegate.errors import (
    InvariantBroken,
    RowExists,
    StorageCorrupt,
    StorageFailed,
    TableChanged,
    ValueInvalid,
)
from tidegate.model.changes import Change
from tidegate.model.tables import Row, Table, TableKind
from tidegate.storage.group_commit import Staging
from tidegate.storage.memory import MemoryEngine
from tidegate.tables import keys
from tidegate.tables.layout import KEY_BYTES_MAX, ROW_BYTES_MAX
from tidegate.tables.store import WriteResult


def check_counts(bench: Bench, table: Table) -> None:
    assert bench.store.counts(table) == bench.measured(table)


def test_case_9_an_insert_of_a_key_that_is_there_is_refused_and_names_it(bench: Bench) -> None:
    table = bench.create()
    assert bench.insert(table, [(1, "a"), (2, None)]) == WriteResult(
        2, [Change("insert", None, (1, "a")), Change("insert", None, (2, None))]
    )
    with pytest.raises(RowExists, match=r"'app\.things' has a row with id = 2 already"):
        bench.insert(table, [(3, "c"), (2, "b")])
    with pytest.raises(RowExists, match="id = 4"):
        bench.insert(table, [(4, "c"), (4, "b")])
    assert bench.rows(table) == [(1, "a"), (2, None)]
    assert bench.insert(table, []) == WriteResult(0)
    check_counts(bench, table)


def test_an_upsert_writes_what_is_new_and_replaces_what_is_there(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(1, "a")])
    done = bench.insert(table, [(1, "b"), (2, "x"), (2, "y" * 100)], upsert=True)
    assert done.count == 2
    assert done.changes == [
        Change("update", (1, "a"), (1, "b")),
        Change("insert", None, (2, "y" * 100)),
    ]
    assert bench.rows(table) == [(1, "b"), (2, "y" * 100)]
    check_counts(bench, table)


def test_rows_are_given_by_key_and_in_key_order(bench: Bench) -> None:
    table = bench.create(column("a", "TEXT"), column("n", "INT"), column("v", "DOUBLE"), key=("a", "n"))
    bench.insert(table, [("b", 1, 1.0), ("a", 2, 2.0), ("a", -1, 3.0), ("", 5, 4.0)])
    assert [row[:2] for row in bench.rows(table)] == [("", 5), ("a", -1), ("a", 2), ("b", 1)]
    get = bench.store.get
    assert get(bench.engine, table, "", ("a", 2)) == ("a", 2, 2.0)
    assert get(bench.engine, table, "", ("a", 3)) is None
    assert get(bench.engine, table, "", ("a", None)) is None
    with bench.engine.snapshot() as snapshot:
        bench.delete(table, ("a", 2))
        assert get(snapshot, table, "", ("a", 2)) == ("a", 2, 2.0)
        wanted = [("b", 1), ("x", 1), ("", 5)]
        assert bench.store.get_many(snapshot, table, "", wanted) == [("b", 1, 1.0), None, ("", 5, 4.0)]
    with pytest.raises(InvariantBroken, match="has 2 values"):
        get(bench.engine, table, "", ("a",))


def test_case_9_rows_of_a_user_table_are_seen_by_their_user_alone(bench: Bench) -> None:
    table = bench.create(kind=TableKind.USER)
    bench.insert(table, [(1, "hers")], "alice")
    bench.insert(table, [(1, "his")], "al")
    assert (bench.rows(table, "alice"), bench.rows(table, "al")) == ([(1, "hers")], [(1, "his")])
    assert bench.rows(table, "alic") == []
    assert bench.delete(table, (1,), "al").changes == [Change("delete", (1, "his"), None)]
    assert bench.delete(table, (1,), "bob") == WriteResult(0)
    assert bench.rows(table, "alice") == [(1, "hers")]
    for user in ("", "a\x00"):
        with pytest.raises(InvariantBroken):
            bench.insert(table, [(5, "x")], user)
    check_counts(bench, table)


def test_a_row_is_changed_by_its_key(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(1, "a"), (2, "b")])

    def update(key: Row, new: Row) -> WriteResult:
        return bench.run(
            lambda staging: bench.store.stage_update_key(
                staging, table, "", key, lambda _: new, wants_changes=True
            )
        )

    assert update((1,), (1, "longer")).changes == [Change("update", (1, "a"), (1, "longer"))]
    assert update((9,), (9, "x")) == WriteResult(0)
    with pytest.raises(RowExists, match="id = 2"):
        update((1,), (2, "x"))
    assert update((1,), (3, "moved")).changes == [
        Change("delete", (1, "longer"), None),
        Change("insert", None, (3, "moved")),
    ]
    assert bench.rows(table) == [(2, "b"), (3, "moved")]
    with pytest.raises(ValueInvalid, match=r"Column 'id' \(BIGINT\), row 1: a value is required"):
        update((2,), (None, "x"))
    check_counts(bench, table)


def test_edits_are_made_only_while_the_rows_are_as_they_were_read(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(1, "a"), (2, "b"), (3, "c")])
    edits: list[tuple[Row, Row | None]] = [((1, "a"), (1, "A")), ((2, "b"), None)]
    done = bench.edit(table, edits)
    assert done is not None
    assert done.count == 2
    assert done.changes == [Change("delete", (2, "b"), None), Change("update", (1, "a"), (1, "A"))]
    assert bench.edit(table, [((3, "c"), None), ((1, "a"), (1, "B"))]) is None
    assert bench.edit(table, [((3, "c"), (3, "C")), ((2, "b"), None)]) is None
    assert bench.rows(table) == [(1, "A"), (3, "c")]
    assert bench.edit(table, []) == WriteResult(0)
    with pytest.raises(InvariantBroken, match="twice"):
        bench.edit(table, [((3, "c"), None), ((3, "c"), None)])
    check_counts(bench, table)


def test_a_row_with_nan_is_the_same_as_it_was_read(bench: Bench) -> None:
    table = bench.create(column("id"), column("x", "DOUBLE"))
    bench.insert(table, [(1, math.nan)])
    (row,) = bench.rows(table)
    assert bench.edit(table, [(row, (1, 0.0))]) is not None
    assert bench.edit(table, [((1, -0.0), None)]) is None
    assert bench.edit(table, [((1, 0.0), None)]) is not None


def test_keys_may_be_exchanged_among_edited_rows_but_not_taken_from_others(bench: Bench) -> None:
    table = bench.index(bench.create(), "text")
    bench.insert(table, [(1, "same"), (2, "same"), (3, "c")])
    done = bench.edit(table, [((1, "same"), (2, "same")), ((2, "same"), (1, "same"))])
    assert done is not None
    assert [change.op for change in done.changes] == ["delete", "delete", "insert", "insert"]
    assert bench.rows(table) == [(1, "same"), (2, "same"), (3, "c")]
    entries = list(bench.engine.scan(keys.index_range(table.id, table.indexes[0].id)))
    assert len(entries) == 3
    refused: list[list[tuple[Row, Row | None]]] = [
        [((1, "same"), (3, "x"))],
        [((1, "same"), (7, "x")), ((2, "same"), (7, "y"))],
        [((1, "same"), (2, "x")), ((2, "same"), (2, "y"))],
    ]
    for edits in refused:
        with pytest.raises(RowExists):
            bench.edit(table, edits)
    assert bench.edit(table, [((3, "c"), None), ((1, "same"), (3, "x"))]) is not None
    assert bench.rows(table) == [(2, "same"), (3, "x")]
    check_counts(bench, table)


def test_a_value_that_is_required_and_missing_is_told_with_column_and_row(bench: Bench) -> None:
    table = bench.create(column("id"), column("name", "TEXT", required=True))
    with pytest.raises(ValueInvalid, match=r"Column 'name' \(TEXT\), row 3: a value is required"):
        bench.insert(table, [(1, "a"), (2, "b"), (3, None)])
    assert bench.rows(table) == []
    with pytest.raises(InvariantBroken, match="has 2 values"):
        bench.insert(table, [(1, "a"), (2,)])


def test_keys_and_rows_that_are_too_large_are_refused(bench: Bench) -> None:
    table = bench.create(column("id", "TEXT"), column("blob", "BYTES"))
    bench.insert(table, [("a" * (KEY_BYTES_MAX - 2), None)])
    with pytest.raises(ValueInvalid, match="row 2: the primary key has 1025 bytes"):
        bench.insert(table, [("a", None), ("a" * (KEY_BYTES_MAX - 1), None)])
    with pytest.raises(ValueInvalid, match=r"row 2: it has \d+ bytes"):
        bench.insert(table, [("a", None), ("b", b"x" * ROW_BYTES_MAX)])
    check_counts(bench, table)


def test_a_number_that_equals_another_is_the_same_key(bench: Bench) -> None:
    table = bench.create(column("x", "DOUBLE"), key=("x",))
    bench.insert(table, [(0.0,), (math.inf,)])
    with pytest.raises(RowExists):
        bench.insert(table, [(-0.0,)])
    with pytest.raises(ValueInvalid, match="row 2: NaN"):
        bench.insert(table, [(1.0,), (math.nan,)])
    assert bench.store.get(bench.engine, table, "", (math.nan,)) is None


def test_a_statement_for_a_table_that_was_changed_is_refused(bench: Bench) -> None:
    table = bench.create()
    wider = bench.run(lambda staging: bench.directory.stage_add_column(staging, table, column("more")))
    with pytest.raises(TableChanged):
        bench.insert(table, [(1, "a")])
    bench.insert(wider, [(1, "a", 5)])
    bench.run(lambda staging: bench.directory.stage_drop(staging, wider))
    with pytest.raises(TableChanged):
        bench.insert(wider, [(2, "b", 5)])
    with pytest.raises(TableChanged):
        bench.rows(wider)


def test_statements_of_one_group_see_each_other_and_count_once(bench: Bench) -> None:
    table = bench.create()

    def removing(key: Row) -> object:
        return lambda staging: bench.store.stage_delete_key(staging, table, "", key, wants_changes=True)

    answers = bench.run_together(
        bench.inserting(table, [(1, "a"), (2, "b")]),
        bench.inserting(table, [(3, "c"), (1, "again")]),
        bench.inserting(table, [(1, "A" * 50)], upsert=True),
        removing((2,)),  # type: ignore[arg-type]
        bench.inserting(table, [(2, "B")]),
    )
    assert isinstance(answers[1], RowExists)
    assert answers[2] == WriteResult(1, [Change("update", (1, "a"), (1, "A" * 50))])
    assert bench.rows(table) == [(1, "A" * 50), (2, "B")]
    check_counts(bench, table)


def test_several_statements_of_one_change_count_together(bench: Bench) -> None:
    table = bench.create()

    def stage(staging: Staging) -> None:
        bench.inserting(table, [(1, "a")])(staging)
        bench.inserting(table, [(2, "b")])(staging)
        bench.store.stage_delete_key(staging, table, "", (1,), wants_changes=False)
        staging.close_group()

    bench.run_together(bench.inserting(table, [(5, "first")]), stage)
    assert bench.rows(table) == [(2, "b"), (5, "first")]
    check_counts(bench, table)


def test_a_drop_cuts_the_group_and_leaves_no_counts(bench: Bench) -> None:
    table, other = bench.create(), bench.create(name="others")
    answers = bench.run_together(
        bench.inserting(table, [(1, "a")]),
        bench.inserting(other, [(1, "a")]),
        lambda staging: bench.directory.stage_drop(staging, table),
        bench.inserting(table, [(2, "b")]),
        bench.inserting(other, [(2, "b")]),
    )
    assert isinstance(answers[3], TableChanged)
    assert bench.engine.get(keys.counter_key(table.id)) is None
    assert bench.rows(other) == [(1, "a"), (2, "b")]
    check_counts(bench, other)


def test_counts_of_another_version_are_an_error(bench: Bench) -> None:
    table = bench.create()
    batch = bench.engine.batch()
    batch.put(keys.counter_key(table.id), b"\x09" + bytes(16))
    bench.engine.write(batch)
    with pytest.raises(StorageCorrupt, match="counters"):
        bench.store.counts(table)


def test_case_10_a_failed_write_leaves_rows_entries_and_counts_as_they_were() -> None:
    engine = MemoryEngine()
    bench = wire(engine)
    table = bench.index(bench.create(), "text")
    bench.insert(table, [(1, "a")])
    before = list(engine.scan(keys.index_range(table.id, table.indexes[0].id)))
    engine.fail_next_sync(StorageFailed(reason="the disk is gone"))
    with pytest.raises(StorageFailed):
        bench.insert(table, [(2, "b"), (3, "c")])
    # The next write finds the engine in doubt, and opens it again from what is on the disk.
    bench.insert(table, [(4, "d")])
    assert bench.rows(table) == [(1, "a"), (4, "d")]
    after = list(engine.scan(keys.index_range(table.id, table.indexes[0].id)))
    assert len(after) == len(before) + 1
    check_counts(bench, table)
    bench.close()


def changes_without(bench: Bench, table: Table, rows: Sequence[Row]) -> WriteResult:
    return bench.run(
        lambda staging: bench.store.stage_insert(staging, table, "", rows, upsert=True, wants_changes=False)
    )


def test_changes_are_made_only_where_someone_wants_them(bench: Bench) -> None:
    table = bench.create()
    assert changes_without(bench, table, [(1, "a")]) == WriteResult(1, [])
    assert changes_without(bench, table, [(1, "bb"), (2, "c")]) == WriteResult(2, [])
    check_counts(bench, table)
