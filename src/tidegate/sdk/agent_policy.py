"""Consumer options, the retry policy of agents, and the requests for failed and answered messages."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from tidegate.errors import LeaseLost, NotFound, RequestInvalid, TidegateError
from tidegate.model.names import escape_surrogates
from tidegate.sdk.requests import API, OUTGOING, Request, encoded
from tidegate.sdk.types import MessageDict

REASON_CHARS_MAX = 500
MEMBER_CHARS_MAX = 200
LEASE_MS = 30_000
# A consumer that ends waits for its last fetch: longer would be noticed, shorter would fetch too often.
WAIT_MS = 1_000
LIMIT = 100
WORKERS_MAX = 1_000


class Reject(Exception):
    """Raised by a function that works on messages, for one that can never work: it becomes a dead letter."""


@dataclass(frozen=True, slots=True)
class Retry:
    """When a message that failed is delivered again, and after how many deliveries it is a dead letter.

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
        """True if a message that failed this often is not delivered again."""
        return self.attempts is not None and deliveries >= self.attempts


class Tuning(TypedDict, total=False):
    """How a consumer fetches: up to `limit` messages per request, up to `prefetch` buffered.

    `lease_ms` is how long the server holds a message for a consumer that does not answer; `wait_ms` how long
    one request waits for messages; `retry` says when a message that failed is delivered again.
    """

    limit: int
    prefetch: int
    lease_ms: int
    wait_ms: int
    retry: Retry


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of a consumer; `prefetch` is twice the limit by default, 0 fetches one at a time."""

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
    def prefetch_max(self) -> int:
        """The most messages that are buffered."""
        return 2 * self.limit if self.prefetch is None else self.prefetch

    def member_fields(self) -> dict[str, Any]:
        """Return the fields by which the server knows this member of its group."""
        return {"group": self.group, "member": self.member}

    def consume_body(self, limit: int, wait_ms: int) -> dict[str, Any]:
        """Return the body of a consume request."""
        body = {**self.member_fields(), "from": self.start, "limit": limit}
        body |= {"waitMs": wait_ms, "leaseMs": self.lease_ms}
        return body if self.partition is None else body | {"partition": self.partition}


def member_name() -> str:
    """Return a name that no other consumer has, with host and process id."""
    tail = f"-{os.getpid()}-{secrets.token_hex(3)}"
    host = "".join(c for c in socket.gethostname() if c.isprintable()) or "host"
    return host[: MEMBER_CHARS_MAX - len(tail)] + tail


def reason_of(problem: BaseException) -> str:
    """Return on one line why a message failed."""
    text = escape_surrogates(str(problem))
    if not (isinstance(problem, Reject) and text):
        text = f"{type(problem).__name__}: {text}".rstrip(": ")
    return " ".join(text.split())[:REASON_CHARS_MAX]


def nack_body(problem: BaseException, message: MessageDict, retry: Retry) -> dict[str, Any]:
    """Return the body of the nack of a failed message: why, and when it is delivered again, if at all."""
    deliveries = message["deliveries"] or 1
    body: dict[str, Any] = {"leases": [message["lease"]], "reason": reason_of(problem)}
    if isinstance(problem, Reject) or retry.is_over(deliveries):
        return body | {"dead": True}
    return body | {"delayMs": retry.pause_ms(deliveries)}


def describe_outcome(
    message: MessageDict, body: Mapping[str, Any], answer: Mapping[str, Any] | TidegateError | None
) -> str:
    """Return in words what happens to a failed message next; `answer` is that to its nack, if any."""
    if isinstance(answer, NotFound):
        return "its topic or its group is gone"
    if answer is None or isinstance(answer, LeaseLost):
        return "its lease expired; another member may have it"
    if isinstance(answer, TidegateError):
        return "again when its lease ends"
    if answer.get("dead"):
        return f"it is a dead letter now, in {message['topic']}.dead"
    pause_ms = int(body.get("delayMs", 0))
    return f"again in {pause_ms / 1000:g} s" if pause_ms else "again at once"


def answer_request(path: str, scope: tuple[str, str], message: MessageDict, answer: object) -> Request:
    """Return the publish of an answer; its idempotency key limits a message to one answer.

    `scope` is the group, and the creation time of the topic of the answers: a new topic has none yet.
    """
    is_message = isinstance(answer, dict) and "payload" in answer and answer.keys() <= OUTGOING
    outgoing = answer if is_message else {"payload": answer, "key": message["key"]}
    parts = (path, message["topic"], *scope, message["messageId"])
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
    content = encoded({"messages": [outgoing]})
    return Request("POST", f"{API}{path}", content, key=f"answer-{digest}")
