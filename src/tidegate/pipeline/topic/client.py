"""The HTTP client of Spark's processes: plans, messages and staged parts of topics, with retries.

Everything that Spark knows of a topic comes through here. The address is looked up again after each failed
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
from tidegate.storage.home.address import PIPELINE_TOKEN_VARIABLE, ServerEndpoint, find_server

# A plan is answered within milliseconds; a server that is silent for this long counts as gone.
ANSWER_TIMEOUT_SECONDS = 30.0
RETRY_SECONDS_DEFAULT = 60.0
# The first pause is shorter than a server's restart; with the longest, a restarted server is found soon.
PAUSE_SECONDS_MIN = 0.05
PAUSE_SECONDS_MAX = 1.0
# An error body is a sentence and a hint; a larger one is not from our server.
ERROR_BYTES_MAX = 1 << 20
JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ServerLocation:
    """Where to look for a server: an address, a home folder, or neither, which means the environment.

    `as_admin` takes the administrator's token of the home also in a worker, whose pipelines have another.
    """

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    home: str | None = None
    ca_file: str | None = None
    as_admin: bool = False

    def find(self, environ: Mapping[str, str]) -> ServerEndpoint:
        """Return the server that holds now; raise ServerNotRunning when there is none."""
        if self.as_admin:
            environ = {name: value for name, value in environ.items() if name != PIPELINE_TOKEN_VARIABLE}
        return find_server(self.url, self.token, self.home, environ, ca_file=self.ca_file)


@dataclass(frozen=True, slots=True)
class _HttpRequest:
    """A request: method, body and content type."""

    method: str
    content: bytes | None
    content_type: str


@dataclass(frozen=True, slots=True)
class ServerClient:
    """Calls to one server; `retry_seconds` is how long a server may be away before a call fails."""

    location: ServerLocation = ServerLocation()
    retry_seconds: float = RETRY_SECONDS_DEFAULT
    answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS
    clock: Clock = field(default_factory=SystemClock)

    def post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post JSON and return the JSON answer; waits for a server that is away."""
        return self.retried(lambda: self.post_json_once(path, body))

    def post_json_once(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Post JSON and return the JSON answer; one attempt."""
        return self._call(path, _HttpRequest("POST", json.dumps(body).encode(), JSON))

    def get_json(self, path: str) -> dict[str, Any]:
        """Return the JSON answer of a GET; waits for a server that is away."""
        return self.retried(lambda: self._call(path, _HttpRequest("GET", None, JSON)))

    def post_arrow(self, path: str, content: bytes) -> dict[str, Any]:
        """Post an Arrow stream and return the JSON answer; waits for a server that is away."""
        return self.retried(lambda: self._call(path, _HttpRequest("POST", content, ARROW_STREAM)))

    def _call(self, path: str, request: _HttpRequest) -> dict[str, Any]:
        with self._request(path, request) as answer:
            text = answer.read()
            _check_whole(answer)
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as problem:
            raise RequestMalformed(reason=f"{path} answered with something that is not JSON") from problem

    def retried(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call, repeated while the server is away, up to the time limit."""
        backoff = RetryBackoff(self)
        while True:
            try:
                return call()
            except TidegateError as problem:
                backoff.pause_or_raise(problem)

    def stream(self, path: str, body: Mapping[str, Any]) -> AbstractContextManager[http.client.HTTPResponse]:
        """Post JSON and return the open answer, whose status is 200; every failure is one of our errors."""
        return self._request(path, _HttpRequest("POST", json.dumps(body).encode(), JSON))

    @contextmanager
    def _request(self, path: str, request: _HttpRequest) -> Iterator[http.client.HTTPResponse]:
        found = self.location.find(os.environ)
        connection = _connection(found, self.answer_timeout_seconds)
        headers = {"Authorization": f"Bearer {found.token}", "Content-Type": request.content_type}
        try:
            connection.request(request.method, f"/api/v1/{path}", request.content, headers)
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
    """How long a call waits for the server; `renew` restarts the time limit after progress."""

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self.renew()

    def renew(self) -> None:
        """Restart pauses and time limit."""
        self._deadline_seconds = self._client.clock.monotonic_seconds() + self._client.retry_seconds
        self._pause_seconds = PAUSE_SECONDS_MIN

    def pause_or_raise(self, problem: TidegateError) -> None:
        """Pause if the problem is retryable and there is time, else raise it with its hint."""
        over = self._client.clock.monotonic_seconds() + self._pause_seconds > self._deadline_seconds
        if over or not problem.retryable:
            raise with_hint_note(problem)
        time.sleep(self._pause_seconds)
        self._pause_seconds = min(self._pause_seconds * 2, PAUSE_SECONDS_MAX)


def topic_path(topic: str, verb: str) -> str:
    """Return the path of an endpoint of a topic."""
    return f"topics/{quote(topic, safe='')}/{verb}"


def with_hint_note(problem: TidegateError) -> TidegateError:
    """Return the error with its hint as a note: Spark passes on errors of its Python workers as text."""
    note = f"Hint: {problem.hint}"
    if problem.hint and note not in getattr(problem, "__notes__", ()):
        problem.add_note(note)
    return problem


def _connection(found: ServerEndpoint, timeout_seconds: float) -> http.client.HTTPConnection:
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
    """Refuse an answer whose head is incomplete: `http.client` accepts it as it is."""
    if not answer.chunked and answer.headers.get("content-length") is None:
        raise http.client.HTTPException("the answer broke off")


def _reason(problem: Exception) -> str:
    return str(problem) or type(problem).__name__
