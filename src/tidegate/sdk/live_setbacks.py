"""What broke a live socket: takes an exception of websockets, gives a setback that may pass or not."""

from __future__ import annotations

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from tidegate.errors import RequestInvalid, ServerNotRunning, TidegateError
from tidegate.sdk.requests import NOT_OURS_HINT
from tidegate.sdk.retries import Fate, Setback, certificate_problem, outcome_of, untrusted

# The code with which a socket ends that was sent more than the other side takes.
MESSAGE_TOO_BIG = 1009


class SocketLost(Exception):
    """A socket that could not be opened, or that broke."""

    def __init__(self, setback: Setback) -> None:
        super().__init__(str(setback.error))
        self.setback = setback


def lost(problem: Exception, url: str) -> SocketLost:
    """Say what a broken socket means for the subscription on it."""
    return SocketLost(_setback(problem, url))


def refused(error: TidegateError) -> Setback:
    """Say what an error means that the server told over the socket."""
    seconds = error.values.get("retry_after_seconds", 0)
    pause_seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
    return Setback(Fate.BUSY if error.retryable else Fate.FINAL, error, retry_after_seconds=pause_seconds)


def _setback(problem: Exception, url: str) -> Setback:
    distrust = certificate_problem(problem)
    if distrust is not None:
        return Setback(Fate.FINAL, untrusted(distrust, url), problem)
    if isinstance(problem, InvalidURI):
        error = RequestInvalid(reason=f"'{url}' is not an address of a server.", hint="Check the address.")
        return Setback(Fate.FINAL, error, problem)
    if isinstance(problem, InvalidStatus):
        return _answered(problem, url)
    if isinstance(problem, ConnectionClosed) and problem.rcvd and problem.rcvd.code == MESSAGE_TOO_BIG:
        error = RequestInvalid(reason="The statement is too long for a live socket.", hint="Shorten it.")
        return Setback(Fate.FINAL, error, problem)
    reason = str(problem).removesuffix(".") or type(problem).__name__
    away = ServerNotRunning(url=url, reason=reason)
    # Subscribing twice does no harm: whatever became of the first time, it is tried again.
    fate = Fate.LOST if isinstance(problem, ConnectionClosed | InvalidHandshake) else Fate.UNSENT
    return Setback(fate, away, problem)


def _answered(problem: InvalidStatus, url: str) -> Setback:
    """Read the answer of a server that opens no socket."""
    said = problem.response
    answer = httpx.Response(
        said.status_code,
        headers=list(said.headers.raw_items()),
        content=bytes(said.body or b""),
        request=httpx.Request("GET", url),
    )
    outcome = outcome_of(answer, url, "")
    if isinstance(outcome, Setback):
        return outcome
    reason = f"{url} answered {said.status_code} where a live socket should open."
    return Setback(Fate.FINAL, TidegateError(reason=reason, hint=NOT_OURS_HINT), problem)
