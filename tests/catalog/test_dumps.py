"""Copies of a catalog: every row, one moment, from either database into either."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from tests.catalog.conftest import ADMIN, ADMIN_TOKEN, KINDS, PATIENCE_SECONDS, OpenCatalog
from tests.catalog.postgres import Postgres
from tests.catalog.release import fill
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.paging import PageRequest
from tidegate.catalog.tables import ALL_TABLES, AUDIT, USERS
from tidegate.errors import BackupUnusable, CatalogTooNew, CatalogUnusable
from tidegate.model.access import Role
from tidegate.testing.clock import ManualClock

WRITER = frozenset({Role.WRITER})


@pytest.fixture(params=KINDS)
def other_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseAddress]:
    """Name where a copy goes: another empty database, again of each kind."""
    if request.param == "sqlite":
        yield DatabaseAddress(f"sqlite:///{tmp_path / 'copy.db'}", timeout_seconds=PATIENCE_SECONDS)
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.create_database()
    yield DatabaseAddress(url, timeout_seconds=PATIENCE_SECONDS)
    server.empty_database(url)


def rows_of(catalog: Catalog) -> dict[str, list[tuple[object, ...]]]:
    with catalog.transaction() as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in ALL_TABLES
        }


def load(place: DatabaseAddress, folder: Path, clock: ManualClock) -> Catalog:
    return Catalog.load(place, folder, clock, random_bytes=secrets.token_bytes)


def test_a_copy_holds_every_row_and_works(
    catalog: Catalog, other_place: DatabaseAddress, clock: ManualClock, tmp_path: Path
) -> None:
    token = fill(catalog)
    catalog.dump(tmp_path / "dump")
    copy = load(other_place, tmp_path / "dump", clock)
    try:
        rows, originals = rows_of(copy), rows_of(catalog)
        assert all(rows.values()), "the test fills every table"
        leases, held = rows.pop("leases"), originals.pop("leases")
        assert rows == originals
        # Leases are free in the copy, and the number of the next holder is higher all the same.
        assert [lease[2] for lease in leases] == [lease[2] for lease in held]
        assert copy.leases.take("archive/a", "another", 60).fence > int(str(held[0][2]))
        assert copy.tokens.find(token) == catalog.tokens.find(token)
        assert copy.tokens.find(ADMIN_TOKEN).is_instance_admin
        # Numbers go on where they were.
        newest = copy.audit.list("default", PageRequest(limit=1)).rows[0].id
        assert copy.audit.begin(ADMIN, "topic.create", "topic/x") > newest
        assert copy.jobs.create(ADMIN, "acme", "backup", "home").state == "queued"
    finally:
        copy.close()


def test_secrets_are_not_in_a_copy(catalog: Catalog, tmp_path: Path) -> None:
    token = fill(catalog)
    catalog.dump(tmp_path)
    texts = [file.read_text() for file in tmp_path.iterdir() if file.suffix in {".json", ".jsonl"}]
    assert texts
    assert not [text for text in texts if token in text or ADMIN_TOKEN in text]


def test_a_copy_is_of_one_moment(catalog: Catalog, clock: ManualClock, tmp_path: Path) -> None:
    # Each user comes with an event in one transaction: a copy has as many of the one as of the other.
    stop, at_work = threading.Event(), threading.Event()

    def add_users() -> None:
        number = 0
        while not stop.is_set():
            catalog.accounts.add_user(ADMIN, "default", f"user-{number}", WRITER)
            at_work.set()
            number += 1

    writer = threading.Thread(target=add_users)
    writer.start()
    try:
        assert at_work.wait(60)
        for number in range(5):
            catalog.dump(tmp_path / f"dump-{number}")
    finally:
        stop.set()
        writer.join()
    seen = []
    for number in range(5):
        folder = tmp_path / f"dump-{number}"
        users = (folder / "users.jsonl").read_text().splitlines()
        events = (folder / "audit.jsonl").read_text().splitlines()
        assert len(users) - 1 == len(events)
        seen.append(len(users))
    assert seen == sorted(seen)
    assert seen[-1] > 1


def test_a_database_with_rows_is_not_overwritten(
    catalog: Catalog, place: DatabaseAddress, clock: ManualClock, tmp_path: Path
) -> None:
    catalog.dump(tmp_path / "dump")
    before = rows_of(catalog)
    with pytest.raises(CatalogUnusable, match="not empty"):
        load(place, tmp_path / "dump", clock)
    assert rows_of(catalog) == before


def test_empty_tables_make_room(
    catalog: Catalog,
    other_place: DatabaseAddress,
    clock: ManualClock,
    tmp_path: Path,
    open_catalog: OpenCatalog,
) -> None:
    catalog.dump(tmp_path / "dump")
    open_catalog(other_place, clock).close()
    copy = load(other_place, tmp_path / "dump", clock)
    assert rows_of(copy) == rows_of(catalog)
    copy.close()


@pytest.mark.parametrize("damage", ["cut", "changed", "absent", "no index", "bad index", "other format"])
def test_a_damaged_copy_is_refused_and_nothing_is_made(
    catalog: Catalog, other_place: DatabaseAddress, clock: ManualClock, tmp_path: Path, damage: str
) -> None:
    fill(catalog)
    folder = tmp_path / "dump"
    catalog.dump(folder)
    users, index = folder / "users.jsonl", folder / "catalog.json"
    match damage:
        case "cut":
            users.write_bytes(users.read_bytes()[:-5])
        case "changed":
            users.write_bytes(users.read_bytes().replace(b"bob", b"bib"))
        case "absent":
            users.unlink()
        case "no index":
            index.unlink()
        case "bad index":
            index.write_bytes(b"{")
        case "other format":
            index.write_text(json.dumps(json.loads(index.read_text()) | {"format": 2}))
    with pytest.raises(BackupUnusable):
        load(other_place, folder, clock)
    empty = Catalog.open(other_place, clock, random_bytes=secrets.token_bytes)
    assert not any(rows_of(empty).values())
    empty.close()


def test_a_copy_of_a_newer_version_is_refused(
    catalog: Catalog, other_place: DatabaseAddress, clock: ManualClock, tmp_path: Path
) -> None:
    catalog.dump(tmp_path / "dump")
    index = tmp_path / "dump" / "catalog.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"revision": "9999"}))
    with pytest.raises(CatalogTooNew, match="9999"):
        load(other_place, tmp_path / "dump", clock)


def test_a_load_that_fails_half_way_leaves_nothing(
    catalog: Catalog, other_place: DatabaseAddress, clock: ManualClock, tmp_path: Path
) -> None:
    import hashlib

    fill(catalog)
    folder = tmp_path / "dump"
    catalog.dump(folder)
    # A user of a tenant that is not there: found by the database when other rows are in already.
    users, index = folder / "users.jsonl", folder / "catalog.json"
    users.write_bytes(users.read_bytes().replace(b'"tenant":"acme"', b'"tenant":"gone"'))
    told = json.loads(index.read_text())
    told["tables"]["users"]["sha256"] = hashlib.sha256(users.read_bytes()).hexdigest()
    index.write_text(json.dumps(told))
    with pytest.raises(CatalogUnusable):
        load(other_place, folder, clock)
    empty = Catalog.open(other_place, clock, random_bytes=secrets.token_bytes)
    with empty.transaction() as connection:
        for table in (USERS, AUDIT):
            assert connection.execute(select(func.count()).select_from(table)).scalar_one() == 0
    empty.close()
