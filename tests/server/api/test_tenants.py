"""Tenants: made, listed, kept out, let in again; by administrators of the instance alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.accounts import Office, refusal
from tidegate.testing.server import RunningServer

TENANTS = "/api/v1/tenants"


@pytest.fixture(scope="module")
def office(server: RunningServer) -> Iterator[Office]:
    office = Office(server)
    yield office
    office.close()


def test_a_new_tenant_is_enabled_and_listed_by_name(office: Office) -> None:
    made = [office.tenant() for _ in range(3)]
    seen: list[str] = []
    after: str | None = None
    while True:
        page = office.ask("GET", TENANTS, params={"limit": 2, **({"after": after} if after else {})})
        assert all(tenant["enabled"] for tenant in page["tenants"] if tenant["name"] in made)
        seen += [tenant["name"] for tenant in page["tenants"]]
        after = page["next"]
        if after is None:
            break
    assert seen == sorted(seen)
    assert {"default", *made} <= set(seen)


@pytest.mark.parametrize("name", ["", "Acme", "1st", "a_b", "a.b", "..", "a/b", "a" * 64])
def test_a_name_that_breaks_the_rule_is_refused(office: Office, name: str) -> None:
    assert refusal(office.admin.post(TENANTS, json={"name": name})) == (422, "NAME_INVALID")


@pytest.mark.parametrize("body", [{}, {"name": 1}, {"name": "a", "enabled": True}, []])
def test_a_wrong_body_is_refused(office: Office, body: object) -> None:
    assert refusal(office.admin.post(TENANTS, json=body)) == (422, "REQUEST_INVALID")


def test_a_tenant_is_made_once(office: Office) -> None:
    name = office.tenant()
    assert refusal(office.admin.post(TENANTS, json={"name": name})) == (409, "TENANT_EXISTS")


def test_a_tenant_is_made_once_under_one_key(office: Office) -> None:
    key = {"Idempotency-Key": "tenant-once"}
    first = office.admin.post(TENANTS, json={"name": "once"}, headers=key)
    again = office.admin.post(TENANTS, json={"name": "once"}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()


def test_everyone_of_a_disabled_tenant_is_kept_out_at_once_and_let_in_again(office: Office) -> None:
    tenant = office.tenant()
    person = office.person("AdminPanelManagement", tenant=tenant)
    assert person.http.get("/api/v1/me").status_code == 200
    assert office.ask("POST", f"{TENANTS}/{tenant}/disable")["enabled"] is False
    assert refusal(person.http.get("/api/v1/me")) == (403, "TENANT_DISABLED")
    assert office.ask("POST", f"{TENANTS}/{tenant}/enable")["enabled"] is True
    assert person.http.get("/api/v1/me").status_code == 200


def test_what_is_done_to_tenants_is_in_the_trail_of_the_instance(office: Office) -> None:
    elsewhere, name = office.tenant(), f"{office.tenant()}-more"
    where = {"X-Tenant": elsewhere, "X-Request-Id": name}
    office.ask("POST", TENANTS, json={"name": name}, headers=where)
    for verb in ("disable", "enable"):
        office.ask("POST", f"{TENANTS}/{name}/{verb}", headers=where)
    mine = office.ask("GET", "/api/v1/audit", params={"limit": 3})["events"]
    told = [(event["action"], event["user"], event["subject"], event["requestId"]) for event in mine]
    actions = ["tenant.enable", "tenant.disable", "tenant.create"]
    assert told == [(action, "admin", f"tenant/{name}", name) for action in actions]
    assert office.ask("GET", "/api/v1/audit", headers={"X-Tenant": elsewhere})["events"] == []


def test_the_first_tenant_stays(office: Office) -> None:
    assert refusal(office.admin.post(f"{TENANTS}/default/disable")) == (409, "LAST_ADMINISTRATOR")
    assert office.admin.get("/api/v1/me").status_code == 200


@pytest.mark.parametrize("name", ["never-made", "Not.A.Name"])
def test_an_unknown_tenant_is_not_found(office: Office, name: str) -> None:
    for verb in ("enable", "disable"):
        assert refusal(office.admin.post(f"{TENANTS}/{name}/{verb}")) == (404, "TENANT_NOT_FOUND")


def test_a_parameter_that_the_list_does_not_have_is_refused(office: Office) -> None:
    assert refusal(office.admin.get(f"{TENANTS}?name=a")) == (422, "REQUEST_INVALID")


def test_an_administrator_of_the_instance_acts_in_a_tenant_by_its_name(office: Office) -> None:
    tenant, other = office.tenant(), office.tenant()
    where = {"X-Tenant": tenant}
    office.ask("POST", "/api/v1/topics", json={"name": "guest.topic"}, headers=where)
    office.ask("POST", "/api/v1/users", json={"name": "guest"}, headers=where)
    assert office.ask("GET", "/api/v1/me", headers=where)["tenant"] == tenant
    for elsewhere in ({}, {"X-Tenant": other}):
        topic = office.admin.get("/api/v1/topics/guest.topic", headers=elsewhere)
        assert refusal(topic) == (404, "TOPIC_NOT_FOUND")
        assert refusal(office.admin.get("/api/v1/users/guest", headers=elsewhere)) == (404, "USER_NOT_FOUND")
