"""Tenants, users, tokens, audit, jobs and backups through the client, against a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

import tidegate
from tests.sdk.faults import faulty_server
from tidegate.errors import (
    BackupNotFound,
    Forbidden,
    JobNotFound,
    TenantExists,
    TenantNotFound,
    TokenRevoked,
    TokenWrong,
    TopicNotFound,
    UserExists,
    UserHasRows,
    UserNotFound,
)
from tidegate.testing.server import RunningServer


def test_a_user_from_adding_to_removing(client: tidegate.Client, server: RunningServer) -> None:
    added = client.users.add("ann", roles=["reader"])
    assert (added["name"], added["roles"], added["enabled"]) == ("ann", ["StreamDataReader"], True)
    with pytest.raises(UserExists):
        client.users.add("ann")
    made = client.users.make_token("ann", label="laptop", lifetime_seconds=3600)
    with tidegate.connect(server.url, token=made["token"]) as ann:
        assert ann.me()["user"] == "ann"
        with pytest.raises(Forbidden):
            ann.topics.create("people.ann")
        client.users.change("ann", roles=["writer"])
        assert client.users.show("ann")["roles"] == ["StreamDataWriter"]
        (shown,) = client.users.tokens("ann")
        assert (shown["id"], shown["label"], shown["endedAt"]) == (made["id"], "laptop", None)
        client.users.revoke("ann", made["id"])
        with pytest.raises(TokenRevoked):
            ann.me()
    assert "ann" in [user["name"] for user in client.users.list()]
    assert client.users.remove("ann")["userRemoved"]
    with pytest.raises(UserNotFound):
        client.users.show("ann")


def test_rows_of_a_user_go_when_told_and_their_name_is_not_given_again_silently(
    client: tidegate.Client,
) -> None:
    client.sql("CREATE NAMESPACE IF NOT EXISTS people")
    client.sql("CREATE USER TABLE IF NOT EXISTS people.notes (id BIGINT PRIMARY KEY)")
    client.sql("EXECUTE AS 'cora' (INSERT INTO people.notes VALUES (1), (2))")
    with pytest.raises(UserHasRows, match=r"people\.notes"):
        client.users.add("cora")
    client.users.add("cora", take_rows=True)
    removed = client.users.remove("cora", with_rows=True)
    assert (removed["userRemoved"], removed["rows"], removed["tables"]) == (True, 2, ["people.notes"])
    assert client.users.remove("cora", with_rows=True)["rows"] == 0
    client.users.add("cora")


def test_a_user_who_is_disabled_stays_and_can_come_back(client: tidegate.Client) -> None:
    client.users.add("bob")
    assert client.users.change("bob", enabled=False)["enabled"] is False
    assert client.users.change("bob", enabled=True)["enabled"] is True


def test_an_add_whose_answer_was_lost_adds_one_user(client: tidegate.Client, server: RunningServer) -> None:
    with (
        faulty_server("lose", upstream=server.url) as faulty,
        tidegate.connect(faulty.url, token=server.token) as through,
    ):
        assert through.users.add("cleo")["name"] == "cleo"
        assert len(faulty.seen) == 2
    assert [user["name"] for user in client.users.list()].count("cleo") == 1


def test_an_administrator_works_in_another_tenant(client: tidegate.Client, server: RunningServer) -> None:
    assert client.tenants.create("acme")["enabled"] is True
    with pytest.raises(TenantExists):
        client.tenants.create("acme")
    with tidegate.connect(server.url, token=server.token, tenant="acme") as acme:
        acme.topics.create("people.acme")
        assert [topic["name"] for topic in acme.topics.list()] == ["people.acme"]
        assert acme.me()["tenant"] == "acme"
    with pytest.raises(TopicNotFound):
        client.topics.show("people.acme")
    assert client.tenants.disable("acme")["enabled"] is False
    assert client.tenants.enable("acme")["enabled"] is True
    assert {"acme", "default"} <= {tenant["name"] for tenant in client.tenants.list()}
    with (
        tidegate.connect(server.url, token=server.token, tenant="nowhere") as nowhere,
        pytest.raises(TenantNotFound),
    ):
        nowhere.topics.list()


def test_what_was_done_is_told_newest_first(client: tidegate.Client) -> None:
    client.users.add("dora")
    client.users.remove("dora")
    events = client.audit.list(user="admin", limit=2)
    assert [(event["action"], event["subject"]) for event in events] == [
        ("user.delete", "user/dora"),
        ("user.create", "user/dora"),
    ]
    assert all(event["action"] == "user.create" for event in client.audit.list(action="user.create"))


def test_lists_longer_than_a_page_are_whole(client: tidegate.Client) -> None:
    names = {f"crowd{number:03}" for number in range(130)}
    for name in sorted(names):
        client.users.add(name)
    assert names <= {user["name"] for user in client.users.list()}


def test_a_link_leads_a_browser_to_the_door(client: tidegate.Client, server: RunningServer) -> None:
    link = client.open_link()
    assert link["url"].startswith(f"{server.url}/")
    assert link["expiresAt"]
    with httpx.Client(trust_env=False) as browser:
        assert "Sign in" in browser.get(link["url"]).text


def test_a_backup_is_begun_and_given_up(client: tidegate.Client) -> None:
    begun = client.backups.begin()
    assert Path(begun["path"]).is_dir()
    assert client.jobs.show(begun["job"])["history"]
    assert begun["job"] in [job["id"] for job in client.jobs.list(kind="backup")]
    client.backups.give_up(begun["id"])
    assert not Path(begun["path"]).exists()
    with pytest.raises(BackupNotFound):
        client.backups.finish(begun["id"], file="x", size_bytes=1)
    with pytest.raises(JobNotFound):
        client.jobs.show("0" * 16)


def test_a_backup_that_is_finished_is_a_job_that_is_done(client: tidegate.Client) -> None:
    begun = client.backups.begin()
    client.backups.finish(begun["id"], file="elsewhere.tar", size_bytes=7)
    assert client.jobs.show(begun["job"])["state"] == "done"
    assert not Path(begun["path"]).exists()


def test_the_client_for_asyncio_does_the_same(server: RunningServer) -> None:
    async def tour() -> None:
        async with tidegate.connect_async(server.url, token=server.token) as client:
            assert (await client.me())["instanceAdmin"] is True
            await client.users.add("eve", roles=["admin"])
            made = await client.users.make_token("eve", lifetime_seconds=None)
            assert made["expiresAt"] is None
            async with tidegate.connect_async(server.url, token=made["token"]) as eve:
                assert (await eve.me())["user"] == "eve"
            await client.users.remove("eve")
            async with tidegate.connect_async(server.url, token=made["token"]) as eve:
                with pytest.raises(TokenWrong):
                    await eve.me()

    asyncio.run(tour())
