"""The messages of clients on a live socket, and the pages of a snapshot as messages to them.

Reading pages blocks, and must not run on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tidegate.errors import RequestInvalid, RequestMalformed
from tidegate.live.hub import SEQ_MAX
from tidegate.live.wire import RowEncoder, snapshot_messages
from tidegate.model.tables import Row
from tidegate.server.http.request import decode_json

if TYPE_CHECKING:
    from tidegate.query.live import SnapshotReader

# Long enough for a UUID and a name; the id is repeated in every message.
ID_CHARS_MAX = 64
_KINDS = ("subscribe", "unsubscribe", "auth", "ping")


class Subscribe(msgspec.Struct, forbid_unknown_fields=True, rename="camel", tag="subscribe"):
    """Subscribe to a SELECT, from now on or after a change that was received before."""

    id: str
    sql: str
    params: list[Any] = []
    from_seq: int | None = None


class Unsubscribe(msgspec.Struct, forbid_unknown_fields=True, tag="unsubscribe"):
    """End a subscription."""

    id: str


class Auth(msgspec.Struct, forbid_unknown_fields=True, tag="auth"):
    """The token; the first message of a client without one in its headers."""

    token: str
    tenant: str = ""


class Ping(msgspec.Struct, forbid_unknown_fields=True, tag="ping"):
    """A ping for clients that cannot send those of the protocol, such as browsers."""


class _Named(msgspec.Struct):
    id: Any = None


ClientMessage: TypeAlias = Subscribe | Unsubscribe | Auth | Ping

_decoder: msgspec.json.Decoder[ClientMessage] = msgspec.json.Decoder(ClientMessage)
_named = msgspec.json.Decoder(_Named)


class MessageRefused(Exception):
    """A message that is not valid: the error, and the id of the subscription in it, if any."""

    def __init__(self, problem: RequestInvalid | RequestMalformed, subscription_id: str | None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.id = subscription_id


def read_message(text: str | None) -> ClientMessage:
    """Return the message in a text frame; `text` is None for a binary frame."""
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
    """Return the id in an invalid message, so that its sender knows which one it was."""
    try:
        found = _named.decode(text.encode()).id
    except (msgspec.DecodeError, RecursionError):
        return None
    return found[:ID_CHARS_MAX] if isinstance(found, str) else None


class SnapshotPages:
    """The pages of a snapshot; reads one page ahead, so that the last message is marked as the last."""

    def __init__(self, subscription_id: str, writer: RowEncoder, reader: SnapshotReader) -> None:
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
