"""Requests and replies of the client: bodies, headers, and the checks of what a caller passes in."""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
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
    """One call of the server; `repeatable`: sending it twice has the effect of sending it once."""

    method: str
    path: str
    content: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    key: str | None = None
    repeatable: bool = False
    # How long the server may wait on purpose, in addition to the usual timeout.
    wait_seconds: float = 0.0

    @property
    def is_safe(self) -> bool:
        """Whether it may be sent again when it is not known if it arrived."""
        return self.repeatable or self.key is not None or self.method in IDEMPOTENT_METHODS

    def headers(self, token: str, tenant: str | None, request_id: str) -> dict[str, str]:
        """Return the headers, with the trace of the caller where there is one."""
        headers = {"Authorization": f"Bearer {token}", "Accept": self.accept, "X-Request-Id": request_id}
        if self.content is not None:
            headers["Content-Type"] = self.content_type
        if self.key is not None:
            headers["Idempotency-Key"] = self.key
        if tenant is not None:
            headers["X-Tenant"] = tenant
        _add_trace(headers)
        return headers


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a server: status, headers as they came, and the whole body."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    content: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is 200 to 299."""
        return 200 <= self.status < 300

    def header(self, name: bytes) -> str:
        """Return the value of a header, named in small letters; nothing where it is missing."""
        values = (value for key, value in self.headers if key.lower() == name)
        return next(values, b"").decode("latin-1")


def get(path: str, query: Mapping[str, Any] | None = None) -> Request:
    """Return a request that reads; query parameters that are None are left out."""
    query = {name: value for name, value in (query or {}).items() if value is not None}
    return Request("GET", f"{API}{path}?{urlencode(query)}" if query else f"{API}{path}")


def post(path: str, body: object, *, repeatable: bool = False, wait_seconds: float = 0.0) -> Request:
    """Return a request that posts JSON; `repeatable` where the call only reads or has a sequence number."""
    return Request("POST", f"{API}{path}", encoded(body), repeatable=repeatable, wait_seconds=wait_seconds)


def create(path: str, body: object) -> Request:
    """Return a request that creates something, with a new idempotency key."""
    return Request("POST", f"{API}{path}", encoded(body), key=secrets.token_hex(16))


def patch(path: str, body: object) -> Request:
    """Return a request that changes something."""
    return Request("PATCH", f"{API}{path}", encoded(body))


def delete(path: str, *, wait_seconds: float = 0.0) -> Request:
    """Return a request that removes something."""
    return Request("DELETE", f"{API}{path}", wait_seconds=wait_seconds)


def quoted(name: str) -> str:
    """Return a name, escaped as one segment of a path."""
    return quote(name, safe="")


def encoded(body: object) -> bytes:
    """Return a body as JSON; a value that JSON does not have is RequestInvalid, never replaced."""
    try:
        content = msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as problem:
        reason = f"The request cannot be written as JSON: {problem}."
        raise RequestInvalid(reason=reason, hint="Send texts, numbers, lists and dictionaries.") from problem
    # NaN and infinity are written as null: look for them only where there is a null.
    if b"null" in content and _has_nan_or_infinity(body):
        raise RequestInvalid(
            reason="JSON has no NaN and no infinity.", hint="Send null or a text in their place."
        )
    return content


def decoded(content: bytes, url: str) -> Any:
    """Return the value of a JSON answer; a number beyond a double is what Python makes of it, no error."""
    try:
        try:
            return msgspec.json.decode(content)
        except msgspec.ValidationError:
            return json.loads(content)
    except ValueError as problem:
        raise not_json(content, url) from problem


def not_json(content: bytes, url: str) -> TidegateError:
    """Return the error for an answer that is no JSON: it may be another server's."""
    return TidegateError(reason=f"{url} answered what is not JSON: {content[:200]!r}", hint=NOT_OURS_HINT)


def with_hint(error: TidegateError) -> TidegateError:
    """Return the error, with its hint as a note that tracebacks show."""
    if error.hint and error.hint not in getattr(error, "__notes__", ()):
        error.add_note(error.hint)
    return error


def check_tenant(tenant: str | None) -> str | None:
    """Return a tenant's name that a header can carry; whether it exists is for the server to check."""
    if tenant is not None and not (tenant and tenant.isascii() and tenant.isprintable()):
        raise RequestInvalid(reason="This is no name of a tenant.", hint="Names are plain ASCII text.")
    return tenant


def _has_nan_or_infinity(body: object) -> bool:
    """True if a body has such a number, however deep it is nested."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return True
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            waiting += value
    return False


def _add_trace(headers: dict[str, str]) -> None:
    """Add the caller's span; a program that does not trace does not load the library for it."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(headers)


OUTGOING = frozenset({"payload", "key", "partition", "dedupKey"})
FIELDS = "Its fields are payload, key, partition and dedupKey"
# Enough for a caller to recognise the message.
SHOWN_CHARS_MAX = 200
# Iterated, these yield letters, numbers and names of fields.
NO_LISTS = (str, bytes, bytearray, Mapping)
# JSON values other than an object: none of them is a message.
PLAIN = (str, bytes, int, float, list, tuple, type(None))
# JSON has no bytes: they would be sent as another text, and be another key.
BYTES = (bytes, bytearray, memoryview)


def message_list(messages: Iterable[Any]) -> list[Any]:
    """Return messages as a list; a bare payload is refused before anything is sent."""
    if isinstance(messages, NO_LISTS):
        whole = isinstance(messages, Mapping) and "payload" in messages and messages.keys() <= OUTGOING
        shown = _shown(messages) if whole else _as_message(messages)
        reason = "Messages are published as a list, also where there is one."
        raise RequestInvalid(reason=reason, hint=f"Write [{shown}].")
    found = list(messages)
    for number, message in enumerate(found):
        _check_message(number, message)
    return found


def lease_list(leases: Iterable[Any]) -> list[str]:
    """Return leases as a list; a single text would be read letter by letter, and is refused."""
    if isinstance(leases, NO_LISTS):
        hint = 'Write ["…"] around one lease; a message has its own in message["lease"].'
        raise RequestInvalid(reason="Leases are given as a list, also where there is one.", hint=hint)
    found = list(leases)
    if not all(isinstance(lease, str) for lease in found):
        hint = 'Write [message["lease"] for message in …], of messages that a group was given.'
        raise RequestInvalid(reason="A lease is a text.", hint=hint)
    return found


def _check_message(number: int, message: object) -> None:
    key = message.get("dedupKey") if isinstance(message, Mapping) else getattr(message, "dedupKey", None)
    if isinstance(key, BYTES):
        reason = f"A dedupKey is a text, not bytes (message {number})."
        raise RequestInvalid(reason=reason, hint="Write it as a text, such as key.decode() or key.hex().")
    if isinstance(message, Mapping):
        unknown = sorted(str(name) for name in message.keys() - OUTGOING)
        if "payload" in message and not unknown:
            return
        lacks = f"has no field '{unknown[0]}'" if unknown else "has a payload, and this one does not"
        reason = f"A message {lacks} (message {number})."
    elif isinstance(message, PLAIN):
        reason = f"A message is a dictionary (message {number})."
    else:
        return  # an object of the caller's own class: the server decides whether it is a message
    hint = f"{FIELDS}. Write {_as_message(message)}."
    if isinstance(message, Mapping) and "payload" in message:
        hint = f"{FIELDS}; fields of your own belong into the payload."
    raise RequestInvalid(reason=reason, hint=hint)


def _as_message(payload: object) -> str:
    return f'{{"payload": {_shown(payload)}}}'


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
    except (ValueError, RecursionError):  # it contains itself
        text = "…"
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
