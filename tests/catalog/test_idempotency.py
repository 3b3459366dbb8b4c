"""Idempotency keys, on both databases."""

from __future__ import annotations

import threading

import pytest

from tests.catalog.conftest import ADMIN, OpenCatalog
from tidegate.catalog.accounts import User
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.idempotency import AnswerKnown, IdempotencyKey, StoredAnswer
from tidegate.catalog.paging import PageRequest
from tidegate.catalog.tokens import IssuedToken
from tidegate.errors import IdempotencyKeyReused, UserExists
from tidegate.model.access import Role
from tidegate.testing.clock import START_US, ManualClock

WRITER = frozenset({Role.WRITER})


def idempotency_key(key: str, fingerprint: str = "f") -> IdempotencyKey:
    def answer_of(user: User) -> tuple[int, bytes | None]:
        return 201, user.name.encode()

    return IdempotencyKey("admin", key, fingerprint, answer_of)


def test_a_repeated_call_gets_the_first_answer_and_does_nothing(catalog: Catalog) -> None:
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER, key=idempotency_key("k"))
    events = catalog.audit.list("default", PageRequest()).rows
    with pytest.raises(AnswerKnown) as caught:
        catalog.accounts.add_user(ADMIN, "default", "bob", WRITER, key=idempotency_key("k"))
    assert caught.value.answer == StoredAnswer(201, b"bob")
    assert catalog.idempotency.find("default", "admin", "k", "f") == StoredAnswer(201, b"bob")
    assert catalog.audit.list("default", PageRequest()).rows == events


def test_a_key_of_another_request_is_refused(catalog: Catalog) -> None:
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER, key=idempotency_key("k", "f1"))
    with pytest.raises(IdempotencyKeyReused):
        catalog.accounts.add_user(ADMIN, "default", "carl", WRITER, key=idempotency_key("k", "f2"))
    with pytest.raises(IdempotencyKeyReused):
        catalog.idempotency.find("default", "admin", "k", "f2")


def test_keys_belong_to_one_user_of_one_tenant(catalog: Catalog) -> None:
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER, key=idempotency_key("k"))
    assert catalog.idempotency.find("default", "bob", "k", "other") is None
    assert catalog.idempotency.find("acme", "admin", "k", "other") is None


def test_the_keys_of_a_user_go_with_the_user(catalog: Catalog) -> None:
    answer = StoredAnswer(200, b"of the first bob")
    catalog.accounts.create_tenant(ADMIN, "acme")
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER)
    kept = [("default", "bob"), ("acme", "default/bob"), ("default", "bobby"), ("acme", "bob")]
    with catalog.transaction() as connection:
        for tenant, user in kept:
            catalog.idempotency.store(connection, tenant, user, "k", "f", answer)
    catalog.accounts.remove_user(ADMIN, "default", "bob")
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER)
    found = [catalog.idempotency.find(tenant, user, "k", "f") for tenant, user in kept]
    assert found == [None, None, answer, answer]


def test_a_refused_deed_keeps_no_answer(catalog: Catalog) -> None:
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER)
    with pytest.raises(UserExists):
        catalog.accounts.add_user(ADMIN, "default", "bob", WRITER, key=idempotency_key("k"))
    assert catalog.idempotency.find("default", "admin", "k", "f") is None
    catalog.accounts.remove_user(ADMIN, "default", "bob")
    assert catalog.accounts.add_user(ADMIN, "default", "bob", WRITER, key=idempotency_key("k")).name == "bob"


def test_a_secret_answer_is_kept_without_its_body(catalog: Catalog) -> None:
    def hide(_: IssuedToken) -> tuple[int, bytes | None]:
        return 201, None

    hidden = IdempotencyKey("admin", "k", "f", hide)
    catalog.tokens.make(ADMIN, "default", "admin", lifetime_seconds=60, key=hidden)
    with pytest.raises(AnswerKnown) as caught:
        catalog.tokens.make(ADMIN, "default", "admin", lifetime_seconds=60, key=hidden)
    assert caught.value.answer == StoredAnswer(201, None)


def test_an_answer_is_stored_in_the_transaction_of_the_caller(catalog: Catalog) -> None:
    answer = StoredAnswer(200, b"\x00\xff")
    with catalog.transaction() as connection:
        catalog.idempotency.store(connection, "acme", "bob", "k1", "f", answer)
    assert catalog.idempotency.find("acme", "bob", "k1", "f") == answer
    with pytest.raises(ZeroDivisionError), catalog.transaction() as connection:
        catalog.idempotency.store(connection, "acme", "bob", "k2", "f", answer)
        _ = 1 / 0
    assert catalog.idempotency.find("acme", "bob", "k2", "f") is None


def test_old_answers_are_pruned(catalog: Catalog, clock: ManualClock) -> None:
    catalog.accounts.add_user(ADMIN, "default", "bob", WRITER, key=idempotency_key("old"))
    clock.advance(10)
    catalog.accounts.add_user(ADMIN, "default", "carl", WRITER, key=idempotency_key("new"))
    assert catalog.idempotency.prune(START_US + 5_000_000) == 1
    assert catalog.idempotency.find("default", "admin", "old", "f") is None
    assert catalog.idempotency.find("default", "admin", "new", "f") is not None


def test_of_many_equal_calls_at_once_one_acts_and_all_know_its_answer(
    place: DatabaseAddress, catalog: Catalog, clock: ManualClock, open_catalog: OpenCatalog
) -> None:
    others = [catalog, open_catalog(place, clock)] * 3
    outcomes: list[object] = []

    def add(one: Catalog) -> None:
        try:
            outcomes.append(
                one.accounts.add_user(ADMIN, "default", "bob", WRITER, key=idempotency_key("k")).name
            )
        except AnswerKnown as known:
            outcomes.append(known.answer)

    threads = [threading.Thread(target=add, args=(one,)) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("bob") == 1
    assert outcomes.count(StoredAnswer(201, b"bob")) == 5
