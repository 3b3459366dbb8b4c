"""What a live socket says: takes its messages, gives changes, keeps the place to go on from.

A snapshot is given once it is whole: nobody sees half of one, however often the connection breaks. Every
change and the last row of a snapshot carry the number to resume behind; other rows of a snapshot carry none.

What broke a live socket: takes an exception of websockets, gives a setback that may pass or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx
import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from tidegate.errors import RequestInvalid, ServerNotRunning, TidegateError, from_wire
from tidegate.sdk.requests import NOT_OURS_HINT, encoded
from tidegate.sdk.retries import FailedAttempt, FailureKind, certificate_problem, outcome_of, untrusted

Kind = Literal["snapshot", "insert", "update", "delete", "lagged"]
LIVE_PATH = "/api/v1/live"
# A socket of this client has one subscription; the server wants a name for it.
SUBSCRIPTION_ID = "s"
# A page of a snapshot is bounded by the server, in rows and in bytes; this only stops a runaway one.
MESSAGE_BYTES_MAX = 256 * 1024 * 1024
# A server that says nothing for their sum is gone, whatever TCP believes.
PING_SECONDS = 20.0
PONG_SECONDS = 30.0
OPEN_SECONDS = 10.0
# A good-bye is waited for this long; the connection is of no use any more.
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RowChange:
    """Something that happened to the rows of a subscription.

    `snapshot`: a row that is there at the beginning. `insert`, `update` (`old` is the row before) and
    `delete` (`row` is the one that went): one row. `lagged`: changes were missed, forget all rows; a new
    snapshot follows. `seq` is the number to go on behind: `subscribe(…, from_seq=change.seq)`.
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


_said = msgspec.json.Decoder(_LiveMessage)


class SubscriptionProtocol:
    """The messages of one subscription, over one connection or several."""

    def __init__(self, sql: str, params: Sequence[Any], from_seq: int | None, *, snapshot: bool) -> None:
        self._sql = sql
        self._params = list(params)
        self._wants_snapshot = snapshot
        self.columns: list[dict[str, Any]] = []
        # What the caller was given last, and may resume behind.
        self.seq = from_seq
        # Whether the caller has no rows: at the beginning, and once told to forget them.
        self._fresh = from_seq is None
        self._pages: list[bytes] = []
        self._changes: deque[RowChange] = deque()
        self._waiting: deque[tuple[bytes, int | None]] = deque()

    @property
    def has_begun(self) -> bool:
        """Whether the server follows the table: it has told the columns, and what the table holds."""
        return bool(self.columns) and bool(self.seq is not None or self._changes or self._waiting)

    def question(self) -> bytes:
        """Return the message that begins the subscription, or goes on with it, and forget half a snapshot."""
        self._pages.clear()
        asked: dict[str, Any] = {"type": "subscribe", "id": SUBSCRIPTION_ID, "sql": self._sql}
        if self._params:
            asked["params"] = self._params
        if self.seq is not None:
            asked["fromSeq"] = self.seq
        return encoded(asked)

    def take(self, content: bytes) -> str:
        """Read one message and give its type; an error that the server tells is raised."""
        said = _read(content)
        if said.type == "schema":
            self.columns = said.columns
        elif said.type == "snapshot":
            self._take_page(said)
        elif said.type == "change":
            self._fresh = False
            self._changes.append(self._change(said))
        elif said.type == "lagged":
            self._lag()
        elif said.type == "error":
            raise from_wire({"error": said.error or {}})
        return said.type

    def next(self) -> RowChange | None:
        """Return the next change, or None when another message is needed for it."""
        while not self._changes and self._waiting:
            self._unpack(*self._waiting.popleft())
        if not self._changes:
            return None
        change = self._changes.popleft()
        if change.seq is not None:
            self.seq = change.seq
        return change

    def _take_page(self, said: _LiveMessage) -> None:
        if self._wants_snapshot:
            self._pages.append(bytes(said.rows))
        if not said.last:
            return
        filled, self._pages = [page for page in self._pages if page.strip() != b"[]"], []
        if not self._fresh:
            self._lag()  # what was given before is not what the table holds now
        self._fresh = False
        if not filled:
            self.seq = said.seq
            return
        self._waiting.extend((page, None) for page in filled[:-1])
        self._waiting.append((filled[-1], said.seq))

    def _lag(self) -> None:
        self._pages.clear()
        if not self._fresh:
            self._changes.append(RowChange("lagged"))
        # Going on behind the last number would give changes of rows that the caller forgets now.
        self.seq = None
        self._fresh = True

    def _unpack(self, page: bytes, seq: int | None) -> None:
        rows = [RowChange("snapshot", self._named(row)) for row in msgspec.json.decode(page)]
        if rows and seq is not None:
            rows[-1] = RowChange("snapshot", rows[-1].row, seq=seq)
        self._changes.extend(rows)

    def _change(self, said: _LiveMessage) -> RowChange:
        if said.op not in ("insert", "update", "delete"):
            raise TidegateError(reason=f"The server tells a change of kind '{said.op}'.", hint=NOT_OURS_HINT)
        kind: Kind = said.op  # type: ignore[assignment]
        old = None if said.old is None else self._named(said.old)
        return RowChange(kind, self._named(said.row), old, said.seq)

    def _named(self, row: Any) -> dict[str, Any]:
        names: Iterator[str] = (column["name"] for column in self.columns)
        return dict(zip(names, row or (), strict=False))


def _read(content: bytes) -> _LiveMessage:
    try:
        return _said.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        reason = f"The live socket said what is not a message: {content[:80]!r}"
        raise TidegateError(reason=reason, hint=NOT_OURS_HINT) from problem


# The code with which a socket ends that was sent more than the other side takes.
MESSAGE_TOO_BIG = 1009


class SocketLost(Exception):
    """A socket that could not be opened, or that broke."""

    def __init__(self, setback: FailedAttempt) -> None:
        super().__init__(str(setback.error))
        self.setback = setback


def lost(problem: Exception, url: str) -> SocketLost:
    """Return what a broken socket means for the subscription on it."""
    return SocketLost(_setback(problem, url))


def refused(error: TidegateError) -> FailedAttempt:
    """Return what an error means that the server told over the socket."""
    seconds = error.values.get("retry_after_seconds", 0)
    pause_seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
    return FailedAttempt(
        FailureKind.BUSY if error.retryable else FailureKind.FINAL, error, retry_after_seconds=pause_seconds
    )


def _setback(problem: Exception, url: str) -> FailedAttempt:
    distrust = certificate_problem(problem)
    if distrust is not None:
        return FailedAttempt(FailureKind.FINAL, untrusted(distrust, url), problem)
    if isinstance(problem, InvalidURI):
        error = RequestInvalid(reason=f"'{url}' is not an address of a server.", hint="Check the address.")
        return FailedAttempt(FailureKind.FINAL, error, problem)
    if isinstance(problem, InvalidStatus):
        return _answered(problem, url)
    if isinstance(problem, ConnectionClosed) and problem.rcvd and problem.rcvd.code == MESSAGE_TOO_BIG:
        error = RequestInvalid(reason="The statement is too long for a live socket.", hint="Shorten it.")
        return FailedAttempt(FailureKind.FINAL, error, problem)
    reason = str(problem).removesuffix(".") or type(problem).__name__
    away = ServerNotRunning(url=url, reason=reason)
    # Subscribing twice does no harm: whatever became of the first time, it is tried again.
    fate = (
        FailureKind.LOST if isinstance(problem, ConnectionClosed | InvalidHandshake) else FailureKind.UNSENT
    )
    return FailedAttempt(fate, away, problem)


def _answered(problem: InvalidStatus, url: str) -> FailedAttempt:
    """Read the answer of a server that opens no socket."""
    said = problem.response
    answer = httpx.Response(
        said.status_code,
        headers=list(said.headers.raw_items()),
        content=bytes(said.body or b""),
        request=httpx.Request("GET", url),
    )
    outcome = outcome_of(answer, url, "")
    if isinstance(outcome, FailedAttempt):
        return outcome
    reason = f"{url} answered {said.status_code} where a live socket should open."
    return FailedAttempt(FailureKind.FINAL, TidegateError(reason=reason, hint=NOT_OURS_HINT), problem)
