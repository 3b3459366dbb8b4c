"""Quotas of single accounts: set, changed, taken back, and gone with their user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.catalog.conftest import ADMIN, OpenCatalog
from tidegate.catalog.connections import Connections
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.dumps import load
from tidegate.catalog.paging import PageRequest
from tidegate.errors import TenantNotFound, UserNotFound
from tidegate.model.access import Role
from tidegate.testing.clock import ManualClock

AT_ONCE = 8


@pytest.fixture
def accounts(catalog: Catalog) -> Catalog:
    catalog.accounts.create_tenant(ADMIN, "acme")
    catalog.accounts.add_user(ADMIN, "acme", "bob", frozenset({Role.WRITER}))
    return catalog


def test_limits_are_set_one_by_one_and_taken_back(accounts: Catalog) -> None:
    assert accounts.quotas.all() == {}
    accounts.quotas.change_tenant(ADMIN, "acme", {"topics": 5, "tables": 0})
    assert accounts.quotas.change_tenant(ADMIN, "acme", {"groups": 7}) == {
        "topics": 5,
        "tables": 0,
        "groups": 7,
    }
    accounts.quotas.change_user(ADMIN, "acme", "bob", {"requests_per_second": 2**53 - 1})
    accounts.quotas.change_tenant(ADMIN, "acme", {"groups": None, "topics": 6})
    assert accounts.quotas.all() == {
        ("acme", ""): {"topics": 6, "tables": 0},
        ("acme", "bob"): {"requests_per_second": 2**53 - 1},
    }
    accounts.quotas.change_tenant(ADMIN, "acme", {"topics": None, "tables": None})
    accounts.quotas.change_user(ADMIN, "acme", "bob", {"requests_per_second": None})
    accounts.quotas.change_tenant(ADMIN, "acme", {"topics": None})
    assert accounts.quotas.all() == {}


def test_who_is_not_there_gets_no_quota(accounts: Catalog) -> None:
    with pytest.raises(TenantNotFound):
        accounts.quotas.change_tenant(ADMIN, "nobody", {"topics": 5})
    for tenant, user in (("acme", "carl"), ("default", "bob"), ("acme", "")):
        with pytest.raises(UserNotFound):
            accounts.quotas.change_user(ADMIN, tenant, user, {"requests_per_second": 5})
    assert accounts.quotas.all() == {}


def test_changes_at_once_are_all_kept(accounts: Catalog) -> None:
    def change(number: int) -> None:
        accounts.quotas.change_tenant(ADMIN, "acme", {f"quota_{number}": number})
        accounts.quotas.change_user(ADMIN, "acme", "bob", {f"quota_{number}": number})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(change, range(AT_ONCE)))
    every = {f"quota_{number}": number for number in range(AT_ONCE)}
    assert accounts.quotas.all() == {("acme", ""): every, ("acme", "bob"): every}


def test_the_quota_of_a_user_goes_with_the_user(accounts: Catalog) -> None:
    accounts.quotas.change_user(ADMIN, "acme", "bob", {"requests_per_second": 5})
    accounts.accounts.remove_user(ADMIN, "acme", "bob")
    accounts.accounts.add_user(ADMIN, "acme", "bob", frozenset({Role.WRITER}))
    assert accounts.quotas.all() == {}


def test_changes_are_in_the_audit_trail(accounts: Catalog) -> None:
    accounts.quotas.change_tenant(ADMIN, "acme", {"topics": 5})
    accounts.quotas.change_user(ADMIN, "acme", "bob", {"requests_per_second": None})
    newest, before = accounts.audit.list("default", PageRequest()).rows[:2]
    assert (newest.action, newest.subject) == ("user.change", "user/bob")
    assert newest.details == {"quota": {"requests_per_second": None}}
    assert (before.action, before.subject, before.details) == (
        "tenant.change",
        "tenant/acme",
        {"quota": {"topics": 5}},
    )


def test_quotas_are_in_a_dump(
    accounts: Catalog, tmp_path: Path, clock: ManualClock, open_catalog: OpenCatalog
) -> None:
    accounts.quotas.change_tenant(ADMIN, "acme", {"topics": 5})
    accounts.dump(tmp_path / "dump")
    place = DatabaseAddress(f"sqlite:///{tmp_path / 'loaded.db'}")
    connections = Connections(place, clock)
    load(connections, tmp_path / "dump")
    connections.close()
    assert open_catalog(place, clock).quotas.all() == {("acme", ""): {"topics": 5}}
