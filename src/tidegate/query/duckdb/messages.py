"""The messages between the server and a child that runs a statement in DuckDB.

    server                          child
    CONFINE              ────▶      binds it to one lake and its limits, for good
    ── for each statement ──
    ANALYZE              ◀───▶      what the text names; errors about it
    STATEMENT            ────▶      instead, where that is known from before
    COMPARISONS, FILE_TESTS, CHOOSE_FILES, FILTER_TEXT      ◀───▶      pushdown
    SHOW_FILES, SHOW_COLUMNS, SHOW_ROWS      ────▶      views; an error comes with the next answer
    BIND                 ◀───▶
    RUN                  ◀───▶      types, then batches of rows, each an Arrow stream
    FINISH               ────▶      drops the views, prepares the next session

Rows of tables travel as an Arrow stream in a memory file (`memfd`), which the child maps: they are not copied
again. Everything else is MessagePack. Values keep their Python type: decimals, and integers beyond 64 bits,
are marked by an extension type.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from tidegate.errors import SqlInvalid
from tidegate.model.schemas import ColumnType

CONFINE, FINISH = 1, 2
ANALYZE, COMPARISONS, FILE_TESTS, CHOOSE_FILES, FILTER_TEXT = 10, 11, 12, 13, 14
STATEMENT, SHOW_FILES, SHOW_COLUMNS, SHOW_ROWS, BIND, RUN = 20, 21, 22, 23, 24, 25
ANSWER, REFUSED, FAILED, ROWS_PART, ROWS, ROWS_END = 30, 31, 32, 33, 34, 35

_DECIMAL, _BIG_INT, _DATE, _MOMENT = 1, 2, 3, 4
_INT64_MIN, _UINT64_MAX = -(1 << 63), (1 << 64) - 1


class Confinement(msgspec.Struct, array_like=True):
    """The one lake and the limits of a child."""

    root: str
    memory_mb: int
    threads: int
    spill_path: str
    niceness: int


class StatementText(msgspec.Struct, array_like=True):
    """A statement, with its parameters as `pack_values` writes them; `parameter_count` once it is known."""

    sql: str
    params: bytes
    parameter_count: int = 0


class TableColumns(msgspec.Struct, array_like=True):
    """A table as the child needs to know it: types as text, `compared` are of use to its access paths."""

    full_name: str
    columns: list[tuple[str, str]]
    compared: list[str] = []


class LakeColumns(msgspec.Struct, array_like=True):
    """A lake table: name, Delta type and whether it is a partition column, for each column."""

    name: str
    columns: list[tuple[str, Any, bool]]


class FoundFiles(msgspec.Struct, array_like=True):
    """The numbers of the files to read (None: all), or the columns by which they are chosen first."""

    chosen: list[int] | None = None
    needed: list[str] = []


class FileView(msgspec.Struct, array_like=True):
    """The view of a lake table."""

    name: str
    select: str


class Analysis(msgspec.Struct, array_like=True):
    """The analysis of a statement (`analysis.AnalyzedSelect`)."""

    sql: str
    tables: list[tuple[str, str, int]]
    unqualified: list[str]
    parameter_count: int
    mentioned: list[str] | None
    outputs: tuple[str, str, list[str] | None] | None


class FoundComparison(msgspec.Struct, array_like=True):
    """A comparison of a column with values, as `pack_values` writes them."""

    column: str
    operator: str
    values: bytes


class ResultColumns(msgspec.Struct, array_like=True):
    """The names of the output's columns and DuckDB's names of their types."""

    names: list[str]
    types: list[str]


class EngineFailure(msgspec.Struct, array_like=True):
    """An error of DuckDB or Arrow: the name of its class, and its message."""

    kind: str
    message: str


class TextRefusal(msgspec.Struct, array_like=True):
    """An error of ours, as in an HTTP answer; with the parts of the TextRefused behind it."""

    wire: dict[str, Any]
    refused: tuple[str, str, tuple[int, int] | None] | None = None


def pack_values(values: Sequence[Any]) -> bytes:
    """Return values of parameters and comparisons as bytes."""
    return _encode([_packed(value) for value in values])


def unpack_values(content: bytes) -> list[Any]:
    """Return the values that `pack_values` wrote."""
    values: list[Any] = _decode(content)
    return values


def _packed(value: Any) -> Any:
    if value is None or isinstance(value, bool | str | float | bytes):
        return value
    if isinstance(value, int):
        in_range = _INT64_MIN <= value <= _UINT64_MAX
        return value if in_range else msgspec.msgpack.Ext(_BIG_INT, f"{value:x}".encode())
    if isinstance(value, Decimal):
        return msgspec.msgpack.Ext(_DECIMAL, str(value).encode())
    if isinstance(value, datetime | date):
        code = _MOMENT if isinstance(value, datetime) else _DATE
        return msgspec.msgpack.Ext(code, value.isoformat().encode())
    if isinstance(value, list | tuple):
        return [_packed(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _packed(part) for key, part in value.items()}
    raise SqlInvalid(reason=f"a parameter of type {type(value).__name__} cannot be bound.")


def _unpacked(code: int, content: memoryview) -> Any:
    text = bytes(content).decode()
    return _READERS[code](text)


_READERS: dict[int, Callable[[str], Any]] = {
    _DECIMAL: Decimal,
    _BIG_INT: lambda text: int(text, 16),
    _DATE: date.fromisoformat,
    _MOMENT: datetime.fromisoformat,
}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ext_hook=_unpacked).decode


def kinds_of(columns: Sequence[tuple[str, ColumnType]]) -> list[tuple[str, str]]:
    """Return columns as they travel."""
    return [(name, str(kind)) for name, kind in columns]


@contextmanager
def memory_file(table: pa.Table) -> Iterator[int]:
    """Yield the descriptor of a memory file with a table, for the time of sending it."""
    fd = os.memfd_create("tidegate-rows", os.MFD_CLOEXEC)
    try:
        with (
            os.fdopen(os.dup(fd), "wb", buffering=0) as file,
            pa.ipc.new_stream(file, table.schema) as writer,
        ):
            writer.write_table(table)
        yield fd
    finally:
        os.close(fd)


def read_memory_file(fd: int) -> pa.Table:
    """Return the table in a memory file without copying it; closes the descriptor."""
    try:
        source = pa.memory_map(f"/proc/self/fd/{fd}")
        return pa.ipc.open_stream(source).read_all()
    finally:
        os.close(fd)
