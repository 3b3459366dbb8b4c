"""The messages of a live query's socket as row changes, and its failures as failed attempts.

A snapshot is passed on once it is complete: no caller sees half of one, however often the connection breaks.
Every change and the last row of a snapshot carry the number to resume after; other rows of a snapshot carry
none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from tidegate.errors import RequestInvalid, ServerNotRunning, TidegateError, from_wire
from tidegate.sdk.requests import NOT_OURS_HINT, Reply, encoded
from tidegate.sdk.retries import FailedAttempt, FailureKind, certificate_problem, outcome_of, untrusted

Kind = Literal["snapshot", "insert", "update", "delete", "lagged"]
LIVE_PATH = "/api/v1/live"
# A socket of this client has one subscription; the server wants a name for it.
SUBSCRIPTION_ID = "s"
# A page of a snapshot is bounded by the server, in rows and in bytes; this only stops a runaway one.
MESSAGE_BYTES_MAX = 256 * 1024 * 1024
# A server that sends nothing for their sum is gone, whatever the state of the TCP connection.
PING_SECONDS = 20.0
PONG_SECONDS = 30.0
OPEN_SECONDS = 10.0
# The closing handshake is waited for this long; the connection is of no use any more.
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of the rows of a subscription.

    `snapshot`: a row that is there at the beginning. `insert`, `update` (`old` is the row before) and
    `delete` (`row` is the deleted one): one row. `lagged`: changes were missed, forget all rows; a new
    snapshot follows. `seq` is the number to resume after: `subscribe(…, from_seq=change.seq)`.
    """

    kind: Kind
    row: dict[str, Any] = field(default_factory=dict)
    old: dict[str, Any] | None = None
    seq: int | None = None


class _LiveMessage(msgspec.Struct, rename="camel"):
    type: str
    columns: list[dict[str, Any]] = []
    rows: msgspec.Raw = msgspec.Raw(b"[]")
    last: bool = True
    op: str = ""
    row: Any = None
    old: Any = None
    seq: int | None = None
    error: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_LiveMessage)


class SubscriptionProtocol:
    """The messages of one subscription, over one connection or several."""

    def __init__(self, sql: str, params: Sequence[Any], from_seq: int | None, *, snapshot: bool) -> None:
        self._sql = sql
        self._params = list(params)
        self._wants_snapshot = snapshot
        self.columns: list[dict[str, Any]] = []
        # The number of the last change that the caller got, and may resume after.
        self.seq = from_seq
        # Whether the caller has no rows: at the beginning, and after `lagged`.
        self._is_empty = from_seq is None
        self._pages: list[bytes] = []
        self._changes: deque[RowChange] = deque()
        self._complete_pages: deque[tuple[bytes, int | None]] = deque()

    @property
    def has_begun(self) -> bool:
        """Whether the server follows the table: it has sent the columns, and what the table holds."""
        return bool(self.columns) and bool(self.seq is not None or self._changes or self._complete_pages)

    def subscribe_message(self) -> bytes:
        """Return the message that begins or resumes the subscription, and drop an incomplete snapshot."""
        self._pages.clear()
        body: dict[str, Any] = {"type": "subscribe", "id": SUBSCRIPTION_ID, "sql": self._sql}
        if self._params:
            body["params"] = self._params
        if self.seq is not None:
            body["fromSeq"] = self.seq
        return encoded(body)

    def receive(self, content: bytes) -> str:
        """Process one message and return its type; an error of the server is raised."""
        message = _read(content)
        if message.type == "schema":
            self.columns = message.columns
        elif message.type == "snapshot":
            self._add_page(message)
        elif message.type == "change":
            self._is_empty = False
            self._changes.append(self._change(message))
        elif message.type == "lagged":
            self._lag()
        elif message.type == "error":
            raise from_wire({"error": message.error or {}})
        return message.type

    def next(self) -> RowChange | None:
        """Return the next change; None: another message is needed for it."""
        while not self._changes and self._complete_pages:
            self._unpack(*self._complete_pages.popleft())
        if not self._changes:
            return None
        change = self._changes.popleft()
        if change.seq is not None:
            self.seq = change.seq
        return change

    def _add_page(self, message: _LiveMessage) -> None:
        if self._wants_snapshot:
            self._pages.append(bytes(message.rows))
        if not message.last:
            return
        filled, self._pages = [page for page in self._pages if page.strip() != b"[]"], []
        if not self._is_empty:
            self._lag()  # the rows that the caller has are not those that the table holds now
        self._is_empty = False
        if not filled:
            self.seq = message.seq
            return
        self._complete_pages.extend((page, None) for page in filled[:-1])
        self._complete_pages.append((filled[-1], message.seq))

    def _lag(self) -> None:
        self._pages.clear()
        if not self._is_empty:
            self._changes.append(RowChange("lagged"))
        # Resuming after the last number would bring changes of rows that the caller forgets now.
        self.seq = None
        self._is_empty = True

    def _unpack(self, page: bytes, seq: int | None) -> None:
        rows = [RowChange("snapshot", self._row(row)) for row in msgspec.json.decode(page)]
        if rows and seq is not None:
            rows[-1] = RowChange("snapshot", rows[-1].row, seq=seq)
        self._changes.extend(rows)

    def _change(self, message: _LiveMessage) -> RowChange:
        if message.op not in ("insert", "update", "delete"):
            reason = f"The server tells a change of kind '{message.op}'."
            raise TidegateError(reason=reason, hint=NOT_OURS_HINT)
        kind: Kind = message.op  # type: ignore[assignment]
        old = None if message.old is None else self._row(message.old)
        return RowChange(kind, self._row(message.row), old, message.seq)

    def _row(self, values: Any) -> dict[str, Any]:
        names: Iterator[str] = (column["name"] for column in self.columns)
        return dict(zip(names, values or (), strict=False))


def _read(content: bytes) -> _LiveMessage:
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        reason = f"The live socket said what is not a message: {content[:80]!r}"
        raise TidegateError(reason=reason, hint=NOT_OURS_HINT) from problem


# The close code of a socket whose other side was sent a larger message than it accepts.
MESSAGE_TOO_BIG = 1009


class SocketLost(Exception):
    """A socket that could not be opened, or that broke."""

    def __init__(self, failure: FailedAttempt) -> None:
        super().__init__(str(failure.error))
        self.failure = failure


def socket_lost(problem: Exception, url: str) -> SocketLost:
    """Return the exception for a socket that an exception of websockets or the system broke."""
    return SocketLost(_failure_of(problem, url))


def server_failure(error: TidegateError) -> FailedAttempt:
    """Return the failed attempt for an error that the server sent over the socket."""
    seconds = error.values.get("retry_after_seconds", 0)
    pause_seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
    return FailedAttempt(
        FailureKind.BUSY if error.retryable else FailureKind.FINAL, error, retry_after_seconds=pause_seconds
    )


def _failure_of(problem: Exception, url: str) -> FailedAttempt:
    certificate = certificate_problem(problem)
    if certificate is not None:
        return FailedAttempt(FailureKind.FINAL, untrusted(certificate, url), problem)
    if isinstance(problem, InvalidURI):
        error = RequestInvalid(reason=f"'{url}' is not an address of a server.", hint="Check the address.")
        return FailedAttempt(FailureKind.FINAL, error, problem)
    if isinstance(problem, InvalidStatus):
        return _http_failure(problem, url)
    if isinstance(problem, ConnectionClosed) and problem.rcvd and problem.rcvd.code == MESSAGE_TOO_BIG:
        error = RequestInvalid(reason="The statement is too long for a live socket.", hint="Shorten it.")
        return FailedAttempt(FailureKind.FINAL, error, problem)
    reason = str(problem).removesuffix(".") or type(problem).__name__
    away = ServerNotRunning(url=url, reason=reason)
    # Subscribing twice does no harm: it is repeated whether or not the first request arrived.
    kind = (
        FailureKind.LOST if isinstance(problem, ConnectionClosed | InvalidHandshake) else FailureKind.UNSENT
    )
    return FailedAttempt(kind, away, problem)


def _http_failure(problem: InvalidStatus, url: str) -> FailedAttempt:
    """Return the failed attempt for an HTTP answer that opens no socket."""
    response = problem.response
    items = response.headers.raw_items()
    headers = [(name.encode(), value.encode(errors="replace")) for name, value in items]
    outcome = outcome_of(Reply(response.status_code, headers, bytes(response.body or b"")), url, "", "")
    if isinstance(outcome, FailedAttempt):
        return outcome
    reason = f"{url} answered {response.status_code} where a live socket should open."
    return FailedAttempt(FailureKind.FINAL, TidegateError(reason=reason, hint=NOT_OURS_HINT), problem)
