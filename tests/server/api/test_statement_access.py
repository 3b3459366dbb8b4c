"""Who may run which statement, over real HTTP: every kind, tried by everyone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.accounts import Office
from tests.server.statement_access import STATEMENTS
from tidegate.testing.server import running_server

ROLES = {"r": "reader", "w": "writer", "a": "admin", "p": "AdminPanelManagement"}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    with running_server(tmp_path_factory.mktemp("statement-access") / "home") as server:
        office = Office(server)
        yield office
        office.close()


@pytest.fixture(scope="module")
def acme(office: Office) -> str:
    return office.tenant()


def make_own_tables(office: Office, tenant: str) -> None:
    sql = (
        "CREATE NAMESPACE IF NOT EXISTS own;"
        "CREATE SHARED TABLE IF NOT EXISTS own.shared (id INT PRIMARY KEY, n INT);"
        "CREATE USER TABLE IF NOT EXISTS own.mine (id INT PRIMARY KEY, n INT);"
        "CREATE STREAM TABLE IF NOT EXISTS own.fleeting (n INT) WITH (ttl_seconds = 60)"
    )
    office.ask("POST", "/api/v1/sql", json={"sql": sql}, headers={"X-Tenant": tenant})


@pytest.mark.parametrize(
    ("who", "tenant"),
    [*((who, "default") for who in "rwai"), *((who, "acme") for who in "rwap")],
)
def test_a_role_may_run_the_statements_that_the_table_says(
    office: Office, acme: str, who: str, tenant: str
) -> None:
    where = acme if tenant == "acme" else "default"
    make_own_tables(office, where)
    person = office.person(ROLES["p" if who == "i" else who], tenant=where)
    wrong: list[str] = []
    for sql, _, allowed, status in STATEMENTS:
        answer = person.http.post("/api/v1/sql", json={"sql": sql})
        expected = status if who in allowed else 403
        if answer.status_code != expected:
            wrong.append(f"{sql}: {answer.status_code} {answer.text[:200]}")
    assert wrong == []
