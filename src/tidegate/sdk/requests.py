"""What goes over the wire and comes back: takes Python values, gives bytes and headers, keeps nothing.

What a caller means to send: takes messages and leases, gives them as lists, or says how to write them.
"""

from __future__ import annotations

import json
import math
import secrets
import sys
from collections.abc import Iterable, Mapping
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
        """Return the headers, the trace of the caller among them where there is one."""
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
    """Return an error whose traceback says what to do, too."""
    if error.hint and error.hint not in getattr(error, "__notes__", ()):
        error.add_note(error.hint)
    return error


def checked_tenant(tenant: str | None) -> str | None:
    """Return a tenant's name that a header can carry; whether there is one, the server says."""
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


OUTGOING = frozenset({"payload", "key", "partition", "dedupKey"})
FIELDS = "Its fields are payload, key, partition and dedupKey"
# Enough to know one's own message again.
SHOWN_CHARS_MAX = 200
# Iterated, these give letters, numbers and names of fields.
NO_LISTS = (str, bytes, bytearray, Mapping)
# What JSON knows beside an object: certainly no message.
PLAIN = (str, bytes, int, float, list, tuple, type(None))
# JSON has no bytes: they would go out as another text, and be another key.
BYTES = (bytes, bytearray, memoryview)


def message_list(messages: Iterable[Any]) -> list[Any]:
    """Return messages as a list; what is meant as a payload by itself is refused before anything is sent."""
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
    """Return leases as a list; one text would be taken letter by letter, and is refused."""
    if isinstance(leases, NO_LISTS):
        hint = 'Write ["…"] around one lease; a message has its own in message["lease"].'
        raise RequestInvalid(reason="Leases are given as a list, also where there is one.", hint=hint)
    found = list(leases)
    if not all(isinstance(lease, str) for lease in found):
        hint = 'Write [message["lease"] for message in …], of messages that a group was given.'
        raise RequestInvalid(reason="A lease is a text.", hint=hint)
    return found


def _check_message(number: int, message: object) -> None:
    given = message.get("dedupKey") if isinstance(message, Mapping) else getattr(message, "dedupKey", None)
    if isinstance(given, BYTES):
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
        return  # of a class of the caller's: the server says whether it is one
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
