"""Tokens, one-time links and the sessions that begin with them.

    text     tg_<16 hex digits: the id>_<43 characters: the secret>
    at rest  the id, the SHA-256 of the text, its user, its expiry

The end of a token is stored: one that was revoked, or was used after its expiry, never works again, whatever
the clock says later. A link has a code that lets a browser in once and begins a session. A session ends with
the token that made its link. The texts of tokens and codes are returned once and never stored.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, delete, insert, or_, select, update

from tidegate.catalog.accounts import (
    digest_of,
    end_tokens,
    find_user,
    home_token_id,
    id_slices,
    roles_of,
)
from tidegate.catalog.audit import Actor, Audit
from tidegate.catalog.connections import Connections
from tidegate.catalog.idempotency import IdempotencyKey, IdempotencyKeys
from tidegate.catalog.paging import PageRequest, PageResult, read_page
from tidegate.catalog.tables import LINKS, TENANTS, TOKENS, USERS
from tidegate.errors import (
    InvariantBroken,
    LinkWrong,
    RequestInvalid,
    SessionInsufficient,
    TenantDisabled,
    TidegateError,
    TokenExpired,
    TokenNotFound,
    TokenRevoked,
    TokenWrong,
    UserDisabled,
    UserNotFound,
)
from tidegate.model.access import Operation, Principal
from tidegate.model.clock import Clock
from tidegate.model.epoch import SECOND_US
from tidegate.model.names import shorten
from tidegate.model.times import format_time

LABEL_CHARS_MAX = 200  # a line in a list
USE_NOTED_SECONDS = 3_600  # the resolution of the last use; a finer one would be a write for each request
ENDED_SESSION_LISTED_US = 86_400 * SECOND_US  # browsers make many: lists show ended ones for a day

SESSION_KIND = "session"  # of a browser, accepted as a cookie alone

_TEXT = re.compile(r"tg_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"(home-)?[0-9a-f]{16}")
_NO_DIGEST = "0" * 64  # is compared when there is no such token, so that both answers take as long


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret, as lists show it."""

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
        keys: IdempotencyKeys,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._issuer = TokenIssuer(clock, random_bytes)
        self._links = Links(connections, clock, random_bytes, audit)
        self._audit = audit
        self._keys = keys

    def make(
        self,
        actor: Actor,
        tenant: str,
        user: str,
        *,
        label: str = "",
        lifetime_seconds: float | None,
        key: IdempotencyKey | None = None,
    ) -> IssuedToken:
        """Issue a token for a user; without a lifetime it does not expire."""
        if len(label) > LABEL_CHARS_MAX or not (label == "" or label.isprintable()):
            raise RequestInvalid(reason=f"A label is one line of {LABEL_CHARS_MAX} characters at most.")
        expires_us = expiry_us(self._clock.now_us(), lifetime_seconds)
        with self._connections.write() as connection:
            self._keys.reserve(connection, actor.tenant, key)
            find_user(connection, tenant, user, lock=True)
            issued = self._issuer.issue(connection, (tenant, user), "token", label, expires_us)
            details = {"label": label, "expires_us": issued.expires_us}
            subject = f"user/{user}/token/{issued.id}"
            self._audit.write(connection, actor, Operation.TOKEN_CREATE, subject, details)
            return self._keys.keep(connection, actor.tenant, key, issued)

    def list(self, tenant: str, user: str, page: PageRequest) -> PageResult[Token]:
        """Return a page of the tokens of a user, by id, ended ones included."""
        query = select(TOKENS).where(TOKENS.c.tenant == tenant, TOKENS.c.user == user)
        with self._connections.read() as connection:
            find_user(connection, tenant, user)
            return read_page(connection, query, page, "token", TOKENS.c.id, _token)

    def revoke(
        self, actor: Actor, tenant: str, user: str, token_id: str, key: IdempotencyKey | None = None
    ) -> None:
        """Revoke a token and the sessions that depend on it; one that has ended before is not changed."""
        now_us = self._clock.now_us()
        with self._connections.write() as connection:
            self._keys.reserve(connection, actor.tenant, key)
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
            self._keys.keep(connection, actor.tenant, key, None)

    def find(self, text: str) -> Principal:
        """Return the principal of a token; a wrong token takes as long as a right one."""
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
        """Return the principals or errors of tokens in use; record about once an hour that they are used."""
        rows: list[Row[Any]] = []
        for part in id_slices(ids):
            with self._connections.read() as connection:
                rows += connection.execute(_with_owner().where(TOKENS.c.id.in_(part))).all()
        gone = TokenRevoked(hint="An administrator makes another.")
        judged: dict[str, Principal | TidegateError] = dict.fromkeys(ids, gone)
        judged |= {row.id: self._judge(row) for row in rows}
        expired = [
            row.id for row in rows if row.ended_us is None and isinstance(judged[row.id], TokenExpired)
        ]
        due_us = self._clock.now_us() - USE_NOTED_SECONDS * SECOND_US
        used = [
            row.id
            for row in rows
            if isinstance(judged[row.id], Principal)
            and (row.last_used_us is None or row.last_used_us <= due_us)
        ]
        self._end_expired_ids(expired)
        self._note_use(used)
        return judged

    def make_link(self, principal: Principal, lifetime_seconds: float, request_id: str = "") -> IssuedLink:
        """Issue a link that lets a browser in once, as this principal."""
        return self._links.make(principal, lifetime_seconds, request_id)

    def use_link(self, code: str, session_seconds: float, request_id: str = "") -> IssuedToken:
        """Exchange the code of a link for a session token; LinkWrong for every attempt but the first."""
        return self._links.use(code, session_seconds, request_id)

    def end_expired(self, now_us: int) -> int:
        """End every token that is expired at a time; return their number."""
        over = and_(TOKENS.c.expires_us <= now_us, TOKENS.c.ended_us.is_(None))
        with self._connections.read() as connection:
            if connection.execute(select(TOKENS.c.id).where(over).limit(1)).one_or_none() is None:
                return 0
        with self._connections.write() as connection:
            return end_tokens(connection, over, now_us, "expired")

    def prune(self, before_us: int) -> int:
        """Delete tokens that ended before a time, links and sessions after a day; return their number."""
        day_ago_us = max(before_us, self._clock.now_us() - ENDED_SESSION_LISTED_US)
        old_session = and_(TOKENS.c.kind == SESSION_KIND, TOKENS.c.ended_us < day_ago_us)
        with self._connections.write() as connection:
            connection.execute(delete(LINKS).where(LINKS.c.expires_us < day_ago_us))
            old = or_(TOKENS.c.ended_us < before_us, old_session)
            return connection.execute(delete(TOKENS).where(old)).rowcount

    def _judge(self, row: Row[Any]) -> Principal | TidegateError:
        over = row.expires_us is not None and row.expires_us <= self._clock.now_us()
        problem: TidegateError | None = None
        if row.ended_by == "revoked":
            problem = TokenRevoked(user=row.user)
        elif row.ended_us is not None or over:
            problem = TokenExpired(expired_at=_moment(row.expires_us), user=row.user)
        elif not row.tenant_enabled:
            problem = TenantDisabled(tenant=row.tenant)
        elif not row.user_enabled:
            problem = UserDisabled(user=row.user)
        if problem is not None:
            problem.token_owner = (row.tenant, row.user, row.id)
            return problem
        roles = roles_of(row.roles)
        is_session = row.kind == SESSION_KIND
        return Principal(row.tenant, row.user, roles, row.id, row.tenant, row.expires_us, is_session)

    def _end_expired_ids(self, ids: Sequence[str]) -> None:
        for part in id_slices(ids):
            with self._connections.write() as connection:
                end_tokens(connection, TOKENS.c.id.in_(part), self._clock.now_us(), "expired")

    def _note_use(self, ids: Sequence[str]) -> None:
        for part in id_slices(ids):
            # Rows that another server is updating are left to it, so that no server waits.
            free = select(TOKENS.c.id).where(TOKENS.c.id.in_(part)).with_for_update(skip_locked=True)
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
    return format_time(at_us - at_us % SECOND_US)


def _token(row: Row[Any]) -> Token:
    times = (row.created_us, row.expires_us, row.ended_us, row.last_used_us)
    return Token(row.id, row.kind, row.label, *times)


LIFETIME_SECONDS_MAX = 100 * 366 * 86_400  # a century: more is a mistake; None does not expire
_ID_BYTES = 8
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token; its text is not stored."""

    id: str
    text: str
    expires_us: int | None


class TokenIssuer:
    """Issues tokens. Threads: any."""

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        self._random_bytes = random_bytes

    def issue(
        self,
        connection: Connection,
        owner: tuple[str, str],
        kind: str,
        label: str,
        expires_us: int | None,
        made_with: str = "",
    ) -> IssuedToken:
        """Issue a token for a user of a tenant in a transaction of the caller.

        `made_with` is the token that a session depends on: it ends when that one does.
        """
        now_us = self._clock.now_us()
        token_id = self._random_bytes(_ID_BYTES).hex()
        secret = secret_text(self._random_bytes(_SECRET_BYTES))
        issued = IssuedToken(token_id, f"tg_{token_id}_{secret}", expires_us)
        values = {"id": token_id, "tenant": owner[0], "user": owner[1], "kind": kind, "label": label}
        values |= {"home": "", "made_with": made_with, "digest": digest_of(issued.text), "ended_by": ""}
        connection.execute(insert(TOKENS).values(**values, created_us=now_us, expires_us=expires_us))
        return issued


def secret_text(secret: bytes) -> str:
    """Return random bytes as text that fits into a header and into an address."""
    return base64.urlsafe_b64encode(secret).decode("ascii").rstrip("=")


def expiry_us(now_us: int, lifetime_seconds: float | None) -> int | None:
    """Return the expiry for a lifetime that begins now; None without a lifetime."""
    if lifetime_seconds is None:
        return None
    if not 0 < lifetime_seconds <= LIFETIME_SECONDS_MAX:
        raise RequestInvalid(reason="A lifetime is more than nothing and at most a century.")
    return now_us + max(1, round(lifetime_seconds * 1_000_000))


CODE_CHARS_MAX = 100  # real ones have 43
UNUSED_MAX = 20  # unused links of one user: more than are open at once, few enough to store for all users
_CODE_BYTES = 32
_SESSION_LABEL = "browser"


@dataclass(frozen=True, slots=True)
class IssuedLink:
    """A new link; its code is not stored."""

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
        self._issuer = TokenIssuer(clock, random_bytes)

    def make(self, principal: Principal, lifetime_seconds: float, request_id: str = "") -> IssuedLink:
        """Issue a link for a principal, with the same rights; it ends with the principal's token.

        A session cannot issue links (SessionInsufficient): each would begin another session, and one sign-in
        would never end. A user has at most UNUSED_MAX unused links; the oldest one is deleted for a new one.
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
            if maker.kind == SESSION_KIND:
                raise SessionInsufficient(operation=str(Operation.LINK_CREATE))
            expires_us = _earlier(expires_us, maker.expires_us)
            values |= {"made_with": principal.token_id, "expires_us": expires_us}
            connection.execute(insert(LINKS).values(**values))
            _drop_oldest(connection, tenant, user)
            self._audit.write(connection, actor, Operation.LINK_CREATE, f"user/{principal.user}")
        return IssuedLink(code, expires_us)

    def use(self, code: str, session_seconds: float, request_id: str = "") -> IssuedToken:
        """Exchange a code for a session; of two concurrent attempts one succeeds.

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
            # The owner is locked before the link, as in the removal of a user, so that there is no deadlock.
            row = connection.execute(select(LINKS).where(unused)).one_or_none()
            if row is None:
                raise LinkWrong
            _lock_owner(connection, row.tenant, row.user)
            used = connection.execute(update(LINKS).where(unused).values(used_us=now_us)).rowcount
            maker = _living(connection, row.made_with, now_us)
            if used != 1 or maker is None:
                raise LinkWrong
            expires_us = _earlier(session_us, maker.expires_us)
            owner = (row.tenant, row.user)
            issued = self._issuer.issue(
                connection, owner, SESSION_KIND, _SESSION_LABEL, expires_us, made_with=row.made_with
            )
            actor = Actor(row.tenant, row.user, request_id)
            self._audit.write(connection, actor, "link.use", f"user/{row.user}/token/{issued.id}")
        return issued


def _living(connection: Connection, token_id: str, now_us: int) -> Row[Any] | None:
    """Return an active token, locked until the transaction ends; None for any other."""
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
    """Lock a user until the transaction ends; `alone` excludes other locks."""
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
