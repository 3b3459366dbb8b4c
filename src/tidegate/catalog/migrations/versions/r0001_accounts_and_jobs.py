"""Tenants, users, tokens, links, audit, leases, jobs and answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_COUNTER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the first tables."""
    _make_accounts()
    _make_tokens()
    _make_audit()
    _make_jobs()


def _make_accounts() -> None:
    op.create_table(
        "tenants",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tenants")),
    )
    op.create_table(
        "users",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("roles", sa.Text(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_users_tenant")),
        sa.PrimaryKeyConstraint("tenant", "name", name=op.f("pk_users")),
    )


def _make_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("home", sa.Text(), nullable=False),
        sa.Column("made_with", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_us", sa.BigInteger(), nullable=True),
        sa.Column("ended_by", sa.Text(), nullable=False),
        sa.Column("last_used_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant", "user"],
            ["users.tenant", "users.name"],
            name=op.f("fk_tokens_tenant_user"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
    )
    op.create_index("ix_tokens_expires_us", "tokens", ["expires_us"], unique=False)
    op.create_index("ix_tokens_made_with", "tokens", ["made_with"], unique=False)
    op.create_index("ix_tokens_tenant_user", "tokens", ["tenant", "user"], unique=False)
    op.create_table(
        "links",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("made_with", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("used_us", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant", "user"],
            ["users.tenant", "users.name"],
            name=op.f("fk_links_tenant_user"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_links")),
    )


def _make_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _COUNTER, nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_at_us", "audit", ["at_us"], unique=False)
    op.create_index("ix_audit_tenant_id", "audit", ["tenant", "id"], unique=False)
    op.create_table(
        "answers",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "user", "key", name=op.f("pk_answers")),
    )
    op.create_index("ix_answers_created_us", "answers", ["created_us"], unique=False)


def _make_jobs() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.Column("expires_us", sa.BigInteger(), nullable=False),
        sa.Column("ttl_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "jobs",
        sa.Column("number", _COUNTER, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("progress", sa.Float(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("started_us", sa.BigInteger(), nullable=True),
        sa.Column("finished_us", sa.BigInteger(), nullable=True),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state_kind", "jobs", ["state", "kind", "number"], unique=False)
    op.create_index("ix_jobs_tenant_number", "jobs", ["tenant", "number"], unique=False)
    op.create_table(
        "job_events",
        sa.Column("number", _COUNTER, nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.number"], name=op.f("fk_job_events_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_job_events")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_events_job", "job_events", ["job", "number"], unique=False)
