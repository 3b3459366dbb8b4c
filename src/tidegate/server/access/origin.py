"""The Origin header of a request that a browser sends with its cookie, compared with the served addresses.

An origin is a scheme, a host and a port, and all three count: a page over plain HTTP, or on another port of
the same host, is another site. Served are `server.public_url`, and the address in the Host header with the
scheme of the listener, if its host is an IP address, `localhost` or `server.host`. Any other name may belong
to someone else who lets it resolve to this server, so it is served only as `server.public_url`.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from tidegate.errors import OriginRefused
from tidegate.settings import ServerSettings

_PORTS = {"http": 80, "https": 443}


class PageOrigin(NamedTuple):
    """The origin of a page: scheme, host in small letters, and port."""

    scheme: str
    host: str
    port: int


def parse_origin(text: str) -> PageOrigin | None:
    """Return the origin of an address; None for `null` and for what is no address of HTTP."""
    try:
        parts = urlsplit(text)
        scheme, host, port = parts.scheme.lower(), parts.hostname, parts.port
    except ValueError:
        return None
    if scheme not in _PORTS or not host or "@" in parts.netloc:
        return None
    return PageOrigin(scheme, host.rstrip("."), port or _PORTS[scheme])


def check_origin(origin: str, host: str, server: ServerSettings) -> None:
    """Raise OriginRefused unless the page of an Origin header is one of this server.

    `host` is the Host header of the same request.
    """
    found = parse_origin(origin)
    if found is None or not _is_served(found, host, server):
        raise OriginRefused(origin=origin[:80] or "an unknown place")


def _is_served(found: PageOrigin, host: str, server: ServerSettings) -> bool:
    if server.public_url:
        public = parse_origin(server.public_url)
        if public is not None and public.host == found.host:
            return public == found
    scheme = "https" if server.tls_certificate_file else "http"
    is_named = found.host in ("localhost", server.host.lower()) or _is_address(found.host)
    return is_named and found == parse_origin(f"{scheme}://{host}")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
