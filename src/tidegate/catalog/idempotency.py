"""Idempotency keys of requests that change the catalog, and the answers stored under them.

The key is reserved first and the answer stored last, in the transaction of the change. So a change and its
answer are there together or not at all, and of two concurrent requests with one key the second waits for the
first and then gets its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from tidegate.catalog.connections import Connections, insert_if_new
from tidegate.catalog.tables import ANSWERS
from tidegate.errors import IdempotencyKeyReused, InvariantBroken
from tidegate.model.clock import Clock

_RESERVED = 0  # the status of a key whose change is not committed; no other transaction ever sees it
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The answer of the first request; no body where it had a secret."""

    status: int
    body: bytes | None


class AnswerKnown(Exception):
    """The change was made before, under the same key; `answer` is that of the first request."""

    def __init__(self, answer: StoredAnswer) -> None:
        super().__init__(f"answered before with {answer.status}")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A user's idempotency key, a digest of the request, and the function from its result to its answer."""

    user: str
    text: str
    fingerprint: str
    answer_of: Callable[[Any], tuple[int, bytes | None]]


class IdempotencyKeys:
    """Idempotency keys of every tenant. Threads: any."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock

    def find(self, tenant: str, user: str, key: str, fingerprint: str) -> StoredAnswer | None:
        """Return the answer under a key; raise IdempotencyKeyReused for a key of another request."""
        with self._connections.read() as connection:
            return _find(connection, (tenant, user, key), fingerprint)

    def store(
        self,
        connection: Connection,
        tenant: str,
        user: str,
        key: str,
        fingerprint: str,
        answer: StoredAnswer,
    ) -> None:
        """Store an answer in the transaction of its change."""
        values = {"tenant": tenant, "user": user, "key": key, "fingerprint": fingerprint}
        moment = {"created_us": self._clock.now_us()}
        connection.execute(insert(ANSWERS).values(**values, **moment, status=answer.status, body=answer.body))

    def reserve(self, connection: Connection, tenant: str, key: IdempotencyKey | None) -> None:
        """Reserve a key before its change; raise AnswerKnown when the change was made before."""
        if key is None:
            return
        values = {"tenant": tenant, "user": key.user, "key": key.text, "fingerprint": key.fingerprint}
        moment = {"created_us": self._clock.now_us()}
        if insert_if_new(connection, ANSWERS, {**values, **moment, "status": _RESERVED, "body": None}):
            return
        known = _find(connection, (tenant, key.user, key.text), key.fingerprint)
        if known is None:
            raise InvariantBroken(reason="an idempotency key is taken and not there")
        raise AnswerKnown(known)

    def keep(self, connection: Connection, tenant: str, key: IdempotencyKey | None, result: R) -> R:
        """Store the answer of a change under its reserved key; return the result."""
        if key is not None:
            status, body = key.answer_of(result)
            same = _same_key((tenant, key.user, key.text))
            connection.execute(update(ANSWERS).where(same).values(status=status, body=body))
        return result

    def prune(self, before_us: int) -> int:
        """Delete answers from before a time; return their number."""
        with self._connections.write() as connection:
            return connection.execute(delete(ANSWERS).where(ANSWERS.c.created_us < before_us)).rowcount


def _same_key(key: tuple[str, str, str]) -> ColumnElement[bool]:
    return and_(ANSWERS.c.tenant == key[0], ANSWERS.c.user == key[1], ANSWERS.c.key == key[2])


def _find(connection: Connection, key: tuple[str, str, str], fingerprint: str) -> StoredAnswer | None:
    columns = select(ANSWERS.c.fingerprint, ANSWERS.c.status, ANSWERS.c.body)
    row = connection.execute(columns.where(_same_key(key))).one_or_none()
    if row is None:
        return None
    if row.fingerprint != fingerprint:
        raise IdempotencyKeyReused(key=key[2])
    return StoredAnswer(row.status, row.body)
