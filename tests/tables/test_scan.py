"""Ways to rows: every span gives exactly what a filter of all rows gives, as of one moment."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.tables.bench import Bench, column
from tidegate.errors import IndexNotFound, StorageCorrupt
from tidegate.model.tables import Row, Table, TableKind
from tidegate.tables import keys
from tidegate.tables.access_paths import FullScan, IndexSpan, KeyLookup, KeySpan

COLUMNS = column("a", "TEXT"), column("n", "INT"), column("color", "TEXT"), column("size", "DOUBLE")


def some_rows(count: int = 60) -> list[Row]:
    draw = random.Random(5)
    colors, sizes = ["red", "green", "", None, "red\x00"], [0.0, -1.5, 7.0, None]
    made = {(draw.choice("abc"), draw.randrange(-9, 9)): None for _ in range(count)}
    return [(a, n, draw.choice(colors), draw.choice(sizes)) for a, n in made]


def in_bounds(value: Any, span: KeySpan | IndexSpan) -> bool:
    if span.low is None and span.high is None:
        return True
    if value is None:
        return False
    above = span.low is None or (value >= span.low if span.low_in else value > span.low)
    below = span.high is None or (value <= span.high if span.high_in else value < span.high)
    return bool(above and below)


def expected(rows: list[Row], columns: tuple[int, ...], span: KeySpan | IndexSpan) -> list[Row]:
    taken = []
    for row in sorted(rows, key=lambda row: row[:2]):
        values = [row[place] for place in columns]
        at = len(span.prefix)
        equal = all(
            mine == given for mine, given in zip(values, span.prefix, strict=False) if given is not None
        )
        if equal and None not in span.prefix and (at == len(values) or in_bounds(values[at], span)):
            taken.append(row)
    return taken


BOUNDS: list[tuple[Any, bool, Any, bool]] = [
    (None, True, None, True),
    (-3, True, 4, True),
    (-3, False, 4, False),
    (None, True, 4, False),
    (0, False, None, True),
    (5, True, 5, True),
    (5, False, 5, True),
    (9, True, -9, True),
]


@pytest.fixture(params=[TableKind.SHARED, TableKind.USER])
def filled(request: pytest.FixtureRequest, bench: Bench) -> tuple[Bench, Table, str, list[Row]]:
    table = bench.create(*COLUMNS, key=("a", "n"), kind=request.param)
    user = "alice" if request.param == TableKind.USER else ""
    rows = some_rows()
    bench.insert(table, rows, user)
    if user:
        bench.insert(table, some_rows(20), "alicf")
        bench.insert(table, some_rows(20), "alic")
    return bench, table, user, rows


def test_a_span_of_the_key_gives_what_a_filter_gives(filled: tuple[Bench, Table, str, list[Row]]) -> None:
    bench, table, user, rows = filled
    spans = [KeySpan(("b",), *bounds) for bounds in BOUNDS]
    spans += [KeySpan((), "b", True, None, True), KeySpan((), None, True, "b", False), KeySpan()]
    spans += [KeySpan(("b", 3)), KeySpan(("zz",)), KeySpan((None,))]
    for span in spans:
        assert bench.rows(table, user, span) == expected(rows, (0, 1), span), span
    assert bench.rows(table, user, FullScan()) == sorted(rows, key=lambda row: row[:2])


def test_wanted_keys_come_once_and_in_order(filled: tuple[Bench, Table, str, list[Row]]) -> None:
    bench, table, user, rows = filled
    wanted = [row[:2] for row in rows[::3]]
    given = KeyLookup((*wanted, ("zz", 1), wanted[0], ("a", None)))
    assert bench.rows(table, user, given) == sorted(rows[::3], key=lambda row: row[:2])
    assert bench.rows(table, user, KeyLookup(())) == []


def test_a_span_of_an_index_gives_what_a_filter_gives_ready_or_not(
    filled: tuple[Bench, Table, str, list[Row]],
) -> None:
    bench, table, user, rows = filled
    made = bench.run(lambda staging: bench.directory.stage_add_index(staging, table, "by", ("color", "size")))
    spans = [IndexSpan("by", ("red",), *bounds) for bounds in BOUNDS]
    spans += [IndexSpan("by", (), "green", False, "red", True), IndexSpan("by", (), None, True, "red", False)]
    spans += [IndexSpan("by", ("red", 7.0)), IndexSpan("by", (None,)), IndexSpan("by")]
    unready = [bench.rows(made, user, span) for span in spans]
    bench.fill(made, made.indexes[0].id)
    ready = bench.directory.by_id(table.id)
    assert ready is not None
    assert ready.indexes[0].ready
    for span, before in zip(spans, unready, strict=True):
        wanted = expected(rows, (2, 3), span)
        found = bench.rows(ready, user, span)
        assert before == wanted, span
        assert sorted(found, key=lambda row: row[:2]) == wanted, span
        assert found == sorted(wanted, key=_index_order), span


def _index_order(row: Row) -> Any:
    return [(value is not None, 0 if value is None else value) for value in (row[2], row[3], *row[:2])]


def test_an_index_that_is_not_there_is_told(bench: Bench) -> None:
    table = bench.create()
    with pytest.raises(IndexNotFound, match="'nothing'"):
        bench.rows(table, "", IndexSpan("nothing"))


def test_a_snapshot_from_before_an_index_was_ready_still_gives_every_row(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(number, "x") for number in range(10)])
    with bench.engine.snapshot() as snapshot:
        ready = bench.index(table, "text")
        chunks = bench.store.scan(snapshot, ready, "", IndexSpan("by", ("x",)))
        assert sum(map(len, chunks)) == 10


def test_a_snapshot_from_before_an_alter_reads_with_the_newer_table(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(1, "a")])
    with bench.engine.snapshot() as snapshot:
        more = column("more", "INT", missing=7)
        wider = bench.run(lambda staging: bench.directory.stage_add_column(staging, table, more))
        assert list(bench.store.scan(snapshot, wider, "", FullScan())) == [[(1, "a", 7)]]
        bench.insert(wider, [(2, "b", 8)])
        assert list(bench.store.scan(snapshot, table, "", FullScan())) == [[(1, "a")]]
    assert bench.rows(table) == [(1, "a"), (2, "b")]


def test_a_scan_shows_one_moment_whatever_is_written_meanwhile(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(number, "x") for number in range(2000)])
    chunks = bench.store.scan(bench.engine, table, "", FullScan(), 10)
    first = next(chunks)
    bench.insert(table, [(number, "y") for number in range(1000, 3000)], upsert=True)
    rest = [row for chunk in chunks for row in chunk]
    assert first + rest == [(number, "x") for number in range(2000)]


def test_an_entry_that_leads_nowhere_is_damage(bench: Bench) -> None:
    table = bench.index(bench.create(), "text")
    bench.insert(table, [(1, "a")])
    batch = bench.engine.batch()
    batch.delete_range(*_span(table))
    bench.engine.write(batch)
    with pytest.raises(StorageCorrupt, match="leads to a row that is not there"):
        bench.rows(table, "", IndexSpan("by", ("a",)))


def test_damaged_rows_are_told_with_their_key(bench: Bench) -> None:
    table = bench.create()
    bench.insert(table, [(1, "a")])
    start, _ = _span(table)
    key = start + bytes.fromhex("8000000000000001")
    for damaged in (b"", b"\x09\x00\x01\x90", b"\x01\x00\x07\x90", b"\x01\x00\x01\xc1"):
        batch = bench.engine.batch()
        batch.put(key, damaged)
        bench.engine.write(batch)
        with pytest.raises(StorageCorrupt, match=f"app.things, key {key.hex()}"):
            bench.rows(table)
        with pytest.raises(StorageCorrupt, match=f"key {key.hex()}"):
            bench.store.get(bench.engine, table, "", (1,))


def _span(table: Table) -> tuple[bytes, bytes]:
    span = keys.everything_of(table.id)[0]
    return span.start, span.stop
