"""One-time links: takes someone who is let in, gives a code that lets a browser in once, keeps its digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, and_, insert, select, update

from tidegate.catalog.audit import Actor, Audit
from tidegate.catalog.connections import Connections
from tidegate.catalog.mint import MadeToken, Mint, expiry_us, secret_text
from tidegate.catalog.people import digest_of
from tidegate.catalog.tables import LINKS, TENANTS, TOKENS, USERS
from tidegate.errors import InvariantBroken, LinkWrong, TenantDisabled, UserDisabled, UserNotFound
from tidegate.model.access import Operation, Principal
from tidegate.model.clock import Clock

CODE_CHARS_MAX = 100  # ours have 43
_CODE_BYTES = 32
_SESSION_LABEL = "browser"


@dataclass(frozen=True, slots=True)
class MadeLink:
    """A new link; its code is shown once and is nowhere else."""

    code: str
    expires_us: int


class Links:
    """Codes that let a browser in. Threads: any."""

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        audit: Audit,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._random_bytes = random_bytes
        self._audit = audit
        self._mint = Mint(clock, random_bytes)

    def make(self, principal: Principal, lifetime_seconds: float, request_id: str = "") -> MadeLink:
        """Make a link for whoever asks; it opens what they may open, and ends with the token they used."""
        now_us = self._clock.now_us()
        expires_us = expiry_us(now_us, lifetime_seconds)
        if expires_us is None:
            raise InvariantBroken(reason="a link without an end was asked for")
        code = secret_text(self._random_bytes(_CODE_BYTES))
        values = {"digest": digest_of(code), "tenant": principal.own_tenant, "user": principal.user}
        actor = Actor(principal.own_tenant, principal.user, request_id)
        with self._connections.write() as connection:
            _lock_owner(connection, principal.own_tenant, principal.user)
            connection.execute(
                insert(LINKS).values(
                    **values, made_with=principal.token_id, created_us=now_us, expires_us=expires_us
                )
            )
            self._audit.write(connection, actor, Operation.LINK_CREATE, f"user/{principal.user}")
        return MadeLink(code, expires_us)

    def use(self, code: str, session_seconds: float, request_id: str = "") -> MadeToken:
        """Trade a code for a session; of two that try at the same moment one gets it."""
        if len(code) > CODE_CHARS_MAX:
            raise LinkWrong
        now_us = self._clock.now_us()
        same = LINKS.c.digest == digest_of(code)
        unused = and_(same, LINKS.c.used_us.is_(None), LINKS.c.expires_us > now_us)
        with self._connections.write() as connection:
            # The owner is locked before the link, as in the removal of a user: nobody waits in a circle.
            row = connection.execute(select(LINKS).where(unused)).one_or_none()
            if row is None:
                raise LinkWrong
            _lock_owner(connection, row.tenant, row.user)
            used = connection.execute(update(LINKS).where(unused).values(used_us=now_us)).rowcount
            if used != 1 or not _lives(connection, row.made_with, now_us):
                raise LinkWrong
            whose = (row.tenant, row.user)
            made = self._mint.insert(connection, whose, "session", _SESSION_LABEL, session_seconds)
            actor = Actor(row.tenant, row.user, request_id)
            self._audit.write(connection, actor, "link.use", f"user/{row.user}/token/{made.id}")
        return made


def _lives(connection: Connection, token_id: str, now_us: int) -> bool:
    query = select(TOKENS.c.ended_us, TOKENS.c.expires_us).where(TOKENS.c.id == token_id)
    row = connection.execute(query).one_or_none()
    return row is not None and row.ended_us is None and (row.expires_us is None or row.expires_us > now_us)


def _lock_owner(connection: Connection, tenant: str, user: str) -> None:
    same = and_(USERS.c.tenant == tenant, USERS.c.name == user, TENANTS.c.name == USERS.c.tenant)
    columns = select(USERS.c.enabled.label("user_enabled"), TENANTS.c.enabled.label("tenant_enabled"))
    row = connection.execute(columns.where(same).with_for_update(read=True)).one_or_none()
    if row is None:
        raise UserNotFound(user=user)
    if not row.tenant_enabled:
        raise TenantDisabled(tenant=tenant)
    if not row.user_enabled:
        raise UserDisabled(user=user)
