"""Idempotency keys of requests that write to the engine, and the answers stored under them for a day.

The answer is written in the same write batch as the change: after a crash both are there or neither is. A key
belongs to one user of one tenant and to one request: the same key with another request is refused.

answer        ANSWER | digest of tenant, user and key, 16              time, fingerprint, status, body
time index    ANSWER_TIME | time u64 | the same digest                 nothing

A value is a version byte, the time in µs as u64, the fingerprint of the request (16 bytes), the status as
u16, then the body. All numbers are big-endian.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.errors import IdempotencyKeyReused, StorageCorrupt
from tidegate.model.epoch import SECOND_US
from tidegate.storage.engine import KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import KeySpace, join, u64

RETENTION_SECONDS = 24 * 3600
# One removal delays the writers behind it no longer than a group commit does.
REMOVED_AT_ONCE_MAX = 5_000

_VERSION = 1
_HEAD = struct.Struct(">BQ16sH")
_DIGEST_AT = 9


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request with an idempotency key: it is done once, however often it is sent."""

    tenant: str
    user: str
    key: str
    fingerprint: bytes
    now_us: int

    @property
    def digest(self) -> bytes:
        """The digest of tenant, user and key under which the answer is stored."""
        parts = b"\0".join(part.encode() for part in (self.tenant, self.user, self.key))
        return hashlib.blake2b(parts, digest_size=16).digest()


def stage_idempotent(
    staging: Staging, request: IdempotentRequest, change: Callable[[Staging], Answer]
) -> Answer:
    """Stage a change and store its answer; do nothing but return the answer where the key has one."""
    digest = request.digest
    stored = staging.get(join(KeySpace.ANSWER, digest))
    if stored is not None:
        at_us, fingerprint, answer = _decoded(stored)
        if request.now_us - at_us < RETENTION_SECONDS * SECOND_US:
            if fingerprint != request.fingerprint:
                raise IdempotencyKeyReused(key=request.key)
            return answer
        staging.delete(join(KeySpace.ANSWER_TIME, u64(at_us), digest))
    answer = change(staging)
    head = _HEAD.pack(_VERSION, request.now_us, request.fingerprint, answer.status)
    staging.put(join(KeySpace.ANSWER, digest), head + answer.body)
    staging.put(join(KeySpace.ANSWER_TIME, u64(request.now_us), digest), b"")
    return answer


def old_answers(reader: Reader, now_us: int, after: bytes = b"") -> list[bytes]:
    """Return the next expired keys of the time index behind `after`; blocking."""
    horizon_us = max(0, now_us - RETENTION_SECONDS * SECOND_US)
    start = after + b"\0" if after else join(KeySpace.ANSWER_TIME, u64(0))
    span = KeyRange(start, max(start, join(KeySpace.ANSWER_TIME, u64(horizon_us))))
    return [key for key, _ in itertools.islice(reader.scan(span), REMOVED_AT_ONCE_MAX)]


def stage_forget(staging: Staging, old: Sequence[bytes]) -> None:
    """Remove answers by their keys in the time index; one whose key was used again since then is kept."""
    for key in old:
        staging.delete(key)
        digest = key[_DIGEST_AT:]
        stored = staging.get(join(KeySpace.ANSWER, digest))
        if stored is not None and u64(_decoded(stored)[0]) == key[1:_DIGEST_AT]:
            staging.delete(join(KeySpace.ANSWER, digest))


def _decoded(stored: bytes) -> tuple[int, bytes, Answer]:
    version, at_us, fingerprint, status = _HEAD.unpack_from(stored)
    if version != _VERSION:
        raise StorageCorrupt(place="a kept answer", reason=f"version {version}, this reads {_VERSION}")
    return at_us, fingerprint, Answer(status, stored[_HEAD.size :])
