"""The tables of the catalog, as the newest migration leaves them.

Times are microseconds since 1970 (`…_us`). Columns without a fixed schema (roles, limits, details) are JSON
text, the same on SQLite and PostgreSQL. Autoincrement numbers never repeat, also after the newest row is
deleted.

`to_text` and `to_mapping` write and read JSON columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

from tidegate.errors import InvariantBroken, RequestInvalid

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
# SQLite counts up by itself in a column that is exactly INTEGER; it is 64 bits wide there too.
_COUNTER = BigInteger().with_variant(Integer, "sqlite")


def _user_key() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["tenant", "user"], ["users.tenant", "users.name"], ondelete="CASCADE")


TENANTS = Table(
    "tenants",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("enabled", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

USERS = Table(
    "users",
    METADATA,
    Column("tenant", Text, ForeignKey("tenants.name"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("roles", Text, nullable=False),
    Column("enabled", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

# The quotas of single accounts: those that are not as the settings say. No row: all of them are.
QUOTAS = Table(
    "quotas",
    METADATA,
    Column("tenant", Text, ForeignKey("tenants.name"), primary_key=True),
    Column("user", Text, primary_key=True),  # empty: of the tenant itself
    Column("limits", Text, nullable=False),  # {"topics": 100}
)

TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("kind", Text, nullable=False),  # token, session, home
    Column("home", Text, nullable=False),  # the home whose admin.token it is, else empty
    Column("made_with", Text, nullable=False),  # the token that made the link of a session, else empty
    Column("label", Text, nullable=False),
    Column("digest", Text, nullable=False),  # SHA-256 of the whole text; the text itself is not stored
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger),
    Column("ended_us", BigInteger),
    Column("ended_by", Text, nullable=False),  # expired, revoked, or empty while it lives
    Column("last_used_us", BigInteger),
    _user_key(),
    Index("ix_tokens_tenant_user", "tenant", "user"),
    Index("ix_tokens_expires_us", "expires_us"),
    Index("ix_tokens_made_with", "made_with"),
)

LINKS = Table(
    "links",
    METADATA,
    Column("digest", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("made_with", Text, nullable=False),  # the token that asked for it
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Column("used_us", BigInteger),
    _user_key(),
)

AUDIT = Table(
    "audit",
    METADATA,
    Column("id", _COUNTER, primary_key=True),
    Column("at_us", BigInteger, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("outcome", Text, nullable=False),  # started, done, failed
    Column("request_id", Text, nullable=False),
    Column("details", Text, nullable=False),
    Index("ix_audit_tenant_id", "tenant", "id"),
    Index("ix_audit_at_us", "at_us"),
    sqlite_autoincrement=True,
)

LEASES = Table(
    "leases",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("holder", Text, nullable=False),  # empty: released
    Column("fence", BigInteger, nullable=False),
    Column("renewals", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
    Column("ttl_us", BigInteger, nullable=False),
)

JOBS = Table(
    "jobs",
    METADATA,
    Column("number", _COUNTER, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("tenant", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("state", Text, nullable=False),  # queued, running, done, failed, cancelled
    Column("progress", Float, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("owner", Text),
    Column("created_by", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("started_us", BigInteger),
    Column("finished_us", BigInteger),
    Column("details", Text, nullable=False),
    Column("result", Text),
    Column("error", Text),
    Index("ix_jobs_tenant_number", "tenant", "number"),
    Index("ix_jobs_state_kind", "state", "kind", "number"),
    sqlite_autoincrement=True,
)

JOB_EVENTS = Table(
    "job_events",
    METADATA,
    Column("number", _COUNTER, primary_key=True),
    Column("job", BigInteger, ForeignKey("jobs.number", ondelete="CASCADE"), nullable=False),
    Column("at_us", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("note", Text, nullable=False),
    Index("ix_job_events_job", "job", "number"),
    sqlite_autoincrement=True,
)

ANSWERS = Table(
    "answers",
    METADATA,
    Column("tenant", Text, primary_key=True),
    Column("user", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("status", Integer, nullable=False),  # 0 inside the transaction of the change, never committed
    Column("body", LargeBinary),  # NULL: it had a secret
    Column("created_us", BigInteger, nullable=False),
    Index("ix_answers_created_us", "created_us"),
)

# Every table, referenced ones first: the order in which rows can be loaded.
ALL_TABLES = METADATA.sorted_tables


def to_text(value: Mapping[str, Any], bytes_max: int, noun: str) -> str:
    """Return a mapping as JSON text; raise RequestInvalid for one that is longer than its limit."""
    text = json.dumps(value, separators=(",", ":"))  # ASCII: characters are bytes
    if len(text) > bytes_max:
        raise RequestInvalid(reason=f"{noun} of {len(text)} bytes are too long; {bytes_max} are allowed.")
    return text


def to_mapping(text: str) -> dict[str, Any]:
    """Return the mapping that `to_text` wrote."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise InvariantBroken(reason="the catalog holds JSON of another shape than was written")
    return found
