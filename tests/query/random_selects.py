"""Random SELECTs over some tables, with filters that a table may use to read less."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.query.random_values import pool_of, writings
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Table, TableKind

OPERATORS = ["=", "=", "=", "<", "<=", ">", ">=", "<>"]


@dataclass(frozen=True)
class Asked:
    """A statement with its bound values; `in_order` when the order of its rows is decided.

    `any_zero`: 0.0 and -0.0 are one group, and either may stand for it.
    """

    sql: str
    params: list[Any]
    in_order: bool = False
    last: int | None = None
    any_zero: bool = False


@dataclass(frozen=True)
class Piece:
    """Some SQL with ? for its bound values."""

    sql: str
    params: tuple[Any, ...] = ()


class Selects:
    """Makes statements; the same random numbers give the same ones."""

    def __init__(self, rng: random.Random, tables: Sequence[Table]) -> None:
        self._rng = rng
        self._tables = tables
        self._shapes: list[Callable[[], Asked]] = [
            *[self._plain] * 4,
            *(self._grouped, self._joined, self._joined, self._within, self._window, self._last),
            *(self._ordered, self._united, self._exists),
        ]

    def make(self) -> Asked:
        """Return one statement."""
        return self._rng.choice(self._shapes)()

    def _plain(self) -> Asked:
        table = self._table()
        alias = self._rng.choice(["", " x", " AS y"])
        name = alias.split()[-1] if alias else table.name
        where = self._where(table, self._rng.choice(["", f"{name}."]))
        return Asked(
            f"SELECT {self._outputs(table)} FROM {table.full_name}{alias}{where.sql}", [*where.params]
        )

    def _ordered(self) -> Asked:
        table = self._table()
        order = ", ".join(f'"{name}"' for name in table.primary_key) or '"_time", "_seq"'
        where = self._where(table)
        limit = self._rng.choice(["LIMIT 3", "LIMIT ?", "LIMIT 5 OFFSET 2"])
        params = [*where.params, *([4] if "?" in limit else [])]
        sql = f"SELECT * FROM {table.full_name}{where.sql} ORDER BY {order} {limit}"
        return Asked(sql, params, in_order=True)

    def _grouped(self) -> Asked:
        table = self._table()
        by, other = self._column(table)[0], self._column(table)[0]
        where = self._where(table)
        having = self._rng.choice(["", " HAVING count(*) > 1"])
        sql = (
            f'SELECT "{by}", count(*), count("{other}"), min("{other}"), count(DISTINCT "{other}") '
            f'FROM {table.full_name}{where.sql} GROUP BY "{by}"{having}'
        )
        return Asked(sql, [*where.params], any_zero=True)

    def _joined(self) -> Asked:
        left, right = self._rng.sample(list(self._tables), 2)
        pairs = [
            (a, b) for a, kind in left.shown_columns for b, other in right.shown_columns if kind == other
        ]
        if not pairs:
            return self._plain()
        a, b = self._rng.choice(pairs)
        join = self._rng.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "INNER JOIN", "SEMI JOIN"])
        named, prefix = (left, "l.") if self._rng.random() < 0.6 or join == "SEMI JOIN" else (right, "r.")
        where = self._where(named, prefix)
        outputs = "l.*" if join == "SEMI JOIN" else self._rng.choice(["*", f'l."{a}", r."{b}"', "count(*)"])
        sql = (
            f"SELECT {outputs} FROM {left.full_name} l {join} {right.full_name} r "
            f'ON l."{a}" = r."{b}"{where.sql}'
        )
        return Asked(sql, [*where.params])

    def _within(self) -> Asked:
        table = self._table()
        where = self._where(table)
        inner = f"SELECT * FROM {table.full_name}{where.sql}"
        outer = self._predicate(*self._column(table), "q.")
        if self._rng.random() < 0.5:
            sql = f"SELECT * FROM ({inner}) q WHERE {outer.sql}"
        else:
            sql = f"WITH q AS ({inner}) SELECT * FROM q WHERE {outer.sql}"
        return Asked(sql, [*where.params, *outer.params])

    def _united(self) -> Asked:
        table = self._table()
        name, kind = self._column(table)
        first, second = self._where(table), self._predicate(name, kind)
        sql = (
            f'SELECT "{name}" FROM {table.full_name}{first.sql} UNION ALL '
            f'SELECT "{name}" FROM {table.full_name} WHERE {second.sql}'
        )
        return Asked(sql, [*first.params, *second.params])

    def _exists(self) -> Asked:
        left, right = self._rng.sample(list(self._tables), 2)
        pairs = [
            (a, b) for a, kind in left.shown_columns for b, other in right.shown_columns if kind == other
        ]
        if not pairs:
            return self._plain()
        a, b = self._rng.choice(pairs)
        inner = self._predicate(*self._column(right), "r.")
        outer = self._predicate(*self._column(left), "l.")
        test = self._rng.choice(
            [
                f'EXISTS (SELECT 1 FROM {right.full_name} r WHERE r."{b}" = l."{a}" AND {inner.sql})',
                f'l."{a}" NOT IN (SELECT r."{b}" FROM {right.full_name} r WHERE {inner.sql})',
                f'l."{a}" IN (SELECT r."{b}" FROM {right.full_name} r WHERE {inner.sql})',
            ]
        )
        sql = f"SELECT * FROM {left.full_name} l WHERE {test} AND {outer.sql}"
        return Asked(sql, [*inner.params, *outer.params])

    def _window(self) -> Asked:
        table = self._table()
        part = self._column(table)[0]
        order = ", ".join(f'"{name}"' for name in table.primary_key) or '"_seq"'
        where = self._where(table)
        sql = (
            f'SELECT {order}, row_number() OVER (PARTITION BY "{part}" ORDER BY {order}) '
            f"FROM {table.full_name}{where.sql}"
        )
        return Asked(sql, [*where.params])

    def _last(self) -> Asked:
        table = self._rng.choice([table for table in self._tables if table.kind == TableKind.STREAM])
        count = self._rng.choice([1, 2, 5, 100])
        sql = f'SELECT * FROM {table.full_name} ORDER BY "_time" DESC, "_seq" DESC LIMIT {count}'
        return Asked(sql, [], in_order=True, last=count)

    def _table(self) -> Table:
        return self._rng.choice(list(self._tables))

    def _column(self, table: Table) -> tuple[str, ColumnType]:
        """Choose a column, one that rows are found by more often than not."""
        columns = dict(table.shown_columns)
        found_by = [*table.primary_key, *(name for index in table.indexes for name in index.columns)]
        if table.kind == TableKind.STREAM:
            found_by += ["_time"] * 3
        name = self._rng.choice(found_by if found_by and self._rng.random() < 0.7 else list(columns))
        return name, columns[name]

    def _outputs(self, table: Table) -> str:
        names = [f'"{name}"' for name, _ in table.shown_columns]
        chosen = self._rng.sample(names, self._rng.randint(1, min(3, len(names))))
        return self._rng.choice(["*", "*", ", ".join(chosen), "count(*)", f"{chosen[0].upper()} AS z"])

    def _where(self, table: Table, prefix: str = "") -> Piece:
        count = self._rng.choice([0, 1, 1, 1, 2, 2, 3])
        if count == 0:
            return Piece("")
        if self._rng.random() < 0.2 and table.primary_key:
            kinds = dict(table.shown_columns)
            parts = [self._equals(name, kinds[name], prefix) for name in table.primary_key]
        else:
            parts = [self._predicate(*self._column(table), prefix) for _ in range(count)]
        params = tuple(value for part in parts for value in part.params)
        return Piece(" WHERE " + " AND ".join(part.sql for part in parts), params)

    def _equals(self, name: str, kind: ColumnType, prefix: str) -> Piece:
        constant = self._constant(kind)
        return Piece(f'{prefix}"{name}" = {constant.sql}', constant.params)

    def _predicate(self, name: str, kind: ColumnType, prefix: str = "") -> Piece:
        column = f'{prefix}"{name}"'
        first, second = self._constant(kind), self._constant(kind)
        both = (*first.params, *second.params)
        shapes = ["op"] * 6 + ["flip", "in", "in", "between", "null", "not", "or", "text"]
        match self._rng.choice(shapes):
            case "flip":
                return Piece(f"{first.sql} {self._rng.choice(OPERATORS)} {column}", first.params)
            case "in":
                return Piece(f"{column} IN ({first.sql}, {second.sql})", both)
            case "between":
                return Piece(f"{column} BETWEEN {first.sql} AND {second.sql}", both)
            case "null":
                return Piece(f"{column} IS {self._rng.choice(['', 'NOT '])}NULL")
            case "not":
                return Piece(f"NOT ({column} = {first.sql})", first.params)
            case "or":
                return Piece(f"({column} = {first.sql} OR {column} > {second.sql})", both)
            case "text" if kind.name in {"TEXT", "JSON"}:
                return Piece(f"({column} LIKE 'a%' OR length({column}) > 2)")
        return Piece(f"{column} {self._rng.choice(OPERATORS)} {first.sql}", first.params)

    def _constant(self, kind: ColumnType) -> Piece:
        forms = writings(self._rng.choice(pool_of(kind)), kind)
        # The plain form is the one that people write, and the one that is pushed down.
        sql, params = forms[0] if self._rng.random() < 0.5 else self._rng.choice(forms)
        return Piece(sql, tuple(params))
