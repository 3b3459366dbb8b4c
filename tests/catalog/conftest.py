"""A catalog on SQLite and one on PostgreSQL: every test that asks for `place` runs on both."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.catalog.postgres import Postgres
from tidegate.catalog.audit import Actor
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.model.clock import Clock
from tidegate.testing.clock import ManualClock

ADMIN = Actor("default", "admin", "request-1")
ADMIN_TOKEN = "the-text-of-an-admin.token-file-is-long"
KINDS = ["sqlite", "postgresql"]
# Nothing here tests patience: a disk that syncs slowly is waited for.
PATIENCE_SECONDS = 60.0

OpenCatalog = Callable[..., Catalog]


@pytest.fixture
def sqlite_place(tmp_path: Path) -> DatabaseAddress:
    """Name a file that is not there yet."""
    return DatabaseAddress(f"sqlite:///{tmp_path / 'catalog.db'}", timeout_seconds=PATIENCE_SECONDS)


@pytest.fixture
def postgres_place(postgres: Postgres) -> Iterator[DatabaseAddress]:
    """Name an empty database."""
    url = postgres.create_database()
    yield DatabaseAddress(url, timeout_seconds=PATIENCE_SECONDS)
    postgres.empty_database(url)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> DatabaseAddress:
    """Name an empty database of each kind."""
    name = "sqlite_place" if request.param == "sqlite" else "postgres_place"
    found = request.getfixturevalue(name)
    assert isinstance(found, DatabaseAddress)
    return found


@pytest.fixture
def clock() -> ManualClock:
    """Return the clock of the test's catalog."""
    return ManualClock()


@pytest.fixture
def open_catalog() -> Iterator[OpenCatalog]:
    """Return a function that opens catalogs; all are closed at the end."""
    opened: list[Catalog] = []

    def open_one(place: DatabaseAddress, clock: Clock) -> Catalog:
        catalog = Catalog.open(place, clock, random_bytes=secrets.token_bytes)
        opened.append(catalog)
        return catalog

    yield open_one
    for catalog in opened:
        catalog.close()


@pytest.fixture
def catalog(place: DatabaseAddress, clock: ManualClock, open_catalog: OpenCatalog) -> Catalog:
    """Return an open catalog with its first administrator."""
    catalog = open_catalog(place, clock)
    catalog.accounts.ensure_admin(ADMIN_TOKEN, "home-1")
    return catalog
