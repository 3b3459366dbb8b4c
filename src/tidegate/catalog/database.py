"""The catalog of an instance: an open database with accounts, quotas, tokens, audit trail, leases, jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, text

from tidegate.catalog.accounts import Accounts
from tidegate.catalog.audit import Audit
from tidegate.catalog.connections import Connections
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.dumps import dump, load
from tidegate.catalog.idempotency import IdempotencyKeys
from tidegate.catalog.jobs import Jobs
from tidegate.catalog.leases import Leases
from tidegate.catalog.migrations.upgrade import upgrade
from tidegate.catalog.quotas import AccountQuotas
from tidegate.catalog.tokens import Tokens
from tidegate.model.clock import Clock

RandomBytes = Callable[[int], bytes]


class Catalog:
    """An open catalog of the newest revision. Every call blocks. Threads: any."""

    def __init__(
        self, connections: Connections, revision: str, clock: Clock, random_bytes: RandomBytes
    ) -> None:
        self.revision = revision
        self._connections = connections
        self.audit = Audit(connections, clock)
        self.idempotency = IdempotencyKeys(connections, clock)
        self.accounts = Accounts(connections, clock, self.audit, self.idempotency)
        self.tokens = Tokens(connections, clock, random_bytes, self.audit, self.idempotency)
        self.quotas = AccountQuotas(connections, self.audit)
        self.leases = Leases(connections, clock)
        self.jobs = Jobs(connections, clock, random_bytes, self.leases, (self.audit, self.idempotency))

    @classmethod
    def open(cls, address: DatabaseAddress, clock: Clock, *, random_bytes: RandomBytes) -> Catalog:
        """Open a catalog; create its tables where there are none, and upgrade old ones.

        Several servers may open one at the same moment. A process that is killed here leaves the old tables
        or the new ones, and the next one continues.
        """
        connections = Connections(address, clock)
        try:
            revision = upgrade(connections)
        except BaseException:
            connections.close()
            raise
        connections.mark_ready()
        return cls(connections, revision, clock, random_bytes)

    @classmethod
    def load(
        cls, address: DatabaseAddress, folder: Path, clock: Clock, *, random_bytes: RandomBytes
    ) -> Catalog:
        """Load what `dump` wrote into an empty database, all of it or nothing, and open it."""
        connections = Connections(address, clock)
        try:
            load(connections, folder)
        finally:
            connections.close()
        return cls.open(address, clock, random_bytes=random_bytes)

    def dump(self, folder: Path) -> None:
        """Write every row of one snapshot into a folder, for `load` on either kind of database."""
        dump(self._connections, folder)

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._connections.close()

    def ping(self) -> None:
        """Run a statement that reads nothing; CatalogUnavailable when the database does not answer."""
        with self._connections.read() as connection:
            connection.execute(text("SELECT 1"))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection for one transaction: committed when the block ends, undone when it raises."""
        with self._connections.write() as connection:
            yield connection
