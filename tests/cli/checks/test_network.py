from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.catalog.postgres import free_port
from tidegate.cli.checks import network
from tidegate.cli.checks.network import certificate_end, check_port, check_server, check_tls
from tidegate.settings import ServerSettings
from tidegate.storage.home.address import ServerEndpoint
from tidegate.testing.server import running_server

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def test_a_port_that_another_program_has_is_a_warning_that_names_it() -> None:
    port = free_port()  # none that a connection of someone else gets when we leave it
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        found = check_port("127.0.0.1", port, None)
        assert (found.state, f"process {os.getpid()}" in found.found) == ("warn", True)
        assert f"--port {port + 1}" in found.fix
        assert check_port("127.0.0.1", port, os.getpid()).state == "ok"
    assert check_port("127.0.0.1", port, None).state == "ok"


def test_a_port_of_zero_is_always_free_and_a_foreign_address_fails() -> None:
    assert check_port("127.0.0.1", 0, None).state == "ok"
    assert check_port("192.0.2.1", 45_678, None).state == "fail"


def write_pair(folder: Path, end: datetime) -> ServerSettings:
    """Write a certificate that ends then, and its key."""
    leaf = trustme.CA().issue_cert("127.0.0.1", not_after=end)
    certificate, key = folder / "cert.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    key.write_bytes(leaf.private_key_pem.bytes())
    key.chmod(0o600)
    return ServerSettings(tls_certificate_file=str(certificate), tls_key_file=str(key))


@pytest.mark.parametrize(("days", "state"), [(90, "ok"), (29, "warn"), (-1, "fail")])
def test_a_certificate_is_judged_by_its_end(tmp_path: Path, days: int, state: str) -> None:
    end = NOW + timedelta(days=days)
    found = check_tls(write_pair(tmp_path, end), NOW)
    assert (found.state, end.strftime("%Y-%m-%d") in found.found) == (state, True)


def test_the_end_of_a_certificate_is_read_to_the_second(tmp_path: Path) -> None:
    for end in (datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC), datetime(2061, 2, 3, 4, 5, 6, tzinfo=UTC)):
        settings = write_pair(tmp_path, end)
        assert certificate_end(Path(settings.tls_certificate_file).read_text(encoding="ascii")) == end
    assert certificate_end("no certificate") is None
    broken = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
    assert certificate_end(broken) is None


def test_a_key_of_another_certificate_fails(tmp_path: Path) -> None:
    settings = write_pair(tmp_path, NOW + timedelta(days=90))
    other = tmp_path / "other"
    other.mkdir()
    Path(settings.tls_key_file).write_bytes((Path(write_pair(other, NOW).tls_key_file)).read_bytes())
    assert check_tls(settings, NOW).state == "fail"


def test_a_key_that_others_can_read_fails(tmp_path: Path) -> None:
    settings = write_pair(tmp_path, NOW + timedelta(days=90))
    Path(settings.tls_key_file).chmod(0o644)
    assert check_tls(settings, NOW).fix == f"chmod 600 {settings.tls_key_file}"


def test_half_a_pair_and_files_that_are_gone_fail(tmp_path: Path) -> None:
    settings = write_pair(tmp_path, NOW + timedelta(days=90))
    assert check_tls(ServerSettings(tls_key_file=settings.tls_key_file), NOW).state == "fail"
    Path(settings.tls_certificate_file).unlink()
    assert check_tls(settings, NOW).state == "fail"


def test_no_tls_is_fine_on_this_machine_and_a_warning_beyond() -> None:
    assert check_tls(ServerSettings(), NOW).state == "ok"
    assert check_tls(ServerSettings(host="0.0.0.0"), NOW).state == "warn"


def test_a_server_tells_its_parts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "ANSWER_SECONDS_MAX", 60.0)
    with running_server(home) as server:
        found = check_server(ServerEndpoint(server.url, ""))
        assert (found.state, "engine" in found.found) == ("ok", True)
        (home / "lake").rename(home / "lake.away")
        try:
            broken = check_server(ServerEndpoint(server.url, ""))
        finally:
            (home / "lake.away").rename(home / "lake")
        assert (broken.state, "lake: " in broken.found) == ("fail", True)
    gone = check_server(ServerEndpoint(server.url, ""))
    assert (gone.state, server.url in gone.found) == ("fail", True)
