"""The address of a server, as the parts that a request is made of."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from tidegate.errors import RequestInvalid
from tidegate.sdk.requests import with_hint

DEFAULT_PORTS = {"http": 80, "https": 443}
# What a path may hold as it is; what is escaped already stays as it is.
PATH_CHARS = "/%:@!$&'()*+,;=~"


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The parts of an address as they are sent; `authority` is the value of the Host header."""

    scheme: bytes
    host: bytes
    port: int | None
    authority: bytes
    path: bytes

    @classmethod
    def parse(cls, url: str) -> ServerUrl:
        """Return the parts of an address; RequestInvalid for a text that is none."""
        try:
            return cls._parse(url)
        except ValueError as problem:
            reason = f"'{url}' is not an address of a server: {problem}."
            hint = "Write it like http://127.0.0.1:8787."
            raise with_hint(RequestInvalid(reason=reason, hint=hint)) from problem

    @classmethod
    def _parse(cls, url: str) -> ServerUrl:
        if not url.isprintable():
            raise ValueError("it has a character that cannot be printed")
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise ValueError("it does not begin with 'http://' or 'https://' and the name of a host")
        if " " in parts.hostname:
            raise ValueError("the name of a host has no spaces")
        # The live socket and the Spark source encode names in the same way.
        host = parts.hostname.encode("idna")
        port = None if parts.port == DEFAULT_PORTS[parts.scheme] else parts.port
        # An IPv6 address is written in brackets.
        authority = b"[%s]" % host if b":" in host else host
        if port is not None:
            authority += b":%d" % port
        path = quote(parts.path, safe=PATH_CHARS).rstrip("/")
        return cls(parts.scheme.encode(), host, port, authority, path.encode())
