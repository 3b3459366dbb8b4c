"""Live expressions against DuckDB: the same random expressions over the same rows must give the same values.

    python -m tests.sql.expressions.differential --minutes 5 [--seed 7]

What we refuse is counted: it must stay below a share of what DuckDB takes. Where DuckDB breaks off on a row
(an overflow, a failed cast) we must report a fault, unless the expression has a part that need not be
calculated; where DuckDB gives a value, we must give the same.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from tests.sql.expressions.differential_grammar import KINDS, Grammar
from tests.sql.expressions.differential_rows import SHAPE, rows_of
from tidegate.errors import SqlInvalid, SqlUnsupported
from tidegate.model.tables import Row
from tidegate.sql.expressions.compile import LiveSelect, compile_select

ROWS = 20
# Of the expressions that DuckDB takes, at most this share may be refused.
REFUSED_SHARE_MAX = 0.10
# A part of these need not be calculated when another decides.
_LAZY = (" AND ", " OR ", "CASE", "coalesce", "ifnull", "nullif", " IN (", "BETWEEN", "TRY_CAST", "NULL")
# Parts that DuckDB may find to be NULL in all rows at hand: then it does not calculate what is beside them.
_ABSORBS = ("CASE", "nullif", "TRY_CAST", "NULL")
_STATIC = (duckdb.BinderException, duckdb.CatalogException)


@dataclass
class Tally:
    """What a run found."""

    expressions: int = 0
    compared: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    not_sql: int = 0
    faults: int = 0
    beyond: int = 0
    absorbed: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def refused_share(self) -> float:
        count = sum(self.refused.values())
        return count / max(1, count + self.compared)


class Oracle:
    """DuckDB with the rows in a table `ns.t`, typed as queries see them."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.was_split = False
        self.connection = duckdb.connect(":memory:")
        self.connection.execute(
            "SET TimeZone = 'UTC'; SET threads = 1; PRAGMA disable_optimizer; CREATE SCHEMA ns"
        )
        arrays = {
            name: pa.array([row[place] for row in rows], kind.to_arrow())
            for place, (name, kind) in enumerate(SHAPE.columns)
        }
        held = pa.table({"row_number": pa.array(range(len(rows)), pa.int32()), **arrays})
        self.connection.register("held", held)
        self.connection.execute("CREATE TABLE ns.t AS SELECT * REPLACE (CAST(u AS UUID) AS u) FROM held")

    def values(self, text: str, params: list[object]) -> tuple[list[Any], list[str | None], str]:
        """Return the value of each row or the error of it, and the type."""
        kind = str(self._select(f"SELECT {text} AS v FROM ns.t", params).types[0])
        shown = f"CAST({text} AS VARCHAR)" if kind == "UUID" else text
        self.was_split = False
        try:
            return self._column(f"SELECT {shown} AS v FROM ns.t", params), [None] * len(self.rows), kind
        except duckdb.Error:
            self.was_split = True  # row by row, since all rows together break off
            return *self._one_by_one(shown, params), kind

    def _one_by_one(self, shown: str, params: list[object]) -> tuple[list[Any], list[str | None]]:
        values: list[Any] = []
        errors: list[str | None] = []
        for number in range(len(self.rows)):
            try:
                values += self._column(
                    f"SELECT {shown} AS v FROM (SELECT * FROM ns.t WHERE row_number = {number})", params
                )
                errors.append(None)
            except duckdb.Error as problem:
                values.append(None)
                errors.append(str(problem).splitlines()[0])
        return values, errors

    def _column(self, sql: str, params: list[object]) -> list[Any]:
        return _plain(self._select(sql, params).to_arrow_table().column("v"))

    def _select(self, sql: str, params: list[object]) -> Any:
        return self.connection.sql(sql, params=params) if params else self.connection.sql(sql)


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Return the values as rows hold them: dates and times as numbers."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    found: list[Any] = column.to_pylist()
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Tell whether two values are the same, to the last bit and digit."""
    if ours is None or theirs is None:
        return ours is theirs
    if isinstance(theirs, float):
        if not isinstance(ours, float):
            return False
        return (math.isnan(ours) and math.isnan(theirs)) or repr(ours) == repr(theirs)
    if isinstance(theirs, Decimal):
        return isinstance(ours, Decimal) and str(ours) == str(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


_TYPES = {
    "BOOLEAN": "BOOLEAN",
    "INTEGER": "INT",
    "TINYINT": "INT",
    "BIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
    "VARCHAR": "TEXT",
    "BLOB": "BYTES",
    "JSON": "JSON",
    "UUID": "UUID",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP",
    '"NULL"': "INT",
}


def compare(oracle: Oracle, text: str, params: list[object], tally: Tally) -> None:
    """Compare one expression over all rows, as a column and as a filter."""
    tally.expressions += 1
    live: LiveSelect | None = None
    refusal = ""
    try:
        live = compile_select(f"SELECT {text} AS v FROM ns.t", SHAPE, params)
    except (SqlUnsupported, SqlInvalid) as problem:
        refusal = str(problem)
    try:
        theirs, errors, kind = oracle.values(text, params)
    except _STATIC as problem:
        tally.not_sql += 1
        if live is not None:
            tally.differences.append(
                f"{text} {params}\n   we take it, DuckDB: {str(problem).splitlines()[0]}"
            )
        return
    except duckdb.Error:
        tally.not_sql += 1  # a constant part of it fails already, or it is no SQL at all
        return
    if live is None:
        if not all(errors):
            tally.refused[refusal] += 1
        return
    tally.compared += 1
    ours = "TEXT" if text == "j" else str(live.columns[0][1])
    if ours != _TYPES.get(kind, kind):
        tally.differences.append(f"{text} {params}\n   our type {live.columns[0][1]}, theirs {kind}")
        return
    _compare_rows(oracle, f"{text} {params or ''}", live, (theirs, errors), tally)
    if kind == "BOOLEAN":
        where = compile_select(f"SELECT * FROM ns.t WHERE {text}", SHAPE, params)
        _compare_filter(oracle, f"{text} {params or ''}", where, (theirs, errors), tally)


def _compare_rows(
    oracle: Oracle, text: str, live: LiveSelect, given: tuple[list[Any], list[str | None]], tally: Tally
) -> None:
    is_lazy = any(word in text for word in _LAZY)
    for row, value, error in zip(oracle.rows, *given, strict=True):
        before, live.first_fault = live.faults, None
        ours = live.project(row)[0]
        has_fault = live.faults > before
        tally.faults += has_fault
        if error is not None:
            if not has_fault and not is_lazy:
                tally.differences.append(f"{text}\n   {row}\n   ours {ours!r}, theirs breaks off: {error}")
                return
        elif has_fault and "live queries do not" in str(live.first_fault):
            tally.beyond += 1
        elif has_fault and (value is None or (oracle.was_split and any(word in text for word in _ABSORBS))):
            tally.absorbed += 1
        elif has_fault or not same(ours, value):
            said = f"fault {live.first_fault}" if has_fault else repr(ours)
            tally.differences.append(f"{text}\n   {row}\n   ours {said}, theirs {value!r}")
            return


def _compare_filter(
    oracle: Oracle, text: str, live: LiveSelect, given: tuple[list[Any], list[str | None]], tally: Tally
) -> None:
    for row, value, error in zip(oracle.rows, *given, strict=True):
        before = live.faults
        if error is None and live.matches(row) is not (value is True) and live.faults == before:
            tally.differences.append(f"WHERE {text}\n   {row}\n   ours {not value}, theirs {value!r}")
            return


def expressions(rng: random.Random) -> Iterator[tuple[str, list[object]]]:
    """Yield random expressions without end."""
    grammar = Grammar(rng)
    while True:
        yield grammar.whole(rng.choice(("bool", "bool", *KINDS)), rng.randint(1, 4))


def run(seed: int, *, count: int | None = None, seconds: float = math.inf) -> Tally:
    """Compare so many expressions, or as many as fit in the time; fresh rows now and then."""
    rng, tally = random.Random(seed), Tally()
    stop = time.monotonic() + seconds
    source = expressions(rng)
    while (count is None or tally.expressions < count) and time.monotonic() < stop:
        oracle = Oracle(rows_of(rng, ROWS))
        for _ in range(min(200, (count or 200) - tally.expressions if count else 200)):
            compare(oracle, *next(source), tally)
            if time.monotonic() >= stop or len(tally.differences) >= 200:
                break
        oracle.connection.close()
        if len(tally.differences) >= 200:
            break
    return tally


def main() -> None:
    """Run for some minutes and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    tally = run(options.seed, seconds=options.minutes * 60)
    print(f"seed {options.seed}: {tally.expressions} expressions, {tally.not_sql} that DuckDB does not take")
    print(f"{tally.compared} compared, {tally.refused_share:.1%} refused")
    print(f"{tally.faults} values of rows were faults, {tally.beyond + tally.absorbed} of them only here")
    for reason, count in tally.refused.most_common(12):
        print(f"  {count:6} {reason}")
    for difference in tally.differences[:40]:
        print("DIFFERS", difference)
    raise SystemExit(1 if tally.differences or tally.refused_share > REFUSED_SHARE_MAX else 0)


if __name__ == "__main__":
    main()
