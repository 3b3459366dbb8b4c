"""One user's statements beside everybody else, over HTTP: floods, long calls, large values, lost callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psutil
import pytest

from tests.server.sql_client import Client, person
from tidegate.testing.server import RunningServer, running_server

TIMEOUT_SECONDS = 3
GIVE_UP_SECONDS = 120
LONG_CALL = "SELECT max(levenshtein(repeat('a',60000+x::INT), repeat('b',60000))) FROM range(2000) t(x)"
LARGE_VALUE = "SELECT length(printf('%999999999d', 1))"
FOREVER = "SELECT sum(a.range * b.range) FROM range(1000000000) a, range(1000000000) b"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    limits = {
        "TIDEGATE_QUERY_TIMEOUT_SECONDS": str(TIMEOUT_SECONDS),
        "TIDEGATE_QUERY_MEMORY_MB": "256",
        "TIDEGATE_QUERY_STATEMENTS_MAX": "2",
    }
    with running_server(tmp_path_factory.mktemp("isolation") / "home", environ=limits) as running:
        Client(running).run("SELECT 1")
        yield running


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Client:
    return Client(server)


@pytest.fixture(scope="module")
def hostile(server: RunningServer, admin: Client) -> Client:
    """A reader of another tenant."""
    return tenant_reader(server, admin, "hostile")


@pytest.fixture(scope="module")
def quiet(server: RunningServer, admin: Client) -> Client:
    return tenant_reader(server, admin, "quiet")


def tenant_reader(server: RunningServer, admin: Client, tenant: str) -> Client:
    assert admin.http.post("/tenants", json={"name": tenant}).status_code == 201
    headers = {"X-Tenant": tenant}
    body = {"name": "ada", "roles": ["reader"]}
    assert admin.http.post("/users", json=body, headers=headers).status_code == 201
    made = admin.http.post("/users/ada/tokens", json={}, headers=headers)
    client = Client(server, made.json()["token"])
    client.http.timeout = httpx.Timeout(GIVE_UP_SECONDS)
    return client


def metrics(client: Client) -> dict[str, float]:
    text = client.http.get(str(client.http.base_url.join("/metrics"))).text
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def wait_for(client: Client, name: str, value: float) -> None:
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while metrics(client)[name] != value:
        assert time.monotonic() < deadline, name
        time.sleep(0.05)


def test_long_calls_of_one_tenant_leave_another_and_the_server_in_peace(
    hostile: Client, quiet: Client
) -> None:
    with ThreadPoolExecutor(8) as attackers:
        attacks = [attackers.submit(hostile.refused, LONG_CALL) for _ in range(6)]
        answered = 0
        while not all(attack.done() for attack in attacks):
            assert quiet.rows("SELECT 1") == [[1]]
            assert quiet.http.get(str(quiet.http.base_url.join("/health"))).status_code == 200
            answered += 1
        codes = {attack.result()["code"] for attack in attacks}
    assert codes == {"QUERY_TIMEOUT"}
    assert answered > 3


def test_a_large_value_costs_its_caller_the_statement_and_the_server_no_memory(
    server: RunningServer, admin: Client, hostile: Client, quiet: Client
) -> None:
    process, peak, over = psutil.Process(server.child.pid), [0], threading.Event()

    def look() -> None:
        while not over.is_set():
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.01)

    before = process.memory_info().rss
    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(3):
        error = hostile.refused(LARGE_VALUE)
        assert (error["code"], error["details"]) == ("QUERY_MEMORY", {"memory_mb": 256})
        assert quiet.rows("SELECT 1") == [[1]]
    over.set()
    watcher.join()
    assert peak[0] - before < 256 * 1024 * 1024
    assert metrics(admin)['tidegate_query_processes_ended_total{reason="memory"}'] >= 3


def test_callers_who_leave_take_their_processes_with_them(admin: Client, hostile: Client) -> None:
    headers = dict(hostile.http.headers)
    for _ in range(5):
        with (
            httpx.Client(base_url=hostile.http.base_url, headers=headers, timeout=0.3) as client,
            pytest.raises(httpx.TimeoutException),
        ):
            client.post("/sql", json={"sql": LONG_CALL})
    for name in ("sql_statements_running", "sql_statements_waiting", 'query_processes{state="running"}'):
        wait_for(admin, f"tidegate_{name}", 0)
    assert admin.rows("SELECT 1") == [[1]]


def test_a_flood_of_one_user_leaves_turns_for_others(
    server: RunningServer, admin: Client, quiet: Client
) -> None:
    """Of another tenant, and of the same one."""
    eve, bob = (person(server, admin, name, "reader") for name in ("eve", "bob"))
    eve.http.timeout = httpx.Timeout(GIVE_UP_SECONDS)
    with ThreadPoolExecutor(24) as attackers:
        attacks = [attackers.submit(eve.send, FOREVER) for _ in range(24)]
        answered = 0
        while not all(attack.done() for attack in attacks[:2]) or answered < 2:
            assert quiet.rows("SELECT 2") == [[2]]
            assert bob.rows("SELECT 3") == [[3]]
            answered += 1
        assert not all(attack.done() for attack in attacks), "the flood was over before the others had a turn"
        assert {attack.result().status_code for attack in attacks} <= {504, 429}


def test_what_processes_and_queues_do_is_measured(admin: Client, quiet: Client) -> None:
    assert quiet.rows("SELECT 1") == [[1]]
    found = metrics(admin)
    assert found['tidegate_query_processes{state="idle"}'] >= 1
    assert found["tidegate_query_processes_memory_bytes"] > 0
    assert found["tidegate_query_processes_started_total"] >= 1
    assert found['tidegate_query_processes_ended_total{reason="time"}'] >= 1
    assert found["tidegate_sql_tenants_waiting"] == 0


def test_a_process_that_is_killed_fails_its_own_statement_alone(
    server: RunningServer, admin: Client, quiet: Client
) -> None:
    """Whoever kills it, such as the machine's out-of-memory killer."""
    codes: list[str] = []
    with ThreadPoolExecutor(1) as callers:
        # On a busy machine a statement may be over before its process is found.
        while "QUERY_CRASHED" not in codes and len(codes) < 20:
            refused = callers.submit(quiet.refused, FOREVER)
            while not refused.done() and not metrics(admin)['tidegate_query_processes{state="running"}']:
                time.sleep(0.02)
            for child in psutil.Process(server.child.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if child.ppid() != server.child.pid:
                        child.kill()
            codes.append(refused.result()["code"])
    assert set(codes) <= {"QUERY_CRASHED", "QUERY_TIMEOUT"}
    assert "QUERY_CRASHED" in codes
    assert quiet.rows("SELECT 1") == [[1]]
    assert admin.rows("SELECT 1") == [[1]]
