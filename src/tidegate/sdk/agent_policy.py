"""What becomes of messages: takes results and failures, gives answers, pauses and reasons, keeps nothing."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from tidegate.errors import LeaseLost, NotFound, RequestInvalid, TidegateError
from tidegate.sdk.requests import API, OUTGOING, Request, encoded
from tidegate.sdk.types import Message

REASON_CHARS_MAX = 500
MEMBER_CHARS_MAX = 200
LEASE_MS = 30_000
# A consumer that ends waits for its last question: longer would be felt, shorter would ask too often.
WAIT_MS = 1_000
LIMIT = 100
WORKERS_MAX = 1_000


class Reject(Exception):
    """Raised by a function that works on messages: this one never works, to the dead letters with it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """When a message that failed comes again, and after how many deliveries it is given up.

    The pause before the next delivery is `first_ms`, then `factor` times as long each time, up to `most_ms`.
    Without `attempts` the server's setting topics.deliveries_max decides.
    """

    attempts: int | None = 5
    first_ms: int = 1_000
    factor: float = 2.0
    most_ms: int = 300_000

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise RequestInvalid(reason="A message is tried at least once.", hint="attempts is 1 or more.")
        if not 0 <= self.first_ms <= self.most_ms or self.factor < 1:
            hint = "first_ms is 0 to most_ms, and factor 1 or more."
            raise RequestInvalid(reason="Pauses between attempts never get shorter.", hint=hint)

    def pause_ms(self, deliveries: int) -> int:
        """Return the pause before the next delivery of a message that failed this often."""
        pause_ms = float(self.first_ms)
        for _ in range(deliveries - 1):
            if pause_ms >= self.most_ms or pause_ms == 0:
                break
            pause_ms *= self.factor
        return int(min(pause_ms, self.most_ms))

    def is_over(self, deliveries: int) -> bool:
        """Return whether a message that failed this often is given up."""
        return self.attempts is not None and deliveries >= self.attempts


class Tuning(TypedDict, total=False):
    """How a consumer fetches: `limit` messages a question, `prefetch` waiting here at most.

    `lease_ms` is how long the server keeps a message for a consumer that went silent; `wait_ms` how long one
    question waits for messages; `retry` says when a message that failed comes again.
    """

    limit: int
    prefetch: int
    lease_ms: int
    wait_ms: int
    retry: Retry


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What a consumer asks for; `prefetch` is twice the limit unless it says else, 0 is one at a time."""

    group: str
    member: str
    start: str | dict[str, Any] = "earliest"
    partition: int | None = None
    limit: int = LIMIT
    prefetch: int | None = None
    lease_ms: int = LEASE_MS
    wait_ms: int = WAIT_MS
    retry: Retry = Retry(attempts=None)

    def __post_init__(self) -> None:
        if self.limit < 1 or self.lease_ms < 1 or self.wait_ms < 0 or (self.prefetch or 0) < 0:
            reason = "limit and lease_ms are 1 or more, prefetch and wait_ms 0 or more."
            raise RequestInvalid(reason=reason, hint="Leave them out to take what is usual.")

    @property
    def ahead(self) -> int:
        """The most messages that wait here for their turn."""
        return 2 * self.limit if self.prefetch is None else self.prefetch

    def member_of(self) -> dict[str, Any]:
        """Return the fields by which the server knows this member of its group."""
        return {"group": self.group, "member": self.member}

    def question(self, limit: int, wait_ms: int) -> dict[str, Any]:
        """Return the body of a consume."""
        body = {**self.member_of(), "from": self.start, "limit": limit}
        body |= {"waitMs": wait_ms, "leaseMs": self.lease_ms}
        return body if self.partition is None else body | {"partition": self.partition}


def member_name() -> str:
    """Return a name that no other consumer has, and that tells where it runs."""
    tail = f"-{os.getpid()}-{secrets.token_hex(3)}"
    host = "".join(c for c in socket.gethostname() if c.isprintable()) or "host"
    return host[: MEMBER_CHARS_MAX - len(tail)] + tail


def reason_of(problem: BaseException) -> str:
    """Return in a line why a message failed."""
    said = str(problem)
    text = said if isinstance(problem, Reject) and said else f"{type(problem).__name__}: {said}".rstrip(": ")
    return " ".join(text.split())[:REASON_CHARS_MAX]


def nack_body(problem: BaseException, message: Message, retry: Retry) -> dict[str, Any]:
    """Return what to tell the server of a message that failed: why, and when it comes again, if at all."""
    deliveries = message["deliveries"] or 1
    body: dict[str, Any] = {"leases": [message["lease"]], "reason": reason_of(problem)}
    if isinstance(problem, Reject) or retry.is_over(deliveries):
        return body | {"dead": True}
    return body | {"delayMs": retry.pause_ms(deliveries)}


def what_next(
    message: Message, body: Mapping[str, Any], told: Mapping[str, Any] | TidegateError | None
) -> str:
    """Return what becomes of a message that failed: `told` is the answer to its nack, if any."""
    if isinstance(told, NotFound):
        return "its topic or its group is gone"
    if told is None or isinstance(told, LeaseLost):
        return "its lease is over, others may have it"
    if isinstance(told, TidegateError):
        return "again when its lease ends"
    if told.get("dead"):
        return f"it is a dead letter now, in {message['topic']}.dead"
    pause_ms = int(body.get("delayMs", 0))
    return f"again in {pause_ms / 1000:g} s" if pause_ms else "again at once"


def answer_request(path: str, asked: tuple[str, str], message: Message, answer: object) -> Request:
    """Return the publish of an answer; its key lets the server take one answer for a message.

    `asked` is the group, and when the topic of the answers was made: a new one has no answers yet.
    """
    is_whole = isinstance(answer, dict) and "payload" in answer and answer.keys() <= OUTGOING
    outgoing = answer if is_whole else {"payload": answer, "key": message["key"]}
    parts = (path, message["topic"], *asked, message["messageId"])
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    content = encoded({"messages": [outgoing]})
    return Request("POST", f"{API}{path}", content, key=f"answer-{digest}")
