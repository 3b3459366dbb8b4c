"""The audit trail: events of operations by tenant, newest first, until they are pruned.

An operation inside the catalog writes its event in its own transaction, so that neither is there without the
other. An operation elsewhere is recorded before it begins (`started`) and again when it ends (`done`,
`failed`): one that stays `started` was cut off by a crash. What may happen at any rate, such as a refused
login, is noted and written a moment later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import Connection, Row, delete, insert, select, update

from tidegate.catalog.connections import Connections
from tidegate.catalog.paging import PageRequest, PageResult, read_page
from tidegate.catalog.tables import AUDIT, to_mapping
from tidegate.errors import InvariantBroken
from tidegate.model.access import DEFAULT_TENANT
from tidegate.model.clock import Clock

SUBJECT_CHARS_MAX = 300  # the longest name of a topic with its prefix, and room
DETAILS_BYTES_MAX = 4_096  # an event is a note, not an archive; longer details are cut
_CUT_CHARS = (200, 20)  # of each long value: the first try keeps it readable, the second makes it fit
PRUNE_ROWS = 5_000  # deleted in one transaction, so that others wait for milliseconds only

Outcome = Literal["done", "failed"]


@dataclass(frozen=True, slots=True)
class Actor:
    """The user of an operation, the tenant, and the request."""

    tenant: str
    user: str
    request_id: str = ""


def system_actor(part: str, tenant: str = DEFAULT_TENANT) -> Actor:
    """Return the actor for a part of Tidegate that acts by itself; the audit trail shows `system:backup`."""
    return Actor(tenant, f"system:{part}")


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event of the audit trail."""

    id: int
    at_us: int
    tenant: str
    user: str
    action: str
    subject: str
    outcome: str
    request_id: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditNote:
    """An event that is written some time after it happened."""

    actor: Actor
    action: str
    subject: str
    outcome: str
    details: Mapping[str, Any]
    at_us: int

    def with_details(self, more: Mapping[str, Any]) -> AuditNote:
        """Return the note with more details."""
        return replace(self, details={**self.details, **more})


class Audit:
    """The audit trail of every tenant. Threads: any."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock

    def begin(self, actor: Actor, action: str, subject: str, details: Mapping[str, Any] | None = None) -> int:
        """Record durably that an operation begins; return the event's id for `finish`."""
        with self._connections.write() as connection:
            return self.write(connection, actor, action, subject, details, outcome="started")

    def finish(self, event_id: int, outcome: Outcome, details: Mapping[str, Any] | None = None) -> None:
        """Record how an operation ended; details are added to those of its beginning."""
        with self._connections.write() as connection:
            joined = _details_of(connection, event_id)
            if joined is None:
                raise InvariantBroken(reason=f"audit event {event_id} ends and never began")
            joined |= dict(details or {})
            connection.execute(
                update(AUDIT).where(AUDIT.c.id == event_id).values(outcome=outcome, details=_text(joined))
            )

    def write_notes(self, notes: Sequence[AuditNote], times: Mapping[int, int]) -> Sequence[int]:
        """Write events in one transaction and return their ids; `times` are counts of earlier ones, by id.

        An earlier event that was pruned since is left out.
        """
        with self._connections.write() as connection:
            for event_id, count in times.items():
                details = _details_of(connection, event_id)
                if details is not None:
                    text = _text({**details, "times": count})
                    connection.execute(update(AUDIT).where(AUDIT.c.id == event_id).values(details=text))
            return [
                self.write(
                    connection,
                    note.actor,
                    note.action,
                    note.subject,
                    note.details,
                    outcome=note.outcome,
                    at_us=note.at_us,
                )
                for note in notes
            ]

    def write(
        self,
        connection: Connection,
        actor: Actor,
        action: str,
        subject: str,
        details: Mapping[str, Any] | None = None,
        *,
        outcome: str = "done",
        at_us: int | None = None,
    ) -> int:
        """Write an event in the transaction of the operation; long texts, which users choose, are cut."""
        values = {
            "at_us": self._clock.now_us() if at_us is None else at_us,
            "tenant": actor.tenant,
            "user": actor.user,
            "action": str(action),
            "subject": _cut(subject, SUBJECT_CHARS_MAX),
            "outcome": outcome,
            "request_id": actor.request_id,
            "details": _text(details or {}),
        }
        return int(connection.execute(insert(AUDIT).values(**values).returning(AUDIT.c.id)).scalar_one())

    def list(
        self, tenant: str, page: PageRequest, *, user: str | None = None, action: str | None = None
    ) -> PageResult[AuditEvent]:
        """Return a page of the events of a tenant, newest first."""
        query = select(AUDIT).where(AUDIT.c.tenant == tenant)
        if user is not None:
            query = query.where(AUDIT.c.user == user)
        if action is not None:
            query = query.where(AUDIT.c.action == action)
        with self._connections.read() as connection:
            return read_page(connection, query, page, "event", AUDIT.c.id, _event)

    def prune(self, before_us: int) -> int:
        """Delete events from before a time; return their number."""
        old = select(AUDIT.c.id).where(AUDIT.c.at_us < before_us).order_by(AUDIT.c.id).limit(PRUNE_ROWS)
        return self._connections.delete_in_portions(
            delete(AUDIT).where(AUDIT.c.id.in_(old.scalar_subquery())), PRUNE_ROWS
        )


def _details_of(connection: Connection, event_id: int) -> dict[str, Any] | None:
    row = connection.execute(select(AUDIT.c.details).where(AUDIT.c.id == event_id)).one_or_none()
    return None if row is None else to_mapping(row.details)


def _text(details: Mapping[str, Any]) -> str:
    text = whole = _json(details)  # ASCII: characters are bytes
    for chars_max in _CUT_CHARS:
        if len(text) <= DETAILS_BYTES_MAX:
            return text
        text = _json({_cut(key, chars_max): _cut_value(details[key], chars_max) for key in details})
    return text if len(text) <= DETAILS_BYTES_MAX else _json({"left_out_bytes": len(whole)})


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def _cut_value(value: Any, chars_max: int) -> Any:
    text = value if isinstance(value, str) else _json(value)
    return value if len(text) <= chars_max else _cut(text, chars_max)


def _event(row: Row[Any]) -> AuditEvent:
    return AuditEvent(
        id=row.id,
        at_us=row.at_us,
        tenant=row.tenant,
        user=row.user,
        action=row.action,
        subject=row.subject,
        outcome=row.outcome,
        request_id=row.request_id,
        details=to_mapping(row.details),
    )
