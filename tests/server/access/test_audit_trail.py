"""The audit trail of a real server says who was refused, who acted as a user, and who acted in a tenant."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.server.accounts import Office, Person, refusal
from tests.server.live_client import live
from tidegate.testing.server import RunningServer, running_server

WAIT_SECONDS = 60.0
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def office(server: RunningServer) -> Iterator[Office]:
    office = Office(server)
    yield office
    office.close()


def events(boss: httpx.Client, action: str, count: int = 1, **query: Any) -> list[dict[str, Any]]:
    """Return events, the oldest first, as soon as there are so many: they are written a moment later."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found: list[dict[str, Any]] = boss.get("/api/v1/audit", params={"action": action, **query}).json()[
            "events"
        ]
        if len(found) >= count or time.monotonic() > deadline:
            return found[::-1]
        time.sleep(0.05)


def boss_of(office: Office) -> Person:
    return office.person("AdminPanelManagement", tenant=office.tenant())


def sql(person: Person, statement: str, **headers: str) -> httpx.Response:
    return person.http.post("/api/v1/sql", json={"sql": statement}, headers=headers)


def test_tokens_that_ended_are_in_the_trail_of_their_tenant(office: Office) -> None:
    boss = boss_of(office)
    revoked, disabled = (office.person("reader", tenant=boss.tenant) for _ in range(2))
    office.revoke(revoked)
    office.disable(disabled)
    for _ in range(3):
        assert refusal(revoked.http.get("/api/v1/me")) == (401, "TOKEN_REVOKED")
    assert refusal(disabled.http.get("/api/v1/me")) == (403, "USER_DISABLED")
    first, second = events(boss.http, "login.refuse", 2)
    assert (first["user"], first["outcome"]) == (revoked.name, "failed")
    assert first["subject"] == f"user/{revoked.name}/token/{revoked.token_id}"
    assert (first["details"]["error"], first["details"]["address"]) == ("TOKEN_REVOKED", "127.0.0.1")
    assert (second["user"], second["details"]["error"]) == (disabled.name, "USER_DISABLED")


def test_an_unknown_token_is_in_the_trail_by_its_address_and_never_with_its_text(tmp_path: Path) -> None:
    secret = "tg_0123456789abcdef_" + "s3cret" * 8
    with running_server(tmp_path / "home") as server:
        office = Office(server)
        for _ in range(40):
            answer = office.client(secret).get("/api/v1/me")
            assert answer.status_code in (401, 429)
        office.client().post("/enter", data={"code": secret})
        (event,) = events(office.admin, "login.refuse")
        assert (event["tenant"], event["user"], event["subject"]) == (
            "default",
            "(unknown)",
            "address/127.0.0.1",
        )
        whole = office.admin.get("/api/v1/audit").text
        office.close()
    assert secret not in whole and "s3cret" not in whole and secret[:19] not in whole
    # what the minute counted is written at the stop, at the latest, or not at all; no text is in the files
    assert not any(
        b"s3cret" in file.read_bytes() for file in (tmp_path / "home" / "catalog").iterdir() if file.is_file()
    )


def test_a_role_that_does_not_allow_it_is_in_the_trail(office: Office) -> None:
    boss = boss_of(office)
    reader = office.person("reader", tenant=boss.tenant)
    for _ in range(3):
        answer = reader.http.post("/api/v1/topics", json={"name": "not.mine"})
        assert refusal(answer) == (403, "FORBIDDEN")
    assert refusal(sql(reader, "EXECUTE AS 'ann' (SELECT 1)")) == (403, "FORBIDDEN")
    topic, execute = events(boss.http, "role.refuse", 2, user=reader.name)
    assert topic["subject"] == "operation/topic.create"
    assert topic["details"]["needed"] == "StreamDataAdmin"
    assert topic["details"]["token"] == reader.token_id
    assert execute["subject"] == "operation/sql.execute_as"
    assert events(boss.http, "sql.execute_as", 0) == []


def test_acting_as_a_user_is_in_the_trail(office: Office, server: RunningServer) -> None:
    boss = boss_of(office)
    admin = office.person("admin", tenant=boss.tenant)
    sql(admin, "CREATE NAMESPACE app")
    sql(admin, "CREATE USER TABLE app.notes (id BIGINT PRIMARY KEY)")
    for number in range(3):
        done = sql(admin, f"EXECUTE AS 'ann' (INSERT INTO app.notes VALUES ({number}))")
        assert done.status_code == 200, done.text
    assert sql(admin, "EXECUTE AS 'bob' (SELECT * FROM app.notes)").status_code == 200
    rows = pa.table({"id": pa.array([7], pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    arrow = admin.http.post(
        "/api/v1/sql",
        params={"sql": "EXECUTE AS 'cleo' (INSERT INTO app.notes)"},
        content=sink.getvalue().to_pybytes(),
        headers={"Content-Type": ARROW},
    )
    assert arrow.status_code == 200, arrow.text

    async def follow() -> None:
        async with live(server, admin.token) as socket:
            await socket.subscribe("EXECUTE AS 'dora' (SELECT * FROM app.notes)")

    asyncio.run(follow())
    found = events(boss.http, "sql.execute_as", 4, user=admin.name)
    assert [(one["subject"], one["details"]["statement"]) for one in found] == [
        ("user/ann", "insert"),
        ("user/bob", "select"),
        ("user/cleo", "insert"),
        ("user/dora", "live"),
    ]
    assert {one["details"]["token"] for one in found} == {admin.token_id}


def test_a_refused_subscription_is_in_the_trail(office: Office, server: RunningServer) -> None:
    boss = boss_of(office)
    writer = office.person("writer", tenant=boss.tenant)
    sql(boss, "CREATE NAMESPACE app")
    sql(boss, "CREATE SHARED TABLE app.all (id BIGINT PRIMARY KEY)")

    async def follow() -> None:
        async with live(server, writer.token) as socket:
            await socket.send("subscribe", id="a", sql="SELECT * FROM app.all")
            assert (await socket.refusal())[0] == "FORBIDDEN"

    asyncio.run(follow())
    (event,) = events(boss.http, "role.refuse", 1, user=writer.name)
    assert (event["subject"], event["details"]["address"]) == ("operation/sql.query", "127.0.0.1")


def test_an_administrator_of_the_instance_is_in_the_trail_of_the_tenant_where_they_act(
    office: Office, server: RunningServer
) -> None:
    boss = boss_of(office)
    root = office.person("AdminPanelManagement")
    for _ in range(3):
        assert root.http.get("/api/v1/topics", headers={"X-Tenant": boss.tenant}).status_code == 200

    async def follow() -> None:
        async with live(server, None) as socket:
            await socket.send("auth", token=root.token, tenant=boss.tenant)
            assert (await socket.next())["type"] == "ready"

    asyncio.run(follow())
    (event,) = events(boss.http, "tenant.enter", 1, user=f"default/{root.name}")
    assert (event["subject"], event["outcome"]) == (f"tenant/{boss.tenant}", "done")
    assert event["details"]["token"] == root.token_id
    # one's own tenant is no other one
    assert root.http.get("/api/v1/topics", headers={"X-Tenant": "default"}).status_code == 200
    assert events(office.admin, "tenant.enter", 0, user=root.name) == []
