"""Identities: takes a token, gives who holds it, keeps what it learnt so that a hot request asks no database.

A token is looked up in the catalog once. After that it is known by its SHA-256 digest, and all known tokens
are checked again together, every `auth.refresh_seconds` and after each change made here. While the catalog
does not answer, what is known goes on working for `auth.stale_seconds_max`. Belongs to the event loop.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tidegate.errors import CatalogUnavailable, TenantNotFound, TidegateError, TokenExpired, TokenWrong
from tidegate.model.access import Principal
from tidegate.model.clock import Clock
from tidegate.model.timeranges import format_time
from tidegate.server.guesses import GuessBrake
from tidegate.settings import AuthSettings

# More tokens than this in use at once: those unused for longest are looked up again when they come back.
KNOWN_MAX = 10_000
# A token that was not used for this long is forgotten, so that the checks stay small.
IDLE_SECONDS_MAX = 600.0

log = logging.getLogger(__name__)


class Identity:
    """A token that was let in, and what became of it since; calls that take long look at it again."""

    __slots__ = ("checked_seconds", "principal", "refusal", "used_seconds")

    def __init__(self, principal: Principal, now_seconds: float) -> None:
        self.principal = principal
        self.refusal: TidegateError | None = None
        self.checked_seconds = now_seconds
        self.used_seconds = now_seconds

    def check(self, clock: Clock) -> None:
        """Refuse a token that ended. What was refused once stays refused, whatever the clock says later."""
        if self.refusal is None:
            expires_us = self.principal.expires_us
            if expires_us is None or clock.now_us() < expires_us:
                return
            user = self.principal.user
            self.refusal = TokenExpired(expired_at=format_time(expires_us), user=user)
        raise self.refusal


class TokenBook(Protocol):
    """What is asked of the catalog; blocking."""

    def find(self, text: str) -> Principal: ...

    def check(self, ids: Sequence[str]) -> Mapping[str, Principal | TidegateError]: ...


Run = Callable[..., Awaitable[Any]]


class Identities:
    """Everyone who was let in lately."""

    def __init__(self, tokens: TokenBook, settings: AuthSettings, clock: Clock, run: Run) -> None:
        self._tokens = tokens
        self._settings = settings
        self._clock = clock
        self._run = run
        self._known: OrderedDict[bytes, Identity] = OrderedDict()
        self.brake = GuessBrake(settings.guesses_max, clock)
        self._checks = 0
        self._away = False

    def __len__(self) -> int:
        return len(self._known)

    def known(self, text: bytes) -> Identity | None:
        """Give who holds a token when that is known and fresh; costs microseconds."""
        identity = self._known.get(hashlib.sha256(text).digest())
        if identity is None:
            return None
        identity.check(self._clock)
        now = self._clock.monotonic_seconds()
        if now - identity.checked_seconds > self._settings.stale_seconds_max + self._settings.refresh_seconds:
            return None
        identity.used_seconds = now
        return identity

    async def find(self, text: bytes, address: str) -> Identity:
        """Give who holds a token; asks the catalog, and slows down whoever guesses."""
        with self.brake.guess(address):
            try:
                plain = text.decode("ascii")
            except UnicodeDecodeError as problem:
                raise TokenWrong from problem
            while True:
                checks = self._checks
                principal = await self._run(self._tokens.find, plain)
                if checks == self._checks:
                    break
                # Tokens were checked meanwhile: this answer may be from before one was revoked.
        identity = Identity(principal, self._clock.monotonic_seconds())
        self._known[hashlib.sha256(text).digest()] = identity
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return identity

    async def refresh(self) -> None:
        """Check every known token again; one that ended is refused from now on, in calls that run, too."""
        self._checks += 1
        began = self._clock.monotonic_seconds()
        self._forget_idle(began)
        asked = list(self._known.items())
        if not asked:
            return
        try:
            found = await self._run(self._tokens.check, [kept.principal.token_id for _, kept in asked])
        except CatalogUnavailable as problem:
            if not self._away:
                log.warning("tokens cannot be checked again: %s", problem)
            self._away = True
            return
        self._away = False
        for digest, kept in asked:
            answer = found[kept.principal.token_id]
            if isinstance(answer, TidegateError):
                kept.refusal = answer
                self._known.pop(digest, None)
            else:
                kept.principal = answer
                kept.checked_seconds = began

    def _forget_idle(self, now: float) -> None:
        idle = [digest for digest, kept in self._known.items() if now - kept.used_seconds > IDLE_SECONDS_MAX]
        for digest in idle:
            del self._known[digest]


def in_tenant(identity: Identity, tenant: str, exists: bool) -> Identity:
    """Give the identity as it acts in another tenant; for all but instance administrators there is none."""
    principal = identity.principal
    if tenant == principal.tenant:
        return identity
    if not principal.is_instance_admin or not exists:
        raise TenantNotFound(tenant=tenant[:80])
    return _Acting(identity, replace(principal, tenant=tenant))


class _Acting(Identity):
    """An administrator of the instance in another tenant; lives as long as the token it stands on."""

    __slots__ = ("_own",)

    def __init__(self, own: Identity, principal: Principal) -> None:
        super().__init__(principal, own.checked_seconds)
        self._own = own

    def check(self, clock: Clock) -> None:
        """Refuse a token that ended."""
        self._own.check(clock)
