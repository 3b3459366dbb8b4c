"""Dead rows: take a row or a timer that failed, give the record of it, or the error that ends a run."""

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

# What is nobody's row's fault: such an error ends the batch, and its next attempt may go well.
NOT_THE_ROWS_FAULT = (Unavailable, StorageCorrupt, InvariantBroken, MemoryError)

# A message of an error is read by people; the record of a dead row must hold the row.
SHOWN_CHARS_MAX = 500
ROW_CHARS_MAX = 1_000_000
# Each holds its row and its error; a thousand are a few megabytes.
HELD_ROWS_MAX = 1_000

# A row, or a timer, that was set aside. `row` is the row's columns as JSON; a timer has none.
DEAD_SCHEMA = pa.schema(
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
class DeadRow:
    """A row or a timer that failed: on which key, why, and where in the user's code."""

    key: Any
    event_time_ms: int | None
    source: Literal["row", "timer"]
    error: BaseException
    place: str | None
    row: dict[str, Any] | None

    def reason(self) -> str:
        """Return why in one line."""
        return _shortened(str(self.error) or type(self.error).__name__, ROW_CHARS_MAX)


class DeadRows:
    """Where failed rows go: to whoever takes them, in batches; where nobody does, the first ends the run."""

    def __init__(self, operator: str, give: Callable[[pa.RecordBatch], None] | None) -> None:
        self._operator = operator
        self._give = give
        self._held: list[DeadRow] = []
        self.count = 0

    @property
    def is_taken(self) -> bool:
        """Return whether failed rows are set aside, so that what they wrote must be undone."""
        return self._give is not None

    def add(self, row: DeadRow) -> None:
        """Set a row aside; RowFailed where nobody takes them."""
        if self._give is None:
            raise row_failed(self._operator, row) from row.error
        self.count += 1
        self._held.append(row)
        if len(self._held) >= HELD_ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand over what is held."""
        if self._held and self._give is not None:
            held, self._held = self._held, []
            self._give(dead_batch(held))


def dead_batch(rows: Sequence[DeadRow]) -> pa.RecordBatch:
    """Return the records of dead rows, of DEAD_SCHEMA."""
    columns = zip(
        *(
            (
                shown_key(row.key),
                None if row.event_time_ms is None else row.event_time_ms * 1_000,
                row.source,
                type(row.error).__name__,
                row.reason(),
                row.place,
                None if row.row is None else _shortened(row_json(row.row), ROW_CHARS_MAX),
            )
            for row in rows
        ),
        strict=True,
    )
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, DEAD_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=DEAD_SCHEMA)


def row_failed(operator: str, row: DeadRow) -> RowFailed:
    """Return the error that ends a run: it names the key, the reason, the user's line and the row."""
    # On one line: what is told of a failed query is its first.
    told = " ".join(row.reason().split())
    reason = f"{type(row.error).__name__}: {_shortened(told, SHOWN_CHARS_MAX)}"
    if row.place:
        reason += f" ({row.place})"
    if row.row is not None:
        reason += f"; the row is {_shortened(row_json(row.row), SHOWN_CHARS_MAX)}"
    elif row.source == "timer":
        reason += "; it was a timer"
    return RowFailed(operator=operator, key=shown_key(row.key), reason=reason)


def place_of(error: BaseException, code: CodeType | None) -> str | None:
    """Return where in the user's code an error came from: the innermost line of the operator's own file.

    Where no line of that file took part, the innermost that is not of this package; else where `code` begins.
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
    """Return a row as JSON; what JSON does not know stands there as text."""
    return msgspec.json.encode(row, enc_hook=repr).decode()


def shown_key(key: Any) -> str | None:
    """Return a key as text, as people know it: a single text as it is, several columns as JSON."""
    if key is None or isinstance(key, str):
        return key
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, tuple):
        return msgspec.json.encode(key, enc_hook=repr).decode()
    return str(key)


def _shortened(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
