"""Identities: takes a token, gives who holds it, keeps what it learnt so that a hot request asks no database.

A token is looked up in the catalog once; many requests with one new token share the lookup. After that it
is known by its SHA-256 digest, and there is one `Identity` for it, which every call with it holds. All of
them are checked again together, every `auth.refresh_seconds` and after each change made here, those of calls
that run among them. While the catalog does not answer, what is known goes on working for
`auth.stale_seconds_max`. Belongs to the event loop.

The brake on guessing: counts wrong tokens by address; more of them are told to wait.

A right token passes in any case, known or not: someone who guesses behind the same address, or behind the
same proxy, locks nobody out. Memory is bounded: when there are too many addresses, the one that was quiet
longest goes.
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
from tidegate.model.timeranges import format_time
from tidegate.settings import AuthSettings

# More tokens than this in use at once: those unused for longest are looked up again when they come back.
KNOWN_MAX = 10_000
# A token that was not used for this long is forgotten, so that the checks stay small.
IDLE_SECONDS_MAX = 600.0
# Lookups at the same time: people who are in already need the catalog, too.
LOOKUPS_MAX = 4

log = logging.getLogger(__name__)


class Identity:
    """A token that was let in, and what became of it since; calls that take long look at it again."""

    __slots__ = ("__weakref__", "_principal", "checked_seconds", "refusal", "used_seconds")

    def __init__(self, principal: Principal, now_seconds: float) -> None:
        self._principal = principal
        self.refusal: TidegateError | None = None
        self.checked_seconds = now_seconds
        self.used_seconds = now_seconds

    @property
    def principal(self) -> Principal:
        """Who it is, with the roles that hold now."""
        return self._principal

    def confirm(self, principal: Principal, now_seconds: float) -> None:
        """Take what the catalog said at a moment."""
        self._principal = principal
        self.checked_seconds = now_seconds

    def check(self, clock: Clock) -> None:
        """Refuse a token that ended. What was refused once stays refused, whatever the clock says later."""
        if self.refusal is None:
            expires_us = self._principal.expires_us
            if expires_us is None or clock.now_us() < expires_us:
                return
            user = self._principal.user
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
        # Those that are known, and those that calls hold though they are known no more.
        self._held: WeakSet[Identity] = WeakSet()
        self._lookups: dict[bytes, asyncio.Future[Identity]] = {}
        self._turns = asyncio.Semaphore(LOOKUPS_MAX)
        self._refreshing = asyncio.Lock()
        self.brake = GuessBrake(settings.guesses_max, clock)
        self._checks = 0
        self._away = False

    def __len__(self) -> int:
        return len(self._known)

    def known(self, text: bytes) -> Identity | None:
        """Return who holds a token when that is known and fresh; costs microseconds."""
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

    async def find(self, text: bytes, address: str) -> Identity:
        """Return who holds a token.

        Asks the catalog, once for all who bring the same one at the same time.
        """
        digest = hashlib.sha256(text).digest()
        lookup = self._lookups.get(digest)
        if lookup is None:
            lookup = asyncio.ensure_future(self._look_up(digest, text))
            self._lookups[digest] = lookup
            lookup.add_done_callback(lambda _: self._lookups.pop(digest, None))
        with self.brake.guess(address):
            # A caller who leaves does not take the lookup away from the others.
            return await asyncio.shield(lookup)

    async def refresh(self, *, required: bool = True) -> None:
        """Check every token in use again; one that ended is refused from now on, in calls that run, too.

        Where it is `required`, because someone just took a right away here, and the catalog does not answer,
        nobody is known any more: every token is looked up again before it is let in.
        """
        async with self._refreshing:
            self._checks += 1
            began = self._clock.monotonic_seconds()
            self._forget_idle(began)
            asked = list(self._held)
            if not asked:
                return
            try:
                found = await self._run(self._tokens.check, [kept.principal.token_id for kept in asked])
            except CatalogUnavailable as problem:
                if not self._away:
                    log.warning("tokens cannot be checked again: %s", problem)
                self._away = True
                if required:
                    self._known.clear()
                return
            self._away = False
            self._apply(asked, found, began)

    def _apply(
        self, asked: list[Identity], found: Mapping[str, Principal | TidegateError], began: float
    ) -> None:
        for kept in asked:
            answer = found[kept.principal.token_id]
            if isinstance(answer, TidegateError):
                kept.refusal = answer
            else:
                kept.confirm(answer, began)
        refused = [digest for digest, kept in self._known.items() if kept.refusal is not None]
        for digest in refused:
            del self._known[digest]

    async def _look_up(self, digest: bytes, text: bytes) -> Identity:
        try:
            plain = text.decode("ascii")
        except UnicodeDecodeError as problem:
            raise TokenWrong from problem
        checks = -1
        async with self._turns:
            while checks != self._checks:
                # Tokens that were checked meanwhile: the answer may be from before one was revoked.
                checks = self._checks
                principal = await self._run(self._tokens.find, plain)
        now = self._clock.monotonic_seconds()
        identity = self._known.get(digest)
        if identity is None:
            identity = self._known[digest] = Identity(principal, now)
            self._held.add(identity)
        identity.confirm(principal, now)
        identity.used_seconds = now
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return identity

    def _forget_idle(self, now: float) -> None:
        idle = [digest for digest, kept in self._known.items() if now - kept.used_seconds > IDLE_SECONDS_MAX]
        for digest in idle:
            del self._known[digest]


def in_tenant(identity: Identity, tenant: str, exists: bool) -> Identity:
    """Return the identity as it acts in another tenant; for all but instance administrators there is none."""
    principal = identity.principal
    if tenant == principal.tenant:
        return identity
    if not principal.is_instance_admin or not exists:
        raise TenantNotFound(tenant=tenant[:80])
    return _Acting(identity, tenant)


class _Acting(Identity):
    """An administrator of the instance in another tenant; lives as long as the token it stands on."""

    __slots__ = ("_own", "_tenant")

    def __init__(self, own: Identity, tenant: str) -> None:
        super().__init__(own.principal, math.inf)
        self._own = own
        self._tenant = tenant

    @property
    def principal(self) -> Principal:
        """Who it is, in the tenant where they act."""
        return replace(self._own.principal, tenant=self._tenant)

    def check(self, clock: Clock) -> None:
        """Refuse a token that ended, or someone who looks after the instance no more."""
        self._own.check(clock)
        if not self._own.principal.is_instance_admin:
            raise TenantNotFound(tenant=self._tenant)


WINDOW_SECONDS = 60.0
ADDRESSES_MAX = 10_000


class GuessBrake:
    """Wrong tokens of the last minute, by address."""

    def __init__(self, guesses_max: int, clock: Clock) -> None:
        self._guesses_max = guesses_max
        self._clock = clock
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    @contextmanager
    def guess(self, address: str) -> Iterator[None]:
        """Count a wrong token or link inside; beyond the limit of a minute it is told to wait.

        A token that was good once, and ended, is no guess: a service that goes on with it is told why.
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
        """Note a wrong token; give the seconds for which the address has to wait, 0 while it may go on."""
        now = self._clock.monotonic_seconds()
        began, count = self._seen.pop(address, (now, 0))
        if now - began >= WINDOW_SECONDS:
            began, count = now, 0
        self._seen[address] = (began, count + 1)
        while len(self._seen) > ADDRESSES_MAX:
            self._seen.popitem(last=False)
        return began + WINDOW_SECONDS - now if count >= self._guesses_max else 0.0
