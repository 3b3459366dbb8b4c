"""Tokens and one-time links, on both databases."""

from __future__ import annotations

import contextlib
import re
import threading

import pytest
from sqlalchemy import select

from tests.catalog.conftest import ADMIN, ADMIN_TOKEN, OpenCatalog
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.paging import PageRequest
from tidegate.catalog.tables import ALL_TABLES, LINKS
from tidegate.catalog.tokens import UNUSED_MAX, IssuedToken
from tidegate.errors import (
    LinkWrong,
    RequestInvalid,
    SessionInsufficient,
    TenantDisabled,
    TokenExpired,
    TokenNotFound,
    TokenRevoked,
    TokenWrong,
    UserDisabled,
    UserNotFound,
)
from tidegate.model.access import Principal, Role
from tidegate.testing.clock import START_US, ManualClock

WRITER = frozenset({Role.WRITER})
HOUR = 3_600


@pytest.fixture
def bob(catalog: Catalog) -> IssuedToken:
    """Add a user to a tenant and give an endless token of theirs."""
    catalog.accounts.create_tenant(ADMIN, "acme")
    catalog.accounts.add_user(ADMIN, "acme", "bob", WRITER)
    return catalog.tokens.make(ADMIN, "acme", "bob", label="laptop", lifetime_seconds=None)


def test_a_token_lets_its_user_in(catalog: Catalog, bob: IssuedToken) -> None:
    assert re.fullmatch(r"tg_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", bob.text)
    assert catalog.tokens.find(bob.text) == Principal("acme", "bob", WRITER, bob.id, "acme", None)


def test_a_role_given_later_counts_at_the_next_look(catalog: Catalog, bob: IssuedToken) -> None:
    catalog.accounts.change_user(ADMIN, "acme", "bob", roles=frozenset({Role.READER}))
    assert catalog.tokens.find(bob.text).roles == {Role.READER}


def test_secrets_are_nowhere_in_the_database(catalog: Catalog, bob: IssuedToken) -> None:
    link = catalog.tokens.make_link(catalog.tokens.find(bob.text), 60)
    session = catalog.tokens.use_link(link.code, 60)
    with catalog.transaction() as connection:
        rows = [str(tuple(row)) for table in ALL_TABLES for row in connection.execute(select(table))]
    assert any(bob.id in row for row in rows)
    for secret in (bob.text, bob.text.split("_", 2)[2], link.code, session.text, ADMIN_TOKEN):
        assert not [row for row in rows if secret in row]


def test_guesses_are_wrong(catalog: Catalog, bob: IssuedToken) -> None:
    other_secret = f"tg_{bob.id}_{'A' * 43}"
    other_id = f"tg_{'0' * 16}_{bob.text.split('_', 2)[2]}"
    for text in ("", bob.id, other_secret, other_id, bob.text[:-1], bob.text + "x", "tg__", "\ud800", "a\0"):
        with pytest.raises(TokenWrong) as caught:
            catalog.tokens.find(text)
        assert type(caught.value) is TokenWrong


def test_a_revoked_token_never_works_again(catalog: Catalog, bob: IssuedToken, clock: ManualClock) -> None:
    catalog.tokens.revoke(ADMIN, "acme", "bob", bob.id)
    with pytest.raises(TokenRevoked):
        catalog.tokens.find(bob.text)
    clock.set_us(START_US - HOUR * 1_000_000)
    with pytest.raises(TokenRevoked):
        catalog.tokens.find(bob.text)
    event = catalog.audit.list("default", PageRequest(limit=1)).rows[0]
    assert (event.action, event.subject) == ("token.revoke", f"user/bob/token/{bob.id}")


def test_a_token_ends_at_its_time(catalog: Catalog, bob: IssuedToken, clock: ManualClock) -> None:
    made = catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=HOUR)
    assert made.expires_us == START_US + HOUR * 1_000_000
    clock.advance(HOUR - 0.000001)
    assert catalog.tokens.find(made.text).expires_us == made.expires_us
    clock.advance(0.000001)
    with pytest.raises(TokenExpired, match="2026-01-01T01:00:00Z"):
        catalog.tokens.find(made.text)
    assert catalog.tokens.find(bob.text).expires_us is None


def test_a_clock_that_goes_back_brings_no_token_to_life(catalog: Catalog, clock: ManualClock) -> None:
    made = [catalog.tokens.make(ADMIN, "default", "admin", lifetime_seconds=HOUR) for _ in range(3)]
    clock.advance(HOUR)
    with pytest.raises(TokenExpired):
        catalog.tokens.find(made[0].text)
    assert isinstance(catalog.tokens.check([made[1].id])[made[1].id], TokenExpired)
    assert catalog.tokens.end_expired(clock.now_us()) == 1
    assert catalog.tokens.end_expired(clock.now_us()) == 0
    clock.set_us(START_US)
    for token in made:
        with pytest.raises(TokenExpired):
            catalog.tokens.find(token.text)


def test_a_disabled_user_or_tenant_is_kept_out(catalog: Catalog, bob: IssuedToken) -> None:
    catalog.accounts.change_user(ADMIN, "acme", "bob", enabled=False)
    with pytest.raises(UserDisabled):
        catalog.tokens.find(bob.text)
    catalog.accounts.set_tenant_enabled(ADMIN, "acme", enabled=False)
    with pytest.raises(TenantDisabled):
        catalog.tokens.find(bob.text)
    catalog.accounts.set_tenant_enabled(ADMIN, "acme", enabled=True)
    catalog.accounts.change_user(ADMIN, "acme", "bob", enabled=True)
    assert catalog.tokens.find(bob.text).user == "bob"


def test_check_judges_many_at_once(catalog: Catalog, bob: IssuedToken) -> None:
    revoked = catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=None)
    catalog.tokens.revoke(ADMIN, "acme", "bob", revoked.id)
    absent = [f"{number:016x}" for number in range(1_200)]
    judged = catalog.tokens.check([bob.id, revoked.id, *absent])
    assert len(judged) == 1_202
    assert judged[bob.id] == catalog.tokens.find(bob.text)
    assert isinstance(judged[revoked.id], TokenRevoked)
    assert all(isinstance(judged[token_id], TokenRevoked) for token_id in absent)
    assert catalog.tokens.check([]) == {}


def test_the_last_use_is_noted_once_an_hour_by_check_alone(
    catalog: Catalog, bob: IssuedToken, clock: ManualClock
) -> None:
    def last_used_us() -> int | None:
        return catalog.tokens.list("acme", "bob", PageRequest()).rows[0].last_used_us

    catalog.tokens.find(bob.text)
    assert last_used_us() is None
    clock.advance(1)
    catalog.tokens.check([bob.id])
    assert last_used_us() == START_US + 1_000_000
    clock.advance(HOUR - 1)
    catalog.tokens.check([bob.id])
    assert last_used_us() == START_US + 1_000_000
    clock.advance(1)
    catalog.tokens.check([bob.id])
    assert last_used_us() == START_US + (HOUR + 1) * 1_000_000


def test_lists_show_no_secrets_and_come_in_pages(catalog: Catalog, bob: IssuedToken) -> None:
    made = [catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=60) for _ in range(4)]
    first = catalog.tokens.list("acme", "bob", PageRequest(limit=3))
    second = catalog.tokens.list("acme", "bob", PageRequest(after=first.next, limit=3))
    assert [token.id for token in first.rows + second.rows] == sorted([bob.id, *(one.id for one in made)])
    assert second.next is None
    assert {token.label for token in first.rows + second.rows} == {"", "laptop"}
    with pytest.raises(UserNotFound):
        catalog.tokens.list("default", "bob", PageRequest())


def test_tokens_of_another_user_or_tenant_are_not_found(catalog: Catalog, bob: IssuedToken) -> None:
    catalog.accounts.add_user(ADMIN, "acme", "carl", WRITER)
    with pytest.raises(TokenNotFound):
        catalog.tokens.revoke(ADMIN, "acme", "carl", bob.id)
    with pytest.raises(UserNotFound):
        catalog.tokens.revoke(ADMIN, "default", "bob", bob.id)
    for wrong in ("", "a\0", "x" * 999):
        with pytest.raises(TokenNotFound):
            catalog.tokens.revoke(ADMIN, "acme", "bob", wrong)
    assert catalog.tokens.find(bob.text).user == "bob"


def test_the_token_of_a_home_is_not_revoked_from_outside(catalog: Catalog) -> None:
    home = catalog.tokens.find(ADMIN_TOKEN)
    with pytest.raises(RequestInvalid, match=r"admin\.token"):
        catalog.tokens.revoke(ADMIN, "default", "admin", home.token_id)
    assert catalog.tokens.find(ADMIN_TOKEN) == home


@pytest.mark.parametrize("lifetime", [0, -1, 1e12, float("nan"), float("inf")])
def test_a_lifetime_has_bounds(catalog: Catalog, lifetime: float) -> None:
    with pytest.raises(RequestInvalid):
        catalog.tokens.make(ADMIN, "default", "admin", lifetime_seconds=lifetime)


@pytest.mark.parametrize("label", ["a\nb", "a\0b", "\ud800", "x" * 201])
def test_a_label_is_one_short_line(catalog: Catalog, label: str) -> None:
    with pytest.raises(RequestInvalid):
        catalog.tokens.make(ADMIN, "default", "admin", label=label, lifetime_seconds=1)


def test_ended_tokens_and_old_links_are_pruned(
    catalog: Catalog, bob: IssuedToken, clock: ManualClock
) -> None:
    principal = catalog.tokens.find(bob.text)
    catalog.tokens.make_link(principal, 60)
    old = catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=60)
    clock.advance(120)
    catalog.tokens.end_expired(clock.now_us())
    assert catalog.tokens.prune(START_US + 110_000_000) == 0
    assert catalog.tokens.prune(START_US + 130_000_000) == 1
    assert [token.id for token in catalog.tokens.list("acme", "bob", PageRequest()).rows] == [bob.id]
    with pytest.raises(TokenWrong):
        catalog.tokens.find(old.text)


def test_links_and_ended_sessions_are_pruned_after_a_day_and_tokens_when_told(
    catalog: Catalog, bob: IssuedToken, clock: ManualClock
) -> None:
    def links() -> int:
        with catalog.transaction() as connection:
            return len(connection.execute(select(LINKS)).all())

    principal = catalog.tokens.find(bob.text)
    catalog.tokens.use_link(catalog.tokens.make_link(principal, 60).code, 60)
    catalog.tokens.make_link(principal, 60)
    catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=60)
    clock.advance(60)
    assert catalog.tokens.end_expired(clock.now_us()) == 2
    clock.advance(24 * HOUR)
    assert (catalog.tokens.prune(START_US), links()) == (0, 2)
    clock.advance(1)
    assert (catalog.tokens.prune(START_US), links()) == (1, 0)
    kinds = [token.kind for token in catalog.tokens.list("acme", "bob", PageRequest()).rows]
    assert kinds == ["token", "token"], "a token that ended is kept for longer"


def test_a_session_ends_no_later_than_the_token_that_made_its_link(
    catalog: Catalog, bob: IssuedToken, clock: ManualClock
) -> None:
    short = catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=90)
    link = catalog.tokens.make_link(catalog.tokens.find(short.text), 600)
    assert link.expires_us == short.expires_us
    session = catalog.tokens.use_link(link.code, HOUR)
    assert session.expires_us == short.expires_us
    clock.advance(90)
    with pytest.raises(TokenExpired):
        catalog.tokens.find(session.text)


def test_a_session_makes_no_links(catalog: Catalog, bob: IssuedToken) -> None:
    link = catalog.tokens.make_link(catalog.tokens.find(bob.text), 60)
    session = catalog.tokens.find(catalog.tokens.use_link(link.code, HOUR).text)
    with pytest.raises(SessionInsufficient):
        catalog.tokens.make_link(session, 60)


def test_sessions_end_with_the_token_that_made_their_link(catalog: Catalog, bob: IssuedToken) -> None:
    other = catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=None)
    sessions = [
        catalog.tokens.use_link(catalog.tokens.make_link(catalog.tokens.find(text), 60).code, HOUR)
        for text in (bob.text, bob.text, other.text)
    ]
    catalog.tokens.revoke(ADMIN, "acme", "bob", bob.id)
    for ended in sessions[:2]:
        with pytest.raises(TokenRevoked):
            catalog.tokens.find(ended.text)
    assert isinstance(catalog.tokens.check([sessions[0].id])[sessions[0].id], TokenRevoked)
    assert catalog.tokens.find(sessions[2].text).user == "bob"


def test_a_session_of_a_token_that_was_seen_to_expire_stays_ended(
    catalog: Catalog, bob: IssuedToken, clock: ManualClock
) -> None:
    short = catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=90)
    link = catalog.tokens.make_link(catalog.tokens.find(short.text), 60)
    session = catalog.tokens.use_link(link.code, HOUR)
    clock.advance(90)
    assert isinstance(catalog.tokens.check([short.id])[short.id], TokenExpired)
    clock.set_us(START_US)
    with pytest.raises(TokenExpired):
        catalog.tokens.find(session.text)


def test_sessions_of_a_home_end_when_its_admin_token_is_replaced(catalog: Catalog) -> None:
    link = catalog.tokens.make_link(catalog.tokens.find(ADMIN_TOKEN), 60)
    session = catalog.tokens.use_link(link.code, HOUR)
    catalog.accounts.ensure_admin("another-text-of-an-admin.token-file", "home-1")
    catalog.accounts.ensure_admin(ADMIN_TOKEN, "home-1")
    assert catalog.tokens.find(ADMIN_TOKEN).user == "admin"
    with pytest.raises(TokenRevoked):
        catalog.tokens.find(session.text)


def test_of_the_unused_links_of_a_user_the_oldest_gives_way(
    catalog: Catalog, bob: IssuedToken, clock: ManualClock
) -> None:
    principal = catalog.tokens.find(bob.text)
    others = catalog.tokens.make_link(catalog.tokens.find(ADMIN_TOKEN), HOUR)
    codes = []
    for _ in range(UNUSED_MAX + 2):
        clock.advance(1)
        codes.append(catalog.tokens.make_link(principal, HOUR).code)
    for code in codes[:2]:
        with pytest.raises(LinkWrong):
            catalog.tokens.use_link(code, HOUR)
    for code in [others.code, *codes[2:]]:
        catalog.tokens.use_link(code, HOUR)


def test_a_link_that_is_used_while_its_token_is_revoked_leaves_no_living_session(
    place: DatabaseAddress, catalog: Catalog, bob: IssuedToken, clock: ManualClock, open_catalog: OpenCatalog
) -> None:
    other = open_catalog(place, clock)
    for _ in range(10):
        made = catalog.tokens.make(ADMIN, "acme", "bob", lifetime_seconds=None)
        code = catalog.tokens.make_link(catalog.tokens.find(made.text), 60).code
        sessions: list[IssuedToken] = []

        def use(code: str, sessions: list[IssuedToken]) -> None:
            with contextlib.suppress(LinkWrong):
                sessions.append(other.tokens.use_link(code, HOUR))

        thread = threading.Thread(target=use, args=(code, sessions))
        thread.start()
        catalog.tokens.revoke(ADMIN, "acme", "bob", made.id)
        thread.join()
        for session in sessions:
            with pytest.raises(TokenRevoked):
                catalog.tokens.find(session.text)


def test_a_link_lets_a_browser_in_once(catalog: Catalog, bob: IssuedToken) -> None:
    link = catalog.tokens.make_link(catalog.tokens.find(bob.text), 60)
    assert link.expires_us == START_US + 60_000_000
    session = catalog.tokens.use_link(link.code, HOUR)
    found = catalog.tokens.find(session.text)
    assert (found.user, found.roles, found.expires_us) == ("bob", WRITER, START_US + HOUR * 1_000_000)
    assert {token.kind for token in catalog.tokens.list("acme", "bob", PageRequest()).rows} == {
        "token",
        "session",
    }
    with pytest.raises(LinkWrong):
        catalog.tokens.use_link(link.code, HOUR)
    events = [event.action for event in catalog.audit.list("acme", PageRequest(limit=2)).rows]
    assert events == ["link.use", "link.create"]


def test_a_link_made_in_another_tenant_opens_ones_own(catalog: Catalog) -> None:
    admin = catalog.tokens.find(ADMIN_TOKEN)
    acting = Principal("acme", admin.user, admin.roles, admin.token_id, admin.own_tenant)
    session = catalog.tokens.use_link(catalog.tokens.make_link(acting, 60).code, 60)
    assert catalog.tokens.find(session.text).tenant == "default"


def test_a_link_ends_with_its_time_its_token_and_its_user(
    catalog: Catalog, bob: IssuedToken, clock: ManualClock
) -> None:
    principal = catalog.tokens.find(bob.text)
    late = catalog.tokens.make_link(principal, 60)
    clock.advance(60)
    with pytest.raises(LinkWrong):
        catalog.tokens.use_link(late.code, HOUR)
    link = catalog.tokens.make_link(principal, 60)
    catalog.accounts.change_user(ADMIN, "acme", "bob", enabled=False)
    with pytest.raises(UserDisabled):
        catalog.tokens.use_link(link.code, HOUR)
    catalog.accounts.change_user(ADMIN, "acme", "bob", enabled=True)
    catalog.tokens.revoke(ADMIN, "acme", "bob", bob.id)
    with pytest.raises(LinkWrong):
        catalog.tokens.use_link(link.code, HOUR)
    for wrong in ("", "x" * 43, "x" * 10_000, "\ud800", "a\0"):
        with pytest.raises(LinkWrong):
            catalog.tokens.use_link(wrong, HOUR)


def test_of_many_who_use_a_link_at_once_one_gets_in(
    place: DatabaseAddress, catalog: Catalog, clock: ManualClock, open_catalog: OpenCatalog
) -> None:
    others = [catalog, open_catalog(place, clock)] * 3
    for _ in range(5):
        link = catalog.tokens.make_link(catalog.tokens.find(ADMIN_TOKEN), 60)
        won: list[IssuedToken] = []
        lost: list[LinkWrong] = []

        def use(one: Catalog, code: str, won: list[IssuedToken], lost: list[LinkWrong]) -> None:
            try:
                won.append(one.tokens.use_link(code, 60))
            except LinkWrong as problem:
                lost.append(problem)

        threads = [threading.Thread(target=use, args=(one, link.code, won, lost)) for one in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 5)


def test_two_tokens_never_share_a_text(catalog: Catalog) -> None:
    texts = {catalog.tokens.make(ADMIN, "default", "admin", lifetime_seconds=1).text for _ in range(20)}
    assert len(texts) == 20
