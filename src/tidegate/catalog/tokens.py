"""Tokens: takes secrets, gives whom they let in, keeps digests.

    text     tg_<16 hex digits: the id>_<43 characters: the secret>
    at rest  the id, the SHA-256 of the text, whose it is, when it ends

Ending is written down: a token that was revoked, or was seen after its time, never works again, whatever the
clock says later. A session ends with the token that made its link. New ones come from `mint.py`, one-time
links from `links.py`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, delete, or_, select, update

from tidegate.catalog.answers import Answers, Once
from tidegate.catalog.audit import Actor, Audit
from tidegate.catalog.connections import Connections
from tidegate.catalog.links import Links, MadeLink
from tidegate.catalog.mint import MadeToken, Mint, expiry_us
from tidegate.catalog.pages import Page, Paged, paged
from tidegate.catalog.people import digest_of, end_tokens, find_user, home_token_id, roles_of
from tidegate.catalog.tables import LINKS, TENANTS, TOKENS, USERS
from tidegate.errors import (
    RequestInvalid,
    TenantDisabled,
    TidegateError,
    TokenExpired,
    TokenNotFound,
    TokenRevoked,
    TokenWrong,
    UserDisabled,
)
from tidegate.model.access import Operation, Principal
from tidegate.model.clock import Clock
from tidegate.model.names import shorten

LABEL_CHARS_MAX = 200  # a line in a list
USE_NOTED_SECONDS = 3_600  # how exact the time of the last use is; finer would be a write a request
IDS_A_QUERY_MAX = 500  # SQLite everywhere takes that many parameters
SESSION_KEPT_US = 86_400 * 1_000_000  # a browser makes many: for a day, lists show those that ended

_TEXT = re.compile(r"tg_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"(home-)?[0-9a-f]{16}")
_NO_DIGEST = "0" * 64  # compared with when there is no such token, so that both answers take as long


@dataclass(frozen=True, slots=True)
class Token:
    """A token as lists show it: without its secret."""

    id: str
    kind: str
    label: str
    created_us: int
    expires_us: int | None
    ended_us: int | None
    last_used_us: int | None


class Tokens:
    """Tokens of every user. Threads: any."""

    def __init__(
        self,
        connections: Connections,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        audit: Audit,
        answers: Answers,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._mint = Mint(clock, random_bytes)
        self._links = Links(connections, clock, random_bytes, audit)
        self._audit = audit
        self._answers = answers

    def make(
        self,
        actor: Actor,
        tenant: str,
        user: str,
        *,
        label: str = "",
        lifetime_seconds: float | None,
        once: Once | None = None,
    ) -> MadeToken:
        """Make a token for a user; without a lifetime it has no end."""
        if len(label) > LABEL_CHARS_MAX or not (label == "" or label.isprintable()):
            raise RequestInvalid(reason=f"A label is one line of {LABEL_CHARS_MAX} characters at most.")
        expires_us = expiry_us(self._clock.now_us(), lifetime_seconds)
        with self._connections.write() as connection:
            self._answers.reserve(connection, actor.tenant, once)
            find_user(connection, tenant, user, lock=True)
            made = self._mint.insert(connection, (tenant, user), "token", label, expires_us)
            details = {"label": label, "expires_us": made.expires_us}
            subject = f"user/{user}/token/{made.id}"
            self._audit.write(connection, actor, Operation.TOKEN_CREATE, subject, details)
            return self._answers.keep(connection, actor.tenant, once, made)

    def list(self, tenant: str, user: str, page: Page) -> Paged[Token]:
        """List the tokens of a user by id, those that ended too."""
        query = select(TOKENS).where(TOKENS.c.tenant == tenant, TOKENS.c.user == user)
        after = page.after_text("token")
        if after is not None:
            query = query.where(TOKENS.c.id > after)
        with self._connections.read() as connection:
            find_user(connection, tenant, user)
            found = connection.execute(query.order_by(TOKENS.c.id).limit(page.limit + 1)).all()
        return paged(found, page, "token", lambda row: str(row.id), _token)

    def revoke(self, actor: Actor, tenant: str, user: str, token_id: str, once: Once | None = None) -> None:
        """End a token now, and the sessions that stand on it; one that has ended stays as it ended."""
        now_us = self._clock.now_us()
        with self._connections.write() as connection:
            self._answers.reserve(connection, actor.tenant, once)
            find_user(connection, tenant, user)
            row = _find_own(connection, tenant, user, token_id)
            if row.kind == "home":
                raise RequestInvalid(
                    reason=f"'{token_id}' is the token in a home's admin.token.",
                    hint="Put another long random text into that file and start the server again.",
                )
            end_tokens(connection, TOKENS.c.id == token_id, now_us, "revoked")
            subject = f"user/{user}/token/{token_id}"
            self._audit.write(connection, actor, Operation.TOKEN_REVOKE, subject)
            self._answers.keep(connection, actor.tenant, once, None)

    def find(self, text: str) -> Principal:
        """Give whom a token lets in; the answer for a wrong one takes as long as for a right one."""
        digest = digest_of(text)
        matched = _TEXT.fullmatch(text)
        ids = [home_token_id(digest), *([matched[1]] if matched else [])]
        with self._connections.read() as connection:
            rows = connection.execute(_with_owner().where(TOKENS.c.id.in_(ids))).all()
        right = [row for row in rows if hmac.compare_digest(str(row.digest), digest)]
        if not rows:
            hmac.compare_digest(_NO_DIGEST, digest)
        if not right:
            raise TokenWrong
        found = self._judge(right[0])
        if isinstance(found, TidegateError):
            if isinstance(found, TokenExpired) and right[0].ended_us is None:
                self._end_expired_ids([right[0].id])
            raise found
        return found

    def check(self, ids: Sequence[str]) -> dict[str, Principal | TidegateError]:
        """Judge tokens in use again, and note about once an hour that they are in use."""
        rows: list[Row[Any]] = []
        for start in range(0, len(ids), IDS_A_QUERY_MAX):
            part = list(ids[start : start + IDS_A_QUERY_MAX])
            with self._connections.read() as connection:
                rows += connection.execute(_with_owner().where(TOKENS.c.id.in_(part))).all()
        gone = TokenRevoked(hint="An administrator makes another.")
        judged: dict[str, Principal | TidegateError] = dict.fromkeys(ids, gone)
        judged |= {row.id: self._judge(row) for row in rows}
        expired = [
            row.id for row in rows if row.ended_us is None and isinstance(judged[row.id], TokenExpired)
        ]
        due_us = self._clock.now_us() - USE_NOTED_SECONDS * 1_000_000
        used = [
            row.id
            for row in rows
            if isinstance(judged[row.id], Principal)
            and (row.last_used_us is None or row.last_used_us <= due_us)
        ]
        self._end_expired_ids(expired)
        self._note_use(used)
        return judged

    def make_link(self, principal: Principal, lifetime_seconds: float, request_id: str = "") -> MadeLink:
        """Make a link that lets a browser in once, as whoever asks."""
        return self._links.make(principal, lifetime_seconds, request_id)

    def use_link(self, code: str, session_seconds: float, request_id: str = "") -> MadeToken:
        """Trade the code of a link for a session token; LinkWrong for every try but the first."""
        return self._links.use(code, session_seconds, request_id)

    def end_expired(self, now_us: int) -> int:
        """End every token whose time is over at a moment, and say how many."""
        over = and_(TOKENS.c.expires_us <= now_us, TOKENS.c.ended_us.is_(None))
        with self._connections.read() as connection:
            if connection.execute(select(TOKENS.c.id).where(over).limit(1)).one_or_none() is None:
                return 0
        with self._connections.write() as connection:
            return end_tokens(connection, over, now_us, "expired")

    def prune(self, before_us: int) -> int:
        """Delete tokens that ended before a moment, and say how many; links and sessions go after a day."""
        day_ago_us = max(before_us, self._clock.now_us() - SESSION_KEPT_US)
        old_session = and_(TOKENS.c.kind == "session", TOKENS.c.ended_us < day_ago_us)
        with self._connections.write() as connection:
            connection.execute(delete(LINKS).where(LINKS.c.expires_us < day_ago_us))
            old = or_(TOKENS.c.ended_us < before_us, old_session)
            return connection.execute(delete(TOKENS).where(old)).rowcount

    def _judge(self, row: Row[Any]) -> Principal | TidegateError:
        over = row.expires_us is not None and row.expires_us <= self._clock.now_us()
        if row.ended_by == "revoked":
            return TokenRevoked(user=row.user)
        if row.ended_us is not None or over:
            return TokenExpired(expired_at=_moment(row.expires_us), user=row.user)
        if not row.tenant_enabled:
            return TenantDisabled(tenant=row.tenant)
        if not row.user_enabled:
            return UserDisabled(user=row.user)
        roles = roles_of(row.roles)
        return Principal(row.tenant, row.user, roles, row.id, row.tenant, row.expires_us)

    def _end_expired_ids(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), IDS_A_QUERY_MAX):
            part = TOKENS.c.id.in_(list(ids[start : start + IDS_A_QUERY_MAX]))
            with self._connections.write() as connection:
                end_tokens(connection, part, self._clock.now_us(), "expired")

    def _note_use(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), IDS_A_QUERY_MAX):
            part = TOKENS.c.id.in_(list(ids[start : start + IDS_A_QUERY_MAX]))
            # Rows that another server is noting already are left to it: nobody waits for anybody.
            free = select(TOKENS.c.id).where(part).with_for_update(skip_locked=True)
            now_us = self._clock.now_us()
            with self._connections.write() as connection:
                connection.execute(
                    update(TOKENS).where(TOKENS.c.id.in_(free.scalar_subquery())).values(last_used_us=now_us)
                )


def _with_owner() -> Select[Any]:
    same_user = and_(USERS.c.tenant == TOKENS.c.tenant, USERS.c.name == TOKENS.c.user)
    owner = [USERS.c.roles, USERS.c.enabled.label("user_enabled"), TENANTS.c.enabled.label("tenant_enabled")]
    joined = TOKENS.join(USERS, same_user).join(TENANTS, TENANTS.c.name == TOKENS.c.tenant)
    return select(TOKENS, *owner).select_from(joined)


def _find_own(connection: Connection, tenant: str, user: str, token_id: str) -> Row[Any]:
    own = and_(TOKENS.c.tenant == tenant, TOKENS.c.user == user, TOKENS.c.id == token_id)
    row = connection.execute(select(TOKENS).where(own)).one_or_none() if _ID.fullmatch(token_id) else None
    if row is None:
        raise TokenNotFound(user=user, token_id=shorten(token_id))
    return row


def _moment(at_us: int | None) -> str:
    if at_us is None:
        return "an unknown moment"
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _token(row: Row[Any]) -> Token:
    times = (row.created_us, row.expires_us, row.ended_us, row.last_used_us)
    return Token(row.id, row.kind, row.label, *times)
