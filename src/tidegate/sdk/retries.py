"""What may be tried again, and when: takes what went wrong, gives a pause or the end, keeps a call's course.

A request that never left is always sent again. One that may have arrived is sent again only when arriving
twice does no harm. Attempts and time are both bounded; pauses double and are jittered, so that many clients
of a server that restarts do not come back in one moment.
"""

from __future__ import annotations

import math
import random
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import httpx
import msgspec

from tidegate.errors import (
    NotFound,
    NotReady,
    RequestInvalid,
    RequestRefused,
    ServerNotRunning,
    ServerUntrusted,
    StorageFull,
    TidegateError,
    Unavailable,
    from_wire,
)
from tidegate.model.clock import Clock, SystemClock
from tidegate.sdk.requests import NOT_OURS_HINT, Reply, Request

# Longer than a server takes to start again.
RETRY_SECONDS_DEFAULT = 10.0
# With the pauses below this is beyond 10 s; it bounds the load of a caller who allows hours.
ATTEMPTS_MAX = 100
# The first pause is shorter than a server's restart; the longest keeps a recovered server from waiting.
PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
BUSY_STATUSES = frozenset({429, 503})
# What something between the client and the server says when it lost the server.
GATEWAY_STATUSES = frozenset({502, 503, 504})
ERROR_TEXT_CHARS_MAX = 200
# OpenSSL's words for a first answer that is no TLS.
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
# OpenSSL's numbers for a certificate of another host name, e-mail address or IP address.
OTHER_NAME = frozenset({62, 63, 64})
# Errors after which it is certain that the request changed nothing.
NOTHING_DONE = (RequestRefused, StorageFull, ServerUntrusted)


class FailureKind(Enum):
    """How far a request that failed has come."""

    UNSENT = "nothing of it was sent"
    LOST = "it may have arrived; no whole answer came back"
    LATE = "it may have arrived; the server says nothing, and is not asked again"
    BUSY = "the server asks to come later"
    FINAL = "the server has answered"


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that failed."""

    fate: FailureKind
    error: TidegateError
    cause: Exception | None = None
    retry_after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long calls may be tried again, by whose clock and with whose dice."""

    seconds: float = RETRY_SECONDS_DEFAULT
    attempts_max: int = ATTEMPTS_MAX
    clock: Clock = field(default_factory=SystemClock)
    chance: random.Random = field(default_factory=random.Random)


class RetryState:
    """The attempts of one call; `may_have_arrived` says that one of them may have done what it asked for."""

    def __init__(self, retrying: RetryPolicy, request: Request) -> None:
        self._retrying = retrying
        self._request = request
        self._deadline_seconds: float | None = None
        self._pause_seconds = PAUSE_SECONDS_MIN
        self._attempts = 0
        self.may_have_arrived = False

    def is_done(self, setback: FailedAttempt) -> bool:
        """True if what was asked for is so: a delete that was lost, and finds nothing the second time."""
        repeated = self.may_have_arrived and self._request.method == "DELETE"
        return repeated and isinstance(setback.error, NotFound)

    def next_pause(self, setback: FailedAttempt) -> float | None:
        """Return the seconds to wait before the next attempt, or None when there is none."""
        self._attempts += 1
        self.may_have_arrived |= setback.fate is not FailureKind.UNSENT and not isinstance(
            setback.error, NOTHING_DONE
        )
        may_pass = setback.fate in (FailureKind.LOST, FailureKind.BUSY)
        allowed = setback.fate is FailureKind.UNSENT or (may_pass and self._request.is_safe)
        if not allowed or self._attempts >= self._retrying.attempts_max:
            return None
        jittered_seconds = self._pause_seconds * self._retrying.chance.uniform(0.5, 1.0)
        pause_seconds = setback.retry_after_seconds + jittered_seconds
        now_seconds = self._retrying.clock.monotonic_seconds()
        if self._deadline_seconds is None:
            # From the first failure on: a long wait that the caller asked for is no part of it.
            self._deadline_seconds = now_seconds + self._retrying.seconds
        if now_seconds + pause_seconds > self._deadline_seconds:
            return None
        self._pause_seconds = min(self._pause_seconds * 2, PAUSE_SECONDS_MAX)
        return pause_seconds


class EndlessRetryState(RetryState):
    """The attempts of a call that someone stands by: it goes on until that is over, however long it takes."""

    def __init__(self, retrying: RetryPolicy, request: Request, is_over: Callable[[], bool]) -> None:
        endless = replace(retrying, seconds=math.inf, attempts_max=sys.maxsize)
        super().__init__(endless, request)
        self._is_over = is_over

    def next_pause(self, setback: FailedAttempt) -> float | None:
        """Return the seconds to wait before the next attempt; a server in trouble may get over it."""
        passes = setback.fate is FailureKind.FINAL and isinstance(setback.error, Unavailable)
        if passes or setback.fate is FailureKind.LATE:
            setback = replace(setback, fate=FailureKind.LOST)
        pause_seconds = super().next_pause(setback)
        return None if self._is_over() else pause_seconds


def setback_of(problem: httpx.TransportError, url: str) -> FailedAttempt:
    """Return what a broken connection means for the request that was on it."""
    reason = str(problem) or type(problem).__name__
    distrust = certificate_problem(problem)
    if distrust is not None:
        return FailedAttempt(FailureKind.FINAL, untrusted(distrust, url), problem)
    if _is_plain(problem) and url.startswith("https://"):
        hint = f"The server there does not speak TLS: try http://{url.removeprefix('https://')}."
        return FailedAttempt(FailureKind.UNSENT, ServerNotRunning(url=url, reason=reason, hint=hint), problem)
    if isinstance(problem, (httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        error = RequestInvalid(reason=f"The request cannot be sent: {reason}.", hint="Check the address.")
        return FailedAttempt(FailureKind.FINAL, error, problem)
    if isinstance(problem, httpx.ReadTimeout):
        hint = "Ask for less, or look at the server."
        late = ServerNotRunning(url=url, reason="no answer came in time", hint=hint)
        return FailedAttempt(FailureKind.LATE, late, problem)
    unsent = isinstance(problem, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
    away = ServerNotRunning(url=url, reason=reason.removesuffix("."))
    if isinstance(problem, (httpx.RemoteProtocolError, httpx.ReadError)) and url.startswith("http://"):
        # A server that went away says as little as one that waits for TLS.
        secure = f"https://{url.removeprefix('http://')}"
        hint = f"If the server speaks TLS, try {secure}; if not, it went away: look at its log."
        away = ServerNotRunning(url=url, reason=reason.removesuffix("."), hint=hint)
    return FailedAttempt(FailureKind.UNSENT if unsent else FailureKind.LOST, away, problem)


def outcome_of(answer: httpx.Response, url: str, request_id: str) -> Reply | FailedAttempt:
    """Return the answer, or the error that the server raised."""
    if answer.is_success:
        return Reply(answer.content, answer.headers)
    error, is_ours = _error_of(answer, url)
    error.request_id = answer.headers.get("X-Request-Id") or request_id
    fate = FailureKind.FINAL
    if answer.status_code in BUSY_STATUSES:
        fate = FailureKind.BUSY
    elif answer.status_code in GATEWAY_STATUSES and not is_ours:
        fate = FailureKind.LOST
    return FailedAttempt(fate, error, retry_after_seconds=_retry_after_seconds(answer.headers))


def _error_of(answer: httpx.Response, url: str) -> tuple[TidegateError, bool]:
    try:
        return from_wire(msgspec.json.decode(answer.content)), True
    except (msgspec.DecodeError, AttributeError, TypeError, ValueError, KeyError):
        if answer.status_code in GATEWAY_STATUSES:
            return NotReady(reason=f"status {answer.status_code} from {url}"), False
        said = answer.text[:ERROR_TEXT_CHARS_MAX]
        reason = f"{answer.request.url} answered {answer.status_code}: {said}"
        return TidegateError(reason=reason, hint=NOT_OURS_HINT), False


def _retry_after_seconds(headers: Mapping[str, str]) -> float:
    text = headers.get("Retry-After", "")
    # A date is allowed as well; ours are seconds, and the pauses of a client do without.
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0.0


def certificate_problem(problem: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return what is wrong with the server's certificate, where that is what went wrong."""
    found = (cause for cause in _causes(problem) if isinstance(cause, ssl.SSLCertVerificationError))
    return next(found, None)


def _is_plain(problem: BaseException) -> bool:
    """Return whether the other side answered a TLS greeting with something else."""
    return any(isinstance(cause, ssl.SSLError) and cause.reason in NO_TLS for cause in _causes(problem))


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def untrusted(problem: ssl.SSLCertVerificationError, url: str) -> ServerUntrusted:
    """Return that a certificate is not trusted, and why."""
    reason = problem.verify_message.removesuffix(".")
    if problem.verify_code not in OTHER_NAME:
        return ServerUntrusted(url=url, reason=reason)
    hint = (
        "The certificate is for another name: use the one that it was made for, and on the server set "
        "server.public_url to it."
    )
    return ServerUntrusted(url=url, reason=reason, hint=hint)
