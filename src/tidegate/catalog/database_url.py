"""The address of a catalog's database, for SQLAlchemy and, without secrets, for messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from tidegate.errors import CatalogUnusable
from tidegate.settings import CatalogSettings

_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
_RULE = "Write sqlite:////path/catalog.db or postgresql://user:password@host/database."


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """The address of a database, its limit of connections, and its timeout."""

    url: str = field(repr=False)  # may hold a password
    connections_max: int = 8
    timeout_seconds: float = 5.0

    @property
    def engine_url(self) -> URL:
        """The address with its SQLAlchemy driver."""
        try:
            url = make_url(self.url)
        except (ArgumentError, ValueError):
            # The cause is left out: it repeats parts of the address, and a password may be one of them.
            raise _unreadable("its address cannot be read") from None
        scheme = url.get_backend_name()
        if scheme not in _DRIVERS:
            raise _unreadable(f"'{scheme}' is no kind of database that a catalog can be in")
        if scheme == "sqlite" and (not url.database or url.database == ":memory:"):
            raise _unreadable("SQLite needs a file")
        return url.set(drivername=_DRIVERS[scheme])

    @property
    def shown(self) -> str:
        """The address in messages: a file, or host and database; never user, password or options."""
        url = self.engine_url
        if url.get_backend_name() == "sqlite":
            return str(url.database)
        port = f":{url.port}" if url.port else ""
        host = url.host or url.query.get("host") or "localhost"
        return f"postgresql://{host}{port}/{url.database or ''}"

    @property
    def file(self) -> Path | None:
        """The file of a SQLite catalog."""
        url = self.engine_url
        return Path(str(url.database)) if url.get_backend_name() == "sqlite" else None

    @property
    def secrets(self) -> list[str]:
        """The parts of the address that messages must not contain."""
        url = self.engine_url
        hidden = [url.query.get(name) for name in ("password", "sslpassword", "passfile")]
        return [text for text in (url.password, *hidden) if isinstance(text, str) and text]


def file_url(file: Path) -> str:
    """Return the address of a SQLite catalog in a file, whatever characters its path has."""
    return URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def address_of(settings: CatalogSettings, file: Path) -> DatabaseAddress:
    """Return the address of a catalog: that of the settings, else the file."""
    url = settings.url or file_url(file)
    return DatabaseAddress(url, settings.connections_max, settings.timeout_seconds)


def _unreadable(reason: str) -> CatalogUnusable:
    return CatalogUnusable(catalog="catalog.url", reason=reason, hint=_RULE)
