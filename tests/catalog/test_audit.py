"""The audit trail, on both databases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.catalog.conftest import ADMIN
from tidegate.catalog.audit import (
    DETAILS_BYTES_MAX,
    SUBJECT_CHARS_MAX,
    Actor,
    AuditEvent,
    AuditNote,
    system_actor,
)
from tidegate.catalog.database import Catalog
from tidegate.catalog.paging import PageRequest
from tidegate.errors import InvariantBroken, RequestInvalid
from tidegate.testing.clock import START_US, ManualClock

BOB = Actor("acme", "bob", "request-7")


def test_a_deed_is_noted_before_it_begins_and_when_it_ends(catalog: Catalog, clock: ManualClock) -> None:
    event_id = catalog.audit.begin(BOB, "topic.delete", "topic/orders", {"partitions": 3})
    started = catalog.audit.list("acme", PageRequest()).rows
    assert started == [
        AuditEvent(
            id=event_id,
            at_us=START_US,
            tenant="acme",
            user="bob",
            action="topic.delete",
            subject="topic/orders",
            outcome="started",
            request_id="request-7",
            details={"partitions": 3},
        )
    ]
    clock.advance(1)
    catalog.audit.finish(event_id, "failed", {"error": "STORAGE_FULL"})
    (ended,) = catalog.audit.list("acme", PageRequest()).rows
    assert (ended.outcome, ended.at_us) == ("failed", START_US)
    assert ended.details == {"partitions": 3, "error": "STORAGE_FULL"}


def test_notes_are_written_with_their_own_time_and_counts_are_added_later(
    catalog: Catalog, clock: ManualClock
) -> None:
    note = AuditNote(BOB, "login.refuse", "user/bob/token/1", "failed", {"error": "TOKEN_EXPIRED"}, START_US)
    clock.advance(5)
    first, second = catalog.audit.write_notes([note, note.with_details({"times": 2})], {})
    assert list(catalog.audit.write_notes([], {first: 7, 999: 3})) == []
    found = {event.id: event for event in catalog.audit.list("acme", PageRequest()).rows}
    assert set(found) == {first, second}
    assert {event.at_us for event in found.values()} == {START_US}
    assert found[first].details == {"error": "TOKEN_EXPIRED", "times": 7}
    assert (found[second].details["times"], found[second].outcome) == (2, "failed")


def test_the_end_of_what_never_began_is_our_mistake(catalog: Catalog) -> None:
    with pytest.raises(InvariantBroken):
        catalog.audit.finish(999, "done")


def test_the_trail_is_newest_first_in_pages_and_of_one_tenant(catalog: Catalog) -> None:
    ids = [catalog.audit.begin(BOB, "topic.create", f"topic/t{number}") for number in range(5)]
    catalog.audit.begin(ADMIN, "topic.create", "topic/other")
    first = catalog.audit.list("acme", PageRequest(limit=3))
    second = catalog.audit.list("acme", PageRequest(after=first.next, limit=3))
    assert [event.id for event in first.rows + second.rows] == ids[::-1]
    assert second.next is None


def test_the_trail_is_searched_by_user_and_action(catalog: Catalog) -> None:
    catalog.audit.begin(BOB, "topic.create", "topic/a")
    catalog.audit.begin(BOB, "topic.delete", "topic/a")
    catalog.audit.begin(system_actor("backup", "acme"), "backup.create", "backup/1")
    found = catalog.audit.list("acme", PageRequest(), user="bob", action="topic.delete").rows
    assert [(event.user, event.action) for event in found] == [("bob", "topic.delete")]
    assert [e.action for e in catalog.audit.list("acme", PageRequest(), user="system:backup").rows] == [
        "backup.create"
    ]
    assert catalog.audit.list("acme", PageRequest(), user="nobody").rows == []


def test_a_search_for_what_cannot_be_is_refused_or_empty(catalog: Catalog) -> None:
    for text in ("a\0b", "\ud800"):
        try:
            assert catalog.audit.list("acme", PageRequest(), user=text).rows == []
        except RequestInvalid as problem:
            assert "characters" in str(problem)


def test_a_long_subject_is_cut(catalog: Catalog) -> None:
    catalog.audit.begin(BOB, "topic.create", "topic/" + "x" * 100_000)
    catalog.audit.begin(BOB, "topic.create", "x" * SUBJECT_CHARS_MAX)
    fits, cut = (event.subject for event in catalog.audit.list("acme", PageRequest()).rows)
    assert fits == "x" * SUBJECT_CHARS_MAX
    assert cut == "topic/" + "x" * (SUBJECT_CHARS_MAX - 7) + "…"


@pytest.mark.parametrize(
    ("long", "begins"),
    [("é" * 20_000, "ééé"), (list(range(20_000)), "[0,1,2"), ({"a": "b" * 20_000}, '{"a":"bbb')],
)
def test_of_long_details_the_long_values_are_cut(catalog: Catalog, long: Any, begins: str) -> None:
    event_id = catalog.audit.begin(BOB, "backup.change", "backup/1", {"file": long, "bytes": 7})
    catalog.audit.finish(event_id, "failed", {"error": "STORAGE_FULL", "more": long})
    (event,) = catalog.audit.list("acme", PageRequest()).rows
    assert (event.details["bytes"], event.details["error"]) == (7, "STORAGE_FULL")
    for key in ("file", "more"):
        assert event.details[key].startswith(begins)
        assert event.details[key].endswith("…")
    assert len(json.dumps(event.details)) <= DETAILS_BYTES_MAX


def test_details_that_cannot_be_cut_to_fit_give_way_to_a_mark(catalog: Catalog) -> None:
    catalog.audit.begin(BOB, "sql.query", "sql", {f"column{n}": n for n in range(10_000)})
    (event,) = catalog.audit.list("acme", PageRequest()).rows
    assert list(event.details) == ["left_out_bytes"]


def test_old_events_are_pruned_and_numbers_never_come_back(catalog: Catalog, clock: ManualClock) -> None:
    catalog.audit.begin(BOB, "topic.create", "topic/old")
    clock.advance(10)
    newest = catalog.audit.begin(BOB, "topic.create", "topic/new")
    assert catalog.audit.prune(START_US + 1_000_000) == 1
    assert [event.subject for event in catalog.audit.list("acme", PageRequest()).rows] == ["topic/new"]
    assert catalog.audit.prune(START_US + 60_000_000) == 1
    assert catalog.audit.begin(BOB, "topic.create", "topic/next") > newest
