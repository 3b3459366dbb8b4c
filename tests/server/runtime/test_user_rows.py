"""Removal of a user with the rows, over real HTTP: everywhere, repeated, killed, and the name afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.accounts import Office, Person, refusal
from tests.server.live_client import live
from tidegate.testing.server import RunningServer, running_server

MANY_ROWS = 30_000
COUNT = "EXECUTE AS 'ann' (SELECT count(*) FROM app.notes)"
ERASE = "/api/v1/users/ann?withRows=true"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("rows") / "home") as running:
        yield running


@pytest.fixture
def boss(office: Office) -> Person:
    """Make a tenant with a table of each kind, and its administrator: the least role that removes users."""
    made = office.person("AdminPanelManagement", tenant=office.tenant())
    run(made, "CREATE NAMESPACE app")
    run(made, "CREATE USER TABLE app.notes (id BIGINT PRIMARY KEY, t TEXT)")
    run(made, "CREATE INDEX by_text ON app.notes (t)")
    run(made, "CREATE STREAM TABLE app.typing (room TEXT) WITH (ttl_seconds = 3600)")
    run(made, "CREATE STREAM TABLE app.seen (id BIGINT PRIMARY KEY, t TEXT) WITH (ttl_seconds = 3600)")
    run(made, "CREATE SHARED TABLE app.all (id BIGINT PRIMARY KEY)")
    return made


def run(person: Person | httpx.Client, sql: str) -> list[list[Any]]:
    http = person.http if isinstance(person, Person) else person
    answer = http.post("/api/v1/sql", json={"sql": sql})
    assert answer.status_code == 200, answer.text
    found: list[list[Any]] = answer.json()["rows"]
    return found


def fill(person: Person) -> None:
    run(person, "INSERT INTO app.notes VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    run(person, "INSERT INTO app.typing VALUES ('x'), ('y')")
    run(person, "INSERT INTO app.seen VALUES (1, 'a'), (2, 'b')")


def counts(boss: Person, name: str) -> list[int]:
    found = []
    for table in ("app.notes", "app.typing", "app.seen"):
        ((count,),) = run(boss, f"EXECUTE AS '{name}' (SELECT count(*) FROM {table})")
        found.append(count)
    return found


def remove(boss: Person, name: str, **query: str) -> httpx.Response:
    return boss.http.delete(f"/api/v1/users/{name}", params=query)


def add(boss: Person, name: str, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    return boss.http.post("/api/v1/users", json={"name": name, **more}, headers=headers)


def test_a_user_and_all_rows_are_removed_and_a_repeat_changes_nothing(office: Office, boss: Person) -> None:
    ann, ben = (office.person("writer", tenant=boss.tenant) for _ in range(2))
    for person in (ann, ben):
        fill(person)
    run(boss, "INSERT INTO app.all VALUES (1)")
    removed = remove(boss, ann.name, withRows="true")
    assert removed.json() == {
        "deleted": ann.name,
        "userRemoved": True,
        "rows": 3,
        "logs": 2,
        "tables": ["app.notes", "app.seen", "app.typing"],
    }
    assert refusal(ann.http.get("/api/v1/me"))[0] == 401
    assert (counts(boss, ann.name), counts(boss, ben.name)) == ([0, 0, 0], [3, 2, 2])
    assert run(boss, "SELECT count(*) FROM app.all") == [[1]]
    files = [
        file.name for file in (office.server.home / "tenants").rglob("*.log") if ".trash" not in file.parts
    ]
    assert f"{ben.name}.log" in files
    assert f"{ann.name}.log" not in files
    again = remove(boss, ann.name, withRows="true").json()
    assert (again["userRemoved"], again["rows"], again["logs"], again["tables"]) == (False, 0, 0, [])
    events = boss.http.get("/api/v1/audit", params={"action": "user.delete_rows"}).json()["events"]
    told = [(one["user"], one["subject"], one["outcome"], one["details"]["rows"]) for one in reversed(events)]
    assert told == [
        (boss.name, f"user/{ann.name}", "done", 3),
        (boss.name, f"user/{ann.name}", "done", 0),
    ]
    assert add(boss, ann.name).status_code == 201


def test_a_name_with_rows_is_not_given_again_without_saying_so(office: Office, boss: Person) -> None:
    ann = office.person("writer", tenant=boss.tenant)
    fill(ann)
    assert remove(boss, ann.name).json()["userRemoved"] is True
    refused = add(boss, ann.name)
    assert refusal(refused) == (409, "USER_HAS_ROWS")
    error = refused.json()["error"]
    assert error["details"]["tables"] == ["app.notes", "app.seen", "app.typing"]
    assert "--with-rows" in error["hint"] and "--take-rows" in error["hint"]
    key = {"Idempotency-Key": "once"}
    assert refusal(add(boss, ann.name, key)) == (409, "USER_HAS_ROWS")
    assert add(boss, ann.name, key, takeRows=True).status_code == 201
    assert refusal(add(boss, ann.name)) == (409, "USER_EXISTS")
    assert counts(boss, ann.name) == [3, 2, 2]
    # rows that an administrator wrote for a name that nobody has yet
    run(boss, "EXECUTE AS 'later' (INSERT INTO app.notes VALUES (1, 'a'))")
    assert refusal(add(boss, "later")) == (409, "USER_HAS_ROWS")
    assert remove(boss, "later", withRows="true").json()["rows"] == 1
    key = {"Idempotency-Key": "twice"}
    first = add(boss, "later", key)
    run(boss, "EXECUTE AS 'later' (INSERT INTO app.notes VALUES (1, 'a'))")
    assert (first.status_code, add(boss, "later", key).json()) == (201, first.json())


def test_rows_of_that_name_in_another_tenant_stay(office: Office, boss: Person) -> None:
    other = office.person("AdminPanelManagement", tenant=office.tenant())
    run(other, "CREATE NAMESPACE app")
    run(other, "CREATE USER TABLE app.notes (id BIGINT PRIMARY KEY)")
    for person in (boss, other):
        run(person, "EXECUTE AS 'sam' (INSERT INTO app.notes (id) VALUES (1))")
    assert remove(boss, "sam", withRows="true").json()["rows"] == 1
    assert run(other, "EXECUTE AS 'sam' (SELECT id FROM app.notes)") == [[1]]


def test_roles_below_and_wrong_calls_remove_nothing(office: Office, boss: Person) -> None:
    ann = office.person("writer", tenant=boss.tenant)
    fill(ann)
    admin, stranger = office.person("admin", tenant=boss.tenant), office.person("AdminPanelManagement")
    office.revoke(stranger)
    for person in (admin, ann):
        assert refusal(remove(person, ann.name, withRows="true")) == (403, "FORBIDDEN")
    assert refusal(remove(stranger, ann.name, withRows="true"))[0] == 401
    assert refusal(remove(boss, ann.name, withRows="yes")) == (422, "REQUEST_INVALID")
    assert refusal(remove(boss, ann.name, withrows="true")) == (422, "REQUEST_INVALID")
    assert refusal(remove(boss, "..%2Fann", withRows="true"))[0] in (404, 422)
    assert refusal(remove(boss, "nobody")) == (404, "USER_NOT_FOUND")
    last = office.admin.delete("/api/v1/users/admin", params={"withRows": "true"})
    assert refusal(last) == (409, "LAST_ADMINISTRATOR")
    assert ann.http.get("/api/v1/me").status_code == 200
    assert counts(boss, ann.name) == [3, 2, 2]


def test_what_the_user_still_writes_meanwhile_is_refused_or_removed(office: Office, boss: Person) -> None:
    ann = office.person("writer", tenant=boss.tenant)
    statements = "; ".join(
        f"INSERT INTO app.{table} VALUES ({row})"
        for number in range(30)
        for table, row in (("notes", f"{number}, 'a'"), ("seen", f"{number}, 'a'"))
    )
    went: list[tuple[int, str]] = []

    def write() -> None:
        while not went:
            answer = ann.http.post("/api/v1/sql", json={"sql": statements.replace("INSERT", "UPSERT")})
            if answer.status_code != 200:
                went.append(refusal(answer))

    writer = threading.Thread(target=write)
    writer.start()
    while sum(counts(boss, ann.name)) == 0 and writer.is_alive():
        continue
    assert remove(boss, ann.name, withRows="true").status_code == 200
    writer.join()
    assert went[0] in [(409, "ROWS_BEING_REMOVED"), (401, "TOKEN_REVOKED"), (401, "TOKEN_WRONG")]
    assert counts(boss, ann.name) == [0, 0, 0]


def test_live_subscribers_get_each_delete(office: Office, boss: Person, server: RunningServer) -> None:
    ann = office.person("writer", tenant=boss.tenant)
    fill(ann)

    async def follow() -> None:
        async with live(server, boss.token) as socket:
            for name, table, count in (("a", "notes", 3), ("b", "seen", 2), ("c", "typing", 2)):
                text = f"EXECUTE AS '{ann.name}' (SELECT * FROM app.{table})"
                assert len((await socket.subscribe(text, name))["rows"]) == count
            answer = await asyncio.to_thread(remove, boss, ann.name, withRows="true")
            assert answer.status_code == 200, answer.text
            changes = [await socket.next() for _ in range(7)]
            assert {one["op"] for one in changes} == {"delete"}
            by_name = {name: [one["row"][0] for one in changes if one["id"] == name] for name in "abc"}
            assert by_name == {"a": [1, 2, 3], "b": [1, 2], "c": ["x", "y"]}

    asyncio.run(follow())


def kill_midway(server: RunningServer) -> httpx.Response:
    """Remove ann with many rows, and kill the server when some are gone; give the answer to a write then."""
    office = Office(server)
    admin = office.admin
    run(admin, "CREATE NAMESPACE app")
    run(admin, "CREATE USER TABLE app.notes (id BIGINT PRIMARY KEY, t TEXT)")
    run(admin, "CREATE INDEX by_text ON app.notes (t)")
    assert admin.post("/api/v1/users", json={"name": "ann"}).status_code == 201
    select = f"SELECT range, 'text ' || range FROM range({MANY_ROWS})"
    run(admin, f"EXECUTE AS 'ann' (INSERT INTO app.notes {select})")
    run(admin, "EXECUTE AS 'ben' (INSERT INTO app.notes VALUES (1, 'b'))")

    def erase() -> None:
        with contextlib.suppress(httpx.TransportError):
            office.client(server.token).delete(ERASE, timeout=None)

    thread = threading.Thread(target=erase)
    thread.start()
    while run(admin, COUNT) == [[MANY_ROWS]]:
        continue
    late = "EXECUTE AS 'ann' (INSERT INTO app.notes VALUES (-1, 'late'))"
    refused = admin.post("/api/v1/sql", json={"sql": late})
    server.kill()
    thread.join()
    office.close()
    return refused


def test_a_removal_that_is_killed_is_finished_by_the_next_one(tmp_path: Path) -> None:
    """Nothing is damaged, the name is not given again while rows are left, and a repeat removes the rest."""
    home, ann = tmp_path / "home", {"name": "ann"}
    with running_server(home) as server:
        refused = kill_midway(server)
    with running_server(home) as server:
        office = Office(server)
        admin = office.admin
        ((left,),) = run(admin, COUNT)
        assert left < MANY_ROWS
        if left > 0:
            assert refusal(refused) == (409, "ROWS_BEING_REMOVED")
            assert refusal(admin.post("/api/v1/users", json=ann)) == (409, "USER_HAS_ROWS")
            (event,) = office.ask("GET", "/api/v1/audit?action=user.delete_rows")["events"]
            assert event["outcome"] == "started"
        done = office.ask("DELETE", ERASE)
        assert (done["userRemoved"], done["rows"]) == (False, left)
        by_index = "EXECUTE AS 'ann' (SELECT count(*) FROM app.notes WHERE t = 'text 7')"
        assert (run(admin, COUNT), run(admin, by_index)) == ([[0]], [[0]])
        assert run(admin, "EXECUTE AS 'ben' (SELECT t FROM app.notes)") == [["b"]]
        assert admin.post("/api/v1/users", json=ann).status_code == 201
        office.close()
