"""Authentication: the cache of tokens, and the limit on guessing them.

A token is looked up in the catalog once; concurrent requests with one new token share the lookup. After that
it is known by its SHA-256 digest, and there is one `AuthenticatedToken` for it, which every request with it
holds. All of them are checked again together, those of running requests among them: every
`auth.refresh_seconds`, and after each change that this server makes. While the catalog does not answer, known
tokens stay valid for `auth.stale_seconds_max`. Belongs to the event loop.

Wrong tokens are counted by address; too many of them are refused for a while. A right token passes in any
case, known or not: someone who guesses behind the same address or the same proxy locks nobody out. Memory is
bounded: when there are too many addresses, the least recently seen one is forgotten.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakSet

from tidegate.errors import (
    CatalogUnavailable,
    LinkWrong,
    TenantNotFound,
    TidegateError,
    TokenExpired,
    TokenWrong,
    TooManyGuesses,
)
from tidegate.model.access import Principal
from tidegate.model.clock import Clock
from tidegate.model.times import format_time
from tidegate.settings import AuthSettings

# Beyond this many tokens in use, the least recently used ones are looked up again at their next use.
KNOWN_MAX = 10_000
# A token that was not used for this long is forgotten, so that checking all of them stays cheap.
IDLE_SECONDS_MAX = 600.0
# Concurrent lookups: users who are authenticated already need the catalog, too.
LOOKUPS_MAX = 4

log = logging.getLogger(__name__)


class AuthenticatedToken:
    """A token that was accepted, and whether it still is; long requests check it again."""

    __slots__ = ("__weakref__", "_principal", "checked_seconds", "refusal", "used_seconds")

    def __init__(self, principal: Principal, now_seconds: float) -> None:
        self._principal = principal
        self.refusal: TidegateError | None = None
        self.checked_seconds = now_seconds
        self.used_seconds = now_seconds

    @property
    def principal(self) -> Principal:
        """The user of the token, with the current roles."""
        return self._principal

    def check_sent(self, *, as_cookie: bool) -> None:
        """Raise TokenWrong for a browser's session outside its cookie, and for a token in a cookie.

        A cookie that was copied serves no program, and a token that a page plants acts for no browser.
        """
        if self._principal.is_session == as_cookie:
            return
        hint = "This is a browser's session, which works as its cookie alone: send a token instead."
        if as_cookie:
            hint = "A token belongs in the header: 'Authorization: Bearer <token>'."
        raise self._about_me(TokenWrong(hint=hint))

    def _about_me(self, problem: TidegateError) -> TidegateError:
        principal = self._principal
        problem.token_owner = (principal.own_tenant, principal.user, principal.token_id)
        return problem

    def confirm(self, principal: Principal, now_seconds: float) -> None:
        """Record what the catalog answered at a moment."""
        self._principal = principal
        self.checked_seconds = now_seconds

    def check(self, clock: Clock) -> None:
        """Raise if the token ended.

        One that was refused once stays refused, whatever the clock says later.
        """
        if self.refusal is None:
            expires_us = self._principal.expires_us
            if expires_us is None or clock.now_us() < expires_us:
                return
            user = self._principal.user
            self.refusal = TokenExpired(expired_at=format_time(expires_us), user=user)
        raise self._about_me(self.refusal)


class TokenCatalog(Protocol):
    """The methods of the catalog that are used here; they block."""

    def find(self, text: str) -> Principal: ...

    def check(self, ids: Sequence[str]) -> Mapping[str, Principal | TidegateError]: ...


Run = Callable[..., Awaitable[Any]]


class TokenCache:
    """The tokens that were used lately."""

    def __init__(self, tokens: TokenCatalog, settings: AuthSettings, clock: Clock, run: Run) -> None:
        self._tokens = tokens
        self._settings = settings
        self._clock = clock
        self._run = run
        self._known: OrderedDict[bytes, AuthenticatedToken] = OrderedDict()
        # The cached ones, and those that requests still hold after they left the cache.
        self._held: WeakSet[AuthenticatedToken] = WeakSet()
        self._lookups: dict[bytes, asyncio.Future[AuthenticatedToken]] = {}
        self._turns = asyncio.Semaphore(LOOKUPS_MAX)
        self._refreshing = asyncio.Lock()
        self.guesses = GuessLimit(settings.guesses_max, clock)
        self._checks = 0
        self._away = False

    def __len__(self) -> int:
        return len(self._known)

    def cached(self, text: bytes) -> AuthenticatedToken | None:
        """Return a token that is cached and fresh, else None; costs microseconds."""
        digest = hashlib.sha256(text).digest()
        identity = self._known.get(digest)
        if identity is None:
            return None
        identity.check(self._clock)
        now = self._clock.monotonic_seconds()
        if now - identity.checked_seconds > self._settings.stale_seconds_max + self._settings.refresh_seconds:
            return None
        identity.used_seconds = now
        self._known.move_to_end(digest)
        return identity

    async def find(self, text: bytes, address: str) -> AuthenticatedToken:
        """Return a token from the catalog; concurrent calls with the same text share one lookup."""
        digest = hashlib.sha256(text).digest()
        lookup = self._lookups.get(digest)
        if lookup is None:
            lookup = asyncio.ensure_future(self._look_up(digest, text))
            self._lookups[digest] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(digest, None))
        with self.guesses.guess(address):
            # A request that is cancelled does not cancel the lookup of the others.
            return await asyncio.shield(lookup)

    async def refresh(self, *, required: bool = True) -> None:
        """Check every token in use again; one that ended is refused from now on, in running requests, too.

        `required` is for a right that was just taken away: if the catalog does not answer then, the cache is
        cleared, and every token is looked up again at its next use.
        """
        async with self._refreshing:
            self._checks += 1
            began = self._clock.monotonic_seconds()
            self._forget_idle(began)
            checked = list(self._held)
            if not checked:
                return
            try:
                found = await self._run(self._tokens.check, [token.principal.token_id for token in checked])
            except CatalogUnavailable as problem:
                if not self._away:
                    log.warning("tokens not refreshed error=%r", str(problem))
                self._away = True
                if required:
                    self._known.clear()
                return
            self._away = False
            self._apply(checked, found, began)

    def _apply(
        self, checked: list[AuthenticatedToken], found: Mapping[str, Principal | TidegateError], began: float
    ) -> None:
        for token in checked:
            answer = found[token.principal.token_id]
            if isinstance(answer, TidegateError):
                token.refusal = answer
            else:
                token.confirm(answer, began)
        refused = [digest for digest, token in self._known.items() if token.refusal is not None]
        for digest in refused:
            del self._known[digest]

    async def _look_up(self, digest: bytes, text: bytes) -> AuthenticatedToken:
        try:
            plain = text.decode("ascii")
        except UnicodeDecodeError as problem:
            raise TokenWrong from problem
        checks = -1
        async with self._turns:
            while checks != self._checks:
                # If tokens were checked meanwhile, this answer may be older than a revocation.
                checks = self._checks
                principal = await self._run(self._tokens.find, plain)
        now = self._clock.monotonic_seconds()
        identity = self._known.get(digest)
        if identity is None:
            identity = self._known[digest] = AuthenticatedToken(principal, now)
            self._held.add(identity)
        identity.confirm(principal, now)
        identity.used_seconds = now
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return identity

    def _forget_idle(self, now: float) -> None:
        idle = [
            digest for digest, token in self._known.items() if now - token.used_seconds > IDLE_SECONDS_MAX
        ]
        for digest in idle:
            del self._known[digest]


def in_tenant(identity: AuthenticatedToken, tenant: str, exists: bool) -> AuthenticatedToken:
    """Return the token as it acts in another tenant.

    Raise TenantNotFound for all but instance administrators.
    """
    principal = identity.principal
    if tenant == principal.tenant:
        return identity
    if not principal.is_instance_admin or not exists:
        raise TenantNotFound(tenant=tenant[:80])
    return _TokenInTenant(identity, tenant)


class _TokenInTenant(AuthenticatedToken):
    """The token of an instance administrator who acts in another tenant; ends with the token itself."""

    __slots__ = ("_own", "_tenant")

    def __init__(self, own: AuthenticatedToken, tenant: str) -> None:
        super().__init__(own.principal, math.inf)
        self._own = own
        self._tenant = tenant

    @property
    def principal(self) -> Principal:
        """The user of the token, in the tenant where they act."""
        return replace(self._own.principal, tenant=self._tenant)

    def check(self, clock: Clock) -> None:
        """Raise if the token ended, or if its user is no instance administrator any more."""
        self._own.check(clock)
        if not self._own.principal.is_instance_admin:
            raise TenantNotFound(tenant=self._tenant)


WINDOW_SECONDS = 60.0
ADDRESSES_MAX = 10_000


class GuessLimit:
    """Wrong tokens of the last minute, by address."""

    def __init__(self, guesses_max: int, clock: Clock) -> None:
        self._guesses_max = guesses_max
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    @contextmanager
    def guess(self, address: str) -> Iterator[None]:
        """Count a wrong token or link inside; beyond the limit of a minute raise TooManyGuesses instead.

        A token that was valid once, and ended, is no guess: a service that continues with it gets the real
        error.
        """
        try:
            yield
        except (TokenWrong, LinkWrong) as problem:
            if type(problem) in (TokenWrong, LinkWrong):
                left_seconds = self.count(address)
                if left_seconds > 0:
                    raise TooManyGuesses(
                        address=address, retry_after_seconds=math.ceil(left_seconds)
                    ) from problem
            raise

    def count(self, address: str) -> float:
        """Count a wrong token; return the seconds for which the address has to wait, 0 while it need not."""
        now = self._clock.monotonic_seconds()
        began, count = self._seen.pop(address, (now, 0))
        if now - began >= WINDOW_SECONDS:
            began, count = now, 0
        self._seen[address] = (began, count + 1)
        while len(self._seen) > ADDRESSES_MAX:
            self._seen.popitem(last=False)
        return began + WINDOW_SECONDS - now if count >= self._guesses_max else 0.0
