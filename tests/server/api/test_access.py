"""Who may do what, over real HTTP: every endpoint, tried by everyone.

The table of `route_access` is the truth, written by hand and apart from the code that decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.paths import ROOT
from tests.server.accounts import Office, Person, refusal, wait_for_refusal
from tests.server.route_access import NOWHERE, OPEN, TABLE, Row
from tests.server.statement_access import OTHERS, SOCKETS, STATEMENTS
from tidegate.catalog.audit import Actor
from tidegate.model.access import Operation
from tidegate.server.routes import ROUTES
from tidegate.testing.server import running_server

GUARDED = [row for row in TABLE if row.operation != OPEN]

ROLES = {"r": "reader", "w": "writer", "a": "admin", "p": "AdminPanelManagement"}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """A server of its own, on which this many wrong tokens are not yet guessing."""
    folder = tmp_path_factory.mktemp("access")
    with running_server(folder / "home", environ={"TIDEGATE_AUTH_GUESSES_MAX": "100000"}) as server:
        office = Office(server)
        yield office
        office.close()


@pytest.fixture(scope="module")
def acme(office: Office) -> str:
    return office.tenant()


def told(row: Row, answer: httpx.Response) -> str:
    return f"{row.method} {row.path}: {answer.status_code} {answer.text[:200]}"


def test_every_endpoint_is_in_the_table_with_its_operation() -> None:
    offered = {(route.method, route.path): route.operation or OPEN for route in ROUTES}
    assert {(row.method, row.path): row.operation for row in TABLE} == offered
    assert len(TABLE) == len(offered)


def test_every_operation_is_in_the_table() -> None:
    assert set(told_operations()) == {str(operation) for operation in Operation}


def told_operations() -> dict[str, str]:
    told = {row.operation: row.who for row in GUARDED} | SOCKETS | OTHERS
    for sql, operation, who, _ in STATEMENTS:
        assert told.setdefault(operation, who) == who, sql
    return told


def test_the_page_about_roles_says_the_same() -> None:
    page = (ROOT / "docs" / "operate" / "roles.md").read_text(encoding="utf-8")
    told: dict[str, str] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`([a-z]+\.[a-z_]+)`", cells[0])
        if len(cells) == 6 and names:
            who = "".join(letter for letter, cell in zip("rwapi", cells[1:], strict=True) if cell == "yes")
            told |= dict.fromkeys(names, who)
    assert told == told_operations()


@pytest.mark.parametrize(
    ("who", "tenant"),
    [*((who, "default") for who in "rwai"), *((who, "acme") for who in "rwap")],
)
def test_a_role_may_do_what_the_table_says_and_nothing_else(
    office: Office, acme: str, who: str, tenant: str
) -> None:
    role = ROLES["p" if who == "i" else who]
    person = office.person(role, tenant=acme if tenant == "acme" else "default")
    wrong: list[str] = []
    for row in TABLE:
        answer = row.ask(person.http, NOWHERE)
        if who in row.who:
            as_told = answer.status_code == row.status
        else:
            as_told = refusal(answer) == (403, "FORBIDDEN")
        if not as_told:
            wrong.append(told(row, answer))
    assert wrong == []


def test_a_refusal_names_the_role_that_would_do(office: Office, acme: str) -> None:
    writer = office.person("writer", tenant=acme)
    for path, body, needed in [
        ("/sql", {"sql": "SELECT 1"}, "StreamDataReader"),
        ("/topics", {"name": "a"}, "StreamDataAdmin"),
        ("/users", {"name": "a"}, "AdminPanelManagement"),
        ("/tenants", {"name": "a"}, "AdminPanelManagement in the tenant 'default'"),
    ]:
        message = writer.http.post(f"/api/v1{path}", json=body).json()["error"]["message"]
        assert message.endswith(f"it needs the role {needed}.")


def test_several_roles_allow_what_each_of_them_does(office: Office, acme: str) -> None:
    person = office.person("reader", "writer", tenant=acme)
    for row in GUARDED:
        allowed = bool({"r", "w"} & set(row.who))
        assert (row.ask(person.http, NOWHERE).status_code != 403) == allowed, row.path


def refused_everywhere(http: httpx.Client, expected: tuple[int, str]) -> list[str]:
    """Return the endpoints that do not refuse someone as expected."""
    answers = [(row, row.ask(http, NOWHERE)) for row in GUARDED]
    return [told(row, answer) for row, answer in answers if refusal(answer) != expected]


def test_nobody_gets_in_without_a_token(office: Office) -> None:
    assert refused_everywhere(office.client(), (401, "TOKEN_MISSING")) == []


@pytest.mark.parametrize("token", ["wrong", "tg_0123456789abcdef_" + "x" * 43, "é", "a b", "x" * 5000])
def test_nobody_gets_in_with_a_wrong_token(office: Office, token: str) -> None:
    http = office.client()
    http.headers = httpx.Headers([(b"Authorization", b"Bearer " + token.encode("latin-1"))])
    assert refused_everywhere(http, (401, "TOKEN_WRONG")) == []


def test_nobody_gets_in_with_the_id_of_a_token_and_another_secret(office: Office) -> None:
    person = office.person("AdminPanelManagement")
    forged = office.client(f"tg_{person.token_id}_{'A' * 43}")
    assert refused_everywhere(forged, (401, "TOKEN_WRONG")) == []


def test_nobody_gets_in_with_a_token_whose_time_is_over(office: Office) -> None:
    person = office.person("AdminPanelManagement", lifetime_seconds=1)
    assert refusal(wait_for_refusal(person)) == (401, "TOKEN_EXPIRED")
    assert refused_everywhere(person.http, (401, "TOKEN_EXPIRED")) == []


def test_nobody_gets_in_with_a_revoked_token(office: Office) -> None:
    person = office.person("AdminPanelManagement")
    assert person.http.get("/api/v1/me").status_code == 200
    office.revoke(person)
    assert refused_everywhere(person.http, (401, "TOKEN_REVOKED")) == []


def test_a_disabled_user_gets_in_nowhere(office: Office) -> None:
    person = office.person("AdminPanelManagement")
    assert person.http.get("/api/v1/me").status_code == 200
    office.disable(person)
    assert refused_everywhere(person.http, (403, "USER_DISABLED")) == []


def test_what_is_open_is_open_to_those_whose_token_is_wrong(office: Office) -> None:
    for http in (office.client(), office.client("wrong")):
        for row in TABLE:
            if row.operation == OPEN:
                assert row.ask(http, NOWHERE).status_code == row.status


@dataclass(frozen=True)
class Rich:
    """A tenant that has one of everything."""

    person: Person
    names: dict[str, str]


@pytest.fixture(scope="module")
def rich(office: Office) -> Rich:
    person = office.person("AdminPanelManagement", tenant=office.tenant())
    topic = "rich.orders"
    assert person.http.post("/api/v1/topics", json={"name": topic}).status_code == 201
    sent = {"messages": [{"payload": "treasure"}]}
    assert person.http.post(f"/api/v1/topics/{topic}/publish", json=sent).status_code == 200
    with office.catalog() as catalog:
        job = catalog.jobs.create(Actor(person.tenant, person.name), person.tenant, "count", "topic/a")
    names = {"topic": topic, "user": person.name, "token": person.token_id, "job": job.id}
    return Rich(person, {**NOWHERE, **names, "tenant": person.tenant})


@pytest.mark.parametrize("role", list(ROLES.values()))
def test_what_another_tenant_has_is_told_as_if_it_was_never_made(
    office: Office, rich: Rich, role: str
) -> None:
    stranger = office.person(role, tenant=office.tenant())
    for row in GUARDED:
        if "{" not in row.path:
            continue
        there, nowhere = row.ask(stranger.http, rich.names), row.ask(stranger.http, NOWHERE)
        said = there.text
        for key, name in rich.names.items():
            said = said.replace(name, NOWHERE[key])
        assert (there.status_code, said) == (nowhere.status_code, nowhere.text), told(row, there)
    # It is all still there.
    for row in GUARDED:
        if (
            row.method == "GET"
            and "{" in row.path
            and row.path.startswith(("/api/v1/topics", "/api/v1/users"))
        ):
            assert row.ask(rich.person.http, rich.names).status_code == 200


def test_lists_hold_nothing_of_another_tenant(office: Office, rich: Rich) -> None:
    stranger = office.person("AdminPanelManagement", tenant=office.tenant())
    lists = [row for row in GUARDED if row.method == "GET" and "{" not in row.path and "p" in row.who]
    assert len(lists) >= 10
    for row in lists:
        answer = row.ask(stranger.http, NOWHERE)
        assert answer.status_code == 200
        for name in (rich.names["topic"], rich.names["job"], rich.person.name, rich.person.token_id):
            assert name not in answer.text, row.path
    assert stranger.http.get("/api/v1/topics").json() == {"topics": [], "next": None}
    assert stranger.http.get("/api/v1/jobs").json() == {"jobs": [], "next": None}
    assert stranger.http.get("/api/v1/status").json()["topics"] == []
    (alone,) = stranger.http.get("/api/v1/users").json()["users"]
    assert alone["name"] == stranger.name


def test_the_same_name_in_two_tenants_is_two_topics(office: Office, rich: Rich) -> None:
    stranger = office.person("admin", tenant=office.tenant())
    topic = f"/api/v1/topics/{rich.names['topic']}"
    assert stranger.http.post("/api/v1/topics", json={"name": rich.names["topic"]}).status_code == 201
    assert stranger.http.post(f"{topic}/consume", json={}).json()["messages"] == []
    assert stranger.http.delete(topic).status_code == 200
    (message,) = rich.person.http.post(f"{topic}/consume", json={}).json()["messages"]
    assert message["payload"] == "treasure"


def test_a_table_of_another_tenant_is_not_there_for_sql(office: Office) -> None:
    rich, poor = (office.person("reader", tenant=office.tenant()) for _ in range(2))
    lake = office.server.home / "tenants" / rich.tenant / "lake"
    write_deltalake(str(lake / "coins"), pa.table({"worth": [7]}))
    write_deltalake(str(office.server.home / "lake" / "ours"), pa.table({"worth": [8]}))

    def answer(person: Person, sql: str) -> httpx.Response:
        return person.http.post("/api/v1/sql", json={"sql": sql})

    own = answer(rich, "SELECT worth FROM lake.coins")
    assert own.status_code == 200, own.text
    assert own.json()["rows"] == [[7]]
    for table in ("lake.coins", "lake.ours"):
        seen, never = answer(poor, f"SELECT * FROM {table}"), answer(poor, "SELECT * FROM lake.gold")
        assert seen.text.replace(table, "lake.gold") == never.text
        assert refusal(seen) == (404, "TABLE_NOT_FOUND")
    assert refusal(answer(rich, "SELECT * FROM lake.ours")) == (404, "TABLE_NOT_FOUND")
    # Nor by its place on the disk.
    for reader in ("delta_scan", "read_parquet", "read_text", "glob"):
        assert answer(poor, f"SELECT * FROM {reader}('{lake}/coins/*')").status_code == 422
    tables = [table["name"] for table in poor.http.get("/api/v1/status").json()["tables"]]
    assert tables == []


def test_an_administrator_of_the_instance_may_act_in_any_tenant(office: Office, rich: Rich) -> None:
    person = office.person("AdminPanelManagement")
    for row in GUARDED:
        answer = row.ask(person.http, {**rich.names, "user": "nobody"}, **{"X-Tenant": rich.person.tenant})
        assert answer.status_code not in (401, 403), told(row, answer)
        if row.path == "/api/v1/topics/{topic}" and row.method == "DELETE":
            remade = {"name": rich.names["topic"]}
            assert rich.person.http.post("/api/v1/topics", json=remade).status_code == 201
    assert office.ask("POST", f"/api/v1/tenants/{rich.person.tenant}/enable")["enabled"] is True


@pytest.mark.parametrize("role", list(ROLES.values()))
def test_another_tenant_by_its_name_is_not_found_by_anyone_else(
    office: Office, rich: Rich, role: str
) -> None:
    stranger = office.person(role, tenant=office.tenant())
    for tenant in (rich.person.tenant, "default", "nowhere", "Not.A.Name", "a" * 500):
        for row in GUARDED:
            answer = row.ask(stranger.http, rich.names, **{"X-Tenant": tenant})
            assert refusal(answer) == (404, "TENANT_NOT_FOUND"), told(row, answer)
    own = stranger.http.get("/api/v1/me", headers={"X-Tenant": stranger.tenant})
    assert own.json()["tenant"] == stranger.tenant


def test_an_unknown_tenant_is_not_found_by_anyone(office: Office) -> None:
    for tenant in ("nowhere", "Not.A.Name", "..", "a" * 500):
        for row in GUARDED:
            answer = row.ask(office.admin, NOWHERE, **{"X-Tenant": tenant})
            assert refusal(answer) == (404, "TENANT_NOT_FOUND"), told(row, answer)


def test_a_role_in_one_tenant_is_none_in_the_instance(office: Office, acme: str) -> None:
    boss = office.person("AdminPanelManagement", tenant=acme)
    assert boss.http.get("/api/v1/me").json()["instanceAdmin"] is False
    made = boss.http.post("/api/v1/users", json={"name": "deputy", "roles": ["AdminPanelManagement"]})
    assert made.status_code == 201
    assert refusal(boss.http.get("/api/v1/tenants")) == (403, "FORBIDDEN")
    assert refusal(boss.http.get("/api/v1/tenants", headers={"X-Tenant": "default"}))[0] == 404
    for role in ("reader", "writer", "admin"):
        climber = office.person(role)
        grab = json.dumps({"roles": ["AdminPanelManagement"]}).encode()
        kind = {"Content-Type": "application/json"}
        answer = climber.http.patch(f"/api/v1/users/{climber.name}", content=grab, headers=kind)
        assert refusal(answer) == (403, "FORBIDDEN")
