"""One call: takes what came over HTTP and who sent it, gives it to an endpoint, within the limits.

Lists: checks what is asked of a list before anything is read for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect

from tidegate.catalog.audit import Actor
from tidegate.catalog.paging import Page
from tidegate.errors import (
    BodyTooLarge,
    ContentTypeUnsupported,
    InvariantBroken,
    RequestInvalid,
    RequestMalformed,
    RequestTimeout,
    TooManyRequests,
)
from tidegate.model.access import Principal, check_allowed
from tidegate.model.names import shorten
from tidegate.model.timeranges import format_time
from tidegate.server.http.responses import ARROW_STREAM, JSON, left

if TYPE_CHECKING:
    from starlette.types import Receive

    from tidegate.server.api.routes import Route
    from tidegate.server.http.auth import Identity
    from tidegate.server.runtime.runtime import Running

SESSION_COOKIE = "tidegate_session"
PAGE_ROWS = 100  # entries of a list unless the caller says
IDEMPOTENCY_KEY_CHARS_MAX = 200
# A body beyond this is decoded in a thread: on the event loop it would hold up every other request.
LARGE_BODY_BYTES = 256 * 1024

T = TypeVar("T")


class Call:
    """A request that was let in; belongs to one task."""

    __slots__ = (
        "_body",
        "_headers",
        "_receive",
        "identity",
        "params",
        "request_id",
        "route",
        "running",
        "scope",
        "waited",
    )

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, running: Running) -> None:
        self.scope = scope
        self.running = running
        self.identity: Identity | None = None
        self.params: dict[str, str] = {}
        self.request_id = ""
        self.route: Route | None = None
        self.waited = False
        self._receive = receive
        self._headers: dict[bytes, bytes] | None = None
        self._body: bytes | None = None

    @property
    def method(self) -> str:
        """GET, POST and so on."""
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        """The path, decoded."""
        return str(self.scope["path"])

    @property
    def principal(self) -> Principal:
        """Who calls; on an open endpoint nobody does, and asking is our mistake."""
        if self.identity is None:
            raise InvariantBroken(reason=f"{self.path} asks who calls, and lets everyone in")
        return self.identity.principal

    @property
    def tenant(self) -> str:
        """The tenant in which the caller acts."""
        return self.principal.tenant

    @property
    def address(self) -> str:
        """Where the connection comes from."""
        client = self.scope.get("client")
        return str(client[0]) if client else ""

    def raw_header(self, name: bytes) -> bytes | None:
        """Return the bytes of a header, or None; its name is in small letters."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers.get(name)

    def header(self, name: str) -> str:
        """Return a header, or an empty text; its name is in small letters."""
        return (self.raw_header(name.encode("latin-1")) or b"").decode("latin-1")

    @property
    def query(self) -> dict[str, str]:
        """The parameters behind the question mark; of a name that comes twice the last one counts."""
        try:
            text = self.scope["query_string"].decode("ascii")
            return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100))
        except (UnicodeDecodeError, ValueError) as problem:
            raise RequestInvalid(
                reason="The query string cannot be read.",
                hint="Encode it with percent signs, in UTF-8; 100 parameters are the most.",
            ) from problem

    def actor(self) -> Actor:
        """Return who is written into the audit trail."""
        return Actor(self.tenant, self.principal.full_name, self.request_id)

    def page(self) -> Page:
        """Return the part of a list that is asked for."""
        most = self.running.settings.server.page_rows_max
        text = self.query.get("limit", str(min(PAGE_ROWS, most)))
        if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= most:
            raise RequestInvalid(reason=f"limit is 1 to {most}.", hint="Read in pages: go on with 'after'.")
        return Page(self.query.get("after") or None, int(text))

    def choice(self, name: str, known: tuple[str, ...]) -> str | None:
        """Return a query parameter that must be one of a few words, or None where it is not there."""
        value = self.query.get(name)
        if value is not None and value not in known:
            raise RequestInvalid(reason=f"{name} is one of {', '.join(known)}.", hint="Leave it out for all.")
        return value

    def wants_arrow(self) -> bool:
        """Return whether the caller asks for Arrow, and for it at least as much as for JSON."""
        accepted = self.header("accept")
        if ARROW_STREAM not in accepted:
            return False
        weights = _weights(accepted)
        arrow = weights.get(ARROW_STREAM, 0.0)
        return arrow > 0 and arrow >= weights.get(JSON, 0.0)

    def content_type(self) -> str:
        """Return the type of the body, without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    def idempotency_key(self) -> str | None:
        """Return the key under which this request may be sent again, or None."""
        if self.raw_header(b"idempotency-key") is None:
            return None
        key = self.header("idempotency-key")
        if not 1 <= len(key) <= IDEMPOTENCY_KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
            reason = f"An Idempotency-Key has 1 to {IDEMPOTENCY_KEY_CHARS_MAX} printable ASCII characters."
            raise RequestInvalid(reason=reason, hint="A random UUID is a good one.")
        return key

    async def fingerprint(self) -> bytes:
        """Return a digest of what is asked, which tells a repeated request from another with the same key."""
        body = await self.body()
        said = f"{self.method} {self.path}\n{self.content_type()}\n".encode()
        asked = bytes(self.scope["query_string"]) + b"\n"
        return await self.worked(_digest, said + asked, body)

    async def json(self, decoder: msgspec.json.Decoder[T]) -> T:
        """Return the decoded body; a wrong type, too much, broken JSON and wrong fields are told apart."""
        content_type = self.content_type()
        if content_type != JSON:
            raise ContentTypeUnsupported(content_type=content_type[:80] or "(none)", supported=JSON)
        return await self.worked(decode_json, await self.body(), decoder)

    async def worked(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do work whose cost grows with the body: in a thread where that is large, else here and now."""
        if self.received_bytes <= LARGE_BODY_BYTES:
            return work(*arguments)
        return await self.running.threads.read(work, *arguments)

    async def body(self) -> bytes:
        """Return the whole body, or refuse as soon as it is known to be too large or too slow."""
        if self._body is not None:
            return self._body
        encoding = self.raw_header(b"content-encoding")
        if encoding is not None and encoding.strip().lower() != b"identity":
            said = f"{self.content_type()[:80]}' with 'Content-Encoding: {encoding[:80].decode('latin-1')}"
            hint = "Send the body as it is, without a Content-Encoding."
            raise ContentTypeUnsupported(content_type=said, supported="", hint=hint)
        limit_bytes = self.running.settings.server.body_bytes_max
        declared = self.header("content-length")
        if declared.isdigit() and int(declared) > limit_bytes:
            raise BodyTooLarge(limit_bytes=limit_bytes)
        limit_seconds = self.running.settings.server.body_seconds_max
        try:
            async with asyncio.timeout(limit_seconds):
                self._body = await self._received(limit_bytes)
        except TimeoutError as problem:
            raise RequestTimeout(limit_seconds=limit_seconds) from problem
        return self._body

    async def _received(self, limit_bytes: int) -> bytes:
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
        """How many bytes of a body were read."""
        return 0 if self._body is None else len(self._body)

    async def left(self) -> None:
        """Return when the caller is gone; for what takes long, once the body was read."""
        await left(self._receive)

    def check_alive(self) -> None:
        """Refuse to go on when the token or the role ended since the call began; for what takes long."""
        if self.identity is not None:
            self.identity.check(self.running.clock)
            if self.route is not None and self.route.operation is not None:
                check_allowed(self.identity.principal, self.route.operation)

    def begin_wait(self) -> None:
        """Count this call among those that wait: they hold no work, so another limit holds for them."""
        running = self.running
        most = running.settings.server.waits_max
        if running.load.waiting >= most:
            raise TooManyRequests(
                what="requests wait for messages",
                limit=most,
                setting="server.waits_max",
                retry_after_seconds=1,
            )
        running.load.waiting += 1
        running.load.end()
        self.waited = True

    def end_wait(self) -> None:
        """Count this call among those that work again."""
        self.running.load.waiting -= 1
        self.running.load.begin()


def _weights(accepted: str) -> dict[str, float]:
    """Return how much each type of an Accept header is wanted; what has no weight, or a wrong one, is 1."""
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


def _digest(said: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(said, digest_size=16)
    digest.update(body)
    return digest.digest()


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return a decoded body; broken bytes and wrong fields are told apart."""
    try:
        # Raw parts of a body are skipped over, not decoded: this is what checks their text.
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


def list_page(call: Call) -> Page:
    """Return the part of a list that is asked for; a parameter that the list does not know is refused.

    A filter with a slip in its name would else show everything, and look as if everything matched.
    """
    known = call.route.query if call.route is not None else ()
    for name in call.query:
        if name not in known:
            reason = f"This list has no parameter '{shorten(name)}'."
            raise RequestInvalid(reason=reason, hint=f"It has {', '.join(known)}.")
    return call.page()


def moment(at_us: int | None) -> str | None:
    """Return a moment as text, or None where there is none."""
    return None if at_us is None else format_time(at_us)
