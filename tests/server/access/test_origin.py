"""Origins: scheme, host and port count, and names that nobody configured are not trusted."""

from __future__ import annotations

import pytest

from tidegate.errors import OriginRefused
from tidegate.server.access.origin import PageOrigin, check_origin, parse_origin
from tidegate.settings import ServerSettings

PLAIN = ServerSettings()
TLS = ServerSettings(tls_certificate_file="cert.pem", tls_key_file="key.pem")
NAMED = ServerSettings(host="gate.lan")
PUBLIC = ServerSettings(public_url="https://gate.example")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://Gate.Example", PageOrigin("http", "gate.example", 80)),
        ("https://gate.example.", PageOrigin("https", "gate.example", 443)),
        ("https://gate.example:8443/path", PageOrigin("https", "gate.example", 8443)),
        ("http://[::1]:8787", PageOrigin("http", "::1", 8787)),
        ("null", None),
        ("", None),
        ("file://", None),
        ("//gate.example", None),
        ("http://", None),
        ("http://gate.example:port", None),
        ("http://[::1", None),
        ("http://gate.example@elsewhere.example", None),
    ],
)
def test_an_origin_is_a_scheme_a_host_and_a_port(text: str, expected: PageOrigin | None) -> None:
    assert parse_origin(text) == expected


@pytest.mark.parametrize(
    ("server", "origin", "host"),
    [
        (PLAIN, "http://127.0.0.1:8787", "127.0.0.1:8787"),
        (PLAIN, "http://localhost:8787", "localhost:8787"),
        (PLAIN, "http://127.0.0.1", "127.0.0.1:80"),
        (PLAIN, "http://[::1]:8787", "[::1]:8787"),
        (PLAIN, "http://10.0.0.7:9000", "10.0.0.7:9000"),  # a forwarded port
        (NAMED, "http://gate.lan:8787", "gate.lan:8787"),
        (TLS, "https://127.0.0.1:8787", "127.0.0.1:8787"),
        (TLS, "https://127.0.0.1", "127.0.0.1"),
        (PUBLIC, "https://gate.example", "gate.example"),
        (PUBLIC, "https://gate.example:443", "127.0.0.1:8787"),  # a proxy that sets Host
        (PUBLIC, "http://127.0.0.1:8787", "127.0.0.1:8787"),  # beside the proxy
    ],
)
def test_pages_of_this_server_may_act(server: ServerSettings, origin: str, host: str) -> None:
    check_origin(origin, host, server)


@pytest.mark.parametrize(
    ("server", "origin", "host"),
    [
        (PLAIN, "", "127.0.0.1:8787"),
        (PLAIN, "null", "127.0.0.1:8787"),
        (PLAIN, "null", "null"),
        (PLAIN, "https://127.0.0.1:8787", "127.0.0.1:8787"),  # another scheme
        (PLAIN, "http://127.0.0.1:9999", "127.0.0.1:8787"),  # another port
        (PLAIN, "http://localhost:8787", "127.0.0.1:8787"),
        (PLAIN, "http://elsewhere.example:8787", "elsewhere.example:8787"),  # a name that resolves to here
        (PLAIN, "http://elsewhere.example", "127.0.0.1:8787"),
        (PLAIN, "http://127.0.0.1:8787", ""),
        (TLS, "http://127.0.0.1:8787", "127.0.0.1:8787"),
        (TLS, "http://127.0.0.1", "127.0.0.1"),
        (PUBLIC, "http://gate.example", "gate.example"),
        (PUBLIC, "http://gate.example:443", "gate.example:443"),
        (PUBLIC, "https://gate.example:8443", "gate.example:8443"),
        (PUBLIC, "https://gate.example.elsewhere.example", "gate.example"),
        (PUBLIC, "https://127.0.0.1", "127.0.0.1"),
        (ServerSettings(public_url="https://10.0.0.7"), "http://10.0.0.7", "10.0.0.7"),
    ],
)
def test_pages_of_other_sites_may_not(server: ServerSettings, origin: str, host: str) -> None:
    with pytest.raises(OriginRefused):
        check_origin(origin, host, server)
