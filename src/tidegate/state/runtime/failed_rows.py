"""Failed rows and timers: their records, which become dead letters, or the error that ends the run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Literal

import msgspec
import pyarrow as pa

from tidegate.errors import InvariantBroken, RowFailed, StorageCorrupt, Unavailable
from tidegate.model.names import escape_surrogates, shorten

# Errors that no row causes: they end the batch, and its next attempt may succeed.
INFRASTRUCTURE_ERRORS = (Unavailable, StorageCorrupt, InvariantBroken, MemoryError)

# People read the message of an error; the record of a failed row must have the whole row.
SHOWN_CHARS_MAX = 500
ROW_CHARS_MAX = 1_000_000
# Each has its row and its error; a thousand are a few megabytes.
HELD_ROWS_MAX = 1_000

# `row` has the row's columns as JSON; it is null for a timer.
FAILED_ROWS_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("source", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("place", pa.string()),
        pa.field("row", pa.string()),
    ]
)

_PACKAGE = Path(__file__).resolve().parents[2]
_OURS = (str(_PACKAGE / "state"), str(_PACKAGE / "checkpoint"))


@dataclass(frozen=True, slots=True)
class FailedRow:
    """A row or a timer that failed: its key, the error, and the line of the user's code."""

    key: Any
    event_time_ms: int | None
    source: Literal["row", "timer"]
    error: BaseException
    place: str | None
    row: dict[str, Any] | None

    def reason(self) -> str:
        """Return the message of the error."""
        text = escape_surrogates(str(self.error))
        return shorten(text or type(self.error).__name__, ROW_CHARS_MAX)


class FailedRows:
    """Collects failed rows and passes them to a sink in batches; without a sink the first ends the run."""

    def __init__(self, operator: str, sink: Callable[[pa.RecordBatch], None] | None) -> None:
        self._operator = operator
        self._sink = sink
        self._pending: list[FailedRow] = []
        self.count = 0

    @property
    def is_collected(self) -> bool:
        """Return whether there is a sink, so that what failed rows wrote must be rolled back."""
        return self._sink is not None

    def add(self, row: FailedRow) -> None:
        """Add a row; RowFailed without a sink."""
        if self._sink is None:
            raise row_failed(self._operator, row) from row.error
        self.count += 1
        self._pending.append(row)
        if len(self._pending) >= HELD_ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        """Pass the pending rows to the sink."""
        if self._pending and self._sink is not None:
            pending, self._pending = self._pending, []
            self._sink(failed_rows_batch(pending))


def failed_rows_batch(rows: Sequence[FailedRow]) -> pa.RecordBatch:
    """Return the records of failed rows, of FAILED_ROWS_SCHEMA."""
    columns = zip(
        *(
            (
                shown_key(row.key),
                None if row.event_time_ms is None else row.event_time_ms * 1_000,
                row.source,
                type(row.error).__name__,
                row.reason(),
                row.place,
                None if row.row is None else shorten(row_json(row.row), ROW_CHARS_MAX),
            )
            for row in rows
        ),
        strict=True,
    )
    arrays = [
        pa.array(values, type=field.type) for values, field in zip(columns, FAILED_ROWS_SCHEMA, strict=True)
    ]
    return pa.record_batch(arrays, schema=FAILED_ROWS_SCHEMA)


def row_failed(operator: str, row: FailedRow) -> RowFailed:
    """Return the error that ends a run: it names the key, the reason, the user's line and the row."""
    # On one line: of the message of a failed query only the first is shown.
    line = " ".join(row.reason().split())
    reason = f"{type(row.error).__name__}: {shorten(line, SHOWN_CHARS_MAX)}"
    if row.place:
        reason += f" ({row.place})"
    if row.row is not None:
        reason += f"; the row is {shorten(row_json(row.row), SHOWN_CHARS_MAX)}"
    elif row.source == "timer":
        reason += "; it was a timer"
    return RowFailed(operator=operator, key=shown_key(row.key), reason=reason)


def place_of(error: BaseException, code: CodeType | None) -> str | None:
    """Return where in the user's code an error was raised: the innermost line of the operator's own file.

    Where the traceback has no line of that file, the innermost of other packages; else where `code` begins.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    foreign = [frame for frame in frames if not frame.filename.startswith(_OURS)]
    for frame in (*own[-1:], *foreign[-1:]):
        return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """Return the code of a method as the user wrote it; None where there is none in Python."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(getattr(function, "__func__", function), "__code__", None)


def row_json(row: dict[str, Any]) -> str:
    """Return a row as JSON, with the repr of values that JSON has no form for."""
    return msgspec.json.encode(row, enc_hook=repr).decode()


def shown_key(key: Any) -> str | None:
    """Return a key as text for people: a single text as it is, several columns as JSON."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, tuple):
        return msgspec.json.encode(key, enc_hook=repr).decode()
    return str(key)
