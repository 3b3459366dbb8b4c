"""A lake table as DuckDB sees it: the SQL of a view over chosen files of one version.

The Delta schema goes to `read_parquet` whole, so DuckDB opens no file to find the columns; a file that is
older than a column gives nulls for it. Values of partition columns are not in the files: they come from the
log, by the number of the file in the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from tidegate.errors import SqlUnsupported
from tidegate.query.database import escape_glob, quote_name, quote_text
from tidegate.storage.lake import TableView
from tidegate.storage.lake_files import LakeColumn

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
    """Give DuckDB's name of a Delta type; SqlUnsupported when it has none."""
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
    """Give the SELECT over the chosen rows of the view's file table (None: all), and the paths it reads."""
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
