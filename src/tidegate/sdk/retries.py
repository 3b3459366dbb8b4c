"""Retries of the client: which failed attempts are repeated, and after what pause.

A request that was never sent is always repeated. One that may have arrived is repeated only when arriving
twice does no harm. Attempts and time are both bounded; pauses double and are jittered, so that the clients of
a server that restarts do not all come back at the same moment.
"""

from __future__ import annotations

import math
import random
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum

import httpcore
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
# With the pauses below this is more than 10 s; it bounds the load of a caller who allows hours.
ATTEMPTS_MAX = 100
# The first pause is shorter than a server's restart; the longest keeps a recovered server from waiting.
PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
BUSY_STATUSES = frozenset({429, 503})
# What a proxy between the client and the server answers when it lost the server.
GATEWAY_STATUSES = frozenset({502, 503, 504})
ERROR_TEXT_CHARS_MAX = 200
# OpenSSL's reasons for a first answer that is no TLS.
NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})
# OpenSSL's numbers for a certificate of another host name, e-mail address or IP address.
OTHER_NAME = frozenset({62, 63, 64})
# Errors after which it is certain that the request changed nothing.
NOTHING_DONE = (RequestRefused, StorageFull, ServerUntrusted)

# What a connection raises when a request cannot be sent, or its answer cannot be read.
CONNECTION_PROBLEMS = (
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
    httpcore.UnsupportedProtocol,
)


class FailureKind(Enum):
    """How far a request that failed has come."""

    UNSENT = "nothing of it was sent"
    LOST = "it may have arrived; no whole answer came back"
    LATE = "it may have arrived; the server does not answer, and is not asked again"
    BUSY = "the server asks to come later"
    FINAL = "the server has answered"


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that failed."""

    kind: FailureKind
    error: TidegateError
    cause: Exception | None = None
    retry_after_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long calls may be tried again; clock and random numbers are those of the caller."""

    seconds: float = RETRY_SECONDS_DEFAULT
    attempts_max: int = ATTEMPTS_MAX
    clock: Clock = field(default_factory=SystemClock)
    chance: random.Random = field(default_factory=random.Random)


class RetryState:
    """The attempts of one call; `may_have_arrived`: one of them may have taken effect."""

    def __init__(self, retry_policy: RetryPolicy, request: Request) -> None:
        self._retry_policy = retry_policy
        self._request = request
        self._deadline_seconds: float | None = None
        self._pause_seconds = PAUSE_SECONDS_MIN
        self._attempts = 0
        self.may_have_arrived = False

    def is_done(self, failure: FailedAttempt) -> bool:
        """True if the call has taken effect: a delete whose answer was lost finds nothing the second time."""
        repeated = self.may_have_arrived and self._request.method == "DELETE"
        return repeated and isinstance(failure.error, NotFound)

    def next_pause(self, failure: FailedAttempt) -> float | None:
        """Return the seconds to wait before the next attempt, or None when there is none."""
        self._attempts += 1
        self.may_have_arrived |= failure.kind is not FailureKind.UNSENT and not isinstance(
            failure.error, NOTHING_DONE
        )
        may_pass = failure.kind in (FailureKind.LOST, FailureKind.BUSY)
        allowed = failure.kind is FailureKind.UNSENT or (may_pass and self._request.is_safe)
        if not allowed or self._attempts >= self._retry_policy.attempts_max:
            return None
        jittered_seconds = self._pause_seconds * self._retry_policy.chance.uniform(0.5, 1.0)
        pause_seconds = failure.retry_after_seconds + jittered_seconds
        now_seconds = self._retry_policy.clock.monotonic_seconds()
        if self._deadline_seconds is None:
            # From the first failure on: a long wait that the caller asked for does not count.
            self._deadline_seconds = now_seconds + self._retry_policy.seconds
        if now_seconds + pause_seconds > self._deadline_seconds:
            return None
        self._pause_seconds = min(self._pause_seconds * 2, PAUSE_SECONDS_MAX)
        return pause_seconds


class EndlessRetryState(RetryState):
    """The attempts of a call that is repeated, however long it takes, until `is_over` says so."""

    def __init__(self, retry_policy: RetryPolicy, request: Request, is_over: Callable[[], bool]) -> None:
        endless = replace(retry_policy, seconds=math.inf, attempts_max=sys.maxsize)
        super().__init__(endless, request)
        self._is_over = is_over

    def next_pause(self, failure: FailedAttempt) -> float | None:
        """Return the seconds to wait before the next attempt; an unavailable server may recover."""
        passes = failure.kind is FailureKind.FINAL and isinstance(failure.error, Unavailable)
        if passes or failure.kind is FailureKind.LATE:
            failure = replace(failure, kind=FailureKind.LOST)
        pause_seconds = super().next_pause(failure)
        return None if self._is_over() else pause_seconds


def connection_failure(problem: Exception, url: str) -> FailedAttempt:
    """Return the failed attempt of a request whose connection broke or could not be opened."""
    reason = str(problem) or type(problem).__name__
    certificate = certificate_problem(problem)
    if certificate is not None:
        return FailedAttempt(FailureKind.FINAL, untrusted(certificate, url), problem)
    if _is_plain(problem) and url.startswith("https://"):
        hint = f"The server there does not speak TLS: try http://{url.removeprefix('https://')}."
        return FailedAttempt(FailureKind.UNSENT, ServerNotRunning(url=url, reason=reason, hint=hint), problem)
    if isinstance(problem, (httpcore.UnsupportedProtocol, httpcore.LocalProtocolError)):
        error = RequestInvalid(reason=f"The request cannot be sent: {reason}.", hint="Check the address.")
        return FailedAttempt(FailureKind.FINAL, error, problem)
    if isinstance(problem, httpcore.ReadTimeout):
        hint = "Ask for less, or look at the server."
        late = ServerNotRunning(url=url, reason="no answer came in time", hint=hint)
        return FailedAttempt(FailureKind.LATE, late, problem)
    unsent = isinstance(problem, (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout))
    away = ServerNotRunning(url=url, reason=reason.removesuffix("."))
    if isinstance(problem, (httpcore.RemoteProtocolError, httpcore.ReadError)) and url.startswith("http://"):
        # A server that went away closes the connection just as one does that waits for TLS.
        secure = f"https://{url.removeprefix('http://')}"
        hint = f"If the server speaks TLS, try {secure}; if not, it went away: look at its log."
        away = ServerNotRunning(url=url, reason=reason.removesuffix("."), hint=hint)
    return FailedAttempt(FailureKind.UNSENT if unsent else FailureKind.LOST, away, problem)


def outcome_of(reply: Reply, url: str, path: str, request_id: str) -> Reply | FailedAttempt:
    """Return the reply, or the failed attempt where it is an error of the server at `url`."""
    if reply.is_success:
        return reply
    error, is_ours = _error_of(reply, url, path)
    error.request_id = reply.header(b"x-request-id") or request_id
    kind = FailureKind.FINAL
    if reply.status in BUSY_STATUSES:
        kind = FailureKind.BUSY
    elif reply.status in GATEWAY_STATUSES and not is_ours:
        kind = FailureKind.LOST
    return FailedAttempt(kind, error, retry_after_seconds=_retry_after_seconds(reply))


def _error_of(reply: Reply, url: str, path: str) -> tuple[TidegateError, bool]:
    try:
        return from_wire(msgspec.json.decode(reply.content)), True
    except (msgspec.DecodeError, AttributeError, TypeError, ValueError, KeyError):
        if reply.status in GATEWAY_STATUSES:
            return NotReady(reason=f"status {reply.status} from {url}"), False
        text = reply.content.decode("utf-8", "replace")[:ERROR_TEXT_CHARS_MAX]
        reason = f"{url.rstrip('/')}{path} answered {reply.status}: {text}"
        return TidegateError(reason=reason, hint=NOT_OURS_HINT), False


def _retry_after_seconds(reply: Reply) -> float:
    text = reply.header(b"retry-after")
    # A date is allowed as well; our server sends seconds, and the client's own pauses do without.
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0.0


def certificate_problem(problem: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return the failed check of the server's certificate that caused a problem, if any."""
    causes = (cause for cause in _causes(problem) if isinstance(cause, ssl.SSLCertVerificationError))
    return next(causes, None)


def _is_plain(problem: BaseException) -> bool:
    """True if the other side answered a TLS greeting with something else."""
    return any(isinstance(cause, ssl.SSLError) and cause.reason in NO_TLS for cause in _causes(problem))


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    while problem is not None:
        yield problem
        problem = problem.__cause__ or problem.__context__


def untrusted(problem: ssl.SSLCertVerificationError, url: str) -> ServerUntrusted:
    """Return the error of a certificate that is not trusted."""
    reason = problem.verify_message.removesuffix(".")
    if problem.verify_code not in OTHER_NAME:
        return ServerUntrusted(url=url, reason=reason)
    hint = (
        "The certificate is for another name: use the one that it was made for, and on the server set "
        "server.public_url to it."
    )
    return ServerUntrusted(url=url, reason=reason, hint=hint)
