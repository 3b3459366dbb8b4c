"""One HTTP request over the standard library, for what needs neither a client nor its start-up time."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

# What `send_request` raises when no answer comes.
REQUEST_ERRORS = (OSError, http.client.HTTPException)


def send_request(
    method: str,
    url: str,
    *,
    timeout_seconds: float,
    tls_context: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> tuple[int, bytes]:
    """Return the status and the body of an answer; no proxy is used, and no redirect followed."""
    place = urlsplit(url)
    connection: http.client.HTTPConnection
    if place.scheme == "https":
        connection = http.client.HTTPSConnection(place.netloc, timeout=timeout_seconds, context=tls_context)
    else:
        connection = http.client.HTTPConnection(place.netloc, timeout=timeout_seconds)
    target = (place.path or "/") + (f"?{place.query}" if place.query else "")
    try:
        connection.request(method, target, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
