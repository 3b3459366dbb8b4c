"""The catalog of an instance: takes a place, gives people, tokens, leases and jobs, keeps its connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, text

from tidegate.catalog.accounts import People
from tidegate.catalog.audit import Audit
from tidegate.catalog.connections import Connections
from tidegate.catalog.database_url import CatalogPlace
from tidegate.catalog.dumps import dump, load
from tidegate.catalog.idempotency import Answers
from tidegate.catalog.jobs import Jobs
from tidegate.catalog.leases import Leases
from tidegate.catalog.migrations.upgrade import upgrade
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
        self.answers = Answers(connections, clock)
        self.people = People(connections, clock, self.audit, self.answers)
        self.tokens = Tokens(connections, clock, random_bytes, self.audit, self.answers)
        self.leases = Leases(connections, clock)
        self.jobs = Jobs(connections, clock, random_bytes, self.leases, (self.audit, self.answers))

    @classmethod
    def open(cls, place: CatalogPlace, clock: Clock, *, random_bytes: RandomBytes) -> Catalog:
        """Open a catalog; make its tables where there are none, and bring old ones to the newest revision.

        Several servers may open one at the same moment. A process that is killed here leaves the old tables
        or the new ones, and the next one goes on.
        """
        connections = Connections(place, clock)
        try:
            revision = upgrade(connections)
        except BaseException:
            connections.close()
            raise
        connections.opened()
        return cls(connections, revision, clock, random_bytes)

    @classmethod
    def load(cls, place: CatalogPlace, folder: Path, clock: Clock, *, random_bytes: RandomBytes) -> Catalog:
        """Put what `dump` wrote into an empty database, all of it or nothing, and open it."""
        connections = Connections(place, clock)
        try:
            load(connections, folder)
        finally:
            connections.close()
        return cls.open(place, clock, random_bytes=random_bytes)

    def dump(self, folder: Path) -> None:
        """Write every row of one moment into a folder, for `load` on either kind of database."""
        dump(self._connections, folder)

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._connections.close()

    def ping(self) -> None:
        """Ask the database for an answer; CatalogUnavailable when there is none."""
        with self._connections.read() as connection:
            connection.execute(text("SELECT 1"))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Lend a connection for one transaction: committed when the block ends, undone when it raises."""
        with self._connections.write() as connection:
            yield connection
