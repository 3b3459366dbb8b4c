"""Quotas of single tenants and users, where they are not as the settings say."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from tidegate.catalog.accounts import find_user, lock_tenant
from tidegate.catalog.audit import Actor, Audit
from tidegate.catalog.connections import Connections
from tidegate.catalog.tables import QUOTAS, to_mapping
from tidegate.model.access import Operation

Limits = dict[str, int]


class AccountQuotas:
    """The limits that were set for tenants and users. Threads: any."""

    def __init__(self, connections: Connections, audit: Audit) -> None:
        self._connections = connections
        self._audit = audit

    def all(self) -> dict[tuple[str, str], Limits]:
        """Return what was set, by tenant and user; the tenant itself has the user ''."""
        with self._connections.read() as connection:
            rows = connection.execute(select(QUOTAS)).all()
        return {(row.tenant, row.user): to_mapping(row.limits) for row in rows}

    def change_tenant(self, actor: Actor, tenant: str, changes: Mapping[str, int | None]) -> Limits:
        """Set limits of a tenant and return all that were set; None is as the settings say from now on."""
        with self._connections.write() as connection:
            lock_tenant(connection, tenant, alone=True)
            self._audit.write(
                connection, actor, Operation.TENANT_CHANGE, f"tenant/{tenant}", {"quota": dict(changes)}
            )
            return _change(connection, tenant, "", changes)

    def change_user(self, actor: Actor, tenant: str, user: str, changes: Mapping[str, int | None]) -> Limits:
        """Set limits of a user and return all that were set; None is as the settings say from now on."""
        with self._connections.write() as connection:
            find_user(connection, tenant, user, lock=True)
            details = {"quota": dict(changes)}
            self._audit.write(connection, actor, Operation.USER_CHANGE, f"user/{user}", details)
            return _change(connection, tenant, user, changes)


def _change(connection: Connection, tenant: str, user: str, changes: Mapping[str, int | None]) -> Limits:
    """Change a row of quotas; the caller has locked its account, so that no other change comes between."""
    stored = connection.execute(select(QUOTAS.c.limits).where(_row_of(tenant, user))).scalar_one_or_none()
    before = {} if stored is None else to_mapping(stored)
    after = {name: limit for name, limit in {**before, **changes}.items() if limit is not None}
    text = json.dumps(after, separators=(",", ":"), sort_keys=True)
    if stored is None and after:
        connection.execute(insert(QUOTAS).values(tenant=tenant, user=user, limits=text))
    elif after:
        connection.execute(update(QUOTAS).where(_row_of(tenant, user)).values(limits=text))
    else:
        connection.execute(delete(QUOTAS).where(_row_of(tenant, user)))
    return after


def _row_of(tenant: str, user: str) -> ColumnElement[bool]:
    return and_(QUOTAS.c.tenant == tenant, QUOTAS.c.user == user)
