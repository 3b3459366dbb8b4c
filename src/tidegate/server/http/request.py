"""The HTTP request as an endpoint sees it, and the endpoint that a route leads to.

A request gives its headers, query and body within the limits of the settings, the token it came with, and the
server's runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive

from tidegate.catalog.audit import Actor
from tidegate.catalog.paging import PageRequest
from tidegate.errors import (
    BodyTooLarge,
    ContentTypeUnsupported,
    InvariantBroken,
    RequestInvalid,
    RequestMalformed,
    RequestTimeout,
    TooManyRequests,
)
from tidegate.model.access import Operation, Principal, check_allowed
from tidegate.model.names import shorten
from tidegate.model.times import format_time
from tidegate.server.access.audit_notes import RequestPlace
from tidegate.server.access.auth import AuthenticatedToken
from tidegate.server.http.responses import ARROW_STREAM, JSON, wait_disconnect
from tidegate.server.runtime.runtime import Runtime
from tidegate.topics.definitions import Topic

SESSION_COOKIE = "tidegate_session"
PAGE_ROWS = 100  # entries in a page by default
IDEMPOTENCY_KEY_CHARS_MAX = 200
# A larger body is decoded in a thread: on the event loop it would delay every other request.
LARGE_BODY_BYTES = 256 * 1024

T = TypeVar("T")


class HttpRequest:
    """A request; belongs to one task."""

    __slots__ = (
        "_body",
        "_headers",
        "_receive",
        "endpoint",
        "has_waited",
        "id",
        "identity",
        "params",
        "runtime",
        "scope",
    )

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, runtime: Runtime) -> None:
        self.scope = scope
        self.runtime = runtime
        self.identity: AuthenticatedToken | None = None
        self.params: dict[str, str] = {}
        self.id = ""
        self.endpoint: Endpoint | None = None
        self.has_waited = False
        self._receive = receive
        self._headers: dict[bytes, bytes] | None = None
        self._body: bytes | None = None

    @property
    def method(self) -> str:
        """The HTTP method."""
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        """The path, decoded."""
        return str(self.scope["path"])

    @property
    def principal(self) -> Principal:
        """The principal of the token; an open endpoint has none and must not ask for it."""
        if self.identity is None:
            raise InvariantBroken(reason=f"{self.path} is open to everyone and asks for the principal")
        return self.identity.principal

    @property
    def tenant(self) -> str:
        """The tenant in which the principal acts."""
        return self.principal.tenant

    @property
    def address(self) -> str:
        """The address of the peer."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    @property
    def place(self) -> RequestPlace:
        """Where the request came from, for the audit trail."""
        return RequestPlace(self.address, self.id)

    def raw_header(self, name: bytes) -> bytes | None:
        """Return the bytes of a header, or None; the name is in lower case."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers.get(name)

    def header(self, name: str) -> str:
        """Return a header, or an empty text; the name is in lower case."""
        return (self.raw_header(name.encode("latin-1")) or b"").decode("latin-1")

    @property
    def query(self) -> dict[str, str]:
        """The query parameters; of a repeated name the last one counts."""
        try:
            text = self.scope["query_string"].decode("ascii")
            return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100))
        except (UnicodeDecodeError, ValueError) as problem:
            raise RequestInvalid(
                reason="The query string cannot be read.",
                hint="Encode it with percent signs, in UTF-8; 100 parameters are the most.",
            ) from problem

    def topic(self) -> Topic:
        """Return the topic that the path names; raise TopicNotFound where the tenant has none."""
        return self.runtime.topics.directory.get(self.tenant, self.params["topic"])

    def actor(self) -> Actor:
        """Return the actor for the audit trail."""
        return Actor(self.tenant, self.principal.full_name, self.id)

    def page(self) -> PageRequest:
        """Return the requested page of a list; raise for a query parameter that the list does not have."""
        query = self.check_query()
        most = self.runtime.settings.server.page_rows_max
        text = query.get("limit", str(min(PAGE_ROWS, most)))
        if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= most:
            raise RequestInvalid(
                reason=f"limit is 1 to {most}.", hint="Read in pages: continue with 'after'."
            )
        return PageRequest(query.get("after") or None, int(text))

    def check_query(self) -> dict[str, str]:
        """Return the query parameters; raise for one that the endpoint does not have.

        A filter whose name is misspelled would show everything, and look as if everything matched.
        """
        query = self.query
        known = self.endpoint.query if self.endpoint is not None else ()
        for name in query:
            if name not in known:
                reason = f"There is no parameter '{shorten(name)}' here."
                raise RequestInvalid(reason=reason, hint=f"There is {', '.join(known)}.")
        return query

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        """Return a query parameter that must be one of `known`, or None where it is missing."""
        value = self.query.get(name)
        if value is not None and value not in known:
            raise RequestInvalid(reason=f"{name} is one of {', '.join(known)}.", hint="Leave it out for all.")
        return value

    def wants_arrow(self) -> bool:
        """True if the Accept header weighs Arrow at least as high as JSON."""
        accepted = self.header("accept")
        if ARROW_STREAM not in accepted:
            return False
        weights = _weights(accepted)
        arrow = weights.get(ARROW_STREAM, 0.0)
        return arrow > 0 and arrow >= weights.get(JSON, 0.0)

    def content_type(self) -> str:
        """Return the media type of the body, without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    def idempotency_key(self) -> str | None:
        """Return the idempotency key, or None."""
        if self.raw_header(b"idempotency-key") is None:
            return None
        key = self.header("idempotency-key")
        if not 1 <= len(key) <= IDEMPOTENCY_KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
            reason = f"An Idempotency-Key has 1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable ASCII characters."
            raise RequestInvalid(reason=reason, hint="A random UUID is a good one.")
        return key

    async def fingerprint(self) -> bytes:
        """Return a digest of the request, which tells a repetition from another request with the same key."""
        body = await self.body()
        head = f"{self.method} {self.path}\n{self.content_type()}\n".encode()
        query = bytes(self.scope["query_string"]) + b"\n"
        return await self.run_by_size(_digest, head + query, body)

    async def json(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Return the decoded body.

        A wrong media type, a body that is too large, malformed JSON and wrong fields raise different errors.
        """
        content_type = self.content_type()
        if content_type != JSON:
            raise ContentTypeUnsupported(content_type=content_type[:80] or "(none)", supported=JSON)
        return await self.run_by_size(decode_json, await self.body(), decoder)

    async def run_by_size(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function whose cost grows with the body: in a thread where the body is large, else inline."""
        if self.received_bytes <= LARGE_BODY_BYTES:
            return function(*arguments)
        return await self.runtime.threads.read(function, *arguments)

    async def body(self) -> bytes:
        """Return the whole body, or raise as soon as it is known to be too large or too slow."""
        if self._body is not None:
            return self._body
        encoding = self.raw_header(b"content-encoding")
        if encoding is not None and encoding.strip().lower() != b"identity":
            coding = encoding[:80].decode("latin-1")
            described = f"{self.content_type()[:80]}' with 'Content-Encoding: {coding}"
            hint = "Send the body as it is, without a Content-Encoding."
            raise ContentTypeUnsupported(content_type=described, supported="", hint=hint)
        limit_bytes = self.runtime.settings.server.body_bytes_max
        declared = self.header("content-length")
        if declared.isdigit() and int(declared) > limit_bytes:
            raise BodyTooLarge(limit_bytes=limit_bytes)
        limit_seconds = self.runtime.settings.server.body_seconds_max
        try:
            async with asyncio.timeout(limit_seconds):
                self._body = await self._read_body(limit_bytes)
        except TimeoutError as problem:
            raise RequestTimeout(limit_seconds=limit_seconds) from problem
        return self._body

    async def _read_body(self, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size_bytes = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size_bytes += len(parts[-1])
            if size_bytes > limit_bytes:
                raise BodyTooLarge(limit_bytes=limit_bytes)
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def received_bytes(self) -> int:
        """The size of the body that was read."""
        return 0 if self._body is None else len(self._body)

    async def wait_disconnect(self) -> None:
        """Return when the client has disconnected; for long work, after the body was read."""
        await wait_disconnect(self._receive)

    def check_alive(self) -> None:
        """Raise when the token or the role ended since the request began; for long work."""
        if self.identity is not None:
            self.identity.check(self.runtime.clock)
            if self.endpoint is not None and self.endpoint.operation is not None:
                check_allowed(self.identity.principal, self.endpoint.operation)

    def begin_wait(self) -> None:
        """Count this request among the waiting ones: they do no work, so a limit of their own applies."""
        admission, most = self.runtime.admission, self.runtime.settings.server.waits_max
        if admission.waiting >= most:
            raise TooManyRequests(
                what="requests wait for messages",
                limit=most,
                setting="server.waits_max",
                retry_after_seconds=1,
            )
        admission.waiting += 1
        admission.end()
        self.has_waited = True

    def end_wait(self) -> None:
        """Count this request among the running ones again."""
        self.runtime.admission.waiting -= 1
        self.runtime.admission.begin()


EndpointFunction = Callable[[HttpRequest], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route and the function that answers it; without an operation it is open to everyone."""

    method: str
    path: str
    function: EndpointFunction
    operation: Operation | None
    body: type | None = None  # the struct of the JSON body
    answer: Any = None  # the type of the JSON answer
    status: int = 200
    query: tuple[str, ...] = ()  # names of query parameters
    arrow_in: bool = False
    arrow_out: bool = False
    keyed: bool = False  # takes an Idempotency-Key
    reads: bool = False  # changes nothing, whatever its method: a repeat needs no key
    bearer_only: bool = False  # makes what outlives a browser's session, which is refused
    exempt: bool = False  # not limited by the number of running requests

    @property
    def refuses_keys(self) -> bool:
        """True if an Idempotency-Key would promise what this endpoint does not do."""
        return self.method in ("POST", "PATCH") and not self.keyed and not self.reads


def _weights(accepted: str) -> dict[str, float]:
    """Return the weight of each media type of an Accept header; a missing or wrong weight counts as 1."""
    found: dict[str, float] = {}
    for choice in accepted.split(","):
        kind, *parameters = (part.strip() for part in choice.split(";"))
        weight = 1.0
        for name, _, value in (parameter.partition("=") for parameter in parameters):
            if name.strip().lower() == "q":
                with contextlib.suppress(ValueError):
                    weight = float(value)
        found[kind.lower()] = weight
    return found


def _digest(head: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(head, digest_size=16)
    digest.update(body)
    return digest.digest()


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return a decoded body; malformed bytes and wrong fields raise different errors."""
    try:
        # Raw fields are skipped, not decoded: this checks that they are UTF-8.
        body.decode("utf-8")
        return decoder.decode(body)
    except UnicodeDecodeError as problem:
        raise RequestMalformed(reason=f"not UTF-8 at byte {problem.start}") from problem
    except msgspec.ValidationError as problem:
        hint = "docs/reference/http.md shows the fields of this endpoint."
        raise RequestInvalid(reason=f"The request is not valid: {problem}.", hint=hint) from problem
    except msgspec.DecodeError as problem:
        raise RequestMalformed(reason=str(problem)) from problem
    except RecursionError as problem:
        raise RequestMalformed(reason="it is nested too deeply") from problem


def format_optional_time(at_us: int | None) -> str | None:
    """Return a time as text, or None where there is none."""
    return None if at_us is None else format_time(at_us)
