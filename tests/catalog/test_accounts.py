"""Tenants and users, on both databases."""

from __future__ import annotations

import threading

import pytest

from tests.catalog.conftest import ADMIN, ADMIN_TOKEN, OpenCatalog
from tidegate.catalog.accounts import Tenant, User
from tidegate.catalog.audit import Actor
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.paging import PageRequest
from tidegate.errors import (
    LastAdministrator,
    NameInvalid,
    TenantExists,
    TenantNotFound,
    TidegateError,
    TokenRevoked,
    TokenWrong,
    UserExists,
    UserNotFound,
)
from tidegate.model.access import Role
from tidegate.testing.clock import START_US, ManualClock

READER = frozenset({Role.READER})
WRITER = frozenset({Role.WRITER})


def last_event(catalog: Catalog, tenant: str = "default") -> tuple[str, str, dict[str, object]]:
    event = catalog.audit.list(tenant, PageRequest(limit=1)).rows[0]
    return event.action, event.subject, event.details


def test_a_new_catalog_has_the_first_administrator(catalog: Catalog) -> None:
    assert catalog.accounts.get_tenant("default") == Tenant("default", enabled=True, created_us=START_US)
    admin = catalog.accounts.get_user("default", "admin")
    assert admin == User("default", "admin", frozenset({Role.PANEL}), enabled=True, created_us=START_US)
    assert catalog.tokens.find(ADMIN_TOKEN).is_instance_admin


def test_the_first_administrator_stays(catalog: Catalog) -> None:
    with pytest.raises(LastAdministrator):
        catalog.accounts.remove_user(ADMIN, "default", "admin")
    with pytest.raises(LastAdministrator):
        catalog.accounts.change_user(ADMIN, "default", "admin", enabled=False)
    with pytest.raises(LastAdministrator):
        catalog.accounts.change_user(ADMIN, "default", "admin", roles=READER)
    with pytest.raises(LastAdministrator):
        catalog.accounts.set_tenant_enabled(ADMIN, "default", enabled=False)
    more = frozenset({Role.PANEL, Role.READER})
    assert catalog.accounts.change_user(ADMIN, "default", "admin", roles=more).roles == more


def test_another_administrator_can_be_removed(catalog: Catalog) -> None:
    catalog.accounts.add_user(ADMIN, "default", "second", frozenset({Role.PANEL}))
    catalog.accounts.remove_user(ADMIN, "default", "second")
    with pytest.raises(UserNotFound):
        catalog.accounts.get_user("default", "second")


def test_the_admin_token_of_a_home_is_kept_once(catalog: Catalog) -> None:
    catalog.accounts.ensure_admin(ADMIN_TOKEN, "home-1")
    tokens = catalog.tokens.list("default", "admin", PageRequest()).rows
    assert [(token.kind, token.ended_us) for token in tokens] == [("home", None)]


def test_a_changed_admin_token_ends_the_old_one_of_its_home_alone(catalog: Catalog) -> None:
    catalog.accounts.ensure_admin("the token of another home, long", "home-2")
    catalog.accounts.ensure_admin("a new text in the file of home one", "home-1")
    with pytest.raises(TokenRevoked):
        catalog.tokens.find(ADMIN_TOKEN)
    assert catalog.tokens.find("the token of another home, long").user == "admin"
    assert catalog.tokens.find("a new text in the file of home one").user == "admin"
    # Someone puts the old file back.
    catalog.accounts.ensure_admin(ADMIN_TOKEN, "home-1")
    assert catalog.tokens.find(ADMIN_TOKEN).user == "admin"
    with pytest.raises(TokenRevoked):
        catalog.tokens.find("a new text in the file of home one")


def test_a_tenant_is_made_once(catalog: Catalog, clock: ManualClock) -> None:
    clock.advance(5)
    made = catalog.accounts.create_tenant(ADMIN, "acme")
    assert made == Tenant("acme", enabled=True, created_us=START_US + 5_000_000)
    assert catalog.accounts.get_tenant("acme") == made
    assert last_event(catalog) == ("tenant.create", "tenant/acme", {})
    with pytest.raises(TenantExists):
        catalog.accounts.create_tenant(ADMIN, "acme")
    with pytest.raises(NameInvalid):
        catalog.accounts.create_tenant(ADMIN, "Acme")


def test_a_tenant_is_disabled_and_enabled(catalog: Catalog) -> None:
    catalog.accounts.create_tenant(ADMIN, "acme")
    assert not catalog.accounts.set_tenant_enabled(ADMIN, "acme", enabled=False).enabled
    assert last_event(catalog)[0] == "tenant.disable"
    assert not catalog.accounts.get_tenant("acme").enabled
    assert catalog.accounts.set_tenant_enabled(ADMIN, "acme", enabled=True).enabled
    assert last_event(catalog)[0] == "tenant.enable"


@pytest.mark.parametrize("name", ["nobody", "Not A Name", "a\0b", "\ud800", "x" * 500])
def test_what_is_not_there_is_not_found(catalog: Catalog, name: str) -> None:
    with pytest.raises(TenantNotFound):
        catalog.accounts.get_tenant(name)
    with pytest.raises(TenantNotFound):
        catalog.accounts.set_tenant_enabled(ADMIN, name, enabled=True)
    with pytest.raises(TenantNotFound):
        catalog.accounts.add_user(ADMIN, name, "bob", WRITER)
    with pytest.raises(UserNotFound):
        catalog.accounts.get_user("default", name)
    with pytest.raises(UserNotFound):
        catalog.accounts.change_user(ADMIN, "default", name, enabled=True)
    with pytest.raises(UserNotFound):
        catalog.accounts.remove_user(ADMIN, "default", name)


def test_a_user_is_added_changed_and_removed(catalog: Catalog) -> None:
    actor = Actor("acme", "root", "r-9")
    catalog.accounts.create_tenant(ADMIN, "acme")
    bob = catalog.accounts.add_user(actor, "acme", "bob@acme.example", WRITER)
    assert bob == User("acme", "bob@acme.example", WRITER, enabled=True, created_us=START_US)
    assert last_event(catalog, "acme") == (
        "user.create",
        "user/bob@acme.example",
        {"roles": ["StreamDataWriter"]},
    )
    with pytest.raises(UserExists):
        catalog.accounts.add_user(actor, "acme", "bob@acme.example", READER)
    both = READER | WRITER
    changed = catalog.accounts.change_user(actor, "acme", "bob@acme.example", roles=both, enabled=False)
    assert (changed.roles, changed.enabled) == (both, False)
    assert catalog.accounts.get_user("acme", "bob@acme.example") == changed
    assert last_event(catalog, "acme")[2] == {
        "roles": ["StreamDataReader", "StreamDataWriter"],
        "enabled": False,
    }
    catalog.accounts.remove_user(actor, "acme", "bob@acme.example")
    assert last_event(catalog, "acme")[0] == "user.delete"
    with pytest.raises(UserNotFound):
        catalog.accounts.get_user("acme", "bob@acme.example")


def test_names_of_another_tenant_are_not_found(catalog: Catalog) -> None:
    catalog.accounts.create_tenant(ADMIN, "acme")
    catalog.accounts.create_tenant(ADMIN, "other")
    catalog.accounts.add_user(ADMIN, "acme", "bob", WRITER)
    with pytest.raises(UserNotFound):
        catalog.accounts.get_user("other", "bob")
    assert catalog.accounts.list_users("other", PageRequest()).rows == []
    catalog.accounts.add_user(ADMIN, "other", "bob", READER)
    catalog.accounts.remove_user(ADMIN, "other", "bob")
    assert catalog.accounts.get_user("acme", "bob").roles == WRITER


def test_lists_come_in_pages_by_name(catalog: Catalog) -> None:
    catalog.accounts.create_tenant(ADMIN, "acme")
    for name in ("dora", "adam", "carl", "bob"):
        catalog.accounts.add_user(ADMIN, "acme", name, WRITER)
    first = catalog.accounts.list_users("acme", PageRequest(limit=3))
    assert [user.name for user in first.rows] == ["adam", "bob", "carl"]
    second = catalog.accounts.list_users("acme", PageRequest(after=first.next, limit=3))
    assert ([user.name for user in second.rows], second.next) == (["dora"], None)
    tenants = catalog.accounts.list_tenants(PageRequest(limit=1))
    assert [tenant.name for tenant in tenants.rows] == ["acme"]
    rest = catalog.accounts.list_tenants(PageRequest(after=tenants.next))
    assert [tenant.name for tenant in rest.rows] == ["default"]


def test_tokens_of_a_removed_user_stay_dead_when_the_name_comes_back(catalog: Catalog) -> None:
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER)
    made = catalog.tokens.make(ADMIN, "default", "bob", lifetime_seconds=None)
    catalog.accounts.remove_user(ADMIN, "default", "bob")
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER)
    with pytest.raises(TokenWrong):
        catalog.tokens.find(made.text)
    assert isinstance(catalog.tokens.check([made.id])[made.id], TokenRevoked)


def test_a_refused_change_leaves_no_audit_event(catalog: Catalog) -> None:
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER)
    before = catalog.audit.list("default", PageRequest()).rows
    with pytest.raises(UserExists):
        catalog.accounts.add_user(ADMIN, "default", "bob", READER)
    with pytest.raises(UserNotFound):
        catalog.accounts.remove_user(ADMIN, "default", "carl")
    assert catalog.audit.list("default", PageRequest()).rows == before


def test_of_many_who_add_one_name_at_once_one_does(
    place: DatabaseAddress, catalog: Catalog, clock: ManualClock, open_catalog: OpenCatalog
) -> None:
    others = [catalog, open_catalog(place, clock)] * 3
    outcomes: list[str] = []

    def add(one: Catalog) -> None:
        try:
            one.accounts.add_user(ADMIN, "default", "bob", WRITER)
            outcomes.append("added")
        except TidegateError as problem:
            outcomes.append(problem.code)

    threads = [threading.Thread(target=add, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["USER_EXISTS"] * 5 + ["added"]
