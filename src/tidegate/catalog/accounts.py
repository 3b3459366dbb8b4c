"""Tenants and users.

Every call is about one tenant: a name of another one is not found. Changes write their audit event in the
same transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, or_, select, update

from tidegate.catalog.audit import Actor, Audit
from tidegate.catalog.connections import Connections, insert_if_new
from tidegate.catalog.idempotency import IdempotencyKey, IdempotencyKeys
from tidegate.catalog.paging import PageRequest, PageResult, read_page
from tidegate.catalog.tables import ANSWERS, LINKS, QUOTAS, TENANTS, TOKENS, USERS
from tidegate.errors import (
    InvariantBroken,
    LastAdministrator,
    TenantExists,
    TenantNotFound,
    UserExists,
    UserHasRows,
    UserNotFound,
)
from tidegate.model.access import ADMIN_USER, DEFAULT_TENANT, Operation, Role
from tidegate.model.clock import Clock
from tidegate.model.names import (
    check_tenant_name,
    check_user_name,
    is_tenant_name,
    is_user_name,
    shorten,
)

HOME_TOKEN_PREFIX = "home-"  # noqa: S105 - prefix of the ids of admin.token files
_DIGEST_CHARS = 16  # of 64: enough that two texts never share an id
QUERY_IDS_MAX = 500  # every build of SQLite takes that many parameters


@dataclass(frozen=True, slots=True)
class Tenant:
    """A separate part of an instance, with users and data of its own."""

    name: str
    enabled: bool
    created_us: int


@dataclass(frozen=True, slots=True)
class User:
    """An account that may be let in, and its roles."""

    tenant: str
    name: str
    roles: frozenset[Role]
    enabled: bool
    created_us: int


class Accounts:
    """Tenants and users. Threads: any."""

    def __init__(self, connections: Connections, clock: Clock, audit: Audit, keys: IdempotencyKeys) -> None:
        self._connections = connections
        self._clock = clock
        self._audit = audit
        self._keys = keys

    def create_tenant(self, actor: Actor, name: str, key: IdempotencyKey | None = None) -> Tenant:
        """Create a tenant without users."""
        tenant = Tenant(check_tenant_name(name), enabled=True, created_us=self._clock.now_us())
        with self._connections.write() as connection:
            self._keys.reserve(connection, actor.tenant, key)
            if not insert_if_new(connection, TENANTS, _tenant_values(tenant)):
                raise TenantExists(tenant=name)
            self._audit.write(connection, actor, Operation.TENANT_CREATE, f"tenant/{name}")
            return self._keys.keep(connection, actor.tenant, key, tenant)

    def list_tenants(self, page: PageRequest) -> PageResult[Tenant]:
        """Return a page of tenants, by name."""
        with self._connections.read() as connection:
            return read_page(connection, select(TENANTS), page, "tenant", TENANTS.c.name, _tenant)

    def get_tenant(self, name: str) -> Tenant:
        """Return a tenant."""
        if not is_tenant_name(name):
            raise TenantNotFound(tenant=shorten(name))
        with self._connections.read() as connection:
            row = connection.execute(select(TENANTS).where(TENANTS.c.name == name)).one_or_none()
        if row is None:
            raise TenantNotFound(tenant=name)
        return _tenant(row)

    def set_tenant_enabled(
        self, actor: Actor, name: str, enabled: bool, key: IdempotencyKey | None = None
    ) -> Tenant:
        """Let the users of a tenant in, or keep them out; their data stays."""
        if not is_tenant_name(name):
            raise TenantNotFound(tenant=shorten(name))
        if name == DEFAULT_TENANT and not enabled:
            raise LastAdministrator(user=ADMIN_USER)
        action = Operation.TENANT_ENABLE if enabled else Operation.TENANT_DISABLE
        change = update(TENANTS).where(TENANTS.c.name == name).values(enabled=enabled).returning(TENANTS)
        with self._connections.write() as connection:
            self._keys.reserve(connection, actor.tenant, key)
            row = connection.execute(change).one_or_none()
            if row is None:
                raise TenantNotFound(tenant=name)
            self._audit.write(connection, actor, action, f"tenant/{name}")
            return self._keys.keep(connection, actor.tenant, key, _tenant(row))

    def add_user(
        self,
        actor: Actor,
        tenant: str,
        name: str,
        roles: frozenset[Role],
        key: IdempotencyKey | None = None,
        *,
        tables_with_rows: Sequence[str] = (),
    ) -> User:
        """Add a user to a tenant; a new one whose name has rows in `tables_with_rows` is UserHasRows."""
        now_us = self._clock.now_us()
        user = User(tenant, check_user_name(name), frozenset(roles), enabled=True, created_us=now_us)
        details = {"roles": sorted(roles)}
        with self._connections.write() as connection:
            self._keys.reserve(connection, actor.tenant, key)
            lock_tenant(connection, tenant)
            if not insert_if_new(connection, USERS, _user_values(user)):
                raise UserExists(user=name)
            if tables_with_rows:
                raise UserHasRows(user=name, tables=list(tables_with_rows))
            self._audit.write(connection, actor, Operation.USER_CREATE, f"user/{name}", details)
            return self._keys.keep(connection, actor.tenant, key, user)

    def list_users(self, tenant: str, page: PageRequest) -> PageResult[User]:
        """Return a page of the users of a tenant, by name."""
        query = select(USERS).where(USERS.c.tenant == tenant)
        with self._connections.read() as connection:
            return read_page(connection, query, page, "user", USERS.c.name, _user)

    def get_user(self, tenant: str, name: str) -> User:
        """Return a user of a tenant."""
        with self._connections.read() as connection:
            return _user(find_user(connection, tenant, name))

    def change_user(
        self,
        actor: Actor,
        tenant: str,
        name: str,
        *,
        roles: frozenset[Role] | None = None,
        enabled: bool | None = None,
        key: IdempotencyKey | None = None,
    ) -> User:
        """Change the roles of a user, or let one in or keep one out; None leaves a property as it is."""
        changes: dict[str, Any] = {}
        details: dict[str, Any] = {}
        if roles is not None:
            changes["roles"] = _roles_text(frozenset(roles))
            details["roles"] = sorted(roles)
        if enabled is not None:
            changes["enabled"] = details["enabled"] = enabled
        if _is_first_admin(tenant, name) and (enabled is False or Role.PANEL not in (roles or {Role.PANEL})):
            raise LastAdministrator(user=name)
        with self._connections.write() as connection:
            self._keys.reserve(connection, actor.tenant, key)
            row = find_user(connection, tenant, name, lock=True)
            if changes:
                change = update(USERS).where(_same_user(tenant, name)).values(**changes).returning(USERS)
                row = connection.execute(change).one()
            self._audit.write(connection, actor, Operation.USER_CHANGE, f"user/{name}", details)
            return self._keys.keep(connection, actor.tenant, key, _user(row))

    def remove_user(self, actor: Actor, tenant: str, name: str, key: IdempotencyKey | None = None) -> None:
        """Remove a user with the tokens, links, quotas and idempotency keys.

        None of them works again, and no old answer is returned, when a user of that name is added again.
        """
        if _is_first_admin(tenant, name):
            raise LastAdministrator(user=name)
        with self._connections.write() as connection:
            self._keys.reserve(connection, actor.tenant, key)
            find_user(connection, tenant, name, lock=True)
            for table in (TOKENS, LINKS, QUOTAS):
                connection.execute(delete(table).where(table.c.tenant == tenant, table.c.user == name))
            connection.execute(delete(ANSWERS).where(_answers_of(tenant, name)))
            connection.execute(delete(USERS).where(_same_user(tenant, name)))
            self._audit.write(connection, actor, Operation.USER_DELETE, f"user/{name}")
            self._keys.keep(connection, actor.tenant, key, None)

    def ensure_admin(self, token_text: str, home_id: str = "") -> None:
        """Make sure that the first administrator exists and that a home's admin.token lets them in.

        A new text ends the old token of this home; other homes on the same catalog keep theirs.
        """
        now_us = self._clock.now_us()
        admin = User(DEFAULT_TENANT, ADMIN_USER, frozenset({Role.PANEL}), enabled=True, created_us=now_us)
        digest = digest_of(token_text)
        token = {
            "id": home_token_id(digest),
            "tenant": DEFAULT_TENANT,
            "user": ADMIN_USER,
            "kind": "home",
            "home": home_id,
            "made_with": "",
            "label": "admin.token",
            "digest": digest,
            "created_us": now_us,
            "ended_by": "",
        }
        with self._connections.write() as connection:
            insert_if_new(connection, TENANTS, _tenant_values(Tenant(DEFAULT_TENANT, True, now_us)))
            insert_if_new(connection, USERS, _user_values(admin))
            _end_old_home_tokens(connection, token, now_us)
            if not insert_if_new(connection, TOKENS, token):
                # The file has a text that was replaced before: that token works again.
                revived = {"home": home_id, "ended_us": None, "ended_by": ""}
                connection.execute(update(TOKENS).where(TOKENS.c.id == token["id"]).values(**revived))


def digest_of(text: str) -> str:
    """Return the SHA-256 of a secret, in hex, which is stored instead of it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def home_token_id(digest: str) -> str:
    """Return the id of the token of an admin.token file, by the digest of its text."""
    return HOME_TOKEN_PREFIX + digest[:_DIGEST_CHARS]


def roles_of(text: str) -> frozenset[Role]:
    """Return the roles of a user's row."""
    names = json.loads(text)
    if not isinstance(names, list):
        raise InvariantBroken(reason="the roles of a user are not a list")
    return frozenset(Role(name) for name in names)


def find_user(connection: Connection, tenant: str, name: str, *, lock: bool = False) -> Row[Any]:
    """Return the row of a user; `lock` locks it until the transaction ends."""
    if not is_user_name(name):
        raise UserNotFound(user=shorten(name))
    query = select(USERS).where(_same_user(tenant, name))
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise UserNotFound(user=name)
    return row


def end_tokens(connection: Connection, which: ColumnElement[bool], now_us: int, how: str) -> int:
    """End active tokens, and with each the sessions that depend on it; return the number of tokens."""
    ending = {"ended_us": now_us, "ended_by": how}
    living = TOKENS.c.ended_us.is_(None)
    change = update(TOKENS).where(which, living).values(**ending).returning(TOKENS.c.id)
    ended = list(connection.execute(change).scalars())
    for ids in id_slices(ended):
        connection.execute(update(TOKENS).where(TOKENS.c.made_with.in_(ids), living).values(**ending))
    return len(ended)


def id_slices(ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield ids in slices that fit into one query."""
    for start in range(0, len(ids), QUERY_IDS_MAX):
        yield list(ids[start : start + QUERY_IDS_MAX])


def lock_tenant(connection: Connection, tenant: str, *, alone: bool = False) -> None:
    """Lock a tenant until the transaction ends, against changes, and with `alone` against other locks."""
    if not is_tenant_name(tenant):
        raise TenantNotFound(tenant=shorten(tenant))
    query = select(TENANTS.c.name).where(TENANTS.c.name == tenant)
    if connection.execute(query.with_for_update(read=not alone)).one_or_none() is None:
        raise TenantNotFound(tenant=tenant)


def _end_old_home_tokens(connection: Connection, token: dict[str, Any], now_us: int) -> None:
    old = and_(
        TOKENS.c.kind == "home",
        TOKENS.c.home == token["home"],
        TOKENS.c.id != token["id"],
    )
    end_tokens(connection, old, now_us, "revoked")


def _is_first_admin(tenant: str, name: str) -> bool:
    return (tenant, name) == (DEFAULT_TENANT, ADMIN_USER)


def _same_user(tenant: str, name: str) -> ColumnElement[bool]:
    return and_(USERS.c.tenant == tenant, USERS.c.name == name)


def _answers_of(tenant: str, name: str) -> ColumnElement[bool]:
    """Return the condition for a user's answers: in its own tenant by name, in others by tenant and name."""
    own = and_(ANSWERS.c.tenant == tenant, ANSWERS.c.user == name)
    return or_(own, ANSWERS.c.user == f"{tenant}/{name}")


def _roles_text(roles: frozenset[Role]) -> str:
    return json.dumps(sorted(roles), separators=(",", ":"))


def _tenant_values(tenant: Tenant) -> dict[str, Any]:
    return {"name": tenant.name, "enabled": tenant.enabled, "created_us": tenant.created_us}


def _user_values(user: User) -> dict[str, Any]:
    names = {"tenant": user.tenant, "name": user.name, "roles": _roles_text(user.roles)}
    return {**names, "enabled": user.enabled, "created_us": user.created_us}


def _tenant(row: Row[Any]) -> Tenant:
    return Tenant(row.name, bool(row.enabled), row.created_us)


def _user(row: Row[Any]) -> User:
    return User(row.tenant, row.name, roles_of(row.roles), bool(row.enabled), row.created_us)
