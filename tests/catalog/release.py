"""Write down the newest revision as a released one: `python -m tests.catalog.release`.

Makes a catalog with something in every table and dumps it as SQL, once for each database, under `released/`.
Every later version must be able to upgrade these files; they are never written again.
"""

from __future__ import annotations

import hashlib
import itertools
import sqlite3
import subprocess
import tempfile
from pathlib import Path

from tests.catalog.conftest import ADMIN, ADMIN_TOKEN
from tests.catalog.postgres import PASSWORD, Postgres, find_binaries
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.idempotency import IdempotencyKey
from tidegate.model.access import Role
from tidegate.testing.clock import ManualClock

RELEASED = Path(__file__).parent / "released"


def fill(catalog: Catalog) -> str:
    """Put something into every table and give the text of a token."""
    catalog.accounts.ensure_admin(ADMIN_TOKEN, "home-1")
    catalog.accounts.create_tenant(ADMIN, "acme")
    answered = IdempotencyKey("admin", "k", "f", lambda _: (201, b"\x00\xff"))
    catalog.accounts.add_user(ADMIN, "acme", "bob", frozenset({Role.WRITER}), key=answered)
    catalog.quotas.change_tenant(ADMIN, "acme", {"topics": 100, "disk_bytes": 0})
    catalog.quotas.change_user(ADMIN, "acme", "bob", {"requests_per_second": 50})
    made = catalog.tokens.make(ADMIN, "acme", "bob", label="é ☃", lifetime_seconds=3600)
    catalog.tokens.make_link(catalog.tokens.find(made.text), 60)
    catalog.leases.take("archive/a", "one", 60)
    job = catalog.jobs.create(ADMIN, "acme", "backup", "home", {"a": [1, None, "ü"]})
    claimed = catalog.jobs.claim(job.id, "one", 60)
    if claimed is not None:
        catalog.jobs.progress(claimed, 0.25, "a note")
    return made.text


def make(place: DatabaseAddress) -> str:
    """Make the same catalog every time, and name its revision."""
    numbers = itertools.count()

    def repeatable_bytes(count: int) -> bytes:
        return hashlib.sha256(str(next(numbers)).encode()).digest()[:count]

    catalog = Catalog.open(place, ManualClock(), random_bytes=repeatable_bytes)
    fill(catalog)
    catalog.close()
    return catalog.revision


def sqlite_text(folder: Path) -> tuple[str, str]:
    revision = make(DatabaseAddress(f"sqlite:///{folder / 'catalog.db'}"))
    connection = sqlite3.connect(folder / "catalog.db")
    text = "\n".join(connection.iterdump()) + "\n"
    connection.close()
    return revision, text


def postgresql_text(binaries: Path) -> tuple[str, str]:
    server = Postgres(binaries)
    try:
        url = server.create_database()
        revision = make(DatabaseAddress(url))
        dumped = subprocess.run(
            [binaries / "pg_dump", "--inserts", "--no-owner", "--no-comments", url],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    finally:
        server.close()
    # Lines with a backslash are for psql, and say which run made them.
    kept = [line for line in dumped.splitlines() if line and not line.startswith(("--", "\\"))]
    return revision, "\n".join(kept) + "\n"


def main() -> None:
    """Write both files."""
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL is not installed here")
    with tempfile.TemporaryDirectory() as folder:
        revision, text = sqlite_text(Path(folder))
    (RELEASED / f"{revision}.sqlite.sql").write_text(text, encoding="utf-8")
    revision, text = postgresql_text(binaries)
    if PASSWORD in text:
        raise SystemExit("the dump holds a password")
    (RELEASED / f"{revision}.postgresql.sql").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
