"""TLS: a server that is trusted by a named certificate, by a home's own word, and one that is not trusted."""

from __future__ import annotations

import asyncio
import pickle
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

import tidegate
from tests.sdk.faults import FaultyServer, Say, faulty_server
from tidegate.errors import ServerNotRunning, ServerUntrusted
from tidegate.pipeline.topic.client import ServerClient, ServerLocation
from tidegate.storage.home.address import ServerEndpoint, find_server
from tidegate.storage.home.home import Home

STATUS = Say(content=b'{"version": "1"}')


@dataclass(frozen=True)
class Secured:
    """A server with TLS and the files that speak for and against it."""

    faulty: FaultyServer
    ca_file: Path
    own_file: Path
    other_ca_file: Path


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    with serving(tmp_path, "127.0.0.1") as made:
        yield made


class serving:  # noqa: N801 - read as a verb in a `with`
    """Serve with a certificate for a name."""

    def __init__(self, folder: Path, name: str) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own = authority.issue_cert(name)
        own.configure_cert(context)
        self._files = folder / "ca.pem", folder / "own.pem", folder / "stranger.pem"
        authority.cert_pem.write_to_path(str(self._files[0]))
        own.cert_chain_pems[0].write_to_path(str(self._files[1]))
        stranger.cert_pem.write_to_path(str(self._files[2]))
        self._serving = faulty_server(STATUS, STATUS, STATUS, STATUS, context=context)

    def __enter__(self) -> Secured:
        return Secured(self._serving.__enter__(), *self._files)

    def __exit__(self, *exc: object) -> None:
        self._serving.__exit__(None, None, None)


def test_a_named_certificate_is_trusted(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    with tidegate.connect(secured.faulty.url, token="t", ca_file=secured.ca_file) as client:
        assert client.status() == {"version": "1"}
    monkeypatch.setenv("TIDEGATE_CA_FILE", str(secured.ca_file))
    with tidegate.connect(secured.faulty.url, token="t") as client:
        assert client.status() == {"version": "1"}

    async def ask() -> object:
        async with tidegate.connect_async(secured.faulty.url, token="t") as client:
            return await client.status()

    assert asyncio.run(ask()) == {"version": "1"}


def test_an_unknown_certificate_is_refused_at_once_and_nothing_is_sent(secured: Secured) -> None:
    async def ask(ca_file: Path | None) -> None:
        async with tidegate.connect_async(secured.faulty.url, token="t", ca_file=ca_file) as client:
            await client.status()

    for ca_file in (None, secured.other_ca_file):
        client = tidegate.connect(secured.faulty.url, token="t", ca_file=ca_file, retry_seconds=3600)
        with client, pytest.raises(ServerUntrusted, match="unable to get local issuer") as caught:
            client.status()
        assert "TIDEGATE_CA_FILE" in caught.value.hint
        with pytest.raises(ServerUntrusted):
            asyncio.run(ask(ca_file))
    assert secured.faulty.seen == []


def test_a_certificate_of_another_name_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path, "elsewhere.example") as secured:
        for ca_file in (secured.ca_file, secured.own_file):
            client = tidegate.connect(secured.faulty.url, token="t", ca_file=ca_file)
            with client, pytest.raises(ServerUntrusted, match="IP address mismatch"):
                client.status()


def test_a_file_without_certificates_is_told_when_connecting(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for ca_file in (empty, tmp_path / "absent.pem"):
        with pytest.raises(ServerUntrusted, match=ca_file.name):
            tidegate.connect("https://127.0.0.1:1", token="t", ca_file=ca_file)
        with pytest.raises(ServerUntrusted, match=ca_file.name):
            ServerClient(ServerLocation("https://127.0.0.1:1", "t", ca_file=str(ca_file))).post_json(
                "sql", {}
            )


def test_a_home_says_by_which_certificate_its_server_is_known(secured: Secured, home: Path) -> None:
    made = Home.open(home, make_token=lambda: "token-of-the-home-folder")
    made.write_address(secured.faulty.url, 1, str(secured.own_file))
    with tidegate.connect(home=home) as client:
        assert client.status() == {"version": "1"}
    assert ServerClient(ServerLocation(home=str(home))).post_json("sql", {}) == {"version": "1"}
    named = find_server(None, None, home, {"TIDEGATE_CA_FILE": "env.pem"}, ca_file="mine.pem")
    assert named.ca_file == "mine.pem"


def test_a_certificate_is_named_by_argument_then_environment() -> None:
    environ = {"TIDEGATE_CA_FILE": "env.pem"}
    assert find_server("https://h", "t", None, environ) == ServerEndpoint("https://h", "t", "env.pem")
    assert find_server("https://h", "t", None, environ, ca_file=Path("a.pem")).ca_file == "a.pem"
    assert find_server("https://h", "t", None, {}).ca_file is None
    assert "secret" not in repr(ServerEndpoint("https://h", "secret"))


def test_the_wire_of_pipelines_trusts_and_refuses_alike(secured: Secured) -> None:
    place = ServerLocation(secured.faulty.url, "t", ca_file=str(secured.ca_file))
    wire: ServerClient = pickle.loads(pickle.dumps(ServerClient(place)))
    assert wire.post_json("sql", {}) == {"version": "1"}
    with pytest.raises(ServerUntrusted, match="unable to get local issuer"):
        ServerClient(ServerLocation(secured.faulty.url, "t"), retry_seconds=3600).post_json("sql", {})


def test_a_plain_server_behind_a_tls_address_is_no_trusted_one() -> None:
    with faulty_server() as plain:
        url = plain.url.replace("http:", "https:")
        with tidegate.connect(url, token="t", retry_seconds=0) as client, pytest.raises(ServerNotRunning):
            client.status()
        assert plain.seen == []


def test_a_certificate_for_another_name_says_so_with_one_full_stop(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "tide.example") as made,
        tidegate.connect(made.faulty.url, token="t", ca_file=made.ca_file, retry_seconds=0) as client,
        pytest.raises(ServerUntrusted) as refused,
    ):
        client.status()
    assert "another name" in refused.value.hint
    assert not str(refused.value).endswith("..")


def test_a_plain_address_of_a_server_with_tls_says_https(secured: Secured) -> None:
    place = secured.faulty.url.removeprefix("https://")
    with (
        tidegate.connect(f"http://{place}", token="t", retry_seconds=0) as client,
        pytest.raises(ServerNotRunning) as refused,
    ):
        client.status()
    assert f"try https://{place}" in refused.value.hint
