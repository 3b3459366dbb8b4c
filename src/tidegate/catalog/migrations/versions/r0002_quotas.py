"""Quotas of single tenants and users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table of quotas; nobody has one of their own yet."""
    op.create_table(
        "quotas",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"], name=op.f("fk_quotas_tenant")),
        sa.PrimaryKeyConstraint("tenant", "user", name=op.f("pk_quotas")),
    )
