"""Servers on one PostgreSQL: people are shared, and what is not in it goes on while it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.catalog.postgres import Postgres
from tidegate.testing.server import RunningServer, running_server

REFRESH_SECONDS = 0.5


@pytest.fixture
def environ(fragile_postgres: Postgres) -> dict[str, str]:
    url = fragile_postgres.create_database()
    return {
        "TIDEGATE_CATALOG_URL": url,
        "TIDEGATE_CATALOG_TIMEOUT_SECONDS": "15",
        "TIDEGATE_AUTH_REFRESH_SECONDS": str(REFRESH_SECONDS),
    }


def client(server: RunningServer, token: str | None = None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token or server.token}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60)


def make_token(http: httpx.Client, user: str, role: str) -> tuple[str, str]:
    http.post("/api/v1/users", json={"name": user, "roles": [role]}).raise_for_status()
    made = http.post(f"/api/v1/users/{user}/tokens", json={}).json()
    return made["id"], made["token"]


def until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.05)


def test_a_token_made_at_one_server_works_at_the_other_until_it_is_revoked(
    environ: dict[str, str], tmp_path: Path
) -> None:
    with (
        running_server(tmp_path / "a", environ=environ) as first,
        running_server(tmp_path / "b", environ=environ) as second,
        client(first) as admin,
    ):
        token_id, token = make_token(admin, "ann", "reader")
        with client(second, token) as reader:
            assert reader.get("/api/v1/me").json()["user"] == "ann"
            admin.delete(f"/api/v1/users/ann/tokens/{token_id}").raise_for_status()
            for _ in until(60):
                answer = reader.get("/api/v1/me")
                if answer.status_code == 401:
                    break
            assert answer.json()["error"]["code"] == "TOKEN_REVOKED"
        # Each home keeps its own administrator's token, and each works at both.
        for server, other in ((first, second), (second, first)):
            with client(server, other.token) as crossed:
                assert crossed.get("/api/v1/me").json()["instanceAdmin"] is True


def test_while_postgres_is_away_publishing_goes_on_and_people_calls_say_so(
    fragile_postgres: Postgres, environ: dict[str, str], home: Path
) -> None:
    with running_server(home, environ=environ) as server, client(server) as admin:
        admin.post("/api/v1/topics", json={"name": "app.x"}).raise_for_status()
        _, token = make_token(admin, "ann", "writer")
        statuses: list[int] = []
        stop = threading.Event()

        def publish() -> None:
            with client(server, token) as writer:
                while not stop.is_set():
                    body = {"messages": [{"payload": len(statuses)}]}
                    statuses.append(writer.post("/api/v1/topics/app.x/publish", json=body).status_code)

        load = threading.Thread(target=publish)
        load.start()
        try:
            # The writer's token is known, or nobody could look it up afterwards.
            for _ in until(60):
                if len(statuses) > 10:
                    break
            fragile_postgres.kill()
            refused = admin.get("/api/v1/users")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "CATALOG_UNAVAILABLE")
            assert int(refused.headers["retry-after"]) >= 1
            unready = httpx.get(f"{server.url}/ready", trust_env=False, timeout=60)
            assert unready.status_code == 503
            parts = unready.json()["error"]["details"]["parts"]
            assert [name for name, part in parts.items() if not part["ok"]] == ["catalog"]
            assert "postgresql://" not in unready.text
            fragile_postgres.start()
            for _ in until(60):
                if admin.get("/api/v1/users").status_code == 200:
                    break
            assert {user["name"] for user in admin.get("/api/v1/users").json()["users"]} >= {"admin", "ann"}
            assert httpx.get(f"{server.url}/ready", trust_env=False, timeout=60).status_code == 200
        finally:
            stop.set()
            load.join()
        assert set(statuses) == {200}
        assert admin.get("/api/v1/topics/app.x").json()["messages"] == len(statuses)


def test_postgres_restarted_under_a_load_of_catalog_calls_gives_clear_errors_alone(
    fragile_postgres: Postgres, environ: dict[str, str], home: Path
) -> None:
    with running_server(home, environ=environ) as server, client(server) as admin:
        seen: list[tuple[int, str]] = []
        stop = threading.Event()

        def call(number: int) -> None:
            count = 0
            with client(server) as http:
                while not stop.is_set():
                    count += 1
                    name = f"u{number}-{count}"
                    answer = http.post("/api/v1/users", json={"name": name, "roles": ["reader"]})
                    code = "" if answer.is_success else answer.json()["error"]["code"]
                    seen.append((answer.status_code, code))

        callers = [threading.Thread(target=call, args=(number,)) for number in range(8)]
        for caller in callers:
            caller.start()
        for _ in range(3):
            time.sleep(0.5)
            fragile_postgres.restart()
        restarted = len(seen)
        for _ in until(60):
            if (201, "") in seen[restarted:]:
                break
        stop.set()
        for caller in callers:
            caller.join()
        assert set(seen) <= {(201, ""), (503, "CATALOG_UNAVAILABLE")}
        assert (201, "") in seen[restarted:]
        assert admin.get("/api/v1/users", params={"limit": 5}).status_code == 200


def test_a_password_in_the_address_is_shown_nowhere(environ: dict[str, str], home: Path) -> None:
    secret = "a-word-that-nobody-may-see"
    head, _, tail = environ["TIDEGATE_CATALOG_URL"].rpartition("@")
    wrong = f"{head.rpartition(':')[0]}:{secret}@{tail}_absent"
    with (
        pytest.raises(RuntimeError) as refused,
        running_server(home, environ={"TIDEGATE_CATALOG_URL": wrong}),
    ):
        pass
    assert "The catalog at" in str(refused.value)
    assert secret not in str(refused.value)
