"""What Alembic loads to run migrations; the connection and its transaction come from `upgrade.py`."""

from __future__ import annotations

from alembic import context

from tidegate.catalog.migrations.upgrade import REVISION_TABLE
from tidegate.catalog.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=REVISION_TABLE,
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
