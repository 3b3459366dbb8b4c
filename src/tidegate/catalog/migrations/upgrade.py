"""The upgrade of a catalog to the newest revision."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, column, event, select, table
from sqlalchemy.exc import DBAPIError

from tidegate.catalog.connections import Connections
from tidegate.catalog.database_errors import is_absent_table
from tidegate.errors import CatalogTooNew

# A name of our own: another program in the same database may use Alembic too.
REVISION_TABLE = "catalog_revision"
# The advisory lock of a migration on PostgreSQL: a number that no other program is likely to use.
_MIGRATION_LOCK = 0x7469_6465_6761_7465
# Alembic keeps what it is doing in globals of its modules: one upgrade at a time in one Python.
_ALEMBIC = threading.Lock()
_REVISION = table(REVISION_TABLE, column("version_num"))

BetweenSteps = Callable[[], None]


@functools.cache
def known_revisions() -> tuple[str, ...]:
    """Return every revision that this version knows, oldest first."""
    # By file name, because Alembic is slow to load and most starts have nothing to migrate.
    files = (Path(__file__).parent / "versions").glob("r*_*.py")
    return tuple(sorted(file.name[1:].split("_")[0] for file in files))


def newest_revision() -> str:
    """Return the revision that this version works with."""
    return known_revisions()[-1]


def upgrade(connections: Connections, between_steps: BetweenSteps | None = None) -> str:
    """Upgrade the tables to the newest revision and return it; of concurrent calls one does the work.

    A revision that this version does not know is CatalogTooNew. `between_steps` is called after every
    statement: tests stop the world there.
    """
    found = _read_revision(connections)
    if found != newest_revision():
        with connections.rebuild() as connection:
            lock(connection)
            upgrade_to("head", connection, connections, between_steps)
    return newest_revision()


def lock(connection: Connection) -> None:
    """Wait for other migrations, and block them until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")


def upgrade_to(
    revision: str,
    connection: Connection,
    connections: Connections,
    between_steps: BetweenSteps | None = None,
) -> None:
    """Run the steps up to a revision in the transaction of a connection."""
    from alembic import command
    from alembic.config import Config

    check_known(_revision_on(connection), connections)
    config = Config()
    # Percent signs are Alembic's own placeholders.
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    if between_steps is not None:
        pause = between_steps
        event.listen(connection, "after_cursor_execute", lambda *_: pause())
    with _ALEMBIC:
        command.upgrade(config, revision)


def check_known(revision: str | None, connections: Connections) -> None:
    """Raise CatalogTooNew for a revision of a newer version."""
    if revision is not None and revision not in known_revisions():
        raise CatalogTooNew(catalog=connections.address.shown, found=revision)


def _read_revision(connections: Connections) -> str | None:
    with connections.read() as connection:
        try:
            found = connection.execute(select(_REVISION.c.version_num)).scalar_one_or_none()
        except DBAPIError as problem:
            if not is_absent_table(problem):
                raise
            return None
    revision = None if found is None else str(found)
    check_known(revision, connections)
    return revision


def _revision_on(connection: Connection) -> str | None:
    if not connection.dialect.has_table(connection, REVISION_TABLE):
        return None
    found = connection.execute(select(_REVISION.c.version_num)).scalar_one_or_none()
    return None if found is None else str(found)
