"""Messages of the live socket: rows into JSON, and JSON into frames.

A server's frames carry no mask, so equal messages are equal bytes: a change is written once for everyone
whose subscription has the same SELECT and the same id, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tidegate.errors import TidegateError
from tidegate.model.schemas import ColumnType
from tidegate.model.tables import Row
from tidegate.model.values import json_column, json_writer

# A snapshot's page is sent in messages of about this size: clients limit the size of a message.
PAGE_BYTES = 256 * 1024
# The whole of a message in one frame of text.
_TEXT_FRAME = 0x81
_SHORT_MAX = 125
_MEDIUM_MAX = 0xFFFF

_encode = msgspec.json.encode


def frame(*parts: bytes) -> bytes:
    """Return one message as a frame."""
    length = sum(map(len, parts))
    if length <= _SHORT_MAX:
        head = bytes((_TEXT_FRAME, length))
    elif length <= _MEDIUM_MAX:
        head = bytes((_TEXT_FRAME, 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((_TEXT_FRAME, 127)) + length.to_bytes(8, "big")
    return b"".join((head, *parts))


def frames(front: bytes, tails: Iterable[bytes]) -> bytes:
    """Return messages that begin in the same way."""
    return b"".join([frame(front, tail) for tail in tails])


def schema(subscription_id: str, columns: Sequence[tuple[str, ColumnType]]) -> bytes:
    """Return the message with the columns of the rows."""
    shown = [{"name": name, "type": str(kind)} for name, kind in columns]
    return frame(_encode({"type": "schema", "id": subscription_id, "columns": shown}))


def lagged(subscription_id: str) -> bytes:
    """Return the message that changes were missed, and that a snapshot follows."""
    return frame(_encode({"type": "lagged", "id": subscription_id}))


def unsubscribed(subscription_id: str) -> bytes:
    """Return the message that nothing more comes under this id."""
    return frame(_encode({"type": "unsubscribed", "id": subscription_id}))


def plain(kind: str) -> bytes:
    """Return a message that has only its type."""
    return frame(_encode({"type": kind}))


def error(problem: TidegateError, subscription_id: str | None) -> bytes:
    """Return the message about an error of a subscription, or of the socket itself."""
    message: dict[str, object] = {"type": "error", **problem.to_wire()}
    if subscription_id is not None:
        message["id"] = subscription_id
    return frame(_encode(message))


def change_front(subscription_id: str) -> bytes:
    """Return the beginning of every change of a subscription; `ChangeFilter.apply` returns the rest."""
    return b'{"type":"change","id":' + _encode(subscription_id) + b',"op":"'


class RowEncoder:
    """Writes the rows of one SELECT as JSON arrays."""

    def __init__(self, columns: Sequence[tuple[str, ColumnType]]) -> None:
        self._kinds = [kind for _, kind in columns]
        writers = [json_writer(kind) for kind in self._kinds]
        self._writers = [(at, write) for at, write in enumerate(writers) if write is not None]

    def write(self, row: Row) -> bytes:
        """Return one row."""
        if not self._writers:
            return _encode(row)
        shown: list[object] = list(row)
        for at, write in self._writers:
            value = row[at]
            if value is not None:
                shown[at] = write(value)
        return _encode(shown)

    def write_many(self, rows: Sequence[Row]) -> list[bytes]:
        """Return many rows; column by column, which is quicker."""
        if not self._writers or not rows:
            return [_encode(row) for row in rows]
        columns = zip(*rows, strict=True)
        shown = [json_column(values, kind) for values, kind in zip(columns, self._kinds, strict=True)]
        return [_encode(row) for row in zip(*shown, strict=True)]


def snapshot_messages(
    subscription_id: str,
    writer: RowEncoder,
    rows: Sequence[Row],
    seq: int,
    *,
    last: bool,
    warnings: Sequence[str] = (),
) -> list[bytes]:
    """Return a page of a snapshot in one message, or in several where its rows are large; blocking.

    `warnings` go into the last message: they name what the snapshot lacks.
    """
    written = writer.write_many(rows)
    parts: list[list[bytes]] = [[]]
    size_bytes = 0
    for row in written:
        if parts[-1] and size_bytes + len(row) > PAGE_BYTES:
            parts.append([])
            size_bytes = 0
        parts[-1].append(row)
        size_bytes += len(row)
    front = b'{"type":"snapshot","id":%b,"rows":[' % _encode(subscription_id)
    final = len(parts) - 1
    ends = [
        b'],"last":%b,"seq":%d}' % (_encode(last and number == final), seq) for number in range(len(parts))
    ]
    if warnings:
        ends[final] = ends[final][:-1] + b',"warnings":%b}' % _encode(warnings)
    return [frame(front, b",".join(part), end) for part, end in zip(parts, ends, strict=True)]
