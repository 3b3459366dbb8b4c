"""Notes for the audit trail: one event a minute for equal ones, bounded memory, no loss in an outage."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.catalog.audit import AuditEvent
from tidegate.catalog.database import Catalog
from tidegate.catalog.database_url import DatabaseAddress
from tidegate.catalog.paging import PageRequest
from tidegate.errors import (
    CatalogUnavailable,
    Forbidden,
    NotFound,
    TidegateError,
    TokenExpired,
    TokenMissing,
    TokenWrong,
    TooManyGuesses,
)
from tidegate.model.access import Principal, Role
from tidegate.server.access.audit_notes import (
    OTHERS,
    SOURCES_MAX,
    SUBJECTS_MAX,
    UNKNOWN_USER,
    WAITING_MAX,
    AuditNotes,
    RequestPlace,
)
from tidegate.testing.clock import START_US, ManualClock

HERE = RequestPlace("10.0.0.1", "request-1")
ROOT = Principal("default", "root", frozenset({Role.PANEL}), "t1", "default")
READER = Principal("acme", "rd", frozenset({Role.READER}), "t2", "acme")


class Notebook:
    """Notes on a real catalog that can be out of reach."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        address = DatabaseAddress(f"sqlite:///{folder / 'catalog.db'}", timeout_seconds=60.0)
        self.catalog = Catalog.open(address, self.clock, random_bytes=secrets.token_bytes)
        self.dropped = 0
        self.away = False
        self.writes = 0
        self.notes = AuditNotes(self.catalog.audit, self.clock, self._drop)

    def _drop(self) -> None:
        self.dropped += 1

    def write(self) -> None:
        asyncio.run(self.notes.write(self._run))

    def events(self, tenant: str = "default", **filters: str) -> list[AuditEvent]:
        page = PageRequest(limit=1_000)
        return self.catalog.audit.list(tenant, page, **filters).rows

    async def _run(self, call: Any, *arguments: Any) -> Any:
        self.writes += 1
        if self.away:
            raise CatalogUnavailable(reason="away")
        return call(*arguments)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Notebook]:
    made = Notebook(tmp_path)
    yield made
    made.catalog.close()


def expired(token_id: str) -> TidegateError:
    problem = TokenExpired(expired_at="then", user="bob")
    problem.token_owner = ("acme", "bob", token_id)
    return problem


def forbidden(operation: str = "topic.create") -> Forbidden:
    return Forbidden(user="rd", tenant="acme", operation=operation, needed="StreamDataAdmin")


def test_equal_ones_in_a_minute_are_one_event_with_their_number(book: Notebook) -> None:
    for _ in range(3):
        book.notes.refused(expired("t9"), None, HERE)
    book.write()
    (event,) = book.events("acme")
    assert (event.at_us, event.user, event.action) == (START_US, "bob", "login.refuse")
    assert (event.subject, event.outcome, event.request_id) == ("user/bob/token/t9", "failed", "request-1")
    assert event.details == {"error": "TOKEN_EXPIRED", "address": "10.0.0.1", "times": 3}
    book.clock.advance(59)
    book.notes.refused(expired("t9"), None, HERE)
    book.write()
    assert [one.details["times"] for one in book.events("acme")] == [3]
    book.clock.advance(1)
    book.write()
    assert [one.details["times"] for one in book.events("acme")] == [4]
    book.notes.refused(expired("t9"), None, HERE)
    book.write()
    assert [one.details.get("times") for one in book.events("acme")] == [None, 4]


def test_tokens_users_kinds_and_subjects_are_events_of_their_own(book: Notebook) -> None:
    book.notes.refused(expired("t8"), None, HERE)
    book.notes.refused(expired("t9"), None, HERE)
    for _ in range(2):
        book.notes.refused(forbidden(), READER, HERE)
        book.notes.refused(forbidden("topic.delete"), READER, HERE)
        book.notes.executed_as(ROOT, "alice", "select", HERE)
        book.notes.executed_as(ROOT, "bob", "insert", HERE)
    book.notes.entered(Principal("acme", "root", ROOT.roles, "t1", "default"), HERE)
    book.write()
    of_acme = [(one.user, one.action, one.subject) for one in reversed(book.events("acme"))]
    assert of_acme == [
        ("bob", "login.refuse", "user/bob/token/t8"),
        ("bob", "login.refuse", "user/bob/token/t9"),
        ("rd", "role.refuse", "operation/topic.create"),
        ("rd", "role.refuse", "operation/topic.delete"),
        ("default/root", "tenant.enter", "tenant/acme"),
    ]
    told = [(one.subject, one.outcome, one.details) for one in reversed(book.events())]
    place = {"token": "t1", "address": "10.0.0.1"}
    assert told == [
        ("user/alice", "done", {**place, "statement": "select", "times": 2}),
        ("user/bob", "done", {**place, "statement": "insert", "times": 2}),
    ]


@pytest.mark.parametrize("problem", [TokenMissing(), NotFound(reason="nothing")])
def test_other_errors_are_not_noted(book: Notebook, problem: TidegateError) -> None:
    book.notes.refused(problem, READER, HERE)
    assert len(book.notes) == 0
    book.write()
    assert book.writes == 0


def test_a_flood_of_unknown_tokens_from_many_addresses_is_a_few_events_a_minute(book: Notebook) -> None:
    for number in range(50_000):
        place = RequestPlace(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "r")
        book.notes.refused(TokenWrong(), None, place)
    book.notes.refused(TooManyGuesses(address="10.0.0.0", retry_after_seconds=1), None, HERE)
    book.write()
    events = book.events()
    assert len(events) == SUBJECTS_MAX + 1
    assert {one.user for one in events} == {UNKNOWN_USER}
    assert (events[0].subject, events[0].details["times"]) == (OTHERS, 50_000 - SUBJECTS_MAX)
    assert events[-1].subject == "address/10.0.0.0"
    assert book.dropped == 0


def test_an_administrator_who_acts_for_everyone_writes_a_few_events_a_minute(book: Notebook) -> None:
    for number in range(5_000):
        book.notes.executed_as(ROOT, f"user-{number}", "insert", HERE)
    book.write()
    events = book.events()
    assert (len(events), events[0].subject) == (SUBJECTS_MAX + 1, OTHERS)


def test_what_finds_no_room_is_counted_and_dropped(book: Notebook) -> None:
    book.away = True
    for number in range(WAITING_MAX + 7):
        book.notes.refused(expired(f"t{number}"), None, HERE)
    assert (len(book.notes), book.dropped) == (WAITING_MAX, 7)
    with pytest.raises(CatalogUnavailable):
        book.write()
    assert len(book.notes) == WAITING_MAX
    book.away = False
    book.write()
    assert (len(book.notes), len(book.events("acme"))) == (0, WAITING_MAX)
    for number in range(SOURCES_MAX):
        book.notes.refused(expired(f"u{number}"), None, HERE)
        if number % 500 == 0:
            book.write()
    assert book.dropped == 7 + WAITING_MAX + 7  # tokens whose minute was open count, too
    book.clock.advance(61)
    book.write()
    book.notes.refused(expired("u"), None, HERE)
    assert len(book.notes) == 1


def test_an_outage_loses_no_event_and_no_count(book: Notebook) -> None:
    book.notes.refused(forbidden(), READER, HERE)
    book.write()
    book.away = True
    book.notes.refused(forbidden(), READER, HERE)
    book.notes.refused(expired("t9"), None, HERE)
    book.clock.advance(61)
    with pytest.raises(CatalogUnavailable):
        book.write()
    book.away = False
    book.write()
    first, second = reversed(book.events("acme"))
    assert (first.action, first.details["times"]) == ("role.refuse", 2)
    assert (second.action, second.at_us) == ("login.refuse", START_US)


def test_what_is_left_is_written_at_the_stop(book: Notebook) -> None:
    book.notes.refused(expired("t9"), None, HERE)
    book.notes.write_last()
    assert len(book.events("acme")) == 1


def test_a_count_of_an_event_that_was_pruned_is_left_out(book: Notebook) -> None:
    book.notes.refused(expired("t9"), None, HERE)
    book.write()
    book.notes.refused(expired("t9"), None, HERE)
    book.catalog.audit.prune(START_US + 1)
    book.clock.advance(61)
    book.write()
    assert book.events("acme") == []
