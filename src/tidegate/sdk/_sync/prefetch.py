"""The fetch loop of a consumer: buffered messages, their leases and acknowledgements.

Made from _async/prefetch.py by scripts/generate_sdk.py: change that one, and run it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidegate.errors import LeaseLost, NotFound, TidegateError
from tidegate.sdk._sync.transport import Transport
from tidegate.sdk.agent_policy import ConsumerOptions, describe_outcome, nack_body
from tidegate.sdk.arrow import ArrowPage, page_of
from tidegate.sdk.blocking.concurrency import BackgroundTask, WakeSignal, sleep
from tidegate.sdk.leases import LeaseTracker
from tidegate.sdk.message_page import decode_page
from tidegate.sdk.requests import API, ARROW_STREAM, JSON, Request, decoded, encoded, post, with_hint
from tidegate.sdk.retries import EndlessRetryState, RetryState
from tidegate.sdk.types import MessageDict, MessagePageDict

# A server that stops answers at once and empty: it is not asked again in the same moment.
EMPTY_PAUSE_SECONDS = 0.05
# A loop that never waits yields to the background tasks after this many messages.
YIELD_MESSAGES = 50
# Leases in one request: far below the largest body, and quick to answer.
LEASES_AT_ONCE = 10_000

logger = logging.getLogger("tidegate.consumer")


class Prefetcher:
    """The messages of a group for one program; concurrent callers may take them and report them done.

    One background task fetches, another acknowledges and extends. A server that is away is waited for. A
    failure that a retry cannot repair ends it, and is raised by `check`.
    """

    def __init__(self, transport: Transport, path: str, options: ConsumerOptions) -> None:
        self._transport = transport
        self._path = path
        self._options = options
        self._clock = transport.retry_policy.clock
        self._leases = LeaseTracker(options.lease_ms / 1000, options.limit, options.prefetch_max)
        # Messages are buffered; fewer are buffered than wanted; leases are to be acknowledged or extended.
        self._buffered, self._room, self._due = WakeSignal(), WakeSignal(), WakeSignal()
        self._fetcher: BackgroundTask | None = None
        self._keeper: BackgroundTask | None = None
        self._failure: Exception | None = None
        self._is_stopped = False
        self._is_closing = False
        self._returned_count = 0
        self.missed: dict[int, int] = {}

    def open(self) -> None:
        """Fetch the first message: this fixes where a new group begins, and raises what is wrong."""
        request = post(f"{self._path}/consume", self._options.consume_body(1, 0), repeatable=True)
        reply = self._transport.send(request)
        self._add(decode_page(reply.content, request.path))
        self._transport.open_readers.add(self)
        self._keeper = BackgroundTask(self._keep_leases, f"tidegate-keep-{self._options.group}")

    def start_fetching(self) -> None:
        """Start to fetch in the background."""
        if self._fetcher is None and not self._is_stopped:
            self._fetcher = BackgroundTask(self._fetch, f"tidegate-fetch-{self._options.group}")

    def is_stopped(self) -> bool:
        """True if no more messages are returned."""
        return self._is_stopped

    def stop(self) -> None:
        """Return no more messages; those in work may be finished. Threads and signal handlers may call it."""
        self._is_stopped = True
        for signal in (self._buffered, self._room):
            signal.set()

    def check(self) -> None:
        """Raise the failure that ended it, if it was not `stop`."""
        if self._failure is not None:
            raise self._failure

    def next(self) -> MessageDict | None:
        """Return the next message, waiting for it; None once it is stopped."""
        if self._is_stopped:
            return None
        message = self._leases.take(self._now()) or self._wait_for_message()
        if self._leases.fetch_count():
            self._room.set()
        self._returned_count += 1
        if self._returned_count % YIELD_MESSAGES == 0:
            sleep(0)
        return message

    def done(self, leases: list[str]) -> None:
        """Acknowledge soon, together with others."""
        if self._leases.done(leases, self._now()):
            self._due.set()

    def acknowledge(self, leases: list[str]) -> None:
        """Acknowledge now, and raise LeaseLost for leases that were not held any more."""
        self._leases.drop(leases)
        for part in _parts(leases):
            self._transport.send(self._post("ack", {"leases": part}))

    def settle(self, leases: list[str]) -> None:
        """Acknowledge these leases, and wait until the server has stored it, however long that takes."""
        self._leases.done(leases, self._now())
        try:
            self._acknowledge_done(self.is_stopped, at_once=True)
        except TidegateError:
            if not self._is_stopped:
                raise
            logger.debug("stopped while the server is away: close acknowledges once more")

    def fail(self, message: MessageDict, problem: BaseException) -> str:
        """Nack a message that failed, with the reason, and return in words what happens to it next."""
        body = nack_body(problem, message, self._options.retry)
        held = self._leases.drop(body["leases"])
        answer = self._send_once("nack", body) if held else None
        return describe_outcome(message, body, answer)

    def nack(self, body: Mapping[str, Any]) -> None:
        """Nack leases; where that fails, they end by themselves."""
        held = self._leases.drop(body["leases"])
        for part in _parts(held):
            self._send_once("nack", {**body, "leases": part})

    def release_buffered(self) -> None:
        """Return the buffered messages to the group, as if they had never been fetched."""
        self._release(self._leases.take_buffered())

    def page(self, limit: int) -> ArrowPage | None:
        """Return the next messages as a table, waiting for the first; None once it is stopped."""
        while not self._is_stopped:
            began = self._now()
            content = self._consume(limit, ARROW_STREAM)
            if content is None:
                break
            page = page_of(content)
            self._count_missed(page.missed)
            if page.table.num_rows:
                self._leases.hold(page.table.column("lease").to_pylist(), self._now())
                self._due.set()
                return page
            self._pause_after_empty(began)
        return None

    def close(self) -> None:
        """Stop, acknowledge what is done, and return everything else to the group at once."""
        self.stop()
        if self._fetcher is not None:
            self._fetcher.join()
        self._is_closing = True
        self._due.set()
        if self._keeper is not None:
            self._keeper.join()
        for part in _parts(self._leases.take_done(self._now(), at_once=True)):
            self._send_once("ack", {"leases": part})
        self._release(self._leases.take_all())
        self._transport.open_readers.discard(self)

    def _wait_for_message(self) -> MessageDict | None:
        self._leases.add_waiters(1)
        message = None
        try:
            while not self._is_stopped:
                message = self._leases.take(self._now())
                if message is not None:
                    break
                self._room.set()
                self._buffered.wait()
        finally:
            # The signal may have been meant for several waiters.
            if self._leases.add_waiters(-1):
                self._buffered.set()
        return message

    def _fetch(self) -> None:
        try:
            while not self._is_stopped:
                count = self._leases.fetch_count()
                if not count:
                    self._room.wait()
                    continue
                began = self._now()
                content = self._consume(count, JSON)
                if content is not None and not self._add(decode_page(content, self._path)):
                    self._pause_after_empty(began)
        except Exception as problem:  # noqa: BLE001 - `check` raises it
            self._set_failure(problem, is_expected=False)
        # Messages in work may take long; other members need not wait for those that were not begun.
        self.release_buffered()

    def _add(self, page: MessagePageDict) -> bool:
        """Buffer the messages of a page; True if it has any."""
        self._count_missed(page.get("missed"))
        if page["messages"]:
            self._leases.add(page["messages"], self._now())
            self._buffered.set()
            self._due.set()
        return bool(page["messages"])

    def _pause_after_empty(self, requested_at: float) -> None:
        """Pause where an empty answer came sooner than the server was asked to wait."""
        if self._now() - requested_at < self._options.wait_ms / 2000:
            self._room.wait(EMPTY_PAUSE_SECONDS)

    def _count_missed(self, missed: Mapping[str, int] | None) -> None:
        for partition, count in (missed or {}).items():
            self.missed[int(partition)] = self.missed.get(int(partition), 0) + count
            logger.warning(
                "messages removed before they were fetched group=%s path=%s partition=%s missed=%d",
                *(self._options.group, self._path, partition, count),
            )

    def _consume(self, count: int, accept: str) -> bytes | None:
        """Return the answer with the next messages, waiting for the first of them; None once stopped."""
        body = encoded(self._options.consume_body(count, self._options.wait_ms))
        wait_seconds = self._options.wait_ms / 1000
        path = f"{API}{self._path}/consume"
        request = Request("POST", path, body, JSON, accept, None, True, wait_seconds)
        retry_state = EndlessRetryState(self._transport.retry_policy, request, self.is_stopped)
        try:
            reply = self._transport.send(request, retry_state, self._room.wait)
        except TidegateError as problem:
            if not self._is_stopped:
                raise
            logger.debug("stopped while the server is away error=%r", str(problem))
            return None
        return reply.content

    def _keep_leases(self) -> None:
        """Acknowledge and extend until it is closed: messages in work keep their leases after a stop."""
        try:
            while not self._is_closing:
                self._due.wait(self._leases.due_in(self._now()))
                self._acknowledge_done(self._closes)
                self._extend()
        except Exception as problem:  # noqa: BLE001 - `check` raises it
            self._set_failure(problem, is_expected=self._is_closing)

    def _acknowledge_done(self, is_over: Callable[[], bool], *, at_once: bool = False) -> None:
        leases = self._leases.take_done(self._now(), at_once=at_once)
        try:
            while leases:
                self._send_until("ack", {"leases": leases[:LEASES_AT_ONCE]}, is_over)
                leases = leases[LEASES_AT_ONCE:]
        except BaseException:
            self._leases.put_back_done(leases, self._now())
            raise

    def _extend(self) -> None:
        now = self._now()
        for part in _parts(self._leases.due_to_extend(now)):
            body = {"leases": part, "leaseMs": self._options.lease_ms}
            lost = self._send_until("extend", body, self._closes)
            self._leases.extend(set(part).difference(lost), now)
            for lease in self._leases.lose(lost):
                logger.warning("lease of a message in work lost: others may work on it too lease=%s", lease)

    def _send_until(self, verb: str, body: dict[str, Any], is_over: Callable[[], bool]) -> list[str]:
        """Send a request, however long it takes until `is_over`; return the leases that were not held."""
        request = self._post(verb, body)
        retry_state = EndlessRetryState(self._transport.retry_policy, request, is_over)
        try:
            self._transport.send(request, retry_state, self._due.wait)
        except LeaseLost as problem:
            return self._lost_leases(verb, problem, retry_state)
        return []

    def _send_once(self, verb: str, body: dict[str, Any]) -> Mapping[str, Any] | TidegateError:
        """Send a request with the usual retries; an error is returned, because leases end by themselves."""
        request = self._post(verb, body)
        retry_state = self._transport.new_retry_state(request)
        count = len(body["leases"])
        try:
            reply = self._transport.send(request, retry_state)
        except LeaseLost as problem:
            self._lost_leases(verb, problem, retry_state)
            return problem
        except NotFound as problem:
            # The topic or the group was deleted, and its leases with it.
            logger.warning("messages no longer held verb=%s count=%d error=%r", verb, count, str(problem))
            return problem
        except TidegateError as problem:
            logger.warning(
                "request failed: messages are redelivered when their leases expire verb=%s count=%d error=%r",
                *(verb, count, str(problem)),
            )
            return problem
        answer: Mapping[str, Any] = decoded(reply.content, request.path)
        return answer

    def _lost_leases(self, verb: str, problem: LeaseLost, retry_state: RetryState) -> list[str]:
        leases = [str(lease) for lease in problem.values.get("leases", ())]
        # Where an answer was lost, the first attempt may have done it, and the second finds nothing to do.
        if verb == "ack" and not retry_state.may_have_arrived:
            logger.warning("messages done after their leases expired: redelivered count=%d", len(leases))
        return leases

    def _release(self, leases: list[str]) -> None:
        for part in _parts(leases):
            self._send_once("nack", {"leases": part, "release": True})

    def _post(self, verb: str, body: dict[str, Any]) -> Request:
        return post(f"{self._path}/{verb}", {**self._options.member_fields(), **body}, repeatable=True)

    def _set_failure(self, problem: Exception, *, is_expected: bool) -> None:
        if is_expected and isinstance(problem, TidegateError):
            logger.debug("closed while the server did not answer error=%r", str(problem))
            return
        self._failure = with_hint(problem) if isinstance(problem, TidegateError) else problem
        self.stop()

    def _closes(self) -> bool:
        return self._is_closing

    def _now(self) -> float:
        return self._clock.monotonic_seconds()


def _parts(leases: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(leases), LEASES_AT_ONCE):
        yield leases[start : start + LEASES_AT_ONCE]
