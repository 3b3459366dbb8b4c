"""Indexes: kept by every write, filled in chunks while writers go on, gone without a trace."""

from __future__ import annotations

import pytest

from tests.tables.bench import Bench, column
from tidegate.errors import IndexNotFound, ValueInvalid
from tidegate.model.tables import Row, Table, TableKind
from tidegate.tables import index_build, keys
from tidegate.tables.access_paths import IndexSpan
from tidegate.tables.layout import INDEX_KEY_BYTES_MAX


def entries(bench: Bench, table: Table, place: int = 0) -> list[bytes]:
    return [key for key, _ in bench.engine.scan(keys.index_range(table.id, table.indexes[place].id))]


def by_text(bench: Bench, table: Table, text: str, user: str = "") -> list[Row]:
    return bench.rows(table, user, IndexSpan("by", (text,)))


def test_writes_keep_the_index_and_leave_alone_what_does_not_change(bench: Bench) -> None:
    table = bench.index(bench.create(column("id"), column("text", "TEXT"), column("n")), "text")
    bench.insert(table, [(1, "a", 0), (2, "a", 0), (3, None, 0)])
    before = entries(bench, table)
    bench.insert(table, [(1, "a", 5)], upsert=True)
    assert bench.edit(table, [((2, "a", 0), (2, "a", 9))]) is not None
    assert entries(bench, table) == before
    assert bench.edit(table, [((2, "a", 9), (2, "b", 9)), ((3, None, 0), None)]) is not None
    assert by_text(bench, table, "a") == [(1, "a", 5)]
    assert by_text(bench, table, "b") == [(2, "b", 9)]
    assert len(entries(bench, table)) == 2
    bench.delete(table, (1,))
    bench.insert(table, [(2, "c", 1)], upsert=True)
    assert (by_text(bench, table, "a"), by_text(bench, table, "b")) == ([], [])
    assert len(entries(bench, table)) == 1


def test_an_entry_holds_nothing_but_its_key(bench: Bench) -> None:
    table = bench.index(bench.create(kind=TableKind.USER), "text")
    bench.insert(table, [(1, "a")], "alice")
    ((key, value),) = bench.engine.scan(keys.index_range(table.id, table.indexes[0].id))
    prefix = keys.index_prefix(table.id, table.indexes[0].id)
    assert key == prefix + b"alice\x00" + b"\x01a\x00\x00" + bytes.fromhex("8000000000000001")
    assert value == b""


def test_rows_of_other_users_are_not_found_by_an_index(bench: Bench) -> None:
    table = bench.index(bench.create(kind=TableKind.USER), "text")
    bench.insert(table, [(1, "a")], "alice")
    bench.insert(table, [(2, "a")], "bob")
    assert by_text(bench, table, "a", "bob") == [(2, "a")]
    assert by_text(bench, table, "a", "carol") == []


def test_an_index_is_filled_in_chunks_while_writers_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "CHUNK_ROWS", 10)
    table = bench.create(kind=TableKind.USER)
    for user in ("alice", "bob"):
        bench.insert(table, [(number, "old") for number in range(25)], user)
    made = bench.run(lambda staging: bench.directory.stage_add_index(staging, table, "by", ("text",)))
    index_id = made.indexes[0].id

    def fill(after: bytes) -> object:
        return lambda staging: bench.directory.stage_fill_index(staging, table, index_id, after)

    after: object = b""
    for number in range(5):
        # Rows that the chunk is going to meet are removed, changed and added in its own group; the writer
        # knows the table from before the index.
        assert isinstance(after, bytes)
        who, first = divmod(number * 10 + 5, 25)
        user = ("alice", "bob")[who]
        answers = bench.run_together(
            lambda staging, user=user, key=(first,): bench.store.stage_delete_key(  # type: ignore[misc]
                staging, table, user, key, wants_changes=False
            ),
            bench.inserting(table, [(first + 1, "new"), (100 + number, "new")], user, upsert=True),
            fill(after),  # type: ignore[arg-type]
        )
        after = answers[-1]
    while isinstance(after, bytes):
        after = bench.run(fill(after))  # type: ignore[arg-type]
    assert after is None
    ready = bench.directory.by_id(table.id)
    assert ready is not None
    assert ready.indexes[0].ready
    for user in ("alice", "bob"):
        for text in ("old", "new"):
            wanted = [row for row in bench.rows(ready, user) if row[1] == text]
            assert by_text(bench, ready, text, user) == wanted
    assert len(entries(bench, ready)) == bench.store.counts(ready).rows


def test_filling_again_from_the_beginning_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "CHUNK_ROWS", 10)
    table = bench.create()
    bench.insert(table, [(number, "old") for number in range(35)])
    made = bench.run(lambda staging: bench.directory.stage_add_index(staging, table, "by", ("text",)))
    index_id = made.indexes[0].id
    for after in (b"", b""):
        reached = bench.run(
            lambda staging, after=after: bench.directory.stage_fill_index(  # type: ignore[misc]
                staging, table, index_id, after
            )
        )
        assert reached is not None
    assert bench.fill(made, index_id) == 4
    assert bench.fill(made, index_id) == 1, "a ready index is done at once"
    ready = bench.directory.by_id(table.id)
    assert ready is not None
    assert len(entries(bench, ready)) == 35


def test_large_rows_make_smaller_chunks(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_build, "CHUNK_BYTES", 1000)
    table = bench.create()
    bench.insert(table, [(number, "x" * 400) for number in range(9)])
    made = bench.run(lambda staging: bench.directory.stage_add_index(staging, table, "by", ("text",)))
    assert bench.fill(made, made.indexes[0].id) == 3


def test_a_dropped_index_leaves_no_entries_and_its_number_is_not_used_again(bench: Bench) -> None:
    table = bench.index(bench.create(), "text")
    bench.insert(table, [(1, "a")])
    bench.run(lambda staging: bench.directory.stage_drop_index(staging, table, "by"))
    assert entries(bench, table) == []
    again = bench.index(table, "text")
    assert again.indexes[0].id > table.indexes[0].id
    assert by_text(bench, again, "a") == [(1, "a")]
    with pytest.raises(IndexNotFound):
        bench.fill(table, table.indexes[0].id)


def test_a_value_that_is_too_long_for_an_index_is_refused(bench: Bench) -> None:
    table = bench.index(bench.create(), "text")
    bench.insert(table, [(1, "x" * (INDEX_KEY_BYTES_MAX - 3))])
    with pytest.raises(ValueInvalid, match="Index 'by': its columns have 4097 bytes"):
        bench.insert(table, [(2, "x" * (INDEX_KEY_BYTES_MAX - 2))])
    assert bench.store.counts(table).rows == 1


def test_an_index_on_a_column_that_came_later_has_the_older_rows(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(1, "a")])
    more = column("more", "TEXT", missing="before")
    wider = bench.run(lambda staging: bench.directory.stage_add_column(staging, table, more))
    ready = bench.index(wider, "more")
    assert by_text(bench, ready, "before") == [(1, "a", "before")]
    bench.insert(ready, [(1, "a", "after")], upsert=True)
    assert by_text(bench, ready, "before") == []
