"""The failures of a database as errors of Tidegate."""

from __future__ import annotations

import shutil
import sqlite3

from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tidegate.catalog.database_url import DatabaseAddress
from tidegate.errors import (
    CatalogUnavailable,
    CatalogUnusable,
    InvariantBroken,
    RequestInvalid,
    StorageCorrupt,
    StorageFailed,
    StorageFull,
    TidegateError,
)

REASON_CHARS_MAX = 200  # the first line has the reason; the others are advice for other programs
# Refusals of PostgreSQL that are not temporary; it sends no code with these.
_NEVER_WORKS = ("password authentication failed", "no pg_hba.conf entry", "no password supplied")
_PRIMARY_CODE_MASK = 0xFF  # SQLite's extended codes keep the primary one in the low byte
_NO_SUCH_TABLE = "42P01"


def fault_of(
    problem: SQLAlchemyError | UnicodeError, address: DatabaseAddress, *, opening: bool
) -> TidegateError:
    """Return the error for a failure of the database; `opening` while no statement has succeeded yet."""
    if isinstance(problem, UnicodeError | DataError):
        return RequestInvalid(reason="A text holds characters that the catalog cannot keep.")
    if isinstance(problem, PoolTimeout):
        reason = f"all {address.connections_max} connections are in use"
        return CatalogUnavailable(reason=reason, hint="Try again, or raise catalog.connections_max.")
    reason = reason_of(problem, address)
    if isinstance(problem, DBAPIError) and isinstance(problem.orig, sqlite3.Error):
        return _sqlite_fault(problem.orig, reason, address, opening=opening)
    if opening and any(words in reason for words in _NEVER_WORKS):
        return CatalogUnusable(catalog=address.shown, reason=reason)
    if opening and "FATAL" in reason and "does not exist" in reason:
        return CatalogUnusable(catalog=address.shown, reason=reason)
    if isinstance(problem, OperationalError | InterfaceError | InternalError):
        return CatalogUnavailable(reason=reason)
    # What psycopg raises for a connection that broke half-way has no closer class.
    if type(problem) is DatabaseError or (isinstance(problem, DBAPIError) and problem.connection_invalidated):
        return CatalogUnavailable(reason=reason)
    if opening:
        return CatalogUnusable(catalog=address.shown, reason=reason)
    return InvariantBroken(reason=f"the catalog refused a statement: {reason}")


def reason_of(problem: SQLAlchemyError, address: DatabaseAddress) -> str:
    """Return the first line of the database's message, without the secrets of its address."""
    message = str(problem.orig) if isinstance(problem, DBAPIError) else str(problem)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reason = (lines[0] if lines else type(problem).__name__).rstrip(".")
    for secret in address.secrets:
        reason = reason.replace(secret, "***")
    return reason[:REASON_CHARS_MAX]


def is_absent_table(problem: DBAPIError) -> bool:
    """True if a statement failed because there is no such table (yet)."""
    state = getattr(problem.orig, "sqlstate", None)
    return state == _NO_SUCH_TABLE or "no such table" in str(problem.orig)


def _sqlite_fault(
    orig: sqlite3.Error, reason: str, address: DatabaseAddress, *, opening: bool
) -> TidegateError:
    code = getattr(orig, "sqlite_errorcode", 0) & _PRIMARY_CODE_MASK
    file = address.file
    if file is None:
        raise InvariantBroken(reason="an error of SQLite without a file of SQLite")
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return CatalogUnavailable(reason=f"someone else is writing to {file}")
        case sqlite3.SQLITE_NOTADB if opening:
            return CatalogUnusable(
                catalog=str(file), reason="the file is not a database, or its beginning is damaged"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return StorageCorrupt(place=str(file), reason=reason)
        case sqlite3.SQLITE_FULL:
            return StorageFull(path=str(file.parent), free_bytes=shutil.disk_usage(file.parent).free)
        case sqlite3.SQLITE_IOERR:
            return StorageFailed(path=str(file), reason=reason)
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM if opening:
            return CatalogUnusable(catalog=str(file), reason=reason)
    if opening and isinstance(orig, sqlite3.DatabaseError) and not isinstance(orig, sqlite3.OperationalError):
        return CatalogUnusable(catalog=str(file), reason=reason)
    if isinstance(orig, sqlite3.OperationalError | sqlite3.InterfaceError):
        return CatalogUnavailable(reason=reason)
    return InvariantBroken(reason=f"the catalog refused a statement: {reason}")
