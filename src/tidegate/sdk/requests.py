"""What goes over the wire and comes back: takes Python values, gives bytes and headers, keeps nothing."""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from tidegate.errors import RequestInvalid, TidegateError

API = "/api/v1"
JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
NOT_OURS_HINT = (
    "Is this the address of a Tidegate server, and of nothing in front of it that wants a sign-in?"
)
# Methods that mean the same when they arrive twice.
IDEMPOTENT_METHODS = frozenset({"GET", "HEAD", "PUT", "DELETE"})


@dataclass(frozen=True, slots=True)
class Request:
    """One call of the server; `repeatable` says that sending it twice does no more than sending it once."""

    method: str
    path: str
    content: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    key: str | None = None
    repeatable: bool = False
    # How long the server may take on purpose, beside the usual.
    wait_seconds: float = 0.0

    @property
    def is_safe(self) -> bool:
        """Whether it may be sent again when nobody knows if it arrived."""
        return self.repeatable or self.key is not None or self.method in IDEMPOTENT_METHODS

    def headers(self, token: str, tenant: str | None, request_id: str) -> dict[str, str]:
        """Give the headers, the trace of the caller among them where there is one."""
        found = {"Authorization": f"Bearer {token}", "Accept": self.accept, "X-Request-Id": request_id}
        if self.content is not None:
            found["Content-Type"] = self.content_type
        if self.key is not None:
            found["Idempotency-Key"] = self.key
        if tenant is not None:
            found["X-Tenant"] = tenant
        _add_trace(found)
        return found


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    content: bytes
    headers: Mapping[str, str]


def get(path: str, query: Mapping[str, Any] | None = None) -> Request:
    """Ask for something; parameters that are None are left out."""
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return Request("GET", f"{API}{path}?{urlencode(given)}" if given else f"{API}{path}")


def post(path: str, body: object, *, repeatable: bool = False, wait_seconds: float = 0.0) -> Request:
    """Send JSON; `repeatable` where the call only reads or is numbered."""
    return Request("POST", f"{API}{path}", encoded(body), repeatable=repeatable, wait_seconds=wait_seconds)


def create(path: str, body: object) -> Request:
    """Make something; a key of its own lets the server know the request when it comes a second time."""
    return Request("POST", f"{API}{path}", encoded(body), key=secrets.token_hex(16))


def patch(path: str, body: object) -> Request:
    """Change something."""
    return Request("PATCH", f"{API}{path}", encoded(body))


def delete(path: str) -> Request:
    """Remove something."""
    return Request("DELETE", f"{API}{path}")


def quoted(name: str) -> str:
    """Write a name so that it is one part of a path."""
    return quote(name, safe="")


def encoded(body: object) -> bytes:
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


def decoded(content: bytes, url: str) -> Any:
    """Decode an answer; a number that no double holds is what Python makes of it, not an error."""
    try:
        try:
            return msgspec.json.decode(content)
        except msgspec.ValidationError:
            return json.loads(content)
    except ValueError as problem:
        reason = f"{url} answered what is not JSON: {content[:200]!r}"
        raise TidegateError(reason=reason, hint=NOT_OURS_HINT) from problem


def noted(error: TidegateError) -> TidegateError:
    """Give an error whose traceback says what to do, too."""
    if error.hint and error.hint not in getattr(error, "__notes__", ()):
        error.add_note(error.hint)
    return error


def checked_tenant(tenant: str | None) -> str | None:
    """Give a tenant's name that a header can carry; whether there is one, the server says."""
    if tenant is not None and not (tenant and tenant.isascii() and tenant.isprintable()):
        raise RequestInvalid(reason="This is no name of a tenant.", hint="Names are plain ASCII text.")
    return tenant


def _has_no_number(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(_has_no_number(inner) for inner in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(_has_no_number(inner) for inner in value)
    return False


def _add_trace(headers: dict[str, str]) -> None:
    """Pass on the caller's span; a program that does not trace does not load the library for it."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(headers)
