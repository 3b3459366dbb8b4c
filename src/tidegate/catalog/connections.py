"""Connections and transactions of the catalog's database.

    read     sees committed rows; on PostgreSQL each statement by itself, on SQLite one snapshot
    write    all or nothing, durable when the block ends; on SQLite BEGIN IMMEDIATE, one writer at a time
    snapshot one moment for many statements, and time to read it all

A connection that died in the pool is detected at checkout, so that a database that was restarted works again
with the next call. Every failure is raised as a TidegateError.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Delete, Engine, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from tidegate.catalog.database_errors import fault_of
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.errors import CatalogUnavailable, CatalogUnusable
from tidegate.model.clock import Clock

LONG_WORK_SECONDS_MAX = 600.0  # migrations and copies of everything: minutes, not hours
CLIENT_EXTRA_SECONDS = 1.0  # the client's timeout is that much longer than the server's
_TIMEOUTS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
_BEGIN = "tidegate_begin"  # the option with the statement that begins a transaction on SQLite
_KEEPALIVE_COUNT = 3
_SWITCH_POLL_SECONDS = 0.01


class Connections:
    """A pool of connections to one database. Threads: any."""

    def __init__(self, address: DatabaseAddress, clock: Clock) -> None:
        self.address = address
        self.is_sqlite = address.file is not None
        self._opening = True
        # SQLite has one writer; the threads of this process queue here, which is fair and needs no polling.
        self._writer = threading.Lock() if self.is_sqlite else None
        self._engine = _sqlite_engine(address) if self.is_sqlite else _postgresql_engine(address, clock)
        if self.is_sqlite:
            self._reads = self._engine
            self._snapshots = self._engine
        else:
            self._reads = self._engine.execution_options(isolation_level="AUTOCOMMIT")
            self._snapshots = self._engine.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        self._writes = self._engine.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})

    def mark_ready(self) -> None:
        """Note that the database works: failures from now on may be temporary."""
        self._opening = False

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection for reading."""
        with self._named_faults(), self._reads.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection for one transaction: committed when the block ends, undone when it raises."""
        with self._named_faults(), self._turn(), self._writes.begin() as connection:
            yield connection

    @contextmanager
    def write_one(self) -> Iterator[Connection]:
        """Yield a connection for one statement that is a transaction by itself: fewer trips to PostgreSQL."""
        with self.write() if self.is_sqlite else self.read() as connection:
            yield connection

    def delete_in_portions(self, statement: Delete, rows_max: int) -> int:
        """Run a DELETE of at most `rows_max` rows until it deletes fewer; return the number of rows."""
        count = 0
        while True:
            with self.write() as connection:
                deleted = connection.execute(statement).rowcount
            count += deleted
            if deleted < rows_max:
                return count

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Yield a connection on which every statement sees the same snapshot."""
        with self._named_faults(), self._snapshots.connect() as connection, self._long_work(connection):
            yield connection

    @contextmanager
    def rebuild(self) -> Iterator[Connection]:
        """Yield a connection for one transaction that may change tables and take minutes."""
        with self._named_faults(), self._turn(), self._writes.connect() as connection:
            if self.is_sqlite:
                # Changing a table on SQLite means a copy and a rename, which references must not notice.
                _pragma(connection, "foreign_keys=OFF")
            try:
                with connection.begin(), self._long_work(connection):
                    yield connection
                    if self.is_sqlite:
                        self._check_references(connection)
            finally:
                if self.is_sqlite and not connection.invalidated:
                    _pragma(connection, "foreign_keys=ON")

    @contextmanager
    def _named_faults(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, UnicodeError) as problem:
            raise fault_of(problem, self.address, opening=self._opening) from problem

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._writer is None:
            yield
            return
        if not self._writer.acquire(timeout=self.address.timeout_seconds):
            raise CatalogUnavailable(reason=f"writes to {self.address.file} take too long")
        try:
            yield
        finally:
            self._writer.release()

    @contextmanager
    def _long_work(self, connection: Connection) -> Iterator[None]:
        """Let the statements of one transaction take minutes."""
        if self.is_sqlite:
            yield
            return
        for name in _TIMEOUTS:
            connection.exec_driver_sql(f"SET LOCAL {name} = {int(LONG_WORK_SECONDS_MAX * 1_000)}")
        driver: Any = connection.connection.driver_connection
        usual_seconds = driver.timeout_seconds
        driver.timeout_seconds = LONG_WORK_SECONDS_MAX
        try:
            yield
        finally:
            driver.timeout_seconds = usual_seconds

    def _check_references(self, connection: Connection) -> None:
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            tables = ", ".join(sorted({str(row[0]) for row in broken}))
            raise CatalogUnusable(catalog=self.address.shown, reason=f"rows of {tables} point at nothing")


def insert_if_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key exists; True if it was inserted.

    Waits for another transaction that inserts the same key, and then sees its outcome.
    """
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table).values(**values).on_conflict_do_nothing()
    key = table.primary_key.columns.values()[0]
    return connection.execute(statement.returning(key)).one_or_none() is not None


def _pragma(connection: Connection, setting: str) -> None:
    # Straight to the driver: a pragma inside a transaction does nothing.
    driver = connection.connection.driver_connection
    if driver is not None:
        driver.execute(f"PRAGMA {setting}")


def _sqlite_engine(address: DatabaseAddress) -> Engine:
    if address.file is not None:
        _make_private(address.file, address)
    engine = create_engine(
        address.engine_url,
        pool_size=address.connections_max,
        max_overflow=0,
        pool_timeout=address.timeout_seconds,
        hide_parameters=True,
        connect_args={"timeout": address.timeout_seconds, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _connected(driver: Any, _record: Any) -> None:
        driver.isolation_level = None  # transactions begin by explicit statements, not implicitly
        for setting in ("synchronous=FULL", "foreign_keys=ON"):
            driver.execute(f"PRAGMA {setting}")
        _use_log(driver, address.timeout_seconds)

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))

    return engine


def _use_log(driver: sqlite3.Connection, timeout_seconds: float) -> None:
    """Switch a new file to a write-ahead log.

    The switch does not wait for others that open the new file at the same moment, so it is retried.
    """
    driver.execute("PRAGMA busy_timeout=0")
    for left in reversed(range(math.ceil(timeout_seconds / _SWITCH_POLL_SECONDS))):
        try:
            driver.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as problem:
            if left == 0 or problem.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(_SWITCH_POLL_SECONDS)
    driver.execute(f"PRAGMA busy_timeout={int(timeout_seconds * 1_000)}")


def _postgresql_engine(address: DatabaseAddress, clock: Clock) -> Engine:
    # Here, so that a catalog on SQLite opens without loading psycopg.
    from tidegate.catalog.postgres_connection import TimeoutConnection

    milliseconds = max(1, int(address.timeout_seconds * 1_000))
    seconds = max(1, math.ceil(address.timeout_seconds))
    engine = create_engine(
        address.engine_url,
        pool_size=address.connections_max,
        max_overflow=0,
        pool_timeout=address.timeout_seconds,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args={
            "connect_timeout": seconds,
            "application_name": "tidegate",
            "tcp_user_timeout": milliseconds,
            "keepalives_idle": seconds,
            "keepalives_interval": seconds,
            "keepalives_count": _KEEPALIVE_COUNT,
        },
    )

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, args: Any, options: Any) -> TimeoutConnection:
        driver = TimeoutConnection.connect(*args, **options)
        driver.clock = clock
        # The server gives up first, which leaves the connection usable.
        driver.timeout_seconds = address.timeout_seconds + CLIENT_EXTRA_SECONDS
        return driver

    @event.listens_for(engine, "connect")
    def _connected(driver: Any, _record: Any) -> None:
        was_autocommit = driver.autocommit
        driver.autocommit = True  # the settings would be undone with a transaction that is undone
        for name in _TIMEOUTS:
            driver.execute(f"SET {name} = {milliseconds}")
        driver.autocommit = was_autocommit

    return engine


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _make_private(file: Path, address: DatabaseAddress) -> None:
    """Create the file before SQLite does, so that it and its log are readable by their owner alone."""
    if file.exists():
        return
    try:
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        sync_folder(file.parent)
    except OSError as problem:
        raise CatalogUnusable(catalog=address.shown, reason=str(problem.strerror)) from problem
