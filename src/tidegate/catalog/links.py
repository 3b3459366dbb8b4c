"""One-time links: takes someone who is let in, gives a code that lets a browser in once, keeps its digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, insert, select, update

from tidegate.catalog.audit import Actor, Audit
from tidegate.catalog.connections import Connections
from tidegate.catalog.mint import MadeToken, Mint, expiry_us, secret_text
from tidegate.catalog.people import digest_of
from tidegate.catalog.tables import LINKS, TENANTS, TOKENS, USERS
from tidegate.errors import (
    InvariantBroken,
    LinkWrong,
    RequestInvalid,
    TenantDisabled,
    TokenRevoked,
    UserDisabled,
    UserNotFound,
)
from tidegate.model.access import Operation, Principal
from tidegate.model.clock import Clock

CODE_CHARS_MAX = 100  # ours have 43
UNUSED_MAX = 20  # of one user: more than anyone has open at once, few enough to keep for everyone
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
        """Make a link for whoever asks; it opens what they may open, and ends with the token they used.

        A session makes none: each would begin another session, and signing in once would never end. Of
        one user UNUSED_MAX wait at a time; the oldest gives way.
        """
        now_us = self._clock.now_us()
        expires_us = expiry_us(now_us, lifetime_seconds)
        if expires_us is None:
            raise InvariantBroken(reason="a link without an end was asked for")
        code = secret_text(self._random_bytes(_CODE_BYTES))
        tenant, user = principal.own_tenant, principal.user
        values = {"digest": digest_of(code), "tenant": tenant, "user": user, "created_us": now_us}
        actor = Actor(tenant, user, request_id)
        with self._connections.write() as connection:
            _lock_owner(connection, tenant, user, alone=True)
            maker = _living(connection, principal.token_id, now_us)
            if maker is None:
                raise TokenRevoked(user=user)
            if maker.kind == "session":
                reason = "A browser's session makes no links: it would never have to end."
                raise RequestInvalid(reason=reason, hint="Use a token: 'tidegate open'.")
            expires_us = _earlier(expires_us, maker.expires_us)
            values |= {"made_with": principal.token_id, "expires_us": expires_us}
            connection.execute(insert(LINKS).values(**values))
            _drop_oldest(connection, tenant, user)
            self._audit.write(connection, actor, Operation.LINK_CREATE, f"user/{principal.user}")
        return MadeLink(code, expires_us)

    def use(self, code: str, session_seconds: float, request_id: str = "") -> MadeToken:
        """Trade a code for a session; of two that try at the same moment one gets it.

        The session ends with the token that made the link, if not before.
        """
        if len(code) > CODE_CHARS_MAX:
            raise LinkWrong
        now_us = self._clock.now_us()
        session_us = expiry_us(now_us, session_seconds)
        if session_us is None:
            raise InvariantBroken(reason="a session without an end was asked for")
        same = LINKS.c.digest == digest_of(code)
        unused = and_(same, LINKS.c.used_us.is_(None), LINKS.c.expires_us > now_us)
        with self._connections.write() as connection:
            # The owner is locked before the link, as in the removal of a user: nobody waits in a circle.
            row = connection.execute(select(LINKS).where(unused)).one_or_none()
            if row is None:
                raise LinkWrong
            _lock_owner(connection, row.tenant, row.user)
            used = connection.execute(update(LINKS).where(unused).values(used_us=now_us)).rowcount
            maker = _living(connection, row.made_with, now_us)
            if used != 1 or maker is None:
                raise LinkWrong
            expires_us = _earlier(session_us, maker.expires_us)
            whose = (row.tenant, row.user)
            made = self._mint.insert(
                connection, whose, "session", _SESSION_LABEL, expires_us, made_with=row.made_with
            )
            actor = Actor(row.tenant, row.user, request_id)
            self._audit.write(connection, actor, "link.use", f"user/{row.user}/token/{made.id}")
        return made


def _living(connection: Connection, token_id: str, now_us: int) -> Row[Any] | None:
    """Give a token that lives, and let nobody end it before this transaction does."""
    query = select(TOKENS).where(TOKENS.c.id == token_id).with_for_update(read=True)
    row = connection.execute(query).one_or_none()
    if row is None or row.ended_us is not None:
        return None
    return row if row.expires_us is None or row.expires_us > now_us else None


def _earlier(expires_us: int, maker_expires_us: int | None) -> int:
    return expires_us if maker_expires_us is None else min(expires_us, maker_expires_us)


def _drop_oldest(connection: Connection, tenant: str, user: str) -> None:
    unused = and_(LINKS.c.tenant == tenant, LINKS.c.user == user, LINKS.c.used_us.is_(None))
    newest_first = select(LINKS.c.digest).where(unused).order_by(LINKS.c.created_us.desc(), LINKS.c.digest)
    over = list(connection.execute(newest_first.offset(UNUSED_MAX)).scalars())
    if over:
        connection.execute(delete(LINKS).where(LINKS.c.digest.in_(over)))


def _lock_owner(connection: Connection, tenant: str, user: str, *, alone: bool = False) -> None:
    """Keep a user as they are; `alone` lets nobody else lock them meanwhile."""
    same = and_(USERS.c.tenant == tenant, USERS.c.name == user, TENANTS.c.name == USERS.c.tenant)
    columns = select(USERS.c.enabled.label("user_enabled"), TENANTS.c.enabled.label("tenant_enabled"))
    lock = columns.where(same).with_for_update(read=not alone, of=USERS if alone else None)
    row = connection.execute(lock).one_or_none()
    if row is None:
        raise UserNotFound(user=user)
    if not row.tenant_enabled:
        raise TenantDisabled(tenant=tenant)
    if not row.user_enabled:
        raise UserDisabled(user=user)
