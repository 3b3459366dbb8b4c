"""What the catalog says when its database fails, and that it goes on when the database is back."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import OperationalError

from tests.catalog.conftest import ADMIN, ADMIN_TOKEN, OpenCatalog
from tests.catalog.postgres import PASSWORD, Postgres
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_errors import reason_of
from tidegate.catalog.database_url import DatabaseAddress, file_url
from tidegate.catalog.idempotency import StoredAnswer
from tidegate.errors import (
    CatalogUnavailable,
    CatalogUnusable,
    InvariantBroken,
    LeaseLost,
    StorageCorrupt,
    StorageFull,
    TidegateError,
)
from tidegate.model.access import Role
from tidegate.model.clock import SystemClock
from tidegate.testing.clock import ManualClock

# For whom nothing is waited: long enough for a busy machine, and nobody waits for the end of it.
PATIENCE_SECONDS = 60.0
# For those who do wait for the end of it.
BRIEF_SECONDS = 3.0


@pytest.fixture
def fragile_place(fragile_postgres: Postgres) -> DatabaseAddress:
    """Name an empty database there."""
    return DatabaseAddress(fragile_postgres.create_database(), timeout_seconds=PATIENCE_SECONDS)


@pytest.fixture
def fragile_catalog(fragile_place: DatabaseAddress, open_catalog: OpenCatalog) -> Catalog:
    """Open a catalog there."""
    catalog = open_catalog(fragile_place, SystemClock())
    catalog.accounts.ensure_admin(ADMIN_TOKEN)
    return catalog


def chain(problem: BaseException) -> str:
    """Return everything that a log of an error would show."""
    texts = []
    found: BaseException | None = problem
    while found is not None:
        texts.append(f"{found!r} {found}")
        found = found.__cause__ or found.__context__
    return "\n".join(texts)


def test_a_stopped_postgres_is_unavailable_and_works_again_when_back(
    fragile_postgres: Postgres, fragile_catalog: Catalog
) -> None:
    fragile_postgres.stop()
    try:
        for call in (
            fragile_catalog.ping,
            lambda: fragile_catalog.tokens.find(ADMIN_TOKEN),
            lambda: fragile_catalog.accounts.add_user(ADMIN, "default", "bob", frozenset({Role.WRITER})),
        ):
            with pytest.raises(CatalogUnavailable) as caught:
                call()
            assert caught.value.retryable
            assert PASSWORD not in chain(caught.value)
    finally:
        fragile_postgres.start()
    fragile_catalog.ping()
    assert fragile_catalog.tokens.find(ADMIN_TOKEN).user == "admin"


def test_a_restart_between_two_calls_goes_unnoticed(
    fragile_postgres: Postgres, fragile_catalog: Catalog
) -> None:
    assert fragile_catalog.tokens.find(ADMIN_TOKEN).user == "admin"
    fragile_postgres.restart()
    assert fragile_catalog.leases.take("a", "one", 10).fence == 1
    assert fragile_catalog.tokens.find(ADMIN_TOKEN).user == "admin"


@pytest.mark.parametrize("how", ["restart", "kill"])
def test_postgres_restarted_under_load_gives_clear_errors_and_then_goes_on(
    fragile_postgres: Postgres, fragile_catalog: Catalog, how: str
) -> None:
    catalog = fragile_catalog
    stop, errors, calls = threading.Event(), [], [0] * 4
    renewed: dict[int, int] = {}

    def load(number: int) -> None:
        lease = catalog.leases.take(f"load/{number}", f"holder-{number}", 3_600)
        while not stop.is_set():
            try:
                if number % 2:
                    lease = catalog.leases.renew(lease)
                else:
                    assert catalog.tokens.find(ADMIN_TOKEN).user == "admin"
                calls[number] += 1
                renewed[number] = lease.fence
            except BaseException as problem:  # noqa: BLE001 - whatever it is, the test must see it
                errors.append(problem)
                if not isinstance(problem, CatalogUnavailable):
                    return

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_for_calls(calls)
    if how == "restart":
        fragile_postgres.restart()
    else:
        fragile_postgres.kill()
        fragile_postgres.start()
    before = list(calls)
    wait_for_calls(calls, before)
    stop.set()
    for thread in threads:
        thread.join()
    assert {type(problem) for problem in errors} <= {CatalogUnavailable}, [chain(one) for one in errors]
    assert PASSWORD not in "".join(chain(problem) for problem in errors)
    assert renewed == dict.fromkeys(range(4), 1), "every holder kept its lease"
    catalog.ping()


def wait_for_calls(calls: list[int], before: list[int] | None = None) -> None:
    """Wait until every thread did something more."""
    past = before or [0] * len(calls)
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS
    while any(now <= then for now, then in zip(calls, past, strict=True)):
        assert time.monotonic() < deadline, f"a thread does nothing more: {calls}"
        time.sleep(0.01)


def test_a_frozen_postgres_is_given_up_in_time(
    fragile_postgres: Postgres,
    fragile_place: DatabaseAddress,
    fragile_catalog: Catalog,
    open_catalog: OpenCatalog,
) -> None:
    hasty = open_catalog(DatabaseAddress(fragile_place.url, timeout_seconds=BRIEF_SECONDS), SystemClock())
    hasty.ping()
    fragile_postgres.pause()
    try:
        # A pause that never ends: a call that waits for it would hang this test.
        with pytest.raises(CatalogUnavailable):
            hasty.ping()
        with pytest.raises(CatalogUnavailable):
            hasty.leases.take("a", "one", 10)
    finally:
        fragile_postgres.resume()
    fragile_catalog.ping()  # it answers again, however long that takes
    hasty.ping()


def test_a_lock_that_is_never_given_back_is_unavailable(
    postgres_place: DatabaseAddress, open_catalog: OpenCatalog
) -> None:
    one = open_catalog(postgres_place, SystemClock())
    two = open_catalog(DatabaseAddress(postgres_place.url, timeout_seconds=BRIEF_SECONDS), SystemClock())
    lease = one.leases.take("a", "one", 0.001)
    with pytest.raises(LeaseLost), one.transaction() as connection:
        one.leases.check(connection, lease)
        with pytest.raises(CatalogUnavailable, match="timeout"):
            two.leases.take("a", "two", 10)
        raise LeaseLost(leases="a")
    assert two.leases.take("a", "two", 10).fence == 2


def test_more_at_once_than_connections_wait_and_are_then_told(
    postgres_place: DatabaseAddress, open_catalog: OpenCatalog
) -> None:
    place = DatabaseAddress(postgres_place.url, connections_max=1, timeout_seconds=BRIEF_SECONDS)
    catalog = open_catalog(place, SystemClock())
    with catalog.transaction(), pytest.raises(CatalogUnavailable, match="1 connections are in use"):
        catalog.ping()
    catalog.ping()


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("postgresql://tidegate:hidden-word@127.0.0.1:{port}/postgres", CatalogUnusable),
        ("postgresql://tidegate:{password}@127.0.0.1:{port}/absent", CatalogUnusable),
        ("postgresql://tidegate:hidden-word@127.0.0.1:1/x", CatalogUnavailable),
        ("postgresql://tidegate:hidden-word@host:port/x", CatalogUnusable),
        ("postgresql://tidegate:hidden-word@[::1/x", CatalogUnusable),
        ("mysql://tidegate:hidden-word@host/x", CatalogUnusable),
        ("hidden-word", CatalogUnusable),
        ("sqlite://", CatalogUnusable),
    ],
)
def test_an_address_that_does_not_work_is_refused_without_its_password(
    postgres: Postgres, address: str, kind: type[TidegateError]
) -> None:
    url = address.format(port=postgres.port, password=PASSWORD)
    place = DatabaseAddress(url, timeout_seconds=PATIENCE_SECONDS)
    with pytest.raises(kind) as caught:
        Catalog.open(place, ManualClock(), random_bytes=os.urandom)
    for secret in (PASSWORD, "hidden-word"):
        assert secret not in chain(caught.value)
    assert "hidden-word" not in repr(place)


def test_what_a_driver_says_is_repeated_without_secrets() -> None:
    place = DatabaseAddress("postgresql://tidegate:hidden-word@host/x?sslpassword=other-word")
    said = psycopg.OperationalError("cannot use hidden-word\nDETAIL: other-word")
    problem = OperationalError("SELECT 1", {}, said)
    assert reason_of(problem, place) == "cannot use ***"
    said = psycopg.OperationalError("no key for other-word, " + "x" * 500)
    assert reason_of(OperationalError("SELECT 1", {}, said), place).startswith("no key for ***, xxx")


def test_someone_elses_tables_are_not_touched(postgres: Postgres, postgres_place: DatabaseAddress) -> None:
    database = postgres_place.url.rsplit("/", 1)[1]
    postgres.execute(database, "CREATE TABLE users (theirs text)")
    with pytest.raises(CatalogUnusable, match="users"):
        Catalog.open(postgres_place, ManualClock(), random_bytes=os.urandom)
    postgres.execute(database, "SELECT theirs FROM users")


def test_a_file_that_is_no_database_is_refused(sqlite_place: DatabaseAddress) -> None:
    file = sqlite_place.file
    assert file is not None
    file.write_bytes(b"this is a text and not a database, and it is long enough " * 100)
    with pytest.raises(CatalogUnusable, match=r"catalog\.db"):
        Catalog.open(sqlite_place, ManualClock(), random_bytes=os.urandom)


def test_a_damaged_file_is_told_from_a_busy_one(
    sqlite_place: DatabaseAddress, open_catalog: OpenCatalog
) -> None:
    catalog = open_catalog(sqlite_place, ManualClock())
    catalog.accounts.ensure_admin(ADMIN_TOKEN)
    catalog.close()
    file = sqlite_place.file
    assert file is not None
    content = bytearray(file.read_bytes())
    for start in range(4096, len(content), 4096):
        content[start : start + 200] = b"\xa5" * 200
    file.write_bytes(content)
    with pytest.raises(StorageCorrupt, match=r"catalog\.db"):
        damaged = open_catalog(sqlite_place, ManualClock())
        damaged.tokens.find(ADMIN_TOKEN)


def test_a_file_that_someone_else_writes_to_is_unavailable(tmp_path: Path, open_catalog: OpenCatalog) -> None:
    file = tmp_path / "catalog.db"
    catalog = open_catalog(DatabaseAddress(f"sqlite:///{file}", timeout_seconds=0.2), ManualClock())
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CatalogUnavailable, match="someone else is writing"):
        catalog.accounts.ensure_admin(ADMIN_TOKEN)
    catalog.ping()  # reading goes on
    other.execute("ROLLBACK")
    catalog.accounts.ensure_admin(ADMIN_TOKEN)
    other.close()


def test_a_full_disk_is_told_and_nothing_is_written(
    sqlite_place: DatabaseAddress, open_catalog: OpenCatalog
) -> None:
    catalog = open_catalog(sqlite_place, ManualClock())
    answer = StoredAnswer(200, b"x" * 1_000_000)
    with pytest.raises(StorageFull), catalog.transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        catalog.idempotency.store(connection, "acme", "bob", "k", "f", answer)
    assert catalog.idempotency.find("acme", "bob", "k", "f") is None


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    place = DatabaseAddress(f"sqlite:///{tmp_path / 'absent' / 'catalog.db'}")
    with pytest.raises(CatalogUnusable, match="No such file"):
        Catalog.open(place, ManualClock(), random_bytes=os.urandom)


@pytest.mark.parametrize("name", ["with space", "what?", "100%", "a%20b", "#1", "ü@:"])
def test_a_home_may_have_any_name(tmp_path: Path, name: str, open_catalog: OpenCatalog) -> None:
    (tmp_path / name).mkdir()
    file = tmp_path / name / "catalog.db"
    place = DatabaseAddress(file_url(file))
    open_catalog(place, ManualClock()).accounts.ensure_admin(ADMIN_TOKEN)
    assert (place.file, place.shown) == (file, str(file))
    assert file.stat().st_size > 0


def test_the_file_is_for_its_owner_alone_and_durable(
    sqlite_place: DatabaseAddress, open_catalog: OpenCatalog
) -> None:
    catalog = open_catalog(sqlite_place, ManualClock())
    file = sqlite_place.file
    assert file is not None
    for name in file.parent.glob("catalog.db*"):
        assert stat.S_IMODE(name.stat().st_mode) == 0o600
    with catalog.transaction() as connection:
        found = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert found == ["wal", 2, 1]


def test_a_statement_that_is_wrong_is_our_mistake(catalog: Catalog) -> None:
    with pytest.raises((InvariantBroken, CatalogUnavailable)), catalog.transaction() as connection:
        connection.exec_driver_sql("SELECT nothing FROM nowhere")
    catalog.ping()


def test_a_transaction_that_raises_is_undone_and_its_error_is_kept(catalog: Catalog) -> None:
    with pytest.raises(ZeroDivisionError), catalog.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM tokens")
        _ = 1 / 0
    assert catalog.tokens.find(ADMIN_TOKEN).user == "admin"
