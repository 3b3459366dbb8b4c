"""Scans of lake tables: the files of one version that can have rows of the answer, as a view of DuckDB.

The Delta schema is passed to `read_parquet` whole, so DuckDB opens no file to find the columns; a file that
is older than a column has nulls for it. Values of partition columns are not in the files: they come from the
log, by the number of the file in the list.

Files are chosen by their statistics. `duckdb.pushdown` finds the comparisons of the statement; DuckDB
evaluates them over the statistics, so types and casts are those of the statement itself. Where statistics say
nothing, the file is read: null is unknown; cut text is a prefix of the true bound (a constant that starts
with it is kept); NaN is not counted but is above everything in DuckDB (no file is dropped because its numbers
are too small).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.errors import SqlUnsupported
from tidegate.query.quoting import escape_glob, quote_name, quote_text
from tidegate.query.scans.pushdown import (
    TIME_TYPES,
    BoundTable,
    ColumnBound,
    alike,
    constant_types,
    find_bounds,
    used_params,
)
from tidegate.storage.lake.file_index import LakeColumn
from tidegate.storage.lake.tables import TableView

_TYPES = {
    "string": "VARCHAR",
    "long": "BIGINT",
    "integer": "INTEGER",
    "short": "SMALLINT",
    "byte": "TINYINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
}
# DuckDB's own names for where a row comes from; a table may have columns of these names too.
FILE_NUMBER = "file_index"


def duck_type(kind: Any) -> str:
    """Return DuckDB's name of a Delta type; SqlUnsupported when it has none."""
    if isinstance(kind, str):
        if kind in _TYPES:
            return _TYPES[kind]
        if kind.startswith("decimal("):
            return kind.upper()
    elif kind.get("type") == "array":
        return duck_type(kind["elementType"]) + "[]"
    elif kind.get("type") == "map":
        return f"MAP({duck_type(kind['keyType'])}, {duck_type(kind['valueType'])})"
    elif kind.get("type") == "struct":
        fields = [f"{quote_name(field['name'])} {duck_type(field['type'])}" for field in kind["fields"]]
        return f"STRUCT({', '.join(fields)})"
    raise SqlUnsupported(reason=f"Columns of type {kind} are not supported.")


def scan_sql(view: TableView, chosen: Sequence[int] | None) -> tuple[str, list[str]]:
    """Return the SELECT over the chosen rows of the view's file table (None: all), and the paths it reads."""
    files = view.files if chosen is None else view.files.take(pa.array(chosen, pa.int64()))
    paths = [f"{view.folder.absolute()}/{path}" for path in files["path"].to_pylist()]
    if not paths:
        nothing = [f"NULL::{duck_type(c.kind)} AS {quote_name(c.name)}" for c in view.columns]
        return f"SELECT {', '.join(nothing)} WHERE false", paths
    stored = [column for column in view.columns if not column.is_partition]
    if len(stored) < len(view.columns) and any(c.name.lower() == FILE_NUMBER for c in stored):
        raise SqlUnsupported(reason=f"Table 'lake.{view.name}' has partitions and a column '{FILE_NUMBER}'.")
    listed = ", ".join(quote_text(escape_glob(path)) for path in paths)
    fields = ", ".join(
        f"{quote_text(c.name)}: {{name: {quote_text(c.name)}, type: {quote_text(duck_type(c.kind))}, "
        "default_value: NULL}"
        for c in stored
    )
    source = f"read_parquet([{listed}], schema = MAP {{{fields}}}, hive_partitioning = false)"
    outputs = [
        _partition_sql(column, files[f"part.{column.name}"].to_pylist())
        if column.is_partition
        else quote_name(column.name)
        for column in view.columns
    ]
    return f"SELECT {', '.join(outputs)} FROM {source}", paths  # noqa: S608 - every name and value is quoted


def _partition_sql(column: LakeColumn, values: list[Any]) -> str:
    kind = duck_type(column.kind)
    literals = ["NULL" if value is None else quote_text(_text(value)) for value in values]
    if len(set(literals)) == 1:
        return f"{literals[0]}::{kind} AS {quote_name(column.name)}"
    picked = f"([{', '.join(literals)}]::{kind}[])[{FILE_NUMBER}::BIGINT + 1]"
    return f"{picked} AS {quote_name(column.name)}"


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, date) else str(value)


_FLOATS = frozenset({"float", "double"})
_INTEGERS = frozenset({"long", "integer", "short", "byte"})
_TIMES = frozenset({"date", "timestamp", "timestamp_ntz"})
_NUMBER_TYPES = re.compile(r"U?(TINYINT|SMALLINT|INTEGER|BIGINT|HUGEINT)|FLOAT|DOUBLE|DECIMAL\(.*\)")
_REPLACED = "chr(65533)"  # what a writer puts where it cuts text in the middle of a character


class FileTests(NamedTuple):
    """SQL that is true for files that may have a matching row, and the columns of the file table it needs."""

    tests: tuple[str, ...]
    columns: tuple[str, ...]


def find_file_tests(
    cursor: Any, name: str, columns: Sequence[LakeColumn], sql: str, params: Sequence[Any]
) -> FileTests | None:
    """Return the tests by which a statement excludes files of a lake table; None where it excludes none."""
    import duckdb

    bounds = find_bounds(sql, bound_table(name, columns), len(params))
    if not bounds:
        return None
    try:
        return _tests_of(cursor, columns, bounds, params)
    except (
        duckdb.BinderException,
        duckdb.ConversionException,
        duckdb.InvalidInputException,
        duckdb.OutOfRangeException,
    ):
        return None  # an impossible constant: the statement itself fails, if it gets there


def choose_files(
    cursor: Any, files: pa.Table, tests: Sequence[str], params: Sequence[Any]
) -> list[int] | None:
    """Return the numbers of the files that pass the tests, in order, or None for all of them."""
    import duckdb

    numbered = files.append_column("file_number", pa.array(np.arange(files.num_rows)))
    cursor.register("lake_files", numbered)
    try:
        sql = f"SELECT file_number FROM lake_files WHERE {' AND '.join(tests)}"  # noqa: S608 - made above
        rows = cursor.execute(sql, used_params(cursor, sql, params)).fetchall()
    except (
        duckdb.BinderException,
        duckdb.ConversionException,
        duckdb.InvalidInputException,
        duckdb.OutOfRangeException,
    ):
        return None
    finally:
        cursor.unregister("lake_files")
    return sorted(row[0] for row in rows)


def bound_table(name: str, columns: Sequence[LakeColumn]) -> BoundTable:
    """Return the table with the columns whose statistics can exclude files."""
    ordered = frozenset(column.name for column in columns if column.ordered_type is not None)
    return BoundTable("lake", name, tuple(column.name for column in columns), ordered)


def _tests_of(
    cursor: Any, columns: Sequence[LakeColumn], bounds: list[ColumnBound], params: Sequence[Any]
) -> FileTests | None:
    kinds = constant_types(cursor, bounds, params)
    known = {column.name: column for column in columns}
    tests = [test for bound in bounds if (test := _test(bound, known[bound.column], kinds)) is not None]
    needed = [name for bound in bounds for name in _statistics(known[bound.column])]
    return FileTests(tuple(tests), tuple(dict.fromkeys(needed))) if tests else None


def _test(bound: ColumnBound, column: LakeColumn, kinds: dict[str, str]) -> str | None:
    """Return the SQL that is false for files without a matching row; None if it excludes nothing."""
    if not all(_comparable(column, kinds[constant.sql]) for constant in bound.constants):
        return None
    if not alike({kinds[constant.sql] for constant in bound.peers}):
        return None
    parts = []
    for constant in bound.constants:
        # The clock advances until the statement runs, so of comparisons with it only lower bounds are safe.
        if constant.rises and bound.operator not in {">", ">="}:
            return None
        sides = []
        if bound.operator in {"=", "<", "<="}:
            sides.append(_low_test(column, "<" if bound.operator == "<" else "<=", constant.sql))
        if bound.operator in {"=", ">", ">="}:
            sides.append(
                _high_test(column, bound.operator, ">" if bound.operator == ">" else ">=", constant.sql)
            )
        parts.append(f"({' AND '.join(sides)})")
    return f"({' OR '.join(parts)})"


def _low_test(column: LakeColumn, operator: str, constant: str) -> str:
    low = quote_name(_statistics(column)[0])
    test = f"{low} {operator} {constant}"
    if column.kind in _FLOATS:
        test += f" OR isnan({low})"
    if column.kind == "string":
        test += f" OR contains({low}, {_REPLACED})"
    return f"coalesce({test}, true)"


def _high_test(column: LakeColumn, comparison: str, operator: str, constant: str) -> str:
    high = quote_name(_statistics(column)[-1])
    test = f"{high} {operator} {constant}"
    if column.is_partition:
        return f"coalesce({test}, true)"
    if column.kind in _FLOATS:
        if comparison != "=":
            return "true"
        test += f" OR isnan(({constant})::DOUBLE)"
    if column.kind == "string":
        test += f" OR starts_with({constant}, {high}) OR contains({high}, {_REPLACED})"
    return f"coalesce({test}, true)"


def _statistics(column: LakeColumn) -> list[str]:
    return [f"part.{column.name}"] if column.is_partition else [f"min.{column.name}", f"max.{column.name}"]


def _comparable(column: LakeColumn, constant_type: str) -> bool:
    """True if the comparison keeps the order of the statistics, whatever DuckDB casts."""
    if column.kind in _INTEGERS or column.kind in _FLOATS or column.decimal_digits is not None:
        return _NUMBER_TYPES.fullmatch(constant_type) is not None
    if column.kind in _TIMES:
        return constant_type in TIME_TYPES
    return constant_type == {"string": "VARCHAR", "boolean": "BOOLEAN"}.get(column.kind)
