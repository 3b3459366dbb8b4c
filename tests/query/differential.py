"""Random tables and SELECTs on Tidegate and on DuckDB alone: the same answer, or both refuse.

`python -m tests.query.differential --minutes 5` runs longer than the tests do, and prints what differs.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pyarrow as pa

from tests.query.bench import Bench
from tests.query.random_selects import Asked, Selects
from tests.query.random_values import (
    KEY_TYPES,
    TYPES,
    duck_type,
    key_value,
    kind_of,
    native_sql,
    native_value,
    random_value,
)
from tidegate.errors import TidegateError
from tidegate.model.tables import Row, Table, TableKind
from tidegate.query.duckdb.session import QueryLimits
from tidegate.query.scans import tables

ROWS_MAX = 45
SELECTS = 36  # of one set of tables
KINDS = ["USER", "SHARED", "SHARED indexed", "STREAM", "STREAM keyed"]


@dataclass
class Tally:
    """What was compared."""

    answers: int = 0
    refusals: int = 0
    pushed: int = 0
    rows: int = 0
    differences: list[str] = field(default_factory=list)


@contextmanager
def _native() -> Iterator[duckdb.DuckDBPyConnection]:
    connection = duckdb.connect(":memory:", config={"threads": 2})
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("CREATE SCHEMA ns")
    try:
        yield connection
    finally:
        connection.close()


class Round:
    """One set of tables with the same rows on both sides."""

    def __init__(self, seed: int, bench: Bench, native: duckdb.DuckDBPyConnection) -> None:
        self._random = random.Random(seed)
        self._bench = bench
        self._native = native
        self.tables = [self._make(f"t{number}", kind) for number, kind in enumerate(KINDS)]

    def compare(self, tally: Tally) -> None:
        """Ask both sides the same things."""
        selects = Selects(self._random, self.tables)
        for _ in range(SELECTS):
            asked = selects.make()
            self._compare_one(asked, tally)

    def _make(self, name: str, kind: str) -> Table:
        rng = self._random
        columns = {f"c{i}": rng.choice(TYPES) for i in range(rng.randint(2, 6))}
        keyed = kind != "STREAM"
        key = [f"k{i}" for i in range(rng.randint(1, 3))] if keyed else []
        every = {name: rng.choice(KEY_TYPES) for name in key} | columns
        shuffled = dict(rng.sample(list(every.items()), len(every)))
        table = self._bench.create(f"ns.{name}", TableKind(kind.partition(" ")[0]), shuffled, key)
        rows = [
            tuple(
                key_value(rng, kind_of(text)) if column in key else random_value(rng, kind_of(text))
                for column, text in shuffled.items()
            )
            for _ in range(rng.randint(0, ROWS_MAX))
        ]
        stored = self._fill(table, rows)
        if kind == "SHARED indexed":
            for number in range(2):
                usable = [c for c, text in shuffled.items() if text != "JSON"]
                columns_of = rng.sample(usable, min(len(usable), rng.randint(1, 2)))
                table = self._bench.index(table, f"i{number}", columns_of, fill=rng.random() < 0.9)
        self._fill_native(table, stored)
        return table

    def _fill(self, table: Table, rows: list[Row]) -> list[Row]:
        """Write the rows, some keys again and some for others; give what alice is to see, whole."""
        places = table.key_positions
        found: dict[Any, Row] = {}
        for number, row in enumerate(rows):
            whole = row
            if table.kind == TableKind.STREAM:
                self._bench.clock.advance(self._random.choice([0, 0.000001, 0.5, 3600]))
                appended = self._bench.streams.append(table, "alice", [row])
                whole = (*row, int(appended.seqs[0]), self._bench.clock.now_us())
            else:
                self._bench.insert(table, [row])
            key = tuple(row[place] for place in places) if places else number
            found[key] = whole
            if table.is_scoped and self._random.random() < 0.2:
                self._bench.insert(table, [row], user=self._random.choice(["bob", "alic", "alice2", "Alice"]))
        return list(found.values())

    def _fill_native(self, table: Table, rows: list[Row]) -> None:
        columns = table.shown_columns
        listed = ", ".join(f'"{name}" {duck_type(kind)}' for name, kind in columns)
        self._native.execute(f"CREATE OR REPLACE TABLE {table.full_name} ({listed})")
        marks = ", ".join(native_sql(kind, number) for number, (_, kind) in enumerate(columns, start=1))
        for row in rows:
            values = [native_value(value, kind) for value, (_, kind) in zip(row, columns, strict=True)]
            self._native.execute(f"INSERT INTO {table.full_name} VALUES ({marks})", values)

    def _compare_one(self, asked: Asked, tally: Tally) -> None:
        theirs = self._theirs(asked)
        ours = self._ours(asked, pruning=True)
        if isinstance(theirs, str) and not isinstance(ours, str):
            # A row that DuckDB trips over may be left out early; whole tables show whether that is it.
            ours = self._ours(asked, pruning=False)
        if isinstance(theirs, str) and isinstance(ours, str):
            tally.refusals += 1
        elif isinstance(ours, str) or isinstance(theirs, str) or not _same(ours, theirs, asked):
            tally.differences.append(f"{asked.sql}\n  {asked.params!r}\n  ours   {ours}\n  theirs {theirs}")
        else:
            tally.answers += 1
            tally.rows += ours.num_rows
            told = self._bench.explain(asked.sql, *asked.params, last=asked.last)
            tally.pushed += any(row["access"] != "whole table" for row in told)

    def _ours(self, asked: Asked, *, pruning: bool) -> pa.Table | str:
        try:
            return self._bench.ask(asked.sql, *asked.params, last=asked.last, pruning=pruning).arrow()
        except TidegateError as error:
            return f"refused: {error}"

    def _theirs(self, asked: Asked) -> pa.Table | str:
        try:
            return self._native.sql(asked.sql, params=asked.params).to_arrow_table()
        except duckdb.Error as error:
            return f"refused: {error}"


def _same(ours: pa.Table, theirs: pa.Table, asked: Asked) -> bool:
    if ours.schema.types != theirs.schema.types or ours.column_names != theirs.column_names:
        return False
    left, right = ([repr(tuple(row.values())) for row in _rows(table)] for table in (ours, theirs))
    if asked.any_zero:
        left, right = ([row.replace("-0.0,", "0.0,") for row in rows] for rows in (left, right))
    return left == right if asked.in_order else sorted(left) == sorted(right)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    # Two outputs may have one name.
    renamed = table.rename_columns([str(place) for place in range(table.num_columns)])
    return renamed.to_pylist()  # type: ignore[no-any-return]


def run_round(seed: int, tally: Tally) -> None:
    """Make tables and compare answers; every seed gives the same ones."""
    with tempfile.TemporaryDirectory() as folder, _native() as native:
        bench = Bench(Path(folder), QueryLimits(timeout_seconds=120, memory_mb=256))
        try:
            before = len(tally.differences)
            # Small tables are read before a look at the statement, larger ones after it.
            with patch.object(tables, "SMALL_ROWS_MAX", -1 if seed % 2 else ROWS_MAX):
                Round(seed, bench, native).compare(tally)
            tally.differences[before:] = [f"seed {seed}: {text}" for text in tally.differences[before:]]
        finally:
            bench.close()


def main() -> int:
    """Run for some minutes; 1 when something differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    tally = Tally()
    stop = time.monotonic() + chosen.minutes * 60
    seed = chosen.seed
    while time.monotonic() < stop and len(tally.differences) < 10:
        run_round(seed, tally)
        seed += 1
    for text in tally.differences:
        print(text)
    print(
        f"{seed - chosen.seed} sets of tables: {tally.answers} equal answers with {tally.rows} rows, "
        f"{tally.pushed} with something pushed down, {tally.refusals} refused by both, "
        f"{len(tally.differences)} differences"
    )
    return 1 if tally.differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
