"""The intake of a consumer: fetches messages ahead, keeps their leases, tells what became of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidegate.errors import LeaseLost, NotFound, TidegateError
from tidegate.sdk._async.concurrency import BackgroundTask, WakeSignal, sleep
from tidegate.sdk._async.transport import Transport
from tidegate.sdk.agent_policy import ConsumerOptions, nack_body, what_next
from tidegate.sdk.arrow import ArrowPage, page_of
from tidegate.sdk.leases import LeaseTracker
from tidegate.sdk.requests import API, ARROW_STREAM, JSON, Request, decoded, encoded, noted, post
from tidegate.sdk.retries import EndlessRetryState, RetryState
from tidegate.sdk.types import Message, MessagePage

# A server that stops answers at once and empty: it is not asked again in the same moment.
EMPTY_PAUSE_SECONDS = 0.05
# A loop that waits for nothing lets those who fetch and acknowledge have a turn after so many messages.
TURN_MESSAGES = 50
# Leases in one request: far below the largest body, and quick to answer.
LEASES_AT_ONCE = 10_000

logger = logging.getLogger("tidegate.consumer")


class Prefetcher:
    """Messages of a group for one program; any number of its tasks may take them and say they are done.

    One background task fetches, another acknowledges and extends. A server that is away is waited for. What
    cannot be made up for ends it, and is raised by `check`.
    """

    def __init__(self, transport: Transport, path: str, asking: ConsumerOptions) -> None:
        self._transport = transport
        self._path = path
        self._asking = asking
        self._clock = transport.retrying.clock
        self._leases = LeaseTracker(asking.lease_ms / 1000, asking.limit, asking.ahead)
        self._ready, self._room, self._due = WakeSignal(), WakeSignal(), WakeSignal()
        self._fetcher: BackgroundTask | None = None
        self._keeper: BackgroundTask | None = None
        self._failure: Exception | None = None
        self._is_stopped = False
        self._is_closing = False
        self._given = 0
        self.missed: dict[int, int] = {}

    async def open(self) -> None:
        """Ask for the first message: this fixes where a new group begins, and raises what is wrong."""
        request = post(f"{self._path}/consume", self._asking.question(1, 0), repeatable=True)
        reply = await self._transport.send(request)
        self._took(decoded(reply.content, request.path))
        self._transport.standing.add(self)
        self._keeper = BackgroundTask(self._keep, f"tidegate-keep-{self._asking.group}")

    def follow(self) -> None:
        """Begin to fetch ahead."""
        if self._fetcher is None and not self._is_stopped:
            self._fetcher = BackgroundTask(self._fetch, f"tidegate-fetch-{self._asking.group}")

    def is_stopped(self) -> bool:
        """Return whether no more messages are given."""
        return self._is_stopped

    def stop(self) -> None:
        """Give no more messages; what is in work may be ended. Threads and signal handlers may call it."""
        self._is_stopped = True
        for bell in (self._ready, self._room):
            bell.ring()

    def check(self) -> None:
        """Raise what ended it, if it was not `stop`."""
        if self._failure is not None:
            raise self._failure

    async def next(self) -> Message | None:
        """Return the next message, waiting for it; None when it is over."""
        if self._is_stopped:
            return None
        message = self._leases.take(self._now()) or await self._awaited()
        if self._leases.missing():
            self._room.ring()
        self._given += 1
        if self._given % TURN_MESSAGES == 0:
            await sleep(0)
        return message

    def done(self, leases: list[str]) -> None:
        """Acknowledge soon, together with others."""
        if self._leases.done(leases, self._now()):
            self._due.ring()

    async def acknowledge(self, leases: list[str]) -> None:
        """Acknowledge now, and raise LeaseLost for what was not held any more."""
        self._leases.dropped(leases)
        for part in _parts(leases):
            await self._transport.send(self._post("ack", {"leases": part}))

    async def settle(self, leases: list[str]) -> None:
        """Acknowledge what is done of these, and wait until the server has it, however long that takes."""
        self._leases.done(leases, self._now())
        try:
            await self._acknowledge_done(self.is_stopped, at_once=True)
        except TidegateError:
            if not self._is_stopped:
                raise
            logger.debug("stopped while the server is away: the end tries to acknowledge once more")

    async def failed(self, message: Message, problem: BaseException) -> str:
        """Return a message back that failed, with the reason, and say what becomes of it."""
        body = nack_body(problem, message, self._asking.retry)
        held = self._leases.dropped(body["leases"])
        told = await self._tried("nack", body) if held else None
        return what_next(message, body, told)

    async def give_back(self, body: Mapping[str, Any]) -> None:
        """Nack leases; what cannot be told now is told by their end."""
        held = self._leases.dropped(body["leases"])
        for part in _parts(held):
            await self._tried("nack", {**body, "leases": part})

    async def release_waiting(self) -> None:
        """Give back what waits for its turn, as if it had never been taken."""
        await self._release(self._leases.waiting())

    async def page(self, limit: int) -> ArrowPage | None:
        """Return the next messages as a table, waiting for the first; None when it is over."""
        while not self._is_stopped:
            began = self._now()
            content = await self._ask(limit, ARROW_STREAM)
            if content is None:
                break
            page = page_of(content)
            self._told(page.missed)
            if page.table.num_rows:
                self._leases.hold(page.table.column("lease").to_pylist(), self._now())
                self._due.ring()
                return page
            await self._breathe(began)
        return None

    async def close(self) -> None:
        """Stop, acknowledge what is done, and give back everything else at once."""
        self.stop()
        if self._fetcher is not None:
            await self._fetcher.join()
        self._is_closing = True
        self._due.ring()
        if self._keeper is not None:
            await self._keeper.join()
        for part in _parts(self._leases.to_acknowledge(self._now(), at_once=True)):
            await self._tried("ack", {"leases": part})
        await self._release(self._leases.rest())
        self._transport.standing.discard(self)

    async def _awaited(self) -> Message | None:
        self._leases.want(1)
        message = None
        try:
            while not self._is_stopped:
                message = self._leases.take(self._now())
                if message is not None:
                    break
                self._room.ring()
                await self._ready.wait()
        finally:
            # One ring may have been meant for several.
            if self._leases.want(-1):
                self._ready.ring()
        return message

    async def _fetch(self) -> None:
        try:
            while not self._is_stopped:
                count = self._leases.missing()
                if not count:
                    await self._room.wait()
                    continue
                began = self._now()
                content = await self._ask(count, JSON)
                if content is not None and not self._took(decoded(content, self._path)):
                    await self._breathe(began)
        except Exception as problem:  # noqa: BLE001 - `check` raises it
            self._fail(problem, is_expected=False)
        # What is in work may take its time; others need not wait for what was not begun.
        await self.release_waiting()

    def _took(self, page: MessagePage) -> bool:
        self._told(page.get("missed"))
        if page["messages"]:
            self._leases.took(page["messages"], self._now())
            self._ready.ring()
            self._due.ring()
        return bool(page["messages"])

    async def _breathe(self, asked_at: float) -> None:
        """Pause where a question came back empty and too soon."""
        if self._now() - asked_at < self._asking.wait_ms / 2000:
            await self._room.wait(EMPTY_PAUSE_SECONDS)

    def _told(self, missed: Mapping[str, int] | None) -> None:
        for partition, count in (missed or {}).items():
            self.missed[int(partition)] = self.missed.get(int(partition), 0) + count
            logger.warning(
                "group '%s' of %s missed %d messages of partition %s: they were removed before it took them",
                *(self._asking.group, self._path, count, partition),
            )

    async def _ask(self, count: int, accept: str) -> bytes | None:
        """Ask for messages, waiting for the first of them; None when it is over."""
        question = self._asking.question(count, self._asking.wait_ms)
        wait_seconds = self._asking.wait_ms / 1000
        path = f"{API}{self._path}/consume"
        request = Request("POST", path, encoded(question), JSON, accept, None, True, wait_seconds)
        course = EndlessRetryState(self._transport.retrying, request, self.is_stopped)
        try:
            reply = await self._transport.send(request, course, self._room.wait)
        except TidegateError as problem:
            if not self._is_stopped:
                raise
            logger.debug("stopped while the server is away: %s", problem)
            return None
        return reply.content

    async def _keep(self) -> None:
        """Acknowledge and extend when it is time, until the end: what is in work is kept after a stop."""
        try:
            while not self._is_closing:
                await self._due.wait(self._leases.due_in(self._now()))
                await self._acknowledge_done(self._is_over)
                await self._extend()
        except Exception as problem:  # noqa: BLE001 - `check` raises it
            self._fail(problem, is_expected=self._is_closing)

    async def _acknowledge_done(self, is_over: Callable[[], bool], *, at_once: bool = False) -> None:
        leases = self._leases.to_acknowledge(self._now(), at_once=at_once)
        try:
            while leases:
                await self._tell("ack", {"leases": leases[:LEASES_AT_ONCE]}, is_over)
                leases = leases[LEASES_AT_ONCE:]
        except BaseException:
            self._leases.put_back(leases, self._now())
            raise

    async def _extend(self) -> None:
        now = self._now()
        for part in _parts(self._leases.to_extend(now)):
            body = {"leases": part, "leaseMs": self._asking.lease_ms}
            lost = await self._tell("extend", body, self._is_over)
            self._leases.extended(set(part).difference(lost), now)
            for lease in self._leases.lost(lost):
                logger.warning("the lease %s of a message in work is lost: others may work on it too", lease)

    async def _tell(self, verb: str, body: dict[str, Any], is_over: Callable[[], bool]) -> list[str]:
        """Tell the server however long it takes; give the leases that were not held any more."""
        request = self._post(verb, body)
        course = EndlessRetryState(self._transport.retrying, request, is_over)
        try:
            await self._transport.send(request, course, self._due.wait)
        except LeaseLost as problem:
            return self._lost(verb, problem, course)
        return []

    async def _tried(self, verb: str, body: dict[str, Any]) -> Mapping[str, Any] | TidegateError:
        """Tell the server, or give up after the usual time: leases run out by themselves."""
        request = self._post(verb, body)
        course = self._transport.course_of(request)
        count = len(body["leases"])
        try:
            reply = await self._transport.send(request, course)
        except LeaseLost as problem:
            self._lost(verb, problem, course)
            return problem
        except NotFound as problem:
            # The topic or the group was deleted, and its leases with it.
            logger.warning("%d messages are held no more, there is nothing to %s: %s", count, verb, problem)
            return problem
        except TidegateError as problem:
            logger.warning(
                "%s of %d messages failed, they come again when their leases end: %s", verb, count, problem
            )
            return problem
        answer: Mapping[str, Any] = decoded(reply.content, request.path)
        return answer

    def _lost(self, verb: str, problem: LeaseLost, course: RetryState) -> list[str]:
        leases = [str(lease) for lease in problem.values.get("leases", ())]
        # Where an answer was lost, the first attempt may have done it, and the second finds nothing to do.
        if verb == "ack" and not course.may_have_arrived:
            logger.warning("%d messages were done after their leases ended: they come again", len(leases))
        return leases

    async def _release(self, leases: list[str]) -> None:
        for part in _parts(leases):
            await self._tried("nack", {"leases": part, "release": True})

    def _post(self, verb: str, body: dict[str, Any]) -> Request:
        return post(f"{self._path}/{verb}", {**self._asking.member_of(), **body}, repeatable=True)

    def _fail(self, problem: Exception, *, is_expected: bool) -> None:
        if is_expected and isinstance(problem, TidegateError):
            logger.debug("ended while the server did not answer: %s", problem)
            return
        self._failure = noted(problem) if isinstance(problem, TidegateError) else problem
        self.stop()

    def _is_over(self) -> bool:
        return self._is_closing

    def _now(self) -> float:
        return self._clock.monotonic_seconds()


def _parts(leases: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(leases), LEASES_AT_ONCE):
        yield leases[start : start + LEASES_AT_ONCE]
