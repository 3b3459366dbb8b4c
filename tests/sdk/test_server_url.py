"""Addresses of servers: the parts that a request is made of, and what is no address."""

from __future__ import annotations

import pytest

from tidegate.errors import RequestInvalid
from tidegate.sdk.server_url import ServerUrl


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "path"),
    [
        ("http://127.0.0.1:8787", b"127.0.0.1", 8787, b"127.0.0.1:8787", b""),
        ("http://[::1]:8787/", b"::1", 8787, b"[::1]:8787", b""),
        ("https://HOST:443/pre/fix/", b"host", None, b"host", b"/pre/fix"),
        ("http://host:80", b"host", None, b"host", b""),
        ("http://host:443", b"host", 443, b"host:443", b""),
        ("http://user:secret@host/", b"host", None, b"host", b""),
        ("http://münchen.example/", b"xn--mnchen-3ya.example", None, b"xn--mnchen-3ya.example", b""),
        ("http://host/%7eü x", b"host", None, b"host", b"/%7e%C3%BC%20x"),
    ],
)
def test_an_address_has_its_parts(
    url: str, host: bytes, port: int | None, authority: bytes, path: bytes
) -> None:
    found = ServerUrl.parse(url)
    assert (found.host, found.port, found.authority, found.path) == (host, port, authority, path)
    assert found.scheme.decode() == url.partition(":")[0]


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "ftp://host",
        "host:8787",
        "http://[::1",
        "http://host:port",
        "http://host:99999",
        "http://a b/",
        "http://host\n/",
        f"http://{'a' * 64}.example",
    ],
)
def test_what_is_no_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(RequestInvalid, match="is not an address of a server") as caught:
        ServerUrl.parse(url)
    assert "http://127.0.0.1:8787" in caught.value.hint
