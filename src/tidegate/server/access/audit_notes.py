"""Notes for the audit trail: refused logins and roles, EXECUTE AS, and administrators in other tenants.

Any caller can cause these, with or without a token and as often as they like. So of equal ones in a minute
one event is written, at the first, and the number of all of them is added to it when the minute is over.
Beyond SUBJECTS_MAX events of one kind and token (all callers without a valid token count as one) the rest of
the minute is one more event, `(others)`. What does not fit into the memory for notes is counted and dropped.

    note    a request is noted in memory: no wait, no database
    write   a background task writes what was noted, about once a second, and again at the stop

A process that is killed loses the notes of the last second, and counts of the last minute. The text of a
token is never in a note.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.catalog.audit import Actor, Audit, AuditNote
from tidegate.errors import Forbidden, TenantDisabled, TidegateError, TokenWrong, TooManyGuesses, UserDisabled
from tidegate.model.access import DEFAULT_TENANT, Operation, Principal
from tidegate.model.clock import Clock

LOGIN_REFUSED = "login.refuse"
ROLE_REFUSED = "role.refuse"
TENANT_ENTERED = "tenant.enter"
# No user can have these names.
UNKNOWN_USER = "(unknown)"
OTHERS = "(others)"

WINDOW_SECONDS = 60.0
# Different events of one kind and token in a minute. For callers without a valid token it bounds what a flood
# from many addresses writes: some 30,000 events a day.
SUBJECTS_MAX = 20
# Kinds and tokens whose minute has begun.
SOURCES_MAX = 2_000
# Notes that wait for the catalog.
WAITING_MAX = 1_000
# Notes written in one transaction: others wait for it for milliseconds only.
WRITE_MAX = 200

Run = Callable[..., Awaitable[Any]]
_LOGIN_ERRORS = (TokenWrong, UserDisabled, TenantDisabled, TooManyGuesses)


@dataclass(frozen=True, slots=True)
class RequestPlace:
    """Where a request came from, and its id."""

    address: str
    request_id: str


@dataclass(slots=True)
class _Noted:
    """One event, and how often it happened in its minute."""

    note: AuditNote
    times: int = 1
    written_times: int = 0
    event_id: int | None = None


@dataclass(slots=True)
class _Minute:
    """The events of one kind and token since a moment."""

    began_seconds: float
    events: dict[tuple[str, str], _Noted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Batch:
    """New events with their counts so far, and earlier ones whose count is to be written."""

    new: list[_Noted]
    times: list[int]
    ended: list[_Noted]

    @property
    def notes(self) -> list[AuditNote]:
        """The new events as they are to be written."""
        return [
            noted.note if times == 1 else noted.note.with_details({"times": times})
            for noted, times in zip(self.new, self.times, strict=True)
        ]

    @property
    def counts(self) -> dict[int, int]:
        """The counts of earlier events, by their ids; one that is not written yet takes its count along."""
        return {noted.event_id: noted.times for noted in self.ended if noted.event_id is not None}

    def note_ids(self, event_ids: Sequence[int]) -> None:
        """Record that the batch is written."""
        for noted, event_id, times in zip(self.new, event_ids, self.times, strict=True):
            noted.event_id, noted.written_times = event_id, times


class AuditNotes:
    """Notes that are not written yet. Belongs to the event loop; memory is bounded."""

    def __init__(self, audit: Audit, clock: Clock, dropped: Callable[[], None]) -> None:
        """`dropped` is called for every note that is dropped."""
        self._audit = audit
        self._clock = clock
        self._dropped = dropped
        self._minutes: dict[tuple[str, str, str], _Minute] = {}
        self._waiting: deque[_Noted] = deque()
        self._ended: deque[_Noted] = deque()

    def __len__(self) -> int:
        """Return the number of notes that wait to be written."""
        return len(self._waiting)

    def refused(self, problem: TidegateError, principal: Principal | None, place: RequestPlace) -> None:
        """Note a refused login or a refused role; other errors are not noted."""
        if isinstance(problem, Forbidden):
            if principal is not None:
                operation = str(problem.values.get("operation", ""))
                details = {"needed": problem.values.get("needed", "")}
                self._note(ROLE_REFUSED, principal, f"operation/{operation}", place, details, "failed")
        elif isinstance(problem, _LOGIN_ERRORS):
            self._refused_login(problem, place)

    def executed_as(self, principal: Principal, user: str, statement: str, place: RequestPlace) -> None:
        """Note that an administrator's statement acts as a user."""
        details = {"statement": statement}
        self._note(str(Operation.SQL_EXECUTE_AS), principal, f"user/{user}", place, details, "done")

    def entered(self, principal: Principal, place: RequestPlace) -> None:
        """Note that an administrator of the instance acts in another tenant."""
        self._note(TENANT_ENTERED, principal, f"tenant/{principal.tenant}", place, {}, "done")

    async def write(self, run: Run) -> None:
        """Write what was noted, and the counts of minutes that are over; `run` runs a call of the catalog.

        CatalogUnavailable leaves all of it for the next call.
        """
        while (batch := self._take()) is not None:
            try:
                event_ids = await run(self._audit.write_notes, batch.notes, batch.counts)
            except TidegateError:
                self._put_back(batch)
                raise
            batch.note_ids(event_ids)

    def write_last(self) -> None:
        """Write what is left at the stop of the server; blocking."""
        while (batch := self._take()) is not None:
            batch.note_ids(self._audit.write_notes(batch.notes, batch.counts))

    def _take(self) -> _Batch | None:
        """Return the next notes to be written; what a cancelled write has is not written twice."""
        self._end_minutes()
        if not self._waiting and not self._ended:
            return None
        new = [self._waiting.popleft() for _ in range(min(WRITE_MAX, len(self._waiting)))]
        ended = [self._ended.popleft() for _ in range(min(WRITE_MAX, len(self._ended)))]
        return _Batch(new, [noted.times for noted in new], ended)

    def _put_back(self, batch: _Batch) -> None:
        self._waiting.extendleft(reversed(batch.new))
        self._ended.extendleft(reversed(batch.ended))

    def _refused_login(self, problem: TidegateError, place: RequestPlace) -> None:
        details = {"error": problem.code, "address": place.address}
        if problem.token_owner is None:
            actor = Actor(DEFAULT_TENANT, UNKNOWN_USER, place.request_id)
            self._add((LOGIN_REFUSED, "", ""), actor, f"address/{place.address}", details, "failed")
            return
        tenant, user, token_id = problem.token_owner
        actor = Actor(tenant, user, place.request_id)
        subject = f"user/{user}/token/{token_id}"
        self._add((LOGIN_REFUSED, token_id, tenant), actor, subject, details, "failed")

    def _note(
        self,
        action: str,
        principal: Principal,
        subject: str,
        place: RequestPlace,
        details: dict[str, Any],
        outcome: str,
    ) -> None:
        actor = Actor(principal.tenant, principal.full_name, place.request_id)
        shown = {"token": principal.token_id, "address": place.address, **details}
        self._add((action, principal.token_id, principal.tenant), actor, subject, shown, outcome)

    def _add(
        self,
        source: tuple[str, str, str],
        actor: Actor,
        subject: str,
        details: dict[str, Any],
        outcome: str,
    ) -> None:
        now = self._clock.monotonic_seconds()
        minute = self._minutes.get(source)
        if minute is not None and now - minute.began_seconds >= WINDOW_SECONDS:
            self._end_minute(source)
            minute = None
        if minute is None:
            if len(self._minutes) >= SOURCES_MAX:
                self._dropped()
                return
            minute = self._minutes[source] = _Minute(now)
        key = (actor.user, subject)
        if key not in minute.events and len(minute.events) >= SUBJECTS_MAX:
            key, subject, details = (actor.user, OTHERS), OTHERS, {}
        noted = minute.events.get(key)
        if noted is not None:
            noted.times += 1
            return
        if len(self._waiting) >= WAITING_MAX:
            self._dropped()
            return
        note = AuditNote(actor, source[0], subject, outcome, details, self._clock.now_us())
        noted = minute.events[key] = _Noted(note)
        self._waiting.append(noted)

    def _end_minutes(self) -> None:
        now = self._clock.monotonic_seconds()
        over = [
            source
            for source, minute in list(self._minutes.items())
            if now - minute.began_seconds >= WINDOW_SECONDS
        ]
        for source in over:
            self._end_minute(source)

    def _end_minute(self, source: tuple[str, str, str]) -> None:
        minute = self._minutes.pop(source, None)
        if minute is not None:
            self._ended.extend(noted for noted in minute.events.values() if noted.times > noted.written_times)
