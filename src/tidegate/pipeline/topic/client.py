"""The wire: asks the server over HTTP for plans and messages, sends it parts, finds it after a restart.

Everything that Spark knows of a topic comes through here. The address is looked up anew after each failed
connection, because a server that comes back may have another port. Only the standard library is used: the
module is loaded in every Python worker of Spark, and `http.client` reads a body of Arrow batches with the
fewest copies. Threads: a `ServerClient` keeps no connection between calls, so any thread may use it.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from tidegate.errors import (
    NotReady,
    RequestMalformed,
    ServerNotRunning,
    ServerUntrusted,
    TidegateError,
    from_wire,
)
from tidegate.model.clock import Clock, SystemClock
from tidegate.storage.home.address import Found, find_server

# A planned read answers within milliseconds; a server that says nothing for this long is taken for gone.
ANSWER_TIMEOUT_SECONDS = 30.0
RETRY_SECONDS_DEFAULT = 60.0
# The first pause is shorter than a server's restart; the longest keeps a recovered server from waiting for
# us.
PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
# An error body is a sentence and a hint; more than this is not ours.
ERROR_BYTES_MAX = 1 << 20
JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ServerLocation:
    """Where to look for a server: an address, a home folder, or neither, which means the environment."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    home: str | None = None
    ca_file: str | None = None

    def find(self, environ: Mapping[str, str]) -> Found:
        """Return the server that holds now; raise ServerNotRunning when there is none."""
        return find_server(self.url, self.token, self.home, environ, ca_file=self.ca_file)


@dataclass(frozen=True, slots=True)
class _HttpRequest:
    """What goes out."""

    method: str
    content: bytes | None
    content_type: str


@dataclass(frozen=True, slots=True)
class ServerClient:
    """Calls to one server; `retry_seconds` is how long a server may be away before a call fails."""

    place: ServerLocation = ServerLocation()
    retry_seconds: float = RETRY_SECONDS_DEFAULT
    answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS
    clock: Clock = field(default_factory=SystemClock)

    def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post JSON and give the JSON answer; waits for a server that is away."""
        return self.retried(lambda: self.post_json_once(path, body))

    def post_json_once(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post JSON and give the JSON answer; one attempt."""
        return self._sent(path, _HttpRequest("POST", json.dumps(body).encode(), JSON))

    def get_json(self, path: str) -> dict[str, Any]:
        """Ask for JSON; waits for a server that is away."""
        return self.retried(lambda: self._sent(path, _HttpRequest("GET", None, JSON)))

    def post_arrow(self, path: str, content: bytes) -> dict[str, Any]:
        """Post an Arrow stream and give the JSON answer; waits for a server that is away."""
        return self.retried(lambda: self._sent(path, _HttpRequest("POST", content, ARROW_STREAM)))

    def _sent(self, path: str, sent: _HttpRequest) -> dict[str, Any]:
        with self._opened(path, sent) as answer:
            text = answer.read()
            _check_whole(answer)
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as problem:
            raise RequestMalformed(reason=f"{path} answered with something that is not JSON") from problem

    def retried(self, call: Callable[[], Result]) -> Result:
        """Run a call until it answers, it fails for good, or the server was away for too long."""
        patience = RetryBackoff(self)
        while True:
            try:
                return call()
            except TidegateError as problem:
                patience.pause_or_raise(problem)

    def opened(self, path: str, body: Mapping[str, Any]) -> AbstractContextManager[http.client.HTTPResponse]:
        """Post JSON and give the open answer, whose status is 200; every failure is one of our errors."""
        return self._opened(path, _HttpRequest("POST", json.dumps(body).encode(), JSON))

    @contextmanager
    def _opened(self, path: str, sent: _HttpRequest) -> Iterator[http.client.HTTPResponse]:
        found = self.place.find(os.environ)
        connection = _connection(found, self.answer_timeout_seconds)
        headers = {"Authorization": f"Bearer {found.token}", "Content-Type": sent.content_type}
        try:
            connection.request(sent.method, f"/api/v1/{path}", sent.content, headers)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _refusal(answer, found.url)
            yield answer
        except ssl.SSLCertVerificationError as problem:
            raise ServerUntrusted(url=found.url, reason=problem.verify_message) from problem
        except (OSError, http.client.HTTPException) as problem:
            raise ServerNotRunning(url=found.url, reason=_reason(problem)) from problem
        finally:
            connection.close()


class RetryBackoff:
    """How much longer a call may wait for the server; `renew` starts the wait again after progress."""

    def __init__(self, wire: ServerClient) -> None:
        self._wire = wire
        self.renew()

    def renew(self) -> None:
        """Forget the failures so far."""
        self._deadline_seconds = self._wire.clock.monotonic_seconds() + self._wire.retry_seconds
        self._pause_seconds = PAUSE_SECONDS_MIN

    def pause_or_raise(self, problem: TidegateError) -> None:
        """Wait a moment when the problem may pass by itself, else raise it with its hint."""
        over = self._wire.clock.monotonic_seconds() + self._pause_seconds > self._deadline_seconds
        if over or not problem.retryable:
            raise with_hint_note(problem)
        time.sleep(self._pause_seconds)
        self._pause_seconds = min(self._pause_seconds * 2, PAUSE_SECONDS_MAX)


def topic_path(topic: str, verb: str) -> str:
    """Return the path of an endpoint of a topic."""
    return f"topics/{quote(topic, safe='')}/{verb}"


def with_hint_note(problem: TidegateError) -> TidegateError:
    """Let the hint travel with the traceback: Spark carries errors of its Python workers as text."""
    note = f"Hint: {problem.hint}"
    if problem.hint and note not in getattr(problem, "__notes__", ()):
        problem.add_note(note)
    return problem


def _connection(found: Found, timeout_seconds: float) -> http.client.HTTPConnection:
    try:
        parts = urlsplit(found.url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, a bracket that does not close
        host, port = None, None
    if not host:
        raise RequestMalformed(
            reason=f"'{found.url}' is not an address", hint="Write it like http://127.0.0.1:8787."
        )
    if not found.is_https:
        return http.client.HTTPConnection(host, port, timeout=timeout_seconds)
    return http.client.HTTPSConnection(host, port, timeout=timeout_seconds, context=found.tls_context())


def _refusal(answer: http.client.HTTPResponse, url: str) -> TidegateError:
    _check_whole(answer)
    try:
        body = json.loads(answer.read(ERROR_BYTES_MAX))
        return from_wire(body)
    except (ValueError, AttributeError, TypeError):
        if answer.status in (502, 503, 504):
            return NotReady(reason=f"status {answer.status} from {url}")
        return RequestMalformed(
            reason=f"{url} answered {answer.status}, and not in our words",
            hint="Is this the address of a Tidegate server?",
        )


def _check_whole(answer: http.client.HTTPResponse) -> None:
    """Refuse an answer that broke off in its head: `http.client` takes what came for all of it."""
    if not answer.chunked and answer.headers.get("content-length") is None:
        raise http.client.HTTPException("the answer broke off")


def _reason(problem: Exception) -> str:
    return str(problem) or type(problem).__name__
