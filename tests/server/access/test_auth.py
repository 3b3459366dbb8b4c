"""Authentication: cached tokens need no database, and ended ones are refused, whatever the clock does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tidegate.errors import (
    CatalogUnavailable,
    TenantNotFound,
    TidegateError,
    TokenExpired,
    TokenRevoked,
    TokenWrong,
    TooManyGuesses,
)
from tidegate.model.access import Principal, Role
from tidegate.server.access.auth import ADDRESSES_MAX, IDLE_SECONDS_MAX, GuessLimit, TokenCache, in_tenant
from tidegate.settings import AuthSettings
from tidegate.testing.clock import ManualClock

NOW_US = 1_800_000_000_000_000
HOUR_SECONDS = 3600


def principal(token_id: str, *, expires_us: int | None = None, panel: bool = False) -> Principal:
    roles = frozenset({Role.PANEL if panel else Role.READER})
    return Principal("default", "ann", roles, token_id, "default", expires_us)


class Book:
    """A book of tokens that can be closed."""

    def __init__(self, **tokens: Principal) -> None:
        self.tokens = tokens
        self.away = False
        self.lookups = 0

    def find(self, text: str) -> Principal:
        self.lookups += 1
        if self.away:
            raise CatalogUnavailable(reason="away")
        if text not in self.tokens:
            raise TokenWrong
        return self.tokens[text]

    def check(self, ids: Sequence[str]) -> Mapping[str, Principal | TidegateError]:
        if self.away:
            raise CatalogUnavailable(reason="away")
        by_id = {kept.token_id: kept for kept in self.tokens.values()}
        return {name: by_id.get(name, TokenRevoked(user="ann")) for name in ids}


async def at_once(call: Any, *arguments: Any) -> Any:
    return call(*arguments)


def build(book: Book, clock: ManualClock, **settings: Any) -> TokenCache:
    return TokenCache(book, AuthSettings(**settings), clock, at_once)


def test_a_known_token_is_not_looked_up_again() -> None:
    book, clock = Book(good=principal("1")), ManualClock(NOW_US)
    identities = build(book, clock)
    assert identities.cached(b"good") is None
    found = asyncio.run(identities.find(b"good", "10.0.0.1"))
    assert identities.cached(b"good") is found
    assert book.lookups == 1


def test_a_revoked_token_is_refused_after_the_next_check_in_calls_that_run_too() -> None:
    book, clock = Book(good=principal("1")), ManualClock(NOW_US)
    identities = build(book, clock)
    running = asyncio.run(identities.find(b"good", "10.0.0.1"))
    del book.tokens["good"]
    running.check(clock)
    asyncio.run(identities.refresh())
    with pytest.raises(TokenRevoked):
        running.check(clock)
    assert identities.cached(b"good") is None


def test_a_token_that_ended_stays_ended_when_the_clock_goes_back_an_hour() -> None:
    clock = ManualClock(NOW_US)
    book = Book(short=principal("1", expires_us=NOW_US + 10_000_000))
    identities = build(book, clock)
    asyncio.run(identities.find(b"short", "10.0.0.1"))
    clock.advance(11)
    with pytest.raises(TokenExpired):
        identities.cached(b"short")
    clock.set_us(NOW_US - HOUR_SECONDS * 1_000_000)
    with pytest.raises(TokenExpired):
        identities.cached(b"short")


def test_while_the_catalog_is_away_known_tokens_work_for_as_long_as_the_setting_says() -> None:
    book, clock = Book(good=principal("1")), ManualClock(NOW_US)
    identities = build(book, clock, stale_seconds_max=60.0, refresh_seconds=2.0)
    asyncio.run(identities.find(b"good", "10.0.0.1"))
    book.away = True
    clock.advance(60)
    asyncio.run(identities.refresh(required=False))
    assert identities.cached(b"good") is not None
    clock.advance(3)
    assert identities.cached(b"good") is None
    with pytest.raises(CatalogUnavailable):
        asyncio.run(identities.find(b"good", "10.0.0.1"))
    book.away = False
    asyncio.run(identities.refresh(required=False))
    assert identities.cached(b"good") is not None


def test_roles_that_changed_hold_after_the_next_check() -> None:
    book, clock = Book(good=principal("1")), ManualClock(NOW_US)
    identities = build(book, clock)
    asyncio.run(identities.find(b"good", "10.0.0.1"))
    book.tokens["good"] = principal("1", panel=True)
    asyncio.run(identities.refresh())
    known = identities.cached(b"good")
    assert known is not None
    assert known.principal.roles == {Role.PANEL}


def test_a_token_that_nobody_uses_is_forgotten() -> None:
    book, clock = Book(good=principal("1")), ManualClock(NOW_US)
    identities = build(book, clock)
    asyncio.run(identities.find(b"good", "10.0.0.1"))
    clock.advance(IDLE_SECONDS_MAX + 1)
    asyncio.run(identities.refresh())
    assert len(identities) == 0


def test_guessing_is_stopped_and_known_tokens_go_on() -> None:
    book, clock = Book(good=principal("1")), ManualClock(NOW_US)
    identities = build(book, clock, guesses_max=3)
    asyncio.run(identities.find(b"good", "10.0.0.1"))
    for guess in (b"a", b"b", "ü".encode()):
        with pytest.raises(TokenWrong):
            asyncio.run(identities.find(guess, "10.0.0.1"))
    with pytest.raises(TooManyGuesses) as refused:
        asyncio.run(identities.find(b"d", "10.0.0.1"))
    # A right token is let in, also one that was not known before: guessing shuts nobody else out.
    book.tokens["new"] = principal("3")
    assert asyncio.run(identities.find(b"new", "10.0.0.1")).principal.token_id == "3"
    assert 0 < refused.value.values["retry_after_seconds"] <= 60
    assert identities.cached(b"good") is not None
    with pytest.raises(TokenWrong):
        asyncio.run(identities.find(b"d", "10.0.0.2"))
    clock.advance(61)
    with pytest.raises(TokenWrong):
        asyncio.run(identities.find(b"d", "10.0.0.1"))


def test_the_brake_holds_a_bounded_number_of_addresses() -> None:
    brake = GuessLimit(1, ManualClock(NOW_US))
    for number in range(ADDRESSES_MAX + 10):
        brake.count(str(number))
    assert len(brake) == ADDRESSES_MAX
    assert brake.count("0") == 0
    assert brake.count(str(ADDRESSES_MAX)) > 0


def test_only_an_administrator_of_the_instance_acts_in_another_tenant() -> None:
    clock = ManualClock(NOW_US)
    book = Book(admin=principal("1", panel=True), reader=principal("2"))
    identities = build(book, clock)
    admin = asyncio.run(identities.find(b"admin", ""))
    reader = asyncio.run(identities.find(b"reader", ""))
    acting = in_tenant(admin, "acme", exists=True)
    assert (acting.principal.tenant, acting.principal.own_tenant) == ("acme", "default")
    for identity, exists in ((reader, True), (admin, False)):
        with pytest.raises(TenantNotFound):
            in_tenant(identity, "acme", exists=exists)
    del book.tokens["admin"]
    asyncio.run(identities.refresh())
    with pytest.raises(TokenRevoked):
        acting.check(clock)


class SlowBook(Book):
    """A book whose lookups wait until the test lets them go."""

    def __init__(self, **tokens: Principal) -> None:
        super().__init__(**tokens)
        self.gate = asyncio.Event()


def test_all_calls_that_begin_at_once_with_a_new_token_end_with_it() -> None:
    async def scene() -> None:
        book, clock = SlowBook(good=principal("1")), ManualClock(NOW_US)

        async def slowly(call: Any, *arguments: Any) -> Any:
            await book.gate.wait()
            return call(*arguments)

        identities = TokenCache(book, AuthSettings(guesses_max=3), clock, slowly)
        finds = [asyncio.ensure_future(identities.find(b"good", "10.0.0.1")) for _ in range(50)]
        await asyncio.sleep(0)
        book.gate.set()
        found = await asyncio.gather(*finds)
        assert book.lookups == 1, "fifty calls, one lookup, and nobody is taken for a guesser"
        assert len({id(identity) for identity in found}) == 1
        del book.tokens["good"]
        await identities.refresh()
        with pytest.raises(TokenRevoked):
            found[-1].check(clock)

    asyncio.run(scene())


def test_a_call_that_runs_is_refused_also_when_its_token_is_known_no_more() -> None:
    book, clock = Book(good=principal("1")), ManualClock(NOW_US)
    identities = build(book, clock)
    running = asyncio.run(identities.find(b"good", "10.0.0.1"))
    clock.advance(IDLE_SECONDS_MAX + 1)
    asyncio.run(identities.refresh())
    assert len(identities) == 0
    del book.tokens["good"]
    asyncio.run(identities.refresh())
    with pytest.raises(TokenRevoked):
        running.check(clock)


def test_a_right_that_was_taken_away_while_the_catalog_left_is_not_honoured_from_memory() -> None:
    book, clock = Book(good=principal("1")), ManualClock(NOW_US)
    identities = build(book, clock)
    asyncio.run(identities.find(b"good", "10.0.0.1"))
    book.away = True
    asyncio.run(identities.refresh())
    assert identities.cached(b"good") is None
    with pytest.raises(CatalogUnavailable):
        asyncio.run(identities.find(b"good", "10.0.0.1"))


def test_the_answer_of_an_older_check_never_overwrites_a_newer_one() -> None:
    async def scene() -> None:
        book, clock = Book(good=principal("1", panel=True)), ManualClock(NOW_US)
        order: list[asyncio.Event] = []

        async def held_back(call: Any, *arguments: Any) -> Any:
            answer = call(*arguments)
            gate = asyncio.Event()
            order.append(gate)
            await gate.wait()
            return answer

        identities = TokenCache(book, AuthSettings(), clock, at_once)
        identity = await identities.find(b"good", "10.0.0.1")
        identities._run = held_back
        older = asyncio.ensure_future(identities.refresh())
        await asyncio.sleep(0)
        book.tokens["good"] = principal("1")
        newer = asyncio.ensure_future(identities.refresh())
        while not (older.done() and newer.done()):
            await asyncio.sleep(0)
            for gate in reversed(order):
                gate.set()
        assert identity.principal.roles == {Role.READER}

    asyncio.run(scene())


def test_someone_who_looks_after_the_instance_no_more_leaves_the_other_tenant_at_once() -> None:
    book, clock = Book(admin=principal("1", panel=True)), ManualClock(NOW_US)
    identities = build(book, clock)
    acting = in_tenant(asyncio.run(identities.find(b"admin", "")), "acme", exists=True)
    book.tokens["admin"] = principal("1")
    asyncio.run(identities.refresh())
    with pytest.raises(TenantNotFound):
        acting.check(clock)
