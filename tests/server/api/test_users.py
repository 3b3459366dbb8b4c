"""Users of a tenant: made, shown, changed, kept out, removed; and who asks."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.server.accounts import Office, refusal
from tidegate.testing.server import RunningServer

USERS = "/api/v1/users"


@pytest.fixture(scope="module")
def office(server: RunningServer) -> Iterator[Office]:
    office = Office(server)
    yield office
    office.close()


@pytest.fixture(scope="module")
def acme(office: Office) -> str:
    return office.tenant()


@pytest.fixture(scope="module")
def boss(office: Office, acme: str) -> httpx.Client:
    return office.person("AdminPanelManagement", tenant=acme).http


def test_the_admin_of_the_home_looks_after_the_instance(office: Office) -> None:
    assert office.ask("GET", "/api/v1/me") == {
        "tenant": "default",
        "user": "admin",
        "roles": ["AdminPanelManagement"],
        "expiresAt": None,
        "instanceAdmin": True,
    }


def test_me_tells_the_tenant_the_roles_and_the_end(office: Office, acme: str) -> None:
    person = office.person("reader", "writer", tenant=acme, lifetime_seconds=1000)
    said = person.http.get("/api/v1/me").json()
    assert (said["tenant"], said["user"]) == (acme, person.name)
    assert said["roles"] == ["StreamDataReader", "StreamDataWriter"]
    assert said["expiresAt"].endswith("Z")
    assert said["instanceAdmin"] is False


def test_a_user_is_a_writer_unless_said(boss: httpx.Client, acme: str) -> None:
    made = boss.post(USERS, json={"name": "ann"})
    assert made.status_code == 201, made.text
    assert made.json()["roles"] == ["StreamDataWriter"]
    assert (made.json()["tenant"], made.json()["enabled"]) == (acme, True)
    assert boss.get(f"{USERS}/ann").json() == made.json()


def test_roles_may_be_short_or_long_and_count_once(boss: httpx.Client) -> None:
    roles = ["reader", "StreamDataReader", "admin", "AdminPanelManagement", "reader"]
    made = boss.post(USERS, json={"name": "ben@example.org", "roles": roles}).json()
    assert made["roles"] == ["StreamDataReader", "StreamDataAdmin", "AdminPanelManagement"]
    assert boss.get(f"{USERS}/ben@example.org").json()["roles"] == made["roles"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": 1},
        {"name": "x", "roles": []},
        {"name": "x", "roles": ["boss"]},
        {"name": "x", "roles": ["panel"]},
        {"name": "x", "roles": ["reader"] * 17},
        {"name": "x", "roles": ["r" * 81]},
        {"name": "x", "roles": "reader"},
        {"name": "x", "colour": "red"},
    ],
)
def test_a_wrong_body_is_refused_and_makes_nobody(boss: httpx.Client, body: dict[str, object]) -> None:
    assert refusal(boss.post(USERS, json=body)) == (422, "REQUEST_INVALID")
    assert refusal(boss.get(f"{USERS}/x")) == (404, "USER_NOT_FOUND")


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a" * 129, "ä", "a\n"])
def test_a_name_that_breaks_the_rule_is_refused(boss: httpx.Client, name: str) -> None:
    assert refusal(boss.post(USERS, json={"name": name})) == (422, "NAME_INVALID")


def test_a_name_is_taken_once_in_a_tenant_and_free_in_another(office: Office, boss: httpx.Client) -> None:
    assert boss.post(USERS, json={"name": "carl"}).status_code == 201
    assert refusal(boss.post(USERS, json={"name": "carl"})) == (409, "USER_EXISTS")
    other = office.person("AdminPanelManagement", tenant=office.tenant()).http
    assert refusal(other.get(f"{USERS}/carl")) == (404, "USER_NOT_FOUND")
    assert other.post(USERS, json={"name": "carl", "roles": ["reader"]}).status_code == 201
    assert boss.get(f"{USERS}/carl").json()["roles"] == ["StreamDataWriter"]


def test_users_are_listed_by_name_in_pages(office: Office) -> None:
    boss = office.person("AdminPanelManagement", tenant=office.tenant()).http
    for name in ("b", "d", "a", "c"):
        assert boss.post(USERS, json={"name": name}).status_code == 201
    seen: list[str] = []
    after: str | None = None
    while True:
        page = boss.get(USERS, params={"limit": 2, **({"after": after} if after else {})}).json()
        assert len(page["users"]) <= 2
        seen += [user["name"] for user in page["users"]]
        after = page["next"]
        if after is None:
            break
    assert seen[:4] == ["a", "b", "c", "d"]
    assert len(seen) == 5


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=9999999", "after=%00", "after=nonsense", "colour=red"]
)
def test_a_wrong_question_about_a_list_is_refused(boss: httpx.Client, query: str) -> None:
    answer = boss.get(f"{USERS}?{query}")
    assert refusal(answer) == (422, "REQUEST_INVALID")
    if query.startswith("colour"):
        assert "'colour'" in answer.json()["error"]["message"]
        assert "limit" in answer.json()["error"]["hint"]


def test_other_roles_hold_for_the_next_request(office: Office, acme: str) -> None:
    person = office.person("reader", tenant=acme)
    assert refusal(person.http.post("/api/v1/topics", json={"name": "x.y"})) == (403, "FORBIDDEN")
    changed = office.ask(
        "PATCH", f"{USERS}/{person.name}", json={"roles": ["admin"]}, headers={"X-Tenant": acme}
    )
    assert (changed["roles"], changed["enabled"]) == (["StreamDataAdmin"], True)
    assert person.http.post("/api/v1/topics", json={"name": "x.y"}).status_code == 201


def test_a_disabled_user_is_kept_out_until_enabled_again(office: Office, acme: str) -> None:
    person = office.person("reader", tenant=acme)
    assert person.http.get("/api/v1/me").status_code == 200
    office.disable(person)
    assert refusal(person.http.get("/api/v1/me")) == (403, "USER_DISABLED")
    where = {"X-Tenant": acme}
    user = office.ask("PATCH", f"{USERS}/{person.name}", json={"enabled": True}, headers=where)
    assert (user["enabled"], user["roles"]) == (True, ["StreamDataReader"])
    assert person.http.get("/api/v1/me").status_code == 200


@pytest.mark.parametrize("body", [{}, {"roles": []}, {"roles": None}, {"enabled": "no"}, {"name": "other"}])
def test_a_wrong_change_is_refused_and_changes_nothing(
    office: Office, boss: httpx.Client, acme: str, body: dict[str, object]
) -> None:
    person = office.person("reader", tenant=acme)
    before = boss.get(f"{USERS}/{person.name}").json()
    assert refusal(boss.patch(f"{USERS}/{person.name}", json=body)) == (422, "REQUEST_INVALID")
    assert boss.get(f"{USERS}/{person.name}").json() == before


def test_a_removed_user_is_out_at_once_and_stays_out_when_the_name_comes_back(
    office: Office, boss: httpx.Client, acme: str
) -> None:
    person = office.person("reader", tenant=acme)
    assert person.http.get("/api/v1/me").status_code == 200
    removed = {"deleted": person.name, "userRemoved": True, "rows": 0, "logs": 0, "tables": []}
    assert boss.delete(f"{USERS}/{person.name}").json() == removed
    assert person.http.get("/api/v1/me").status_code == 401
    assert refusal(boss.delete(f"{USERS}/{person.name}")) == (404, "USER_NOT_FOUND")
    assert boss.post(USERS, json={"name": person.name}).status_code == 201
    assert person.http.get("/api/v1/me").status_code == 401


@pytest.mark.parametrize("change", [{"enabled": False}, {"roles": ["admin"]}, None])
def test_the_first_administrator_stays(office: Office, change: dict[str, object] | None) -> None:
    path = f"{USERS}/admin"
    answer = office.admin.delete(path) if change is None else office.admin.patch(path, json=change)
    assert refusal(answer) == (409, "LAST_ADMINISTRATOR")
    assert office.ask("GET", path)["roles"] == ["AdminPanelManagement"]


def test_a_user_is_made_once_under_one_key(boss: httpx.Client) -> None:
    key = {"Idempotency-Key": "make-dora"}
    first = boss.post(USERS, json={"name": "dora"}, headers=key)
    again = boss.post(USERS, json={"name": "dora"}, headers=key)
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    other = boss.post(USERS, json={"name": "emil"}, headers=key)
    assert refusal(other) == (409, "IDEMPOTENCY_KEY_REUSED")
    assert refusal(boss.get(f"{USERS}/emil")) == (404, "USER_NOT_FOUND")


def test_a_key_of_a_request_that_failed_may_be_used_again(boss: httpx.Client) -> None:
    assert boss.post(USERS, json={"name": "fred"}).status_code == 201
    key = {"Idempotency-Key": "make-fred"}
    assert refusal(boss.post(USERS, json={"name": "fred"}, headers=key)) == (409, "USER_EXISTS")
    assert boss.delete(f"{USERS}/fred").status_code == 200
    assert boss.post(USERS, json={"name": "fred"}, headers=key).status_code == 201


def test_a_token_is_made_once_under_one_key_and_its_text_is_not_kept(
    boss: httpx.Client, office: Office
) -> None:
    assert boss.post(USERS, json={"name": "gina"}).status_code == 201
    path, key = f"{USERS}/gina/tokens", {"Idempotency-Key": "token-gina"}
    first = boss.post(path, json={}, headers=key)
    assert first.status_code == 201
    office.secrets.append(first.json()["token"])
    assert refusal(boss.post(path, json={}, headers=key)) == (409, "IDEMPOTENCY_ANSWER_HIDDEN")
    assert len(boss.get(path).json()["tokens"]) == 1


def test_a_key_of_a_guest_is_not_one_of_a_namesake_in_the_tenant(office: Office) -> None:
    tenant = office.tenant()
    where = {"X-Tenant": tenant}
    office.ask("POST", USERS, json={"name": "admin", "roles": ["AdminPanelManagement"]}, headers=where)
    namesake = office.token_of(tenant, "admin").http
    key = {"Idempotency-Key": "same"}
    office.ask("POST", USERS, json={"name": "hugo"}, headers={**where, **key})
    assert refusal(namesake.post(USERS, json={"name": "hugo"}, headers=key)) == (409, "USER_EXISTS")
