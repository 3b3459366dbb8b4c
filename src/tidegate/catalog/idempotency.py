"""Answers by idempotency key: takes a key and what was asked, gives the answer of the first time, keeps both.

The key is reserved first and the answer stored last, in the transaction of the deed. So a deed and its answer
are there together or not at all, and of two requests with one key at the same moment the second waits for the
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

_RESERVED = 0  # the status of a key whose deed is not finished; no other transaction ever sees it
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What was answered the first time; no body where it held a secret."""

    status: int
    body: bytes | None


class AnswerKnown(Exception):
    """The deed was done before, under the same key: here is what was answered."""

    def __init__(self, answer: StoredAnswer) -> None:
        super().__init__(f"answered before with {answer.status}")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Once:
    """A deed that is done once: whose key, which key, a digest of what is asked, and how it is answered."""

    user: str
    key: str
    fingerprint: str
    answer_of: Callable[[Any], tuple[int, bytes | None]]


class Answers:
    """Idempotency keys of every tenant. Threads: any."""

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock

    def find(self, tenant: str, user: str, key: str, fingerprint: str) -> StoredAnswer | None:
        """Return the answer under a key; refuse a key that came with another request."""
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
        """Store an answer in the transaction of its deed."""
        values = {"tenant": tenant, "user": user, "key": key, "fingerprint": fingerprint}
        moment = {"created_us": self._clock.now_us()}
        connection.execute(insert(ANSWERS).values(**values, **moment, status=answer.status, body=answer.body))

    def reserve(self, connection: Connection, tenant: str, once: Once | None) -> None:
        """Claim a key before its deed; raise AnswerKnown when the deed was done before."""
        if once is None:
            return
        values = {"tenant": tenant, "user": once.user, "key": once.key, "fingerprint": once.fingerprint}
        moment = {"created_us": self._clock.now_us()}
        if insert_if_new(connection, ANSWERS, {**values, **moment, "status": _RESERVED, "body": None}):
            return
        known = _find(connection, (tenant, once.user, once.key), once.fingerprint)
        if known is None:
            raise InvariantBroken(reason="an idempotency key is taken and not there")
        raise AnswerKnown(known)

    def keep(self, connection: Connection, tenant: str, once: Once | None, result: R) -> R:
        """Put the answer of a deed under its reserved key, and give the result back."""
        if once is not None:
            status, body = once.answer_of(result)
            same = _same_key((tenant, once.user, once.key))
            connection.execute(update(ANSWERS).where(same).values(status=status, body=body))
        return result

    def prune(self, before_us: int) -> int:
        """Forget answers from before a moment and say how many."""
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
