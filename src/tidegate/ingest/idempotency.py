"""Answers: takes the answer to a request with an idempotency key, gives it again, keeps it for a day.

The answer is written in the same batch as the deed: after a crash both are there or neither is. A key
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
from tidegate.storage.engine import KeyRange, Reader
from tidegate.storage.group_commit import Staging
from tidegate.storage.keys import KeySpace, join, u64

KEPT_SECONDS = 24 * 3600
# One removal holds up the writers behind it no longer than a group of writes does.
REMOVED_AT_ONCE_MAX = 5_000

_VERSION = 1
_HEAD = struct.Struct(">BQ16sH")
_DIGEST_AT = 9
_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Once:
    """A request that must be done once, however often it comes."""

    tenant: str
    user: str
    key: str
    fingerprint: bytes
    now_us: int

    @property
    def digest(self) -> bytes:
        """The name under which the answer is kept."""
        parts = b"\0".join(part.encode() for part in (self.tenant, self.user, self.key))
        return hashlib.blake2b(parts, digest_size=16).digest()


def stage_once(staging: Staging, once: Once, deed: Callable[[Staging], Answer]) -> Answer:
    """Do the deed and keep its answer, or give the answer of the first time and do nothing."""
    digest = once.digest
    stored = staging.get(join(KeySpace.ANSWER, digest))
    if stored is not None:
        at_us, fingerprint, answer = _decoded(stored)
        if once.now_us - at_us < KEPT_SECONDS * _US:
            if fingerprint != once.fingerprint:
                raise IdempotencyKeyReused(key=once.key)
            return answer
        staging.delete(join(KeySpace.ANSWER_TIME, u64(at_us), digest))
    answer = deed(staging)
    head = _HEAD.pack(_VERSION, once.now_us, once.fingerprint, answer.status)
    staging.put(join(KeySpace.ANSWER, digest), head + answer.body)
    staging.put(join(KeySpace.ANSWER_TIME, u64(once.now_us), digest), b"")
    return answer


def old_answers(reader: Reader, now_us: int, after: bytes = b"") -> list[bytes]:
    """Return keys of the time index that are too old, the next ones behind `after`; blocking."""
    horizon_us = max(0, now_us - KEPT_SECONDS * _US)
    start = after + b"\0" if after else join(KeySpace.ANSWER_TIME, u64(0))
    span = KeyRange(start, max(start, join(KeySpace.ANSWER_TIME, u64(horizon_us))))
    return [key for key, _ in itertools.islice(reader.scan(span), REMOVED_AT_ONCE_MAX)]


def stage_forget(staging: Staging, old: Sequence[bytes]) -> None:
    """Remove answers by their keys in the time index; one whose key was used again since then stays."""
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
