"""Who is let into a restored home: the tokens and links that are valid there, and how to end all of them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, Connection, and_, delete, func, or_, select, true

from tidegate.catalog.accounts import digest_of, end_tokens, home_token_id
from tidegate.catalog.tables import LINKS, TENANTS, TOKENS, USERS

_BROWSER = "session"


@dataclass(frozen=True, slots=True)
class ValidAccess:
    """How many tokens, sessions of browsers and unused one-time links let somebody in."""

    tokens: int
    sessions: int = 0
    links: int = 0


def end_access(connection: Connection, now_us: int) -> None:
    """End every token and session, and delete every link; the next start registers admin.token."""
    connection.execute(delete(LINKS))
    end_tokens(connection, true(), now_us, "revoked")


def valid_access(connection: Connection, admin_token: str, now_us: int) -> ValidAccess:
    """Count what lets somebody in from now on; the text in admin.token does, registered or not."""
    enabled = and_(USERS.c.enabled, TENANTS.c.enabled)
    token_owner = and_(USERS.c.tenant == TOKENS.c.tenant, USERS.c.name == TOKENS.c.user)
    living = and_(TOKENS.c.ended_us.is_(None), _unexpired(TOKENS.c.expires_us, now_us), enabled)
    tokens = TOKENS.join(USERS, token_owner).join(TENANTS, TENANTS.c.name == TOKENS.c.tenant)
    is_browser = TOKENS.c.kind == _BROWSER
    home_token = home_token_id(digest_of(admin_token))
    counted = select(is_browser, func.count()).select_from(tokens)
    rows = connection.execute(counted.where(living, TOKENS.c.id != home_token).group_by(is_browser))
    by_kind = {bool(row[0]): int(row[1]) for row in rows}
    link_owner = and_(USERS.c.tenant == LINKS.c.tenant, USERS.c.name == LINKS.c.user)
    links = LINKS.join(USERS, link_owner).join(TENANTS, TENANTS.c.name == LINKS.c.tenant)
    unused = and_(LINKS.c.used_us.is_(None), LINKS.c.expires_us > now_us, enabled)
    link_count = connection.execute(select(func.count()).select_from(links).where(unused)).scalar_one()
    return ValidAccess(by_kind.get(False, 0) + 1, by_kind.get(True, 0), link_count)


def _unexpired(column: Column[int], now_us: int) -> ColumnElement[bool]:
    return or_(column.is_(None), column > now_us)
