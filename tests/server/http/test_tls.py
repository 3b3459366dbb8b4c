"""TLS: the server speaks it, clients of the home trust it, and a renewed certificate is taken."""

from __future__ import annotations

import contextlib
import os
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

import tidegate
from tidegate.errors import ServerUntrusted, TlsUnusable
from tidegate.server.http.tls import Tls, load_tls
from tidegate.settings import ServerSettings
from tidegate.testing.server import running_server


def write_pair(folder: Path, authority: trustme.CA, name: str = "127.0.0.1") -> tuple[Path, Path]:
    issued = authority.issue_cert(name)
    certificate, key = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return certificate, key


def name_shown(tls: Tls, authority: trustme.CA, name: str) -> str:
    """Shake hands in memory, and give the name for which the server's certificate is good."""
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusted.wrap_bio(to_client, to_server, server_hostname=name)
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    names: Any = (client.getpeercert() or {})["subjectAltName"]
    return str(next(value for kind, value in names if kind == "DNS"))


def test_the_server_speaks_tls_and_nothing_else(home: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = write_pair(tmp_path, authority)
    named = {
        "TIDEGATE_SERVER_TLS_CERTIFICATE_FILE": str(certificate),
        "TIDEGATE_SERVER_TLS_KEY_FILE": str(key),
    }
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with running_server(home, environ=named, verify=trusted) as server:
        assert server.url.startswith("https://127.0.0.1:")
        bearer = {"Authorization": f"Bearer {server.token}"}
        answer = httpx.get(
            f"{server.url}/api/v1/status", headers=bearer, verify=trusted, trust_env=False, timeout=60
        )
        assert answer.status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http") + "/health", trust_env=False, timeout=60)
        old = ssl.create_default_context()
        authority.configure_trust(old)
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health", verify=old, trust_env=False, timeout=60)
        with tidegate.connect(home=home) as client:
            assert client.status()["home"] == str(home)


def test_commands_of_the_machine_need_no_name_in_the_certificate(home: Path, tmp_path: Path) -> None:
    """A certificate for the outer name is enough: what is in the home folder is trusted as it is."""
    authority = trustme.CA()
    certificate, key = write_pair(tmp_path, authority, "tide.example.com")
    certificate.write_bytes("# für Müller\n".encode() + certificate.read_bytes())
    named = {
        "TIDEGATE_SERVER_TLS_CERTIFICATE_FILE": str(certificate),
        "TIDEGATE_SERVER_TLS_KEY_FILE": str(key),
        "TIDEGATE_SERVER_PUBLIC_URL": "https://tide.example.com",
    }
    outer = ssl.create_default_context()
    authority.configure_trust(outer)
    unnamed = ssl.create_default_context()
    authority.configure_trust(unnamed)
    unnamed.check_hostname = False
    with running_server(home, environ=named, verify=unnamed) as server:
        with tidegate.connect(home=home) as client:
            assert client.open_link()["url"].startswith("https://tide.example.com/enter?")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health", verify=outer, trust_env=False, timeout=60)
        with pytest.raises(ServerUntrusted):
            tidegate.connect(server.url, token=server.token, retry_seconds=0).status()


def test_a_renewed_certificate_is_taken_and_a_bad_one_is_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = write_pair(tmp_path, authority)
    tls = Tls(certificate, key)
    assert tls.reload() is False

    def renew(name: str, at_seconds: int) -> None:
        """Write a pair at a time of its own: clocks of files tick slowly, and pairs are of equal size."""
        for path in write_pair(tmp_path, authority, name):
            os.utime(path, (at_seconds, at_seconds))

    renew("renewed.example", 1)
    assert tls.reload() is True
    # A pair that does not fit is refused, and the one before it goes on: not the half of each.
    renew("half.example", 2)
    key.write_text("no key\n")
    with pytest.raises(TlsUnusable):
        tls.reload()
    assert name_shown(tls, authority, "renewed.example") == "renewed.example"
    renew("again.example", 3)
    assert tls.reload() is True


@pytest.mark.parametrize("missing", ["tls_key_file", "tls_certificate_file"])
def test_half_a_pair_is_refused(tmp_path: Path, missing: str) -> None:
    certificate, key = write_pair(tmp_path, trustme.CA())
    whole = ServerSettings(tls_certificate_file=str(certificate), tls_key_file=str(key))
    with pytest.raises(TlsUnusable, match=missing):
        load_tls(replace(whole, **{missing: ""}))  # type: ignore[arg-type]


def test_a_key_that_belongs_to_another_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certificate, _ = write_pair(tmp_path, trustme.CA())
    _, key = write_pair(tmp_path / "other", trustme.CA())
    with pytest.raises(TlsUnusable):
        load_tls(ServerSettings(tls_certificate_file=str(certificate), tls_key_file=str(key)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    _, key = write_pair(tmp_path, trustme.CA())
    with pytest.raises(TlsUnusable, match=r"absent\.pem"):
        load_tls(ServerSettings(tls_certificate_file=str(tmp_path / "absent.pem"), tls_key_file=str(key)))


def test_no_names_mean_no_tls() -> None:
    assert load_tls(ServerSettings()) is None
