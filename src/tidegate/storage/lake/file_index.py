"""The data files of a Delta table as one small Arrow table, from its log or from delta-rs.

Columns of that table: `path` (relative to the table, decoded), `size_bytes`, `record_count` (null when the
writer did not count), `min.<column>` and `max.<column>` for each column that has an order, `part.<column>`
for each partition column. A minimum is never above and a maximum never below what the file holds, with two
exceptions that the reader has to know: text may be cut (then it is a prefix of the true value), and NaN is
not counted. Null means unknown.

The table is built in two ways that give equal rows (a test compares them): from the listing of delta-rs,
and from the JSON of new commits, which costs the same however long the table's history is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import SqlUnsupported, StorageCorrupt

# Writers truncate timestamps in statistics to milliseconds, so that a maximum may be up to 1 ms too low.
STATISTICS_TIME_SLACK = timedelta(milliseconds=1)
# Writers put decimals into JSON as doubles; a double carries 15 decimal digits without loss.
STATISTICS_DECIMAL_DIGITS_MAX = 15
# Each commit adds a chunk to the file table; joining chunks copies all rows, a scan costs some µs a chunk.
CHUNKS_MAX = 32

_TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a Delta schema; `kind` is the type's name, or the JSON of a nested type."""

    name: str
    kind: Any
    is_partition: bool

    @property
    def decimal_digits(self) -> tuple[int, int] | None:
        """The precision and scale of a decimal column, None for any other."""
        if not isinstance(self.kind, str) or not self.kind.startswith("decimal("):
            return None
        precision, scale = self.kind.removeprefix("decimal(").removesuffix(")").split(",")
        return int(precision), int(scale)

    @property
    def ordered_type(self) -> pa.DataType | None:
        """The Arrow type of the column's statistics, None where they cannot exclude files."""
        digits = self.decimal_digits
        if digits is not None:
            exact = self.is_partition or digits[0] <= STATISTICS_DECIMAL_DIGITS_MAX
            return pa.decimal128(*digits) if exact else None
        return _TYPES.get(self.kind) if isinstance(self.kind, str) else None


@dataclass(slots=True)
class FileChanges:
    """The changes of consecutive commits to the list of files."""

    added: dict[str, dict[str, Any]] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    relist: bool = False  # the log has other actions than adding and removing files


def read_columns(schema_json: str, partition_columns: Iterable[str]) -> tuple[LakeColumn, ...]:
    """Return the columns of a Delta schema in order."""
    partitions = set(partition_columns)
    fields = json.loads(schema_json)["fields"]
    return tuple(LakeColumn(entry["name"], entry["type"], entry["name"] in partitions) for entry in fields)


def files_schema(columns: Iterable[LakeColumn]) -> pa.Schema:
    """Return the schema of the file table of a table with these columns."""
    fields = [("path", pa.string()), ("size_bytes", pa.int64()), ("record_count", pa.int64())]
    for column in columns:
        ordered = column.ordered_type
        if column.is_partition:
            if ordered is None:
                raise SqlUnsupported(reason=f"Partition column '{column.name}' has type {column.kind}.")
            fields.append((f"part.{column.name}", ordered))
        elif ordered is not None:
            fields += [(f"min.{column.name}", ordered), (f"max.{column.name}", ordered)]
    return pa.schema(fields)


def from_listing(listing: pa.Table, columns: tuple[LakeColumn, ...]) -> pa.Table:
    """Return the file table from the nested add actions of delta-rs."""
    count = listing.num_rows
    arrays = {
        "path": pa.array([_relative(path) for path in listing["path"].to_pylist()], pa.string()),
        "size_bytes": listing["size_bytes"],
        "record_count": listing["num_records"] if "num_records" in listing.column_names else None,
    }
    for column in columns:
        source = ("partition",) if column.is_partition else ("min", "max")
        for outer in source:
            name = f"{'part' if column.is_partition else outer}.{column.name}"
            arrays[name] = _nested(listing, outer, column.name)
    schema = files_schema(columns)
    filled = [
        pa.nulls(count, entry.type) if arrays[entry.name] is None else arrays[entry.name].cast(entry.type)
        for entry in schema
    ]
    return _widen(pa.table(filled, schema=schema))


def read_commit(path: Path, changes: FileChanges, columns: tuple[LakeColumn, ...]) -> None:
    """Add one commit file to the changes; StorageCorrupt names the file when it is not JSON lines."""
    added: dict[str, dict[str, Any]] = {}
    for action in parse_commit(path):
        kind, body = next(iter(action.items()))
        if kind == "add":
            if body.get("deletionVector"):
                changes.relist = True
            added[_relative(body["path"])] = _file_row(body, columns)
        elif kind == "remove":
            name = _relative(body["path"])
            if changes.added.pop(name, None) is None:
                changes.removed.add(name)
            changes.touched.add(name)
        elif kind not in {"commitInfo", "txn", "cdc", "domainMetadata"}:
            changes.relist = True
    changes.added.update(added)
    changes.touched.update(added)


def parse_commit(path: Path) -> list[dict[str, Any]]:
    """Return the actions of a commit file; StorageCorrupt names the file when it is not JSON lines."""
    actions = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            action = json.loads(line)
        except ValueError as error:
            raise StorageCorrupt(place=str(path), reason=f"line {number} is not JSON: {error}") from error
        if not isinstance(action, dict) or not action:
            raise StorageCorrupt(place=str(path), reason=f"line {number} is not a Delta action")
        actions.append(action)
    if not actions:
        raise StorageCorrupt(place=str(path), reason="the commit is empty")
    return actions


def apply_changes(files: pa.Table, changes: FileChanges) -> pa.Table | None:
    """Return the file table after the changes, or None when a removed file is missing: list again then."""
    drop = pc.is_in(files["path"], value_set=pa.array(sorted(changes.touched), pa.string()))
    dropped = pc.filter(files["path"], drop).to_pylist()
    if not changes.removed <= set(dropped):
        return None
    remaining = files.filter(pc.invert(drop)) if dropped else files
    if not changes.added:
        return remaining
    fresh = pa.Table.from_pylist(list(changes.added.values()), schema=files.schema)
    joined = pa.concat_tables([remaining, _widen(fresh)])
    return joined if joined["path"].num_chunks <= CHUNKS_MAX else joined.combine_chunks()


def _file_row(body: dict[str, Any], columns: tuple[LakeColumn, ...]) -> dict[str, Any]:
    try:
        statistics = json.loads(body.get("stats") or "{}") or {}
    except ValueError:
        statistics = {}  # statistics are optional: a file without them is always read
    row: dict[str, Any] = {
        "path": _relative(body["path"]),
        "size_bytes": body["size"],
        "record_count": statistics.get("numRecords"),
    }
    lows, highs = statistics.get("minValues") or {}, statistics.get("maxValues") or {}
    for column in columns:
        if column.is_partition:
            text = (body.get("partitionValues") or {}).get(column.name)
            row[f"part.{column.name}"] = None if text in {None, ""} else _partition_value(text, column)
        elif column.ordered_type is not None:
            row[f"min.{column.name}"] = _statistic(lows.get(column.name), column)
            row[f"max.{column.name}"] = _statistic(highs.get(column.name), column)
    return row


def _partition_value(text: str, column: LakeColumn) -> Any:
    value: Any = {"true": True, "false": False}.get(text.lower()) if column.kind == "boolean" else text
    if column.decimal_digits is None and column.kind in {"long", "integer", "short", "byte"}:
        value = int(text)
    elif column.kind in {"float", "double"}:
        value = float(text)
    return _typed(value, column)


def _statistic(value: Any, column: LakeColumn) -> Any:
    """Return a bound in the column's type, None when the log has another type there."""
    if value is None:
        return None
    try:
        typed = _typed(value, column)
        if isinstance(typed, datetime):  # whole milliseconds, as delta-rs lists them
            typed = typed.replace(microsecond=typed.microsecond // 1000 * 1000)
        pa.array([typed], column.ordered_type)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        return None
    return typed


def _typed(value: Any, column: LakeColumn) -> Any:
    digits = column.decimal_digits
    if digits is not None:
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-digits[1]))
    if column.kind == "date":
        return date.fromisoformat(str(value)[:10])
    if column.kind == "timestamp":
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    if column.kind == "timestamp_ntz":
        return datetime.fromisoformat(value).replace(tzinfo=None)
    if column.kind in {"float", "double"}:
        return float(value)
    return value


def _nested(listing: pa.Table, outer: str, name: str) -> pa.ChunkedArray | None:
    if outer not in listing.column_names:
        return None
    struct = listing.schema.field(outer).type
    if not pa.types.is_struct(struct) or struct.get_field_index(name) < 0:
        return None
    return pc.struct_field(listing[outer], [struct.get_field_index(name)])


def _relative(encoded: str) -> str:
    """Return the path inside the table; raise SqlUnsupported for a path that leads out of it."""
    path = unquote(encoded)
    if path.startswith("/") or _SCHEME.match(encoded) or ".." in path.split("/"):
        raise SqlUnsupported(reason=f"The table refers to a file outside its folder: {path}")
    return path


def _widen(files: pa.Table) -> pa.Table:
    """Widen time bounds by what writers truncate."""
    slack = pa.scalar(STATISTICS_TIME_SLACK, pa.duration("us"))
    for position, entry in enumerate(files.schema):
        if not pa.types.is_timestamp(entry.type) or entry.name.startswith("part."):
            continue
        move = pc.subtract if entry.name.startswith("min.") else pc.add
        files = files.set_column(position, entry, move(files[entry.name], slack).cast(entry.type))
    return files
