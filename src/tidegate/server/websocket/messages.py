"""What clients say on a live socket: takes a text, gives one of four messages or says what is wrong.

Pages of a snapshot as messages; blocking, and away from the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tidegate.errors import RequestInvalid, RequestMalformed
from tidegate.live.hub import SEQ_MAX
from tidegate.live.wire import RowWriter, snapshot_messages
from tidegate.model.tables import Row
from tidegate.server.http.request import decode_json

if TYPE_CHECKING:
    from tidegate.query.live import SnapshotReader

# Long enough for a UUID and a name; the id is repeated in every message.
ID_CHARS_MAX = 64
_KINDS = ("subscribe", "unsubscribe", "auth", "ping")


class Subscribe(msgspec.Struct, forbid_unknown_fields=True, rename="camel", tag="subscribe"):
    """Begin to follow a SELECT, from now on or from behind a change that was seen."""

    id: str
    sql: str
    params: list[Any] = []
    from_seq: int | None = None


class Unsubscribe(msgspec.Struct, forbid_unknown_fields=True, tag="unsubscribe"):
    """Follow it no more."""

    id: str


class Auth(msgspec.Struct, forbid_unknown_fields=True, tag="auth"):
    """Return who connects; the first message, where no header says it."""

    token: str
    tenant: str = ""


class Ping(msgspec.Struct, forbid_unknown_fields=True, tag="ping"):
    """Ask for a sign of life, where a client cannot send pings of the protocol, as in a browser."""


class _Named(msgspec.Struct):
    id: Any = None


ClientMessage: TypeAlias = Subscribe | Unsubscribe | Auth | Ping

_decoder: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_named = msgspec.json.Decoder(_Named)


class MessageRefused(Exception):
    """A message that cannot be read; `problem` says why, `id` which subscription it names, if any."""

    def __init__(self, problem: RequestInvalid | RequestMalformed, subscription_id: str | None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.id = subscription_id


def read_message(text: str | None) -> ClientMessage:
    """Return the message in a text frame; None stands for a frame of bytes."""
    if text is None:
        reason = "Messages are text, and this one is binary."
        raise MessageRefused(RequestInvalid(reason=reason, hint="Send JSON in text frames."), None)
    try:
        message = decode_json(text.encode(), _decoder)
    except RequestInvalid as problem:
        hint = f"Types: {', '.join(_KINDS)}; docs/reference/http.md shows their fields."
        refused = RequestInvalid(**{**problem.values, "hint": hint})
        raise MessageRefused(refused, _id_in(text)) from problem
    except RequestMalformed as problem:
        raise MessageRefused(problem, None) from problem
    if isinstance(message, Subscribe):
        _check(message)
    return message


def _check(message: Subscribe) -> None:
    if not 1 <= len(message.id) <= ID_CHARS_MAX or not message.id.isprintable():
        reason = f"The id of a subscription has 1 to {ID_CHARS_MAX} printable characters."
        shown = message.id[:ID_CHARS_MAX]
        raise MessageRefused(RequestInvalid(reason=reason, hint="'a' is a good one."), shown)
    if message.from_seq is not None and not 0 <= message.from_seq <= SEQ_MAX:
        reason = f"fromSeq is 0 to {SEQ_MAX}."
        hint = "Give the seq of the last message that you had, or leave it out."
        raise MessageRefused(RequestInvalid(reason=reason, hint=hint), message.id)


def _id_in(text: str) -> str | None:
    """Return the id of a message that is otherwise wrong, so that its sender knows which it was."""
    try:
        found = _named.decode(text.encode()).id
    except (msgspec.DecodeError, RecursionError):
        return None
    return found[:ID_CHARS_MAX] if isinstance(found, str) else None


class SnapshotPages:
    """Reads one page ahead, so that the last message of a snapshot says that it is the last."""

    def __init__(self, subscription_id: str, writer: RowWriter, reader: SnapshotReader) -> None:
        self._id = subscription_id
        self._writer = writer
        self._seq = reader.seq
        self._warnings = reader.warnings
        self._pages: Iterator[Sequence[Row]] = iter(reader)
        self._next: Sequence[Row] | None = None
        self.is_done = False

    def next_messages(self) -> list[bytes]:
        """Return the next page as frames; an empty snapshot is one message without rows."""
        page = self._next if self._next is not None else next(self._pages, ())
        self._next = next(self._pages, None)
        self.is_done = self._next is None
        warnings = self._warnings if self.is_done else ()
        return snapshot_messages(
            self._id, self._writer, page, self._seq, last=self.is_done, warnings=warnings
        )
