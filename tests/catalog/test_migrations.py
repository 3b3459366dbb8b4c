"""Migrations: from nothing, from every released revision, by several at once, and killed half-way."""

from __future__ import annotations

import os
import random
import secrets
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from tests.catalog.conftest import ADMIN_TOKEN, OpenCatalog
from tests.catalog.release import RELEASED
from tidegate.catalog import migrations
from tidegate.catalog.audit import system_actor
from tidegate.catalog.connections import Connections
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.idempotency import StoredAnswer
from tidegate.catalog.migrations.upgrade import REVISION_TABLE, known_revisions, newest_revision, upgrade
from tidegate.catalog.paging import PageRequest
from tidegate.catalog.tables import ALL_TABLES, METADATA
from tidegate.errors import CatalogTooNew, LeaseHeld
from tidegate.model.access import Role
from tidegate.model.clock import SystemClock
from tidegate.testing.clock import ManualClock

MIGRATIONS = Path(migrations.__file__ or "").parent
KILLS = 6  # of each kind of database; every seed is printed

# Says each statement it has run, so that the parent knows when to kill it.
MIGRATING_CHILD = """
import sys, time
from tidegate.catalog.connections import Connections
from tidegate.catalog.migrations.upgrade import upgrade
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.model.clock import SystemClock

def between_steps():
    print("step", flush=True)
    time.sleep(0.005)

place = DatabaseAddress(sys.stdin.readline().strip(), timeout_seconds=60)
upgrade(Connections(place, SystemClock()), between_steps)
print("done", flush=True)
"""
OPENING_CHILD = """
import secrets, sys
from tidegate.catalog.database import Catalog, DatabaseAddress
from tidegate.model.clock import SystemClock

place = DatabaseAddress(sys.stdin.readline().strip(), timeout_seconds=60)
print("ready", flush=True)
sys.stdin.readline()
print(Catalog.open(place, SystemClock(), random_bytes=secrets.token_bytes).revision, flush=True)
"""


def start_child(code: str, place: DatabaseAddress) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    child.stdin.write(place.url + "\n")  # not an argument: others see those, and it holds a password
    child.stdin.flush()
    return child


def next_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def load_released(place: DatabaseAddress, revision: str) -> None:
    """Put the SQL of a released revision into an empty database."""
    if place.file is not None:
        with sqlite3.connect(place.file) as connection:
            connection.executescript((RELEASED / f"{revision}.sqlite.sql").read_text(encoding="utf-8"))
        connection.close()
        return
    with psycopg.connect(place.url, autocommit=True) as server:
        server.execute((RELEASED / f"{revision}.postgresql.sql").read_bytes())


def tables_in(place: DatabaseAddress) -> set[str]:
    connections = Connections(place, SystemClock())
    try:
        with connections.read() as connection:
            return set(inspect(connection).get_table_names())
    finally:
        connections.close()


def test_revisions_are_numbered_in_order() -> None:
    assert list(known_revisions()) == [f"{number:04}" for number in range(1, len(known_revisions()) + 1)]


def test_files_are_named_after_the_revision_in_them() -> None:
    scripts = ScriptDirectory(str(MIGRATIONS))
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(known_revisions())
    for script in scripts.walk_revisions():
        assert Path(script.path).name.startswith(f"r{script.revision}_")


def test_a_catalog_that_is_up_to_date_opens_without_alembic_and_psycopg(
    sqlite_place: DatabaseAddress,
) -> None:
    Catalog.open(sqlite_place, SystemClock(), random_bytes=secrets.token_bytes).close()
    code = OPENING_CHILD + "print(*[name for name in ('alembic', 'psycopg') if name in sys.modules])"
    child = start_child(code, sqlite_place)
    said, _ = child.communicate("go\n")
    assert said.split() == ["ready", newest_revision()]


def test_every_revision_has_a_released_file_for_both_databases() -> None:
    names = {file.name for file in RELEASED.iterdir()}
    assert names == {f"{r}.{kind}.sql" for r in known_revisions() for kind in ("sqlite", "postgresql")}


def test_migrations_and_tables_say_the_same(place: DatabaseAddress) -> None:
    connections = Connections(place, SystemClock())
    assert upgrade(connections) == newest_revision()
    with connections.read() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": REVISION_TABLE}
        )
        assert compare_metadata(context, METADATA) == []
    connections.close()
    assert tables_in(place) >= {table.name for table in ALL_TABLES} | {REVISION_TABLE}


def test_an_open_catalog_names_its_revision_and_opens_again(
    place: DatabaseAddress, open_catalog: OpenCatalog, clock: ManualClock
) -> None:
    first = open_catalog(place, clock)
    first.accounts.ensure_admin(ADMIN_TOKEN)
    first.close()
    again = open_catalog(place, clock)
    assert first.revision == again.revision == newest_revision()
    assert again.tokens.find(ADMIN_TOKEN).user == "admin"


@pytest.mark.parametrize("revision", known_revisions())
def test_a_released_catalog_is_upgraded_with_its_rows(
    place: DatabaseAddress, open_catalog: OpenCatalog, revision: str
) -> None:
    load_released(place, revision)
    clock = ManualClock()
    catalog = open_catalog(place, clock)
    assert catalog.revision == newest_revision()
    assert catalog.tokens.find(ADMIN_TOKEN).is_instance_admin
    bob = catalog.accounts.get_user("acme", "bob")
    assert (bob.roles, bob.enabled) == (frozenset({Role.WRITER}), True)
    (token,) = catalog.tokens.list("acme", "bob", PageRequest()).rows
    assert (token.label, token.kind) == ("é ☃", "token")
    actions = [event.action for event in catalog.audit.list("default", PageRequest()).rows]
    made = [action for action in actions if action.endswith(".create")]
    assert made == ["token.create", "user.create", "tenant.create"]
    quotas = {("acme", ""): {"topics": 100, "disk_bytes": 0}, ("acme", "bob"): {"requests_per_second": 50}}
    assert catalog.quotas.all() == ({} if revision == "0001" else quotas)
    assert catalog.idempotency.find("default", "admin", "k", "f") == StoredAnswer(201, b"\x00\xff")
    with pytest.raises(LeaseHeld):
        catalog.leases.take("archive/a", "two", 60)
    (listed,) = catalog.jobs.list("acme", PageRequest()).rows
    job = catalog.jobs.get("acme", listed.id)
    assert (job.state, job.progress, job.details) == ("running", 0.25, {"a": [1, None, "ü"]})
    assert [event.note for event in job.history] == ["", "", "a note"]
    clock.advance(60)
    assert catalog.leases.take("archive/a", "two", 60).fence == 2
    taken = catalog.jobs.claim(["backup"], "two", 60)
    assert taken is not None
    assert (taken.job.id, taken.job.attempts) == (job.id, 2)
    assert catalog.audit.begin(system_actor("backup"), "backup.create", "x") > 4


def test_a_catalog_of_a_newer_version_is_refused(
    place: DatabaseAddress, open_catalog: OpenCatalog, clock: ManualClock
) -> None:
    catalog = open_catalog(place, clock)
    with catalog.transaction() as connection:
        connection.execute(text(f"UPDATE {REVISION_TABLE} SET version_num = '9999'"))
    with pytest.raises(CatalogTooNew, match="9999") as caught:
        open_catalog(place, clock)
    assert caught.value.values["catalog"] == place.shown


def test_servers_that_start_at_once_share_the_work(place: DatabaseAddress) -> None:
    children = [start_child(OPENING_CHILD, place) for _ in range(4)]
    try:
        for child in children:
            assert next_line(child) == "ready"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        assert [next_line(child) for child in children] == [newest_revision()] * 4
        assert [child.wait() for child in children] == [0] * 4
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.crash
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_migration_leaves_old_or_new_and_the_next_goes_on(
    place: DatabaseAddress, number: int
) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    steps = random.Random(seed).randrange(1, 24)
    child = start_child(MIGRATING_CHILD, place)
    seen = [next_line(child) for _ in range(steps)]
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert seen[0] == "step", "the child was killed at work"
    # 1. what is there is the old state (nothing) or the new one, never a part
    there = tables_in(place) & {table.name for table in ALL_TABLES}
    assert there in (set(), {table.name for table in ALL_TABLES}), f"seed {seed}"
    # 2. the next start brings it to the newest revision, and it works
    catalog = Catalog.open(place, SystemClock(), random_bytes=secrets.token_bytes)
    catalog.accounts.ensure_admin(ADMIN_TOKEN)
    assert catalog.tokens.find(ADMIN_TOKEN).is_instance_admin
    catalog.close()


def test_a_failed_step_undoes_the_whole_upgrade(place: DatabaseAddress) -> None:
    connections = Connections(place, SystemClock())
    count = 0

    def stop_at_tenth() -> None:
        nonlocal count
        count += 1
        if count == 10:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        upgrade(connections, stop_at_tenth)
    connections.close()
    assert tables_in(place) == set()


def test_the_migrations_are_shipped_as_packages() -> None:
    for file in ("__init__.py", "env.py", "versions/__init__.py"):
        assert (MIGRATIONS / file).exists()
