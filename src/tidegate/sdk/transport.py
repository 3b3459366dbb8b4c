"""The wire under the client: sends requests, and raises the errors that the server raised."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import msgspec

from tidegate.errors import (
    RequestInvalid,
    ServerNotRunning,
    TidegateError,
    from_wire,
)

ARROW_STREAM = "application/vnd.apache.arrow.stream"
TIMEOUT_SECONDS = 120.0


class Transport:
    """One connection pool to one server."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=5.0),
            trust_env=False,
        )

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send JSON, give the decoded answer."""
        content = self._send(method, path, body, "application/json")
        try:
            return _decoded(content)
        except ValueError as problem:
            raise TidegateError(
                reason=f"{self.url}{path} answered what is not JSON: {content[:200]!r}"
            ) from problem

    def call_arrow(self, method: str, path: str, body: object = None) -> bytes:
        """Send JSON, give the bytes of an Arrow stream."""
        return self._send(method, path, body, ARROW_STREAM)

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    def _send(self, method: str, path: str, body: object, accept: str) -> bytes:
        headers = {"Accept": accept}
        content = None
        if body is not None:
            content = _encoded(body)
            headers["Content-Type"] = "application/json"
        try:
            answer = self._http.request(method, path, content=content, headers=headers)
        except httpx.ReadTimeout as problem:
            reason = f"no answer within {TIMEOUT_SECONDS:g} s"
            raise ServerNotRunning(
                url=self.url, reason=reason, hint="Ask for less, or look at the server."
            ) from problem
        except httpx.TransportError as problem:
            reason = str(problem) or type(problem).__name__
            raise ServerNotRunning(url=self.url, reason=reason) from problem
        if answer.is_success:
            return answer.content
        raise _error_of(answer)


def _decoded(content: bytes) -> Any:
    """Decode an answer; a number that no double holds is what Python makes of it, not an error."""
    try:
        return msgspec.json.decode(content)
    except msgspec.ValidationError:
        return json.loads(content)


def _encoded(body: object) -> bytes:
    """Encode a body; what JSON cannot say is refused, never changed on the way."""
    try:
        content = msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as problem:
        reason = f"The request cannot be written as JSON: {problem}."
        raise RequestInvalid(reason=reason, hint="Send texts, numbers, lists and dictionaries.") from problem
    # A number that is none is written as null: look for it only where there is a null.
    if b"null" in content and _has_no_number(body):
        raise RequestInvalid(
            reason="JSON has no NaN and no infinity.", hint="Send null or a text in their place."
        )
    return content


def _has_no_number(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_has_no_number(inner) for inner in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_has_no_number(inner) for inner in value)
    return False


def _error_of(answer: httpx.Response) -> TidegateError:
    try:
        return from_wire(msgspec.json.decode(answer.content))
    except (msgspec.DecodeError, AttributeError, TypeError, ValueError, KeyError):
        return TidegateError(
            reason=f"{answer.request.url} answered {answer.status_code}: {answer.text[:200]}"
        )
