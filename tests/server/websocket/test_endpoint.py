"""Who may open a live socket, and when it ends: tokens, cookies, limits, slow peers, a stop."""

from __future__ import annotations

import asyncio
import signal
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.server.accounts import Office
from tests.server.http.test_tls import write_pair
from tests.server.live_client import WAIT_SECONDS, Live, Tables, live, live_url, metric, silent, was_closed
from tidegate.testing.server import RunningServer, running_server

SOCKETS_MAX = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that looks at its sockets often, and is patient with those that are slow."""
    limits = {
        "TIDEGATE_LIVE_CONNECTIONS_PER_USER_MAX": str(SOCKETS_MAX),
        "TIDEGATE_LIVE_HISTORY_BYTES_MAX": "4000000",
        "TIDEGATE_AUTH_REFRESH_SECONDS": "0.1",
    }
    with running_server(tmp_path_factory.mktemp("live") / "home", environ=limits) as running:
        yield running


async def refused_status(server: RunningServer, path: str = "/api/v1/live", **headers: str) -> int:
    """Return the status with which a handshake is refused."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    with pytest.raises(InvalidStatus) as refused:
        await connect(live_url(server, path), additional_headers=sent, proxy=None, open_timeout=WAIT_SECONDS)
    return int(refused.value.response.status_code)


def wait_for(http: httpx.Client, sockets: int) -> None:
    """Wait until so many sockets are open."""
    deadline = time.monotonic() + WAIT_SECONDS
    while metric(http, "tidegate_live_connections") != sockets:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_first_message_may_say_who_connects(server: RunningServer, tables: Tables) -> None:
    name = tables.make()

    async def follow() -> None:
        async with live(server, None) as socket:
            await socket.send("auth", token=server.token)
            assert await socket.next() == {"type": "ready"}
            assert (await socket.subscribe(f"SELECT * FROM {name}"))["rows"] == []

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"kind": "auth", "token": "tg_wrong"}, "TOKEN_WRONG"),
        ({"kind": "auth", "token": "ü"}, "TOKEN_WRONG"),
        ({"kind": "subscribe", "id": "a", "sql": "SELECT 1"}, "TOKEN_MISSING"),
        ({"kind": "auth"}, "REQUEST_INVALID"),
    ],
)
def test_a_wrong_first_message_ends_the_socket(
    server: RunningServer, first: dict[str, str], code: str
) -> None:
    async def follow() -> None:
        async with live(server, None) as socket:
            await socket.send(**first)
            assert (await socket.refusal())[0] == code
            assert await socket.end() == (1008 if code == "REQUEST_INVALID" else 4401)

    asyncio.run(follow())


def test_wrong_tokens_and_paths_are_refused_before_the_socket_is_open(
    server: RunningServer, office: Office
) -> None:
    bearer = {"Authorization": f"Bearer {server.token}"}

    async def follow() -> None:
        assert await refused_status(server, Authorization="Bearer wrong") == 401
        assert await refused_status(server, Authorization="Basic wrong") == 401
        assert await refused_status(server, "/api/v1/nothing", **bearer) == 404
        assert await refused_status(server, "/api/v1/nothing") == 401
        assert await refused_status(server, **bearer, X_Tenant="nobody") == 404
        someone = office.person("reader")
        other = {"Authorization": f"Bearer {someone.token}", "X_Tenant": office.tenant()}
        assert await refused_status(server, **other) == 404

    asyncio.run(follow())


def test_a_browser_uses_its_cookie_from_its_own_pages_alone(server: RunningServer, tables: Tables) -> None:
    link = tables.http.post("/api/v1/links").json()["url"]
    entered = httpx.post(
        link.partition("?")[0], data={"code": link.rpartition("=")[2]}, trust_env=False, timeout=60
    )
    cookie = entered.headers["set-cookie"].partition(";")[0]
    name = tables.make()

    async def follow() -> None:
        assert await refused_status(server, Cookie=cookie, Origin="http://elsewhere.example") == 403
        assert await refused_status(server, Cookie=cookie) == 403
        assert await refused_status(server, Cookie=cookie, Origin="null") == 403
        other_scheme = server.url.replace("http:", "https:")
        assert await refused_status(server, Cookie=cookie, Origin=other_scheme) == 403
        session = cookie.partition("=")[2]
        assert await refused_status(server, Authorization=f"Bearer {session}") == 401
        async with live(server, None) as socket:
            await socket.send(kind="auth", token=session)
            assert (await socket.refusal())[0] == "TOKEN_WRONG"
        async with live(server, None, Cookie=cookie, Origin=server.url) as socket:
            assert (await socket.subscribe(f"SELECT * FROM {name}"))["rows"] == []

    asyncio.run(follow())


def test_an_administrator_follows_tables_of_another_tenant(
    server: RunningServer, office: Office, tables: Tables
) -> None:
    tenant = office.tenant()
    theirs = Tables(office.client(server.token, X_Tenant=tenant))
    name = theirs.make()
    theirs.run(f"INSERT INTO {name} VALUES (1, 'a', 1)")

    async def follow() -> None:
        async with live(server, server.token, X_Tenant=tenant) as socket:
            assert (await socket.subscribe(f"SELECT * FROM {name}"))["rows"] == [[1, "a", 1]]
        async with live(server, None) as socket:
            await socket.send("auth", token=server.token, tenant=tenant)
            assert await socket.next() == {"type": "ready"}
            assert (await socket.subscribe(f"SELECT * FROM {name}"))["rows"] == [[1, "a", 1]]
        async with live(server, server.token) as socket:
            await socket.send("subscribe", id="a", sql=f"SELECT * FROM {name}")
            assert (await socket.refusal())[0] in ("TABLE_NOT_FOUND", "NAMESPACE_NOT_FOUND")

    asyncio.run(follow())


def test_a_token_that_ends_ends_its_sockets(server: RunningServer, office: Office) -> None:
    person = office.person("reader")
    brief = office.person("reader", lifetime_seconds=6)

    async def follow() -> None:
        async with live(server, person.token) as socket, live(server, brief.token) as short:
            assert await socket.nothing_more()
            office.revoke(person)
            assert (await socket.refusal())[0] == "TOKEN_REVOKED"
            assert await socket.end() == 4401
            assert (await short.refusal())[0] == "TOKEN_EXPIRED"
            assert await short.end() == 4401

    asyncio.run(follow())


def test_changed_roles_ask_for_a_new_socket(server: RunningServer, office: Office) -> None:
    person = office.person("reader")

    async def follow() -> None:
        async with live(server, person.token) as socket:
            assert await socket.nothing_more()
            office.ask("PATCH", f"/api/v1/users/{person.name}", json={"roles": ["writer"]})
            assert await socket.end() == 4401

    asyncio.run(follow())


def test_a_thousand_subscribers_get_an_insert_and_no_more_are_let_in(
    server: RunningServer, tables: Tables, http: httpx.Client
) -> None:
    """Case 12."""
    name = tables.make()
    wait_for(http, 0)

    async def opened(sockets: asyncio.Queue[Live], done: asyncio.Event, gate: asyncio.Semaphore) -> None:
        async with gate:
            opening = live(server, server.token)
            socket = await opening.__aenter__()
            await socket.subscribe(f"SELECT * FROM {name}")
        await sockets.put(socket)
        await done.wait()
        assert await socket.change() == ("insert", [1, "a", 1])
        await opening.__aexit__(None, None, None)

    async def follow() -> None:
        sockets: asyncio.Queue[Live] = asyncio.Queue()
        gate, done = asyncio.Semaphore(50), asyncio.Event()
        stranger = silent(server, None)
        async with asyncio.TaskGroup() as group:
            for _ in range(SOCKETS_MAX):
                group.create_task(opened(sockets, done, gate))
            for _ in range(SOCKETS_MAX):
                await sockets.get()
            assert metric(http, "tidegate_live_connections") == SOCKETS_MAX
            assert metric(http, "tidegate_live_subscriptions") == SOCKETS_MAX
            bearer = {"Authorization": f"Bearer {server.token}"}
            assert await refused_status(server, **bearer) == 429
            tables.run(f"INSERT INTO {name} VALUES (1, 'a', 1)")
            done.set()
        assert metric(http, "tidegate_live_changes_sent_total") >= SOCKETS_MAX
        # Whoever never says who they are is not kept.
        assert await asyncio.to_thread(was_closed, stranger)

    asyncio.run(follow())


def test_a_peer_that_is_gone_is_noticed_by_its_silence(home: Path) -> None:
    limits = {"TIDEGATE_LIVE_PING_SECONDS": "0.5", "TIDEGATE_LIVE_SEND_SECONDS_MAX": "1"}
    with running_server(home, environ=limits) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as http:
            dead = silent(server, f"SELECT * FROM {Tables(http).make()}")
            wait_for(http, 0)
            assert was_closed(dead)


def test_goodbyes_are_quick_even_when_nobody_reads(home: Path) -> None:
    """A peer leaves, another sends pings without end, the server stops: who reads nothing is no burden."""
    patient = {"LIVE_SEND_SECONDS_MAX": "3600", "LIVE_PING_SECONDS": "3600", "SERVER_GRACE_SECONDS": "300"}
    environ = {f"TIDEGATE_{name}": value for name, value in patient.items()}
    with running_server(home, environ=environ) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as http:
            tables = Tables(http)
            name = tables.make()
            for number in range(30):
                tables.run(f"INSERT INTO {name} VALUES (?, ?, 1)", number, "x" * 100_000)
            leaving = silent(server, f"SELECT * FROM {name}")
            wait_for(http, 1)
            leaving.sendall(bytes((0x88, 0x80, 0, 0, 0, 0)))
            wait_for(http, 0)
            flooding = silent(server, f"SELECT * FROM {name}")
            wait_for(http, 1)
            with pytest.raises(OSError):
                while True:  # pings, whose answers are not read
                    flooding.sendall(bytes((0x89, 0x80 | 100)) + bytes(104))
            wait_for(http, 0)
            lazy = silent(server, f"SELECT * FROM {name}")

        async def follow() -> None:
            async with live(server, server.token) as socket:
                await socket.subscribe(f"SELECT id FROM {name}")
                # Who they are must be said within five seconds.
                async with live(server, None) as stranger:
                    server.child.send_signal(signal.SIGTERM)
                    assert await socket.end() == 1012
                    assert await stranger.end() == 1012

        asyncio.run(follow())
        # Nobody needs the grace of five minutes, not even the one that does not read.
        assert server.child.wait(60) == 0
        assert was_closed(lazy)
        leaving.close()
    log = home.parent / f"{home.name}.server.log"
    assert "Traceback" not in log.read_text()


def test_sockets_speak_tls(home: Path, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = write_pair(tmp_path, authority)
    named = {
        "TIDEGATE_SERVER_TLS_CERTIFICATE_FILE": str(certificate),
        "TIDEGATE_SERVER_TLS_KEY_FILE": str(key),
    }
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    with running_server(home, environ=named, verify=trusted) as server:
        headers = {"Authorization": f"Bearer {server.token}"}
        with httpx.Client(
            base_url=server.url, headers=headers, verify=trusted, trust_env=False, timeout=60
        ) as http:
            tables = Tables(http)
            name = tables.make()

            async def follow() -> None:
                async with live(server, server.token, trusted) as socket:
                    await socket.subscribe(f"SELECT * FROM {name}")
                    for number in range(20):
                        insert = f"INSERT INTO {name} VALUES (?, ?, 1)"
                        await asyncio.to_thread(tables.run, insert, number, "x" * 100_000)
                    for number in range(20):
                        assert (await socket.change())[1][0] == number

            asyncio.run(follow())
