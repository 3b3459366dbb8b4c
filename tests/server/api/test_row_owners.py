"""Whose rows and whose tables: users, roles and tenants, statement by statement, over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.sql_client import Client, person
from tidegate.testing.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("owners") / "home") as running:
        yield running


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Client:
    client = Client(server)
    client.run("CREATE NAMESPACE shop")
    return client


def test_rows_of_a_user_table_belong_to_their_user(server: RunningServer, admin: Client) -> None:
    """Case 9: visible to their user alone, and to an admin acting as that user."""
    admin.run("CREATE USER TABLE shop.notes (id INT PRIMARY KEY, t TEXT)")
    ann = person(server, admin, "ann", "writer")
    ben = person(server, admin, "ben", "reader", "writer")
    ann.run("INSERT INTO shop.notes VALUES (1, 'ann''s')")
    ben.run("INSERT INTO shop.notes VALUES (1, 'ben''s'), (2, 'two')")
    everything = (
        "SELECT * FROM shop.notes",
        "SELECT * FROM shop.notes WHERE id = 1",
        "SELECT * FROM shop.notes LIMIT 9",
    )
    for sql in everything:
        assert ann.rows(sql) == [[1, "ann's"]]
        assert admin.rows(sql) == []
    assert admin.rows("EXECUTE AS 'ben' (SELECT count(*) FROM shop.notes)") == [[2]]
    assert ben.run("DELETE FROM shop.notes")["rowCount"] == 2
    assert ann.run("UPDATE shop.notes SET t = 'mine'")["rowCount"] == 1
    assert (
        admin.run("EXECUTE AS 'ann' (UPDATE shop.notes SET t = upper(t) WHERE t = 'mine')")["rowCount"] == 1
    )
    assert ann.rows("SELECT t FROM shop.notes") == [["MINE"]]
    assert ben.refused("EXECUTE AS 'ann' (SELECT * FROM shop.notes)")["code"] == "FORBIDDEN"
    assert admin.refused("EXECUTE AS '..' (SELECT 1)")["code"] == "NAME_INVALID"


def test_roles_decide_statement_by_statement(server: RunningServer, admin: Client) -> None:
    admin.run("CREATE SHARED TABLE shop.prices (id INT PRIMARY KEY, n INT)")
    admin.run("INSERT INTO shop.prices VALUES (1, 10)")
    admin.run("CREATE USER TABLE shop.own (id INT PRIMARY KEY, n INT)")
    reader = person(server, admin, "only-reads", "reader")
    writer = person(server, admin, "only-writes", "writer")
    assert reader.rows("SELECT n FROM shop.prices") == [[10]]
    for sql in (
        "INSERT INTO shop.prices VALUES (2, 1)",
        "UPDATE shop.prices SET n = 1",
        "DELETE FROM shop.prices WHERE id = 1",
        "CREATE NAMESPACE mine",
        "DROP TABLE shop.prices",
        "SELECT * FROM system.audit",
    ):
        assert reader.refused(sql)["code"] == "FORBIDDEN", sql
    assert writer.run("INSERT INTO shop.prices VALUES (2, 1 + 1)")["rowCount"] == 1
    assert writer.run("UPDATE shop.prices SET n = 4 WHERE id = 2")["rowCount"] == 1
    assert writer.run("INSERT INTO shop.own VALUES (1, 1)")["rowCount"] == 1
    assert writer.rows("SELECT * FROM shop.own WHERE n = 1") == [[1, 1]]
    assert writer.run("INSERT INTO shop.own SELECT id + 50, n FROM shop.own")["rowCount"] == 1
    assert writer.run("DELETE FROM shop.own WHERE id > 50")["rowCount"] == 1
    for sql in (
        "SELECT n FROM shop.prices",
        "SELECT n FROM shop.prices WHERE id = 1",
        "SELECT 1",
        "SELECT o.n FROM shop.own o JOIN shop.prices p ON o.id = p.id",
        "UPDATE shop.own SET n = (SELECT max(n) FROM shop.prices)",
        "INSERT INTO shop.own VALUES (9, (FROM shop.prices SELECT max(n)))",
        "INSERT INTO shop.own SELECT id + 5, n FROM shop.prices",
        "DELETE FROM shop.own WHERE n IN (SELECT n FROM shop.prices)",
        "EXPLAIN SELECT n FROM shop.prices",
        "ALTER TABLE shop.own ADD COLUMN x INT",
    ):
        assert writer.refused(sql)["code"] == "FORBIDDEN", sql


def test_another_tenant_sees_none_of_it(server: RunningServer, admin: Client) -> None:
    """Names of another tenant are not found."""
    assert admin.http.post("/tenants", json={"name": "acme"}).status_code == 201
    admin.run("CREATE SHARED TABLE shop.secret (id INT PRIMARY KEY)")
    there = {"X-Tenant": "acme"}
    answer = admin.send("SELECT * FROM shop.secret", headers=there)
    assert answer.json()["error"]["code"] == "TABLE_NOT_FOUND"
    assert "secret" not in answer.json()["error"]["hint"]
    assert admin.send("INSERT INTO shop.secret VALUES (1)", headers=there).status_code == 404
    assert admin.send("CREATE NAMESPACE shop", headers=there).status_code == 200
    assert admin.send("CREATE USER TABLE shop.mine (id INT PRIMARY KEY)", headers=there).status_code == 200
    error = admin.send("INSERT INTO shop.mine VALUES (1)", headers=there).json()["error"]
    assert "EXECUTE AS" in error["hint"], "an administrator from elsewhere has no rows of their own"
    assert admin.send("EXECUTE AS 'eve' (INSERT INTO shop.mine VALUES (1))", headers=there).status_code == 200
    assert admin.rows("SELECT count(*) FROM system.tables WHERE name = 'mine'") == [[0]]
